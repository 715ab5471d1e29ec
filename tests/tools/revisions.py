"""Compares a revision with the checkout that this file lies in: the same commands, results bit for bit, texts by line.

    python -m tests.tools.revisions BEFORE
    python -m tests.tools.revisions BEFORE --keep FOLDER        keeps the results; BEFORE's serve again the next time
    python -m tests.tools.revisions BEFORE --only fedrzo --no-help  a part of the commands

Every method and every problem runs for a few rounds in float32 and float64, in one process and on three ranks. Runs
whose clients remember something are also stopped by SIGUSR1 in BEFORE, and AFTER continues them from BEFORE's
checkpoint, which must give the bits of BEFORE's run that was never stopped. Told apart are

- numbers: /final, /rounds without clocks, /clients, /partition, the steps, the names of all data sets, exit statuses;
- attributes: the configuration, kernel and data of a result, unit and description of its columns;
- texts: --help, --dry-run, the list of a grid, refusals, by the hunks of a unified diff (--no-help).

Exit status 0: all is equal; 1: something differs, or a run fails; 2: there is no such revision. Kept results are of one
machine: on another processor the same revision may round differently.
"""

import argparse
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py  # results are read by h5py alone: both revisions' packages have one name
import numpy as np

from tests import conftest
from tests.conftest import ROOT

RANKS = {"alone": 0, "ranks": 3}  # {folder: ranks of its runs}; 0 is without mpirun
PATIENCE = 300.0  # seconds in which at least one command has to end
VOLATILE = {"run", "git_commit", "git_dirty", "started", "ended", "sessions", "seconds_start"}
"""Attributes that differ from run to run."""

# --- the commands

