"""What end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Patch
from tests.launch import undisturbed


@pytest.fixture(autouse=True)
def same_process(tmp_path: Path, monkeypatch: Patch) -> Iterator[None]:
    """A test runs in a folder of its own; a run in this process leaves signal handlers and threads as they were."""
    monkeypatch.chdir(tmp_path)
    with undisturbed():
        yield
