"""Attacks by files, pages, flags and harmed results that somebody else made: how many of each kind hold.

    python -m tests.adversary                  # all kinds; exit status 1 and a line for each attack that does not hold
    python -m tests.adversary page forged      # some kinds
    python -m tests.adversary --every 9        # every ninth attack of each kind

An attack holds if its command ends within 10 s, with status 0 or with a refusal's sentence and status, without a
traceback, and if a file that only the attack names is neither read nor written. Each runs in a process of its own.
"""

import argparse
import contextlib
import importlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

import tests.retyped
from tests.unit.test_messages import changed
from zofl_mpi.engine import messages
from zofl_mpi.methods.zo_hfl import ZOHFLState
from zofl_mpi.run import records
from zofl_mpi.run.records.hdf5 import set_attributes, texts

FAMILY, SECRET, LIMIT = "zofl_mpi.zo_hfl", b"a secret of the reader's own", 10
Plant = Callable[[h5py.File], object]
LARGE = np.iinfo(np.int64).max


class Attack(NamedTuple):
    """What is prepared in a folder that holds a finished run (a.h5, a.ckpt.h5), and the command that meets it."""

    name: str
    prepare: Callable[[], object]
    module: str
    words: list[str]


def in_file(name: str, plant: Plant) -> Callable[[], None]:
    """Prepares a file by changing it."""

    def prepare() -> None:
        with h5py.File(name, "r+") as file:
            plant(file)

    return prepare


def replaced(name: str, shape: Any, dtype: Any, **more: Any) -> Plant:
    """Another data set in the place of one."""

    def plant(file: h5py.File) -> None:
        file.pop(name, None)
        file.create_dataset(name, shape, dtype, **more)

    return plant


def _virtual(name: str) -> Plant:
    """A data set whose numbers are those of another file."""

    def plant(file: h5py.File) -> None:
        del file[name]
        layout = h5py.VirtualLayout((10, 10), "i8")
        layout[:] = h5py.VirtualSource("secret", "x", (10, 10))
        file.create_virtual_dataset(name, layout)

    return plant


def filled(real: float) -> Plant:
    """All numbers of all rounds are this one, or the largest or least integer."""

    def plant(file: h5py.File) -> None:
        for group, (name, data) in ((g, item) for g in ("rounds", "clients", "ranks") for item in file[g].items()):
            if f"{group}/{name}" != "ranks/table":
                data[...] = real if data.dtype.kind == "f" else LARGE if real > 0 else -LARGE

    return plant


def resized(axis: int, size: int, *groups: str) -> Plant:
    """More or fewer rounds, steps, clients or ranks."""

    def plant(file: h5py.File) -> None:
        for group in groups or ("rounds", "clients", "ranks"):
            for name, data in file[group].items():
                if f"{group}/{name}" != "ranks/table" and data.ndim > axis:
                    data.resize(size, axis)
            if axis == 1:
                file[group].attrs["steps"] = texts([f"step {k}" for k in range(size)])
        if axis == 0:
            file["rounds"].attrs["done"] = np.int64(size)

    return plant


def attributes(**values: Any) -> Plant:
    return lambda file: set_attributes(file, values)


def nested(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth):
        table = {"a": table}
    return table


# --- files that somebody else made