DATA, KNOWN, IMAGES = "--data digits --m 5 --alpha 0.5", "--m 5 --noise 1", "--data images.npz --m 3 --batch 32"
A, B = "--x0 random --beta 0.6 --tau 2 --batch 8", "--x0 random --batch 8"
ZO, NN = f"{A} --gamma 0.5 --eta 0.07", f"{B} --H 2 --eta 0.03 --gamma 0.01"
BL = "--x0 random --H 2 --eta 0.03 --gamma 0.03 --T-lower 5 --H-lower 2 --batch-lower 4"
RESNET = "--problem split_resnet --width 2 --stages 1 1"
C = f"{DATA} {RESNET} --batch 16 --h 3 --beta 0.6 --lr-client 0.02 --lr-server 0.01"
LM = "--problem split_lm --model own --data own/texts.jsonl --m 3 --batch 4 --h 2 --beta 0.6 --lr-client 0.02"
PRIVATE = "--noise-multiplier 1 --participation poisson"
# Steps are larger and radii less round than is usual, so that the last bits of an estimate reach the model.
RUNS = f"""
zo_hfl zo_hfl {ZO} {DATA}
zo_hfl zo_hfl-last* {ZO} {DATA} --y0 last
zo_hfl zo_hfl-solutions {ZO} {DATA} --exchange solutions
zo_hfl zo_hfl-many* {ZO} {DATA} --m 40 --min-samples 1 --y0 last
zo_hfl zo_hfl-options {ZO} {DATA} --samples separate --radius 0.1 9 9 9 9 --divide participants --mu 1 2 3 4 5
zo_hfl zo_hfl-robust {ZO} {DATA} --beta 1 --aggregate trimmed:0.3 --attackers 0.3
zo_hfl zo_hfl-data {ZO} {DATA} --pixels standardize --partition by_mix --schedule harmonic:3 --schedule-local sqrt
zo_hfl zo_hfl-synthetic {ZO} --data synthetic --synthetic-samples 600 --kernel numpy
zo_hfl zo_hfl-features {ZO} {DATA} --problem features
zo_hfl zo_hfl-mlp {ZO} {DATA} --problem mlp --hidden 8
zo_hfl zo_hfl-cnn {ZO} --problem cnn {IMAGES} --gamma 0.1
zo_hfl zo_hfl-toy {ZO} --problem toy {KNOWN}
zo_hfl zo_hfl-corner {ZO} --problem corner --m 5
zo_hfl fedavg --method fedavg {A} {DATA} --eta-g 0.9 --weights uniform
zo_hfl fedavg-features --method fedavg {A} {DATA} --problem features
zo_hfl fedavg-cnn --method fedavg {A} --problem cnn {IMAGES}
zo_hfl fedavg-torch --method fedavg {A} {DATA} --problem mlp --hidden 8 --features pca:12 --kernel torch
zo_hfl fedavg-rule* --method fedavg {A} {DATA} --server-rule adam --eta-g 0.05
zo_hfl fedavg-robust --method fedavg {A} {DATA} --beta 1 --aggregate median --attackers 0.3 --attack noise
zo_hfl fedavg-compressed* --method fedavg {A} {DATA} --compress quantise:3
zo_hfl scaffold-compressed* --method scaffold {A} {DATA} --compress topk:0.1
zo_hfl fedavg-toy --method fedavg {A} --problem toy {KNOWN} --gamma 0.1
zo_hfl fedavg-lean --method fedavg {A} --problem cnn {IMAGES} --client-memory checkpoint
zo_hfl fedprox --method fedprox {A} {DATA}
zo_hfl ditto --method ditto {A} {DATA}
zo_hfl pfedme --method pfedme {A} {DATA} --tau 2
zo_hfl fedprox-mlp --method fedprox {A} {DATA} --problem mlp --hidden 8
zo_hfl scaffold* --method scaffold {A} {DATA}
zo_hfl scaffold-robust* --method scaffold {A} {DATA} --aggregate clip:0.3 --attackers 0.3 --attack scale
zo_hfl scaffold-I --method scaffold {A} --option I --problem toy {KNOWN}
zo_hfl zo_hfl-private* {ZO} {DATA} --clip 0.1 {PRIVATE} --y0 last
zo_hfl fedavg-private --method fedavg {A} {DATA} --weights uniform --clip 0.3 {PRIVATE}
zo_hfl scaffold-private* --method scaffold {A} {DATA} --weights uniform --clip 0.3 {PRIVATE} --mechanism laplace
zo_hfl server_sgd --method server_sgd --x0 random --gamma 0.5 {DATA}
zo_hfl server_sgd-toy --method server_sgd --x0 random --gamma 0.5 --problem toy {KNOWN}
fedrzo fedrzo_nn* {B} --eta 0.03 {DATA} --n-p 2 --x-set ball:2 --K 2000 --probe 3
fedrzo fedrzo_nn-mlp {NN} {DATA} --problem mlp --hidden 8
fedrzo fedrzo_nn-cnn {NN} --problem cnn {IMAGES}
fedrzo fedrzo_nn-private* {NN} {DATA} --clip 0.1 {PRIVATE}
fedrzo fedrzo_nn-bowls {NN} --problem bowls {KNOWN} --estimate central --beta 0.6 --x-set box:-1:1 ball:2 ball:3 all all
fedrzo fedrzo_nn-max_affine {NN} --problem max_affine {KNOWN} --weights size --schedule sqrt --probe 3
fedrzo fedrzo_bl* --method fedrzo_bl {BL} {DATA} --mu 0.06
fedrzo fedrzo_bl-exact --method fedrzo_bl --x0 random --H 2 --eta 0.03 {DATA} --gamma 0.002 --mu 0.06 --lower exact \
  --exact
fedrzo fedrzo_bl-fedac1 --method fedrzo_bl {BL} {DATA} --problem fair --gamma 1e-4 --lower fedac1 --exact --probe 3
fedrzo fedrzo_bl-simplex --method fedrzo_bl {BL} {DATA} --problem fair --y-set simplex
fedrzo fedrzo_bl-softmax --method fedrzo_bl {BL} {DATA} --problem fair_softmax --gamma 3e-4
fedrzo fedrzo_bl-fedac2 --method fedrzo_bl {BL} --problem bilevel_bowls {KNOWN} --lower fedac2 --exact
fedrzo fedrzo_bl-lfd --method fedrzo_bl {BL} --problem bilevel_bowls {KNOWN} --lower lfd
fedrzo fednest* --method fednest --gamma 0.03 --H-lower 2 --batch-lower 4 --T 2 --N 3
fedrzo fednest-saddle --method fednest --problem saddle {KNOWN} --series random --exact
fedrzo fedrzo_bl-coupled --method fedrzo_bl {BL} --problem coupled --y0 fixed --exact
fedrzo fedavg --method fedavg {B} {DATA}
fedrzo fedavg-mlp --method fedavg {B} {DATA} --problem mlp --hidden 8
fedrzo fedprox --method fedprox {B} {DATA}
fedrzo fedprox-cnn --method fedprox {B} --problem cnn {IMAGES}
fedrzo fedmspp* --method fedmspp {B} {DATA}
fedrzo fedmspp-bowls --method fedmspp {B} --problem bowls {KNOWN}
fedrzo scaffnew* --method scaffnew {B} {DATA}
fedrzo scaffnew-mlp --method scaffnew {B} {DATA} --problem mlp --hidden 8
fedrzo scaffnew-bowls --method scaffnew {B} --problem bowls {KNOWN}
heron_sfl heron* {C} --k 2 --n-p 2 --mu 0.013 --augment crop-flip
heron_sfl heron-seeds* {C} --k 2 --n-p 2 --mu 0.013 --augment crop-flip --uplink seeds
heron_sfl heron-central* {C} --estimate central --distribution gaussian --batchnorm every_pass --head pooled
heron_sfl heron-head* {C} --probe-gradient --k 2 --n-p 2 --mu 0.013 --head-gradient exact --uplink seeds
heron_sfl heron-signs* {C} --n-p 2 --mu 0.013 --directions per-sample --norm group
heron_sfl heron-jvp* {C} --estimate jvp --n-p 2 --uplink seeds
heron_sfl heron-jvp-head* {C} --estimate jvp --n-p 2 --head-gradient exact
heron_sfl heron-exact* {C} --head-gradient exact --exact-layers 2 --mu 0.013 --uplink seeds
heron_sfl ho_sfl-exact* {C} --method ho_sfl --exact-layers 2 --rest frozen
heron_sfl heron-average* {C} --state average --freeze auxiliary --weights uniform
heron_sfl heron-own* {C} --client-parts own --shift invert blur --trainable first --mu 0.013
heron_sfl sflv1* {C} --method sflv1
heron_sfl sflv1-momentum* {C} --method sflv1 --optimiser sgd --momentum 0.5 --lr-client 0.1 --weight-decay 0.01
heron_sfl sflv2* {C} --method sflv2 --order client_major
heron_sfl cse_fsl* {C} --method cse_fsl --k 3
heron_sfl cse_fsl-lean {C} --method cse_fsl --norm group --client-memory accumulate:3
heron_sfl sflv2-lean {C} --method sflv2 --client-memory checkpoint
heron_sfl ho_sfl* {C} --method ho_sfl --n-p 2 --mu 0.013 --augment crop-flip
heron_sfl ho_sfl-seeds* {C} --method ho_sfl --estimate central --mu 0.013 --uplink seeds
heron_sfl ho_sfl-signs* {C} --method ho_sfl --n-p 2 --mu 0.013 --directions per-sample --norm group --probe-gradient
heron_sfl ho_sfl-seeds-exact* {C} --method ho_sfl --exact-layers 1 --mu 0.013 --uplink seeds
heron_sfl decomfl* {C} --method decomfl --n-p 2 --mu 0.013 --augment crop-flip
heron_sfl decomfl-central* {C} --method decomfl --n-p 1 --estimate central --batchnorm running --momentum 0.5
heron_sfl hiso-private* {C} --method hiso --norm group --n-p 2 --clip 1 --noise-multiplier 1 --trust nobody
heron_sfl decomfl-robust* {C} --method decomfl --n-p 2 --mu 0.013 --beta 1 --aggregate median --attackers 0.3
heron_sfl hiso* {C} --method hiso --n-p 1 --h 2 --mu 0.013
heron_sfl fedkseed* {C} --method fedkseed --seeds 30 --mu 0.013 --seed-weights magnitude
heron_sfl splitlora* {C} --method splitlora --warmup 2
heron_sfl fsl_sage* {C} --method fsl_sage --k 2 --l 2 --align-epochs 2 --buffer 40
heron_sfl heron-lm* {LM} --n-p 2 --mu 0.013 --uplink seeds --partition natural
heron_sfl splitlora-lm {LM} --method splitlora --lora-targets q_proj down_proj --bf16
heron_sfl cse_fsl-lm {LM} --method cse_fsl --train norm --auxiliary-blocks 0 --data own/choices.jsonl
heron_sfl sflv2-lm {LM} --method sflv2 --train all --client-memory checkpoint
heron_sfl decomfl-lm* {LM} --method decomfl --n-p 2 --mu 0.013 --train all
heron_sfl hiso-lm {LM} --method hiso --n-p 1 --mu 0.013 --data own/choices.jsonl
heron_sfl fedkseed-lm* {LM} --method fedkseed --seeds 30 --mu 0.013 --distribution rademacher
"""
"""Family, name (with a star: BEFORE also stops it, and AFTER continues it), flags."""
TEXTS = {
    "run.grid": ["--help", "{tree}/jobs/a_fig2.toml", "{tree}/jobs/b_methods.toml", "missing.toml"],
    "data.download": ["--help"],
    "data.cache": ["--help"],
    "doctor": ["--help"],
    "zo_hfl": ["--method newton", "--lamda 1", "--method fedavg --problem corner", "--rounds 0", "--resume missing.h5"],
    "fedrzo": ["--method fedrzo_nn --problem fair", "--x-set sphere:1", "--eta 0", "--problem mine:Class"],
    "heron_sfl": ["--uplink both", "--lr-client nan", "--method heron --problem softmax"],
}
"""{module: flags of commands that print a text and end}, besides --help and --dry-run of the families."""


