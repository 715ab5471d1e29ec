"""Grids of small runs and their results: what the scripts are given, and the same numbers straight from the files."""

import copy
import csv
import fcntl
import importlib
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import ROOT, data_folder
from tests.launch import here
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid import file

CELLS = {"a1000-b0.9": (1000.0, 0.9), "a0.1-b0.5": (0.1, 0.5)}
"""Of [A]'s grids: alpha and beta."""
PAPER: dict[tuple[object, ...], dict[str, float]] = {
    ("digits", 1000.0, 0.9): {"zo_hfl": 50.0, "fedavg": 60.0},
    ("digits", 0.1, 0.5): {"zo_hfl": 70.0},
}
"""Stands for the paper's table."""
EVALUATED = [1, 2, 4, 5]
"""Rounds of the grids of 5."""


def grid_files(name: str) -> list[Path]:
    """The grid files of small runs on 8 x 8 digits: `grids/NAME.toml`, or all of `grids/NAME`."""
    folder = ROOT / "tests/analysis/grids" / name
    return sorted(folder.glob("*.toml")) or [folder.with_suffix(".toml")]


@dataclass(frozen=True)
class Made:
    """A folder with grid files and with a folder of their results; who changes it takes a copy."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def path(self, name: str = "") -> Path:
        """A grid file; the only one if none is named."""
        if name:
            return self.folder / f"{name}.toml"
        (found,) = self.folder.glob("*.toml")
        return found

    def words(self, out: Path, *more: str, names: tuple[str, ...] = ("",)) -> list[str]:
        """A script's arguments."""
        grids = [str(self.path(name)) for name in names]
        return ["--grid", *grids, "--results", str(self.results), "--out", str(out), *more]

    def read(self) -> grid.Grid:
        return grid.read(self.path(), self.results, trust=True)

    def runs(self, **where: str) -> list[grid.GridRun]:
        """The runs at these coordinates."""
        return [run for run in self.read().runs if all(run.coordinates[axis] == e for axis, e in where.items())]

    def member(self, **where: str) -> grid.GridRun:
        """The one run at these coordinates."""
        (found,) = self.runs(**where)
        return found

    def seeds(self, **where: str) -> list[grid.GridRun]:
        """The runs of a group, one per seed."""
        found = self.runs(**where)
        assert [run.coordinates["seed"] for run in found] == list(self.read().axes["seed"])
        return found

    def column(self, name: str, **where: str) -> Any:
        """(seeds, R) a column of a group."""
        found = []
        for run in self.seeds(**where):
            with h5py.File(run.out) as result:
                found.append(result["rounds"][name][()])
        return np.array(found, np.float64)

    def lasts(self, **where: str) -> list[float]:
        """The last test accuracies in per cent, seed by seed."""
        return [100 * float(value) for value in self.column("test_accuracy", **where)[:, -1]]

    def loaded(self, **where: str) -> list[records.Run]:
        """The results of a group, one per seed."""
        return [_loaded(run.out, run.out.stat().st_mtime_ns) for run in self.seeds(**where)]

    def groups(self, *axes: str, words: tuple[str, ...] = (), names: tuple[str, ...] = ("",)) -> Any:
        """A script's groups."""
        command, reading = (importlib.import_module(f"shared.{name}") for name in ("command", "reading"))
        flags = command.parser("x", "", ["x.toml"]).parse_args(self.words(self.folder, *words, names=names))
        return reading.read("x", flags, axes)


Grids = Callable[..., Made]
"""By the name of their files, and by the coordinates of the runs that are made; all of them where none are given."""


@cache
def _loaded(path: Path, changed: int) -> records.Run:
    return records.load(path)


def produce(folder: Path, name: str, where: Mapping[str, str]) -> None:
    """Copies the grid files of that name into the folder, and runs their runs at these coordinates in this process."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in grid_files(name):
        path, text = folder / source.name, source.read_text()
        if "@TEXTS@" in text:
            text = text.replace("@TEXTS@", str(texts(folder / "texts"))).replace("@DATA@", str(data_folder()))
        path.write_text(text)
        study = grid.read(path, folder / "results", trust=True)
        wanted = [run for run in study.runs if all(run.coordinates[axis] == entry for axis, entry in where.items())]
        for run in wanted:
            run.out.parent.mkdir(parents=True, exist_ok=True)
            with redirect_stdout(StringIO()):
                words = [*file.arguments(study.module, run.flags), "--out", run.out, "--quiet"]
                assert here(study.module, *words) == 0, words
        assert {grid.state_of(study, run)[0] for run in wanted} == {"finished"}


def texts(folder: Path) -> Path:
    """Writes 48 training texts, and 16 for validation and for test, as E2E's; of each context two."""
    folder.mkdir(exist_ok=True)
    for part, places in (("trainset", "ABC"), ("devset", "D"), ("testset_w_refs", "E")):
        rows = [
            f'"name[{place}], food[{food}]",{place} is a place with {food} food{", they say" * k}.'
            for place in places
            for food in ("Thai", "French", "Chinese", "Indian", "Italian", "English", "Japanese", "fast food")
            for k in range(2)
        ]
        (folder / f"{part}.csv").write_text("\n".join(["mr,ref", *rows, ""]))
    return folder