PLACES = ("rounds/f1", "clients/messages", "ranks/seconds_wait", "ranks/table", "partition/counts", "final/x", "new/x")
TYPES = ("i1", "f2", ">f8", "S4096", "c16", h5py.string_dtype(), np.dtype([("a", "f8"), ("b", "S9")]), h5py.ref_dtype)
STATES: list[tuple[str, Any]] = [
    *itertools.product(
        ["x"],
        [np.zeros(n, kind) for n in (0, 1, 639, 641) for kind in ("f4", "f8")]
        + [np.zeros((640, 1), "f4"), np.zeros((1, 640), "f4"), np.zeros(640, "i4"), np.zeros(640, "?"), np.zeros(640)]
        + [1.0, "text", None, {}],
    ),
    *itertools.product(["gradient_f1_norm", "gradient_f2_norm"], [True, "1", np.int32(1), None, {}, np.zeros(3)]),
    *itertools.product(["local_steps"], [True, "1", {}, np.zeros(2), [1]]),
]
READERS = {
    "load": ("tests.adversary", ["--load", "a.h5"]),
    "page": ("zofl_mpi.report", ["a.h5", "--out", "p.html"]),
    "resume": (FAMILY, ["--resume", "a.h5", "--rounds", "4", "--quiet"]),
    "same": ("zofl_mpi.report.same", ["a.h5", "b.h5"]),
}


def results() -> Iterator[tuple[str, Plant]]:
    """What is planted in a result."""
    for name in PLACES:
        yield f"external {name}", replaced(name, (10, 10), "i8", external=[("secret", 0, 800)])
    for name in PLACES[:4]:
        for kind in TYPES:
            yield f"{name} as {kind}", replaced(name, (3, 1, 3)[: 1 if "/f1" in name or "table" in name else 3], kind)
    for name in PLACES[:3]:
        yield f"virtual {name}", _virtual(name)
    for link in (h5py.SoftLink("/rounds"), h5py.ExternalLink("secret", "/x"), h5py.ExternalLink("pipe", "/x")):
        yield f"{type(link).__name__}", lambda file, link=link: (file.pop("final"), file.__setitem__("final", link))
    yield "a group in itself", lambda file: file.__setitem__("final/loop", file["final"])
    for name in ("rounds", "clients", "ranks", "ranks/table", "clients/messages", "ranks/peak_bytes"):
        yield f"no {name}", lambda file, name=name: file.pop(name)
    for rows in (1 << 33, 10**6, 10**5):
        yield f"{rows} rows", resized(0, rows)
    for name, value in (
        ("status", 1),
        ("ranks", "x"),
        ("sessions", "[]["),
        ("config", "[1]"),
        ("schema", 2),
        ("run", 1),
    ):
        yield f"attribute {name}", attributes(**{name: value})


def forged() -> Iterator[Attack]:
    """Results and checkpoints."""
    for (name, plant), (reader, (module, words)) in itertools.product(results(), READERS.items()):
        yield Attack(f"{name}, {reader}", in_file("a.h5", plant), module, words)
    for name, value in STATES:
        state = f"state with {name} = {type(value).__name__} {np.shape(value)} {getattr(value, 'dtype', '')}"
        yield Attack(state, lambda name=name, value=value: _state(name, value), *READERS["resume"])
    drawn = np.random.default_rng(1)
    for name, k in itertools.product(("a.h5", "a.ckpt.h5"), range(30)):
        reader = READERS["resume" if "ckpt" in name else ("load", "page")[k % 2]]
        places = drawn.random(), int(drawn.integers(8))
        yield Attack(f"{name}, bit {places}", lambda name=name, places=places: _flip(name, *places), *reader)
    for name, size in itertools.product(("a.h5", "a.ckpt.h5"), (0, 100, 3000, 9000)):
        yield Attack(f"{name}, {size} bytes", lambda n=name, s=size: os.truncate(n, s), *READERS["resume"])
        yield Attack(f"{name}, {size} zeros", lambda n=name, s=size: _zero(n, s), *READERS["resume"])


def _state(name: str, value: Any) -> None:
    found = records.load_checkpoint("a.ckpt.h5")
    fields = {"x": np.zeros(640, np.float32), "gradient_f1_norm": 0.0, "gradient_f2_norm": 0.0, "local_steps": 0}
    if isinstance(value, list):  # which no message holds
        block = changed(ZOHFLState(**fields), values=fields | {"x": None, name: value})
    else:
        block = messages.pack(ZOHFLState(**fields | {name: value}))
    Path("a.ckpt.h5").unlink()
    records.save_checkpoint("a.ckpt.h5", found.payload | {"state": block}, found.attrs)