@dataclass(frozen=True)
class Job:
    """A command, python -m zofl_mpi.MODULE FLAGS; with `stop` it ends by SIGUSR1 at its first checkpoint."""

    name: str
    module: str
    flags: list[str]
    stop: bool = False


def table() -> Iterator[tuple[str, str, bool, list[str]]]:
    """Family, name, whether it is also stopped, flags."""
    for family, name, *flags in filter(None, map(str.split, RUNS.splitlines())):
        yield family, f"{family}.{name.rstrip('*')}", name.endswith("*"), flags


def runs() -> Iterator[Job]:
    """Whole runs, and runs that are stopped."""
    for family, name, stopped, flags in table():
        for dtype in ("float32", "float64"):
            whole, usual = f"{name}.{dtype}", f"--device cpu --dtype {dtype} --quiet --rounds 5 --eval-every 2".split()
            yield Job(whole, family, [*usual, *flags, "--out", f"{whole}.h5"])
            if stopped:
                words = [*usual, *flags, "--out", f"stopped.{whole}.h5", "--checkpoint-every", "2"]
                yield Job(f"stopped.{whole}", family, words, stop=True)


def texts() -> Iterator[Job]:
    """Commands that print a text and end."""
    helps = {}
    for family, name, _, flags in table():
        yield Job(f"{name}.dry-run", family, [*flags, "--dry-run"])
        which = [word for pair in pairwise(flags) if pair[0] in ("--method", "--problem") for word in pair]
        helps[".".join([family, *which[1::2], "help"])] = family, [*which, "--help"]
    yield from (Job(name, *command) for name, command in helps.items())
    for module, commands in TEXTS.items():
        yield from (Job(f"{module}.{k}.text", module, words.split()) for k, words in enumerate(commands))


