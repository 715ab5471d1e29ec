"""FedAvg here and elsewhere: `python -m tests.bench.peers [--quick] [--problem cnn] [--data-dir data] [--out FOLDER]`.

The same work in each: MNIST's 60,000 training images among 10 clients alike, 20 SGD steps of batch 32 at each client a
round, all clients in every round, from the same first parameters; softmax regression, or the small CNN. Compared are
this package, loops by hand that stack the clients' models or take them one after the other, this package's kernel alone
between two collectives (softmax regression), FedJAX and pfl-research, each as its documentation runs it, in one process
(jit: one device) and on both cores. FedJAX and pfl-research get an environment each, made here with `python -m venv`
and pip, in --environments or a folder that is deleted; one that cannot be installed gets a row that says why. The
others run in this environment.

All take turns, every other turn backwards. A variant's seconds are those of its median round, without the first two;
start is what the whole command takes beyond as many such rounds as it has: imports, data, compiling, the evaluation at
the end. The table has the median over turns, and of the ratios to this package's one process in the same turn. A test
accuracy farther than TOLERANCE points from this package's ends the comparison: then the work was not the same.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.bench.peers.work import Plan, Work
from tests.bench.tables import processor
from tests.conftest import ROOT
from zofl_mpi.engine import device
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.run import records
from zofl_mpi.run.command import build, plan
from zofl_mpi.run.command.family import family_of

FAMILY = "zofl_mpi.zo_hfl"
TOLERANCE = {"softmax": 1.0, "cnn": 4.0}
"""Points of test accuracy. Each program draws mini-batches of its own, and after five rounds the CNN still learns fast:
from the same first parameters four programs ended within 2.0 points, after which the 4.0 were chosen (2.0 before)."""
PINS = {
    "FedJAX": (
        "fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 chex==0.1.86 optax==0.2.3 ml-dtypes==0.4.1 "
        "numpy==1.26.4 scipy==1.13.1"
    ),
    "pfl": "pfl[pytorch]==0.6.0 torch==2.13.0 numpy==2.4.6",
}
CORES = len(os.sched_getaffinity(0))
HERE = "zofl_mpi, 1 process"
Row = dict[str, str | float]


@dataclass
class Variant:
    """A way to do the work: a program, and what it has taken so far.

    Attributes:
        program: words after `python`; {work} and {out} stand for its files. Empty: this package.
        peer: whose environment it needs; "": this one.
        ranks: under mpirun; 1 is without it.
        rounds, starts, accuracies: {turn: seconds, seconds, percent}, of the turns that did not fail.
    """

    program: str = ""
    peer: str = ""
    ranks: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    rounds: dict[int, float] = field(default_factory=dict)
    starts: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)


def variants(problem: str = "softmax") -> dict[str, Variant]:
    """All, by the names of the table."""
    torchrun = f"-m torch.distributed.run --standalone --nproc_per_node {CORES} -m"
    one, devices = {"OMP_NUM_THREADS": "1"}, {"XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}"}
    bare = {f"bare kernel, {CORES} client ranks": Variant("-m tests.bench.peers.bare {work} {out}", ranks=CORES + 1)}
    return {
        HERE: Variant(),
        f"zofl_mpi, {CORES} client ranks": Variant(ranks=CORES + 1),
        **(bare if problem == "softmax" else {}),
        "plain torch loop, 1 thread": Variant("-m tests.bench.peers.stacked {work} {out} plain", environment=one),
        f"plain torch loop, {CORES} threads": Variant("-m tests.bench.peers.stacked {work} {out} plain"),
        "stacked torch loop, 1 thread": Variant("-m tests.bench.peers.stacked {work} {out}", environment=one),
        f"stacked torch loop, {CORES} threads": Variant("-m tests.bench.peers.stacked {work} {out}"),
        "FedJAX, jit": Variant("-m tests.bench.peers.with_fedjax {work} {out} jit", "FedJAX"),
        f"FedJAX, pmap, {CORES} devices": Variant(
            "-m tests.bench.peers.with_fedjax {work} {out} pmap", "FedJAX", environment=devices
        ),
        "pfl, 1 process": Variant("-m tests.bench.peers.with_pfl {work} {out}", "pfl"),
        f"pfl, {CORES} processes": Variant(f"{torchrun} tests.bench.peers.with_pfl {{work}} {{out}}", "pfl"),
    }


def installed(peer: str, folder: Path) -> str:
    """Makes a peer's environment in folder/peer; "" or pip's last line, where that fails."""
    place = folder / peer
    venv.create(place, with_pip=True)
    command = [place / "bin/python", "-m", "pip", "install", "--quiet", *PINS[peer].split()]
    done = subprocess.run(command, capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    return " ".join(told[-1:]) or "pip failed" if done.returncode else ""


def words_of(todo: Plan, data: str, data_dir: str) -> list[str]:
    """This package's flags for the work."""
    flags = f"--method fedavg --problem {todo.problem} --data {data} --m 10 --alpha inf --server-fraction 0.001"
    flags += f" --tau {todo.steps} --schedule-h constant --batch {todo.batch} --gamma-local {todo.step} --quiet --force"
    flags += f" --schedule-local constant --rounds {todo.rounds} --eval-every {todo.rounds} --checkpoint-every 0"
    flags += " --kernel numba" if todo.problem == "softmax" else ""  # what auto takes in longer runs
    flags += " --split official" if data == "mnist" else ""
    return [*flags.split(), "--seed", str(todo.seed), "--data-dir", data_dir]