def _flip(name: str, share: float, bit: int) -> None:
    block = bytearray(Path(name).read_bytes())
    used = [k for k in range(0, len(block) - 64, 64) if any(block[k : k + 64])]
    at = share * len(used)
    block[used[int(at)] + int(64 * (at % 1))] ^= 1 << bit
    Path(name).write_bytes(block)


def _zero(name: str, size: int) -> None:
    with open(name, "r+b") as file:
        file.write(bytes(size))


def page() -> Iterator[Attack]:
    """Results whose values nobody expects, as pages and as figures."""
    plants: dict[str, Plant] = {f"all {x}": filled(x) for x in (np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, -1.0)}
    plants |= {f"{n} rounds": resized(0, n) for n in (0, 1, 2, 1000)}
    plants |= {f"{n} clients": resized(2, n, "clients") for n in (0, 1, 500)}
    plants |= {f"{n} ranks": resized(2, n, "ranks") for n in (0, 1, 500)}
    plants |= {f"{n} steps": resized(1, n, "clients", "ranks") for n in (0, 1, 40)}
    configs: list[Any] = [
        {},
        nested(300),
        {"method": ["<b>"], "rounds": {"x": 1}, "": None},
        {"</script>": "</script>"},
    ]
    plants |= {
        f"configuration {k}": attributes(config=v) for k, v in enumerate([*configs, {str(k): k for k in range(3000)}])
    }
    odd: list[tuple[str, Any]] = [
        ("ranks", -5), ("ranks", 1 << 62), ("seconds_start", np.nan), ("seconds_start", np.inf), ("lost", []),
        ("directions_per_parameter", np.inf), ("versions", {"a": [1]}), ("hosts", ["x"] * 3000), ("status", "<script>"),
        ("command", "\x00\x1b[31m"), ("missing_rounds", []), ("git_commit", "</script>"), ("threads", [1 << 70]),
        ("sessions", [{"from_round": 0, "ranks": 1, "started": "x"}] * 100), ("missing_rounds", [5, 1]), ("ended", ""),
        ("sessions", [{"from_round": -1, "ranks": -1, "started": "<"}]), ("device", []), ("costs", {"a": {"b": 1}}),
    ]  # fmt: skip
    plants |= {f"{name} = {str(value)[:20]}": attributes(**{name: value}) for name, value in odd}
    counts = [((0, 0), "i8"), ((10, 0), "i8"), ((3, 2), "i8"), ((10, 2), "?"), ((10, 2), "f8")]
    plants |= {f"counts {shape} {kind}": replaced("partition/counts", shape, kind) for shape, kind in counts}
    plants |= {
        "no columns": lambda file: [file.pop(f"rounds/{name}") for name in list(file["rounds"])],
        "3000 columns": lambda file: [file.create_dataset(f"rounds/c{k}", (3,), "f8") for k in range(3000)],
        "a column's name": lambda file: file.create_dataset("rounds/<img src=x onerror=alert(1)>", (3,), "f8"),
        "a long name": lambda file: file.create_dataset("rounds/" + "n" * 5000, (3,), "f8"),
        "no places": lambda file: file["ranks/table"].resize(0, 0),
        "first clients": lambda file: file["clients"].attrs.create("first_clients", np.arange(3) * 7),
    }
    for (name, plant), out in itertools.product(plants.items(), ("p.html", "p.png")):
        yield Attack(f"{name}, {out}", in_file("a.h5", plant), "zofl_mpi.report", ["a.h5", "--out", out])