def commands(only: str = "", texts_too: bool = True) -> dict[str, list[Job]]:
    """{folder: its commands} with that word in their name."""
    all_of = dict.fromkeys(RANKS, runs) | ({"texts": texts} if texts_too else {})
    return {place: [job for job in jobs() if only in job.name] for place, jobs in all_of.items()}


# --- running them

DRIVER = """
import contextlib, importlib.util, json, os, runpy, signal, sys, warnings

found, tree = importlib.util.find_spec("zofl_mpi").origin, sys.argv[1]
assert found.startswith(tree + os.sep), f"zofl_mpi would come from {found}, not from {tree}"
first = all(os.environ.get(name, "0") == "0" for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"))
stop = False

def heard(event, arguments):
    if stop and event == "os.rename" and str(arguments[1]).endswith(".ckpt.h5"):
        os.kill(os.getpid(), signal.SIGUSR1)

sys.addaudithook(heard)
warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
for job in json.load(open("jobs.json")):
    sys.argv, stop, status = [job["module"], *job["flags"]], job["stop"], 0
    text = open(job["name"] + ".txt", "w", buffering=1) if first else sys.stderr
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            runpy.run_module("zofl_mpi." + job["module"], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
    if first:
        with open("statuses", "a") as file:
            print(job["name"], status, file=file)
"""
"""Several commands in one process a rank: starting Python and mpirun costs more than most of them."""


