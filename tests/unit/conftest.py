"""What the unit tests share: modules of a user's own."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import Hands, Patch

NUMBER = count()


@pytest.fixture
def hands(monkeypatch: Patch, request: pytest.FixtureRequest) -> Hands:
    """The clock of the module CLOCKED of this file of tests."""
    monkeypatch.setattr(request.module.CLOCKED, "time", made := Hands())
    return made


@pytest.fixture
def written(tmp_path: Path, monkeypatch: Patch) -> Iterator[Callable[[str], str]]:
    """written(source): the name of a new module in this test's folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    names: list[str] = []

    def write(source: str) -> str:
        names.append(f"own_{next(NUMBER)}")
        (tmp_path / f"{names[-1]}.py").write_text(source)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)
