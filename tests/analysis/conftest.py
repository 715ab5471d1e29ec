"""What the tests of the analysis scripts share: grids of small runs made once a session, and the scripts' modules."""

import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from tests.analysis.made import PAPER, Grids, Made, Wrote, grid_files, once, refused, sketch
from tests.conftest import ROOT
from tests.launch import undisturbed
from zofl_mpi.run.grid import file, state


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    with undisturbed():
        yield


@pytest.fixture(scope="session", autouse=True)
def flags_are_understood_once() -> Iterator[None]:
    """The same flags make the same configuration: a grid is read many times here, by tests and by scripts."""
    parse_plan, known = file.resolved, dict[str, str]()

    def resolved(module: str, given: Mapping[str, Any]) -> dict[str, Any]:
        key = repr((module, sorted(given.items())))
        if key not in known:
            known[key] = json.dumps(parse_plan(module, given))
        return json.loads(known[key])  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        for place in (file, state):
            patch.setattr(place, "resolved", resolved)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Grids:
    """made(NAME): the grids of that name and their results, made when first asked for; for all of xdist's workers.

    made(NAME, seed="1"): the results of this seed alone.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "grids"
    return lambda name, **where: once(folder, name, where)


@pytest.fixture
def place(made: Grids, tmp_path: Path) -> Grids:
    """place(NAME): a copy of `made(NAME)` that a test may damage."""

    def copied(name: str, **where: str) -> Made:
        folder = tmp_path / "place" / name
        if not folder.exists():
            shutil.copytree(made(name, **where).folder, folder)
        return Made(folder)

    return copied


@pytest.fixture
def listed(tmp_path: Path) -> Grids:
    """listed(NAME): the grid files of that name without any results."""

    def written(name: str) -> Made:
        folder = tmp_path / "listed" / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in grid_files(name):
            shutil.copy(path, folder)
        return Made(folder)

    return written


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The module of a script in analysis/, imported as Python runs it: from its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    return importlib.import_module


@pytest.fixture(scope="session")
def painted() -> set[str]:
    """The scripts whose figures are files of pixels by now."""
    return set()


@contextmanager
def drawing(pixels: bool) -> Iterator[None]:
    """Figures that a script closes; without pixels they are laid out and drawn once and not for each of two formats."""
    before = plt.get_fignums()
    with pytest.MonkeyPatch.context() as patch:
        if not pixels:
            patch.setattr(Figure, "savefig", sketch)
        yield
    assert plt.get_fignums() == before


def ran(
    name: str, given: Made | list[str], stem: Path, *words: str, names: tuple[str, ...] = ("",), pixels: bool = True
) -> Wrote:
    """What a script writes and prints that ends well, without a warning; run from its own folder."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), drawing(pixels):
        patch.syspath_prepend(str(ROOT / "analysis"))
        importlib.import_module(name).main(arguments(given, stem, *words, names=names))
    assert err.getvalue() == "" or "--partial" in words
    return Wrote(stem, out.getvalue(), err.getvalue())


@pytest.fixture
def wrote(script: Any, tmp_path: Path, painted: set[str]) -> Callable[..., Wrote]:
    """wrote(SCRIPT, GRIDS or words, more words): see `ran`.

    Its figures are real ones the first time, then sketches; with pixels=False always.
    """

    def run(name: str, given: Made | list[str], *words: str, pixels: bool = True, **named: Any) -> Wrote:
        real = pixels and name not in painted
        told = ran(name, given, tmp_path / "out", *words, pixels=real, **named)
        if real:
            painted.add(name)
        return told

    return run


@pytest.fixture
def refuses(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """refuses(SCRIPT, GRIDS or words, more words): the lines of a script that ends with status 2 and writes nothing."""

    def run(name: str, given: Made | list[str], *words: str) -> list[str]:
        lines = refused(script(name).main, arguments(given, tmp_path / "not", *words), capsys)
        assert list(tmp_path.glob("not*")) == []
        return lines

    return run


def arguments(given: Made | list[str], out: Path, *words: str, names: tuple[str, ...] = ("",)) -> list[str]:
    """Of a script: its grids or words, its flags, and where it writes."""
    return given.words(out, *words, names=names) if isinstance(given, Made) else [*given, *words, "--out", str(out)]


@pytest.fixture
def stand_in_paper(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PAPER in the place of the paper's table."""
    monkeypatch.setattr(script("shared.paper"), "TABLE_1", PAPER)


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    plt.close("all")
