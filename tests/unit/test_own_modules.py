"""Modules of a user's own: where a mistake is, what they do to sys.path, states with slots."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Patch
from zofl_mpi.engine.fields import scalar_fields
from zofl_mpi.errors import UserError
from zofl_mpi.run.command.imported import imported


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\ny = (", "SyntaxError: .*mine.py, line 2"),
        ("import math\n\nmath.sqrt(-1)", r"ValueError: .*mine\.py, line 3\)$"),
        ("import json\njson.loads('{')", r"JSONDecodeError: .*mine\.py, line 2\)$"),  # the library's frames are no help
        ("import nowhere_at_all", r"ModuleNotFoundError: No module named 'nowhere_at_all' .*mine\.py, line 1"),
        ("raise SystemExit(3)", r"SystemExit: 3 .*mine\.py, line 1"),
        ("x = 1", "has no attribute 'C'; it must be MODULE:CLASS"),
    ],
)
def test_a_mistake_in_ones_own_module_has_its_file_and_line(
    tmp_path: Path, monkeypatch: Patch, text: str, told: str
) -> None:
    """Mutations: the message alone; the last frame of all; a traceback of errors that nobody foresaw."""
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(UserError, match=told):
        imported("mine:C", "--method")


def test_a_path_that_ones_own_module_adds_stays(tmp_path: Path, monkeypatch: Patch) -> None:
    """Mutation: the first entry is taken away, which is now the module's."""
    (tmp_path / "adds.py").write_text("import sys\nsys.path.insert(0, '/added/here')\nclass C: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [*sys.path]
    imported("adds:C", "--method")
    assert sys.path == ["/added/here", *before]


def test_a_state_may_have_slots() -> None:
    """Mutation: the columns are looked for in __dict__."""

    @dataclass(frozen=True, slots=True)
    class State:
        x: np.ndarray
        loss: float = 2.0
        done: bool = True

    assert dict(scalar_fields(State(np.ones(2)))) == {"loss": 2.0}