def flags() -> Iterator[Attack]:
    """Flags, configurations, grids and data."""
    long, many = "a" * 300, "9" * 5000
    values = [
        "", " ", many, long, "nan", "inf", "-1", "1e400", "../x", "/", "[1]", "{}", "--out", "\x1b[31m", "9" * 30,
    ]  # fmt: skip
    names = (
        "rounds", "m", "tau", "gamma", "alpha", "data", "method", "problem", "dtype", "seed", "eval-every", "resume",
    )  # fmt: skip
    for name, value in itertools.product(names, values):
        if (name, value) not in {("seed", "-1"), ("gamma", "inf")}:
            words = ["--rounds", "1", f"--{name}", value, "--quiet"]
            yield Attack(f"--{name} {value[:20]!r}", _nothing, FAMILY, words)
    tables = [
        f"m = {many}",
        "tau = " + "[" * 5000,
        "a = 1",
        "m = {}",
        "\x00",
        "x" * (2 << 20),
        "[m]\na=1",
        "m = 1979-1",
    ]
    for text in tables:
        write = lambda text=text: Path("c.toml").write_text(text)  # noqa: E731
        yield Attack(f"configuration {text[:20]!r}", write, FAMILY, ["--config", "c.toml"])
        yield Attack(f"grid {text[:20]!r}", write, "zofl_mpi.run.grid", ["c.toml"])
    axes = f'module = "{FAMILY}"\n[axes]\nseed = {list(range(3000))}\ntau = {list(range(3000))}\n'
    yield Attack("a grid of millions", lambda: Path("c.toml").write_text(axes), "zofl_mpi.run.grid", ["c.toml"])
    for place in ("/dev/zero", "pipe", ".", long, "secret"):
        yield Attack(f"--config {place[:20]}", _nothing, FAMILY, ["--config", place])
        yield Attack(f"grid {place[:20]}", _nothing, "zofl_mpi.run.grid", [place])
        yield Attack(f"--out {place[:20]}", _nothing, FAMILY, ["--rounds", "1", "--out", place, "--force", "--quiet"])


def writers() -> Iterator[Attack]:
    """Places in which a result cannot be made, and files beside it that are somebody's own."""
    words = ["--rounds", "3", "--checkpoint-every", "1", "--quiet", "--out", "n.h5"]
    own: dict[str, Any] = {
        "notes": b"mine",
        "empty list": b"[]",
        "infinity": b'{"process": Infinity}',
        "zeros": bytes(99),
    }
    for name, block in own.items():
        for place in ("n.lock", "n.h5", "n.ckpt.h5", "n.ckpt.h5.previous", "n.ckpt.h5.tmp", "n"):
            write = lambda place=place, block=block: Path(place).write_bytes(block)  # noqa: E731
            yield Attack(f"{name} in {place}", write, FAMILY, words)
    for place in ("n.lock", "n.h5", "n.ckpt.h5", "n.ckpt.h5.previous", "n.ckpt.h5.tmp"):
        yield Attack(f"a folder {place}", lambda place=place: os.mkdir(place), FAMILY, words)
        yield Attack(f"a pipe {place}", lambda place=place: os.mkfifo(place), FAMILY, words)
        yield Attack(f"a link {place}", lambda place=place: os.symlink("secret", place), FAMILY, words)
        yield Attack(f"a broken link {place}", lambda place=place: os.symlink("none", place), FAMILY, words)


def _nothing() -> None:
    pass


GRID = f"""module = "{FAMILY}"
folder = "."
[fixed]
tau = 2
m = 10
rounds = 3
[axes.s.a]
"""
MORE = {
    "watch": ("zofl_mpi.report", ["a.h5", "--watch"]),
    "figure": ("zofl_mpi.report", ["a.h5", "--out", "p.png"]),
    "grid": ("zofl_mpi.run.grid", ["g.toml"]),
}


def retyped() -> Iterator[Attack]:
    """Results and checkpoints with a part that is missing or of another type."""
    for name, plant in tests.retyped.of_result():
        for reader, (module, words) in (READERS | MORE).items():
            yield Attack(f"{name}, {reader}", plant, module, words)
    for name, plant in tests.retyped.of_checkpoint():
        for reader in ("resume", "grid"):
            yield Attack(f"checkpoint: {name}, {reader}", plant, *(READERS | MORE)[reader])


