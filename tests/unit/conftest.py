"""What the unit tests share: modules of a user's own."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

NUMBER = count()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
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
