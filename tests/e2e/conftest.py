"""What end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Patch
from tests.e2e.planted import FAMILY, HERE, RUN
from tests.launch import undisturbed
from tests.threads import run_module
from zofl_mpi.run.command import trial


@pytest.fixture(autouse=True)
def same_process(tmp_path: Path, monkeypatch: Patch) -> Iterator[None]:
    """A test runs in a folder of its own; a run in this process leaves signal handlers and threads as they were.

    What --dry-run measures of a round is tests/unit/test_trial.py's.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "measured", lambda method, rounds: {})
    with undisturbed():
        yield


@pytest.fixture(scope="session")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of `planted`'s run where nothing is planted."""
    path = tmp_path_factory.mktemp("unharmed") / "run.h5"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        assert run_module(1, FAMILY, *RUN, "--out", path) == 0
    return path