def environment(tree: Path, folder: Path) -> dict[str, str]:
    """For runs of `tree`: no variables of this process's launcher, a data cache of their own, lines of one width."""
    taken = ("ZOFL_", "GIT_", "OMP_NUM_THREADS")
    found = {name: value for name, value in conftest.environment().items() if not name.startswith(taken)}
    return found | {"PYTHONPATH": str(tree), "ZOFL_CACHE": str(folder / "cache"), "COLUMNS": "100"}


def run(tree: Path, folder: Path, jobs: Sequence[Job], ranks: int) -> None:
    """Runs the jobs in `folder`, one after the other. Where one takes its process with it, the rest get a new one."""
    rest = list(jobs)
    while rest:
        (folder / "jobs.json").write_text(json.dumps([asdict(job) for job in rest]).replace("{tree}", str(tree)))
        launcher = ["mpirun", "-n", str(ranks)] if ranks else []
        how: dict[str, Any] = {"cwd": folder, "env": environment(tree, folder), "stdin": subprocess.DEVNULL}
        with (folder / "said").open("w") as to:
            how |= {"stdout": to, "stderr": to, "start_new_session": True}
            watch(subprocess.Popen([*launcher, sys.executable, "-c", DRIVER, str(tree)], **how), folder)
        rest = [job for job in rest if job.name not in statuses(folder)]
        if rest:
            text = folder / f"{rest[0].name}.txt"
            text.touch()
            told = (text.read_text() or (folder / "said").read_text(errors="replace")).split()
            print(f"{folder.name}/{text.stem} had to be given up: {' '.join(told)[-200:]}", file=sys.stderr)
            with (folder / "statuses").open("a") as file:
                print(rest.pop(0).name, "lost", file=file)