IMPORTED = ["matplotlib.pyplot", "pandas", "zofl_mpi.zo_hfl"]
IMPORTED += [f"zofl_mpi.{name}" for name in ("report.figure", "report.page", "run.command.cli", "run.loop.session")]
"""Once, before the forks."""
KINDS = {"retyped": retyped, "forged": forged, "page": page, "flags": flags, "writers": writers}


def held(attack: Attack, made: Path, folder: Path) -> str:
    """What is wrong with the end of an attack; "" if it holds."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    os.mkfifo(folder / "pipe")
    (folder / "secret").write_bytes(SECRET)
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            _run(attack, folder, said.fileno())
        status = _ended(child)
        said.seek(0)
        text = said.read()
    if (folder / "secret").read_bytes() != SECRET:
        return "the secret was overwritten"
    if SECRET.decode() in text or any(SECRET in p.read_bytes() for p in folder.glob("p.*")):
        return "the secret was read"
    if "Traceback" in text or status not in (0, 1, 2):
        return f"status {status}: {' '.join(text.split())[-300:]}"
    is_answer = status == 1 and attack.module == "zofl_mpi.report.same" and ": differs in " in text
    told = any(line.startswith(("zofl", "usage", "python")) for line in text.splitlines())
    if status and not (told or is_answer):
        return f"status {status} without a sentence: {text[:200]!r}"
    return ""


def _run(attack: Attack, folder: Path, said: int) -> None:
    """The attack, in a process that was forked for it; it ends as a command does."""
    os.setsid()
    os.chdir(folder)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))  # not those of pytest
    warnings.resetwarnings()
    status = 70
    try:
        attack.prepare()
        sys.argv = [attack.module, *attack.words]
        import runpy

        runpy.run_module(attack.module, run_name="__main__", alter_sys=False)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the interpreter's own end is slow: tests/e2e/test_hostile.py has it


def _ended(child: int) -> int:
    """The exit status of a process; it is killed after LIMIT seconds."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def finished_run(made: Path) -> Path:
    """A folder, `made`, with a finished run, for `run`."""
    made.mkdir()
    command = [sys.executable, "-m", FAMILY, "--tau", "2", "--m", "10", "--rounds", "3", "--quiet", "--out", "a.h5"]
    subprocess.run(command, cwd=made, check=True, capture_output=True)
    shutil.copy(made / "a.h5", made / "b.h5")
    (made / "g.toml").write_text(GRID)
    return made


def run(kinds: list[str], every: int, made: Path) -> dict[str, tuple[int, list[str]]]:
    """{kind: (attacks, sentences on those that did not hold)}; each attack on a copy of `made`, beside it."""
    for name in IMPORTED:
        importlib.import_module(name)
    found = {}
    for kind in kinds:
        with contextlib.chdir(made):
            attacks = list(KINDS[kind]())[::every]
        faults = [(attack.name, held(attack, made, made.with_name("here"))) for attack in attacks]
        found[kind] = len(attacks), [f"{name}: {fault}" for name, fault in faults if fault]
    return found


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="all, if none is named")
    parser.add_argument("--every", type=int, default=1, help="every so many attacks of a kind")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.load:
        from zofl_mpi.errors import UserError, refused

        try:
            run_ = records.load(words.load)
            with contextlib.redirect_stdout(io.StringIO()):
                print(run_.table(), dict(run_.final), run_.counts, json.dumps(run_.config)[:10])
        except UserError as error:
            return refused(error)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = run(words.kinds or list(KINDS), words.every, finished_run(Path(folder) / "made"))
    for kind, (attacks, faults) in found.items():
        print("\n".join([*faults, f"{kind}: {attacks - len(faults)} of {attacks} hold"]))
    return int(any(faults for _, faults in found.values()))


if __name__ == "__main__":
    sys.exit(main())
