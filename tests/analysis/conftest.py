"""What the tests of the analysis scripts share: grids of small runs made once a session, and the scripts' modules."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.made import PAPER, Made, grid_files, once
from tests.conftest import ROOT
from tests.launch import undisturbed


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    with undisturbed():
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """made(NAME): the grids of that name and their results, made when first asked for; for all of xdist's workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "grids"
    return lambda name: once(folder / name)


@pytest.fixture
def place(made: Callable[[str], Made], tmp_path: Path) -> Callable[[str], Made]:
    """place(NAME): a copy of `made(NAME)` that a test may damage."""

    def copied(name: str) -> Made:
        folder = tmp_path / "place" / name
        if not folder.exists():
            shutil.copytree(made(name).folder, folder)
        return Made(folder)

    return copied


@pytest.fixture
def listed(tmp_path: Path) -> Callable[[str], Made]:
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


@pytest.fixture
def stand_in_paper(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PAPER in the place of the paper's table."""
    monkeypatch.setattr(script("shared.paper"), "TABLE_1", PAPER)


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