def watch(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits for the end of a process, and ends it if it comes no further."""
    before = -1
    try:
        while process.poll() is None and len(statuses(folder)) > before:
            before = len(statuses(folder))
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun ends its ranks only at the polite one
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    process.wait(5)


def statuses(folder: Path) -> dict[str, str]:
    """{job: exit status, or "lost"} of what has run in a folder."""
    path = folder / "statuses"
    return dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}


def produce(tree: Path, folder: Path, jobs: Mapping[str, Sequence[Job]], before: Path | None = None) -> None:
    """The results of a tree: folder/PLACE/NAME.h5 and .txt; given `before`, what was stopped there is continued."""
    for place, wanted in jobs.items():
        started, todo = time.monotonic(), list(wanted)
        (folder / place).mkdir(parents=True)
        images = np.add.outer(np.arange(200), np.arange(784)) * 7 % 256
        np.savez(folder / place / "images.npz", x=images.astype(np.uint8).reshape(-1, 28, 28), y=np.arange(200) % 10)
        language(folder / place / "own")
        if before:
            for path in (before / place).glob("stopped.*.h5"):
                shutil.copy(path, folder / place)
            todo = [replace(j, flags=resumption(j), stop=False) if j.stop else j for j in wanted]
        run(tree, folder / place, todo, RANKS.get(place, 0))
        for path in (folder / place).glob("*.txt"):
            path.write_text(path.read_text().replace(str(tree), "TREE"))
        print(f"{folder.name[:18]}/{place}: {len(todo)} commands, {time.monotonic() - started:.0f} s", file=sys.stderr)


def resumption(job: Job) -> list[str]:
    """Flags that continue a run that was stopped; a user's own files are named again."""
    own = [word for pair in pairwise(job.flags) if pair[1].startswith("own") for word in pair]
    return ["--resume", f"{job.name}.h5", "--quiet", *own]


def language(folder: Path) -> None:
    """A small model of transformers with a tokeniser, and texts for it, to write and to choose between."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.unit.test_lines import tokenizer

    words, shape = [f"<{k}>" for k in range(37)], {"num_attention_heads": 2, "num_hidden_layers": 4}
    shape |= {"vocab_size": len(words), "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 24}
    config = LlamaConfig(**shape, bos_token_id=5, eos_token_id=5)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(folder, words)
    chance, texts, choices = np.random.default_rng(1), list[dict[str, Any]](), list[dict[str, Any]]()
    for k in range(80):
        context, *completions = (" ".join(chance.choice(words[6:], size)) for size in chance.integers(1, 9, 3))
        texts.append({"context": context, "completion": completions[0], "client": k % 3})
        choices.append({"context": context, "completions": completions, "label": k % 2})
    for name, lines in (("texts", texts), ("choices", choices)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))


def kept(revision: str, folder: Path, jobs: Mapping[str, Sequence[Job]]) -> Path:
    """The results of a revision: those that lie in `folder`, if they are of these jobs, else new ones."""
    wanted = json.dumps([DRIVER, *(asdict(job) for some in jobs.values() for job in some)])
    place = folder / f"{revision[:12]}-{zlib.crc32(wanted.encode()):08x}"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with checkout(revision) as tree, tempfile.TemporaryDirectory(dir=folder) as beside:
            produce(tree, Path(beside) / place.name, jobs)
            with suppress(OSError):  # another process made the same meanwhile
                (Path(beside) / place.name).rename(place)
    return place


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The files of a revision, in a worktree that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        git("worktree", "add", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> str:
    """What git says of this checkout's repository."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()


# --- comparing their results


def read(path: Path) -> dict[str, Any]:
    """A result: {name: array} of numbers, clocks and memory by their shapes alone, and {name: text} of attributes."""
    found: dict[str, Any] = {}
    with h5py.File(path, "r", locking=False) as file:
        done = int(file["rounds"].attrs["done"])

        def keep(name: str, item: Any) -> None:
            for key, value in item.attrs.items():
                found[f"{name}, {key}"] = np.asarray(value).astype(str) if key in ("steps", "done") else str(value)
            if isinstance(item, h5py.Dataset):
                value = item[:done] if name.startswith(("rounds/", "clients/", "ranks/")) else np.asarray(item[()])
                clock = name == "rounds/seconds" or name.startswith("ranks/")
                found[name] = np.zeros_like(value) if clock else value.astype(str) if value.dtype == object else value

        file.visititems(keep)
        for name, value in file.attrs.items():
            table = json.loads(value) if name in ("config", "costs") else {"": "" if name in VOLATILE else value}
            found |= {f"{name} {key}".strip(): str(v) for key, v in table.items()}
    return found


def unequal(one: Any, two: Any) -> str | None:
    """How two arrays differ, None if they are equal to the bit; two NaNs of one payload are equal."""
    if one is None or two is None:
        return "gone" if two is None else "new"
    if (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes()):
        return None
    if one.dtype != two.dtype or one.shape != two.shape or one.dtype.kind not in "iuf":
        return f"{one.dtype}{one.shape} and {two.dtype}{two.shape}"
    return f"by {np.abs(np.nan_to_num(one.astype(float)) - np.nan_to_num(two.astype(float))).max():.1e}"


def compared(job: Job, before: Path, after: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, what differs, how) of the results of a job."""
    ends = [statuses(folder).get(job.name, "none") for folder in (before, after)]
    said = [folder / f"{job.name}.txt" for folder in (before, after)]
    one, two = [[*path.read_text().splitlines(), f"exit status {end}"] for path, end in zip(said, ends, strict=True)]
    if before.name == "texts":
        diff = "\n".join(list(difflib.unified_diff(one, two, n=0, lineterm=""))[2:])
        yield from (("texts", hunk.partition("\n")[2].rstrip(), "") for hunk in diff.split("@@ -")[1:])
    elif ends != ["75" if job.stop else "0", "0"]:
        yield "numbers", f"exit statuses {' and '.join(ends)}: {' '.join(two[-2:-1])[:200]}", ""
    else:
        old, new = read(before / f"{job.name.removeprefix('stopped.')}.h5"), read(after / f"{job.name}.h5")
        for name in sorted(old.keys() | new.keys()):
            a, b = old.get(name), new.get(name)
            if job.stop and name == "ranks/table":  # a continued run has rows of each of its sessions
                continue
            if isinstance(a, str) or isinstance(b, str):
                if a != b and not job.stop:
                    yield "attributes", f"{name}: {a} -> {b}", ""
            elif how := unequal(a, b):
                yield "numbers", name, how


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.revisions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", help="a revision")
    parser.add_argument("--keep", type=Path, help="folder of results: BEFORE's are used again if they lie there")
    parser.add_argument("--only", default="", help="the commands with this word in their name")
    parser.add_argument("--no-help", action="store_true", help="leave out the texts")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes and worktrees do not outlive it
    try:
        revision = git("rev-parse", "--verify", f"{args.before}^{{commit}}")
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip())
    jobs = commands(args.only, texts_too=not args.no_help)
    found: dict[str, dict[str, list[str]]] = {}
    differing: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        before, after = kept(revision, folder, commands() if args.keep else jobs), folder / f"after-{ROOT.name}"
        shutil.rmtree(after, ignore_errors=True)
        produce(ROOT, after, jobs, before)
        for place, job in ((place, job) for place, some in jobs.items() for job in some):
            for kind, what, how in compared(job, before / place, after / place):
                differing[place, job.name] = job.name.rsplit(".", 1)[0]
                found.setdefault(kind, {}).setdefault(what, []).append(f"{place}/{job.name} {how}".strip())
    for kind, rows in found.items():
        print(f"\n{kind}: {len(rows)} differences{', the first 20' if len(rows) > 20 else ''}")
        for what, where in list(rows.items())[:20]:
            print(f"{what}\n    {', '.join(where[:4])}{f' and {len(where) - 4} more' if len(where) > 4 else ''}")
    print("\n" + ", ".join(f"{name} differs in {times}" for name, times in Counter(differing.values()).items()))
    print(f"{sum(map(len, jobs.values())) - len(differing)} runs, continuations and texts are equal")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