def shared_work(todo: Plan, words: Sequence[str]) -> Work:
    """The data as this package divides them."""
    family = family_of(FAMILY)
    setting = build.build_setting(SingleProcess(), family, plan.parse_plan(family, words), device.select("cpu"))
    parts = [each.take(np.arange(len(each)), np.float32) for each in (*setting.data, setting.test)]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Work(todo, setting.first_model(), x, y, np.cumsum([len(labels) for _, labels in parts[:-1]]), *parts[-1])


def run(variant: Variant, turn: int, words: Sequence[str], todo: Plan, folder: Path, environments: Path) -> str:
    """One turn of a variant; "" or why it failed."""
    python = str(environments / variant.peer / "bin/python") if variant.peer else sys.executable
    out = folder / ("out.json" if variant.program else "run.h5")
    program = variant.program.format(work=folder / "work.npz", out=out).split()
    launcher = ["mpirun", "-n", str(variant.ranks)] if variant.ranks > 1 else []
    command = [*launcher, python, *(program or ["-m", FAMILY, *words, "--out", str(out)])]
    bare = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    out.unlink(missing_ok=True)
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=bare | variant.environment, capture_output=True, text=True)
    taken = time.perf_counter() - begin
    if done.returncode or not out.exists():
        told = [line for line in done.stderr.splitlines() if re.match(r"\S*(Error|error|ERROR)", line)]
        return (told or [f"exit status {done.returncode}"])[0]
    if variant.program:
        told = json.loads(out.read_text())
        seconds, accuracy = told["seconds"], told["accuracy"]
    else:
        table = records.load(out).table()
        seconds, accuracy = table["seconds"].tolist(), float(table["test_accuracy"].iloc[-1])
    assert len(seconds) == todo.rounds
    variant.rounds[turn] = statistics.median(seconds[2:])
    variant.starts[turn] = taken - todo.rounds * variant.rounds[turn]
    variant.accuracies[turn] = 100 * accuracy
    return ""


def rows(found: dict[str, Variant], why: dict[str, str]) -> list[Row]:
    """A row a variant: ms a round, in the median over turns and at least, its ratio to `HERE`, start, accuracy."""
    table: list[Row] = []
    for name, of in found.items():
        row: Row = {"variant": name, "turns": len(of.rounds), "why_not": why.get(name, "")}
        if of.rounds:
            ratios = [seconds / found[HERE].rounds[turn] for turn, seconds in of.rounds.items()]
            row |= {"ms": 1e3 * statistics.median(of.rounds.values()), "ms_least": 1e3 * min(of.rounds.values())}
            row |= {"ratio": statistics.median(ratios), "ratio_least": min(ratios), "ratio_most": max(ratios)}
            row |= {"start_s": statistics.median(of.starts.values())}
            row |= {"accuracy_percent": statistics.mean(of.accuracies.values())}
        table.append(row)
    return table