def once(place: Path, name: str, where: Mapping[str, str]) -> Made:
    """`produce` in a folder of its own in `place`, unless another process of this session has done it."""
    folder = place / "-".join([name, *where.values()])
    folder.parent.mkdir(parents=True, exist_ok=True)
    ready = folder.with_name(f"{folder.name}.ready")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            produce(folder, name, where)
            ready.touch()
    return Made(folder)


def group_of(
    *columns: list[float],
    column: str = "test_accuracy",
    seeds: tuple[int, ...] = (),
    also: Any = None,
    planned: int = 0,
    where: Any = None,
    **config: Any,
) -> Any:
    """A group without files; analysis/ must be on the path.

    Args:
        columns: of each seed the values of `column`; seeds are 1, 2, ... unless given.
        also: {name: values} of further columns, the same for all seeds.
    """
    runs = []
    for seed, values in zip(seeds or range(1, len(columns) + 1), columns, strict=True):
        clients = dict.fromkeys(("bytes_down", "bytes_up", "messages"), np.zeros((len(values), 1, 2), np.int64))
        rounds = {name: np.array(numbers) for name, numbers in {column: values, **(also or {})}.items()}
        own = {"seed": seed, **config}
        runs.append(records.Run(Path(f"{seed}.h5"), {}, own, rounds, clients, {}, ("solve",), None, {}, {}, {}))
    made = importlib.import_module("shared.groups").Group
    return made(where or {"method": "zo_hfl"}, planned or len(runs), config, tuple(runs))


# --- what the scripts wrote and said


@dataclass(frozen=True)
class Wrote:
    """What a script wrote and printed; `stem` is its --out."""

    stem: Path
    out: str
    err: str

    def path(self, end: str) -> Path:
        return self.stem.with_name(self.stem.name + end)

    @property
    def rows(self) -> list[dict[str, str]]:
        return table_of(self.path(".csv"))


def table_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as table:
        return list(csv.DictReader(table))


def check_figure(stem: Path, inches: float = 0.0) -> None:
    """NAME.png and NAME.pdf are figures; of this width, if one is given."""
    head = stem.with_name(stem.name + ".png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert not inches or abs(int(struct.unpack(">I", head[16:20])[0]) - 200 * inches) <= 1
    assert stem.with_name(stem.name + ".pdf").read_bytes().startswith(b"%PDF")


def sketch(figure: Any, name: Path, dpi: str) -> None:
    """In the place of savefig: the figure is drawn, and the file has no more than `check_figure` reads."""
    figure.draw_without_rendering()
    wide, high = (int(figure.dpi * inches) for inches in figure.get_size_inches())
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", wide, high)
    name.write_bytes(head if name.suffix == ".png" else b"%PDF")


def refused(main: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a script that ends with status 2 and prints nothing else."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    told = capsys.readouterr()
    assert caught.value.code == 2 and told.out == "" and "Traceback" not in told.err
    return told.err.strip().split("\n")


def explicit_hessian(problem: Any, theta: Any, buffers: Any, x: Any, labels: Any) -> Any:
    """(n, n) of the local loss, by torch.autograd.functional, of copies of the modules in eval mode."""
    import torch

    with problem.client_side.bound_to(theta.clone(), buffers.clone()):
        model = copy.deepcopy(torch.nn.Sequential(problem.client, problem.auxiliary)).eval()
    names = [(name, p.shape) for name, p in model.named_parameters()]

    def loss(flat: Any) -> Any:
        pieces = flat.split([shape.numel() for _, shape in names])
        values = {name: piece.view(shape) for (name, shape), piece in zip(names, pieces, strict=True)}
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, values, (x,)), labels)

    return torch.autograd.functional.hessian(loss, theta.clone(), vectorize=True)


N_CLIENT, N_HEAD, N_BUFFERS, Q_S = 102, 1290, 12, 128
"""A network of width 2 with one block at the client: see tests/e2e/test_heron.py."""


def expected_bytes(method: str, rounds: int) -> tuple[int, int, int]:
    """Bytes of 3 clients in `c_methods`: without labels, labels, heads; 2 uploads of 16 samples in each round."""
    heads = {"heron": 2 * 3 * rounds, "cse_fsl": 2 * 3 * rounds, "fsl_sage": 3 * -(-rounds // 3)}.get(method, 0)
    smashed = 3 * rounds * 2 * 16 * 4 * Q_S * (2 if method == "sflv2" else 1)
    models = 2 * 3 * rounds * 4 * (N_CLIENT + N_BUFFERS)
    numbers = 8 * (1 if method == "sflv2" else 2) * 3 * rounds  # the round down; up a loss, where a client computes one
    return models + smashed + heads * 4 * N_HEAD + numbers, 3 * rounds * 2 * 16 * 8, heads * 4 * N_HEAD