COLUMNS = ["variant", "ms", "ms_least", "ratio", "ratio_least", "ratio_most", "start_s", "accuracy_percent", "turns"]
COLUMNS += ["why_not"]


def text_of(table: Sequence[Row], head: Sequence[str]) -> str:
    """The table for readers."""
    lines = [*head, "", f"{'variant':30}  {'ms a round':>10}  {'least':>8}  {'ratio':>6}  "]
    lines[-1] += f"{'(range)':>13}  {'start s':>7}  {'accuracy %':>10}"
    for row in table:
        start = f"{row['variant']:30}  "
        if "ms" not in row:
            lines.append(f"{start}not run: {row['why_not']}")
            continue
        between = f"({row['ratio_least']:.2f}-{row['ratio_most']:.2f})"
        lines.append(f"{start}{row['ms']:10.2f}  {row['ms_least']:8.2f}  {row['ratio']:6.2f}  {between:>13}  ")
        lines[-1] += f"{row['start_s']:7.1f}  {row['accuracy_percent']:10.2f}"
    return "\n".join(lines) + "\n"


def compare(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measures all variants in turn, and returns the rows of the table."""
    problem, rounds = options.problem, options.rounds or {"softmax": 40, "cnn": 5}[options.problem]
    todo = Plan(problem, rounds, steps=20, batch=32, step=0.1)
    words, found, why = words_of(todo, options.data, options.data_dir), variants(problem), dict[str, str]()
    if options.only:
        found = {name: of for name, of in found.items() if name == HERE or any(word in name for word in options.only)}
    shared_work(todo, words).save(folder / "work.npz")
    missing = set()
    for peer in {of.peer for of in found.values() if of.peer}:
        if told := installed(peer, options.environments):
            missing.add(peer)
            why |= {name: told for name, of in found.items() if of.peer == peer}
    for turn in range(1 if options.quick else options.turns):
        for name, of in list(found.items())[:: -1 if turn % 2 else 1]:
            if of.peer not in missing:
                why[name] = run(of, turn, words, todo, folder, options.environments)
            told = why[name] or f"{1e3 * of.rounds[turn]:.2f} ms"
            print(problem, turn, name, told, f"load {os.getloadavg()[0]:.1f}", flush=True)
            if name == HERE and why[name]:
                sys.exit(why[name])
    table = rows(found, why)
    accuracies = {row["variant"]: row["accuracy_percent"] for row in table if "ms" in row}
    if different(accuracies, TOLERANCE[problem]):
        sys.exit(f"not the same work: test accuracies of {accuracies}, more than {TOLERANCE[problem]} points apart")
    return table


def different(accuracies: dict[str, float], tolerance: float) -> bool:
    """Whether one is farther than the tolerance from this package's; NaN is."""
    return not all(abs(value - accuracies[HERE]) <= tolerance for value in accuracies.values())


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0, help="(default: 40, of the CNN 5)")
    parser.add_argument("--problem", choices=["softmax", "cnn"], default="softmax")
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument(
        "--environments", type=Path, help="folder of the peers' environments, kept (default: a new one)"
    )
    parser.add_argument("--only", nargs="+", help="variants whose name has one of these words, beside this package")
    parser.add_argument("--out", type=Path, help="folder for peers.csv and .txt, or peers_cnn")
    options = parser.parse_args(words)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        options.environments = (options.environments or Path(name) / "environments").absolute()
        table = compare(options, Path(name))
    import torch

    head = [
        f"{datetime.date.today()}; {processor()}, {CORES} cores; load (1 is a busy core) {before:.1f} at the start, "
        f"{os.getloadavg()[0]:.1f} at the end",
        f"Python {platform.python_version()}; here and the loop: numpy {np.__version__} torch {torch.__version__}",
        *(f"{peer}: {pins}" for peer, pins in PINS.items()),
    ]
    print(text := text_of(table, head))
    if options.out:
        kept = options.out / ("peers" if options.problem == "softmax" else "peers_cnn")
        kept.with_suffix(".txt").write_text(text)
        with kept.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
