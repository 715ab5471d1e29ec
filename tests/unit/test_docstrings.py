"""Docstrings of the package: no question as a first word, no sentence of more than 30 words."""

import pytest

from tests.conftest import ROOT
from tests.tools import sentences

FOLDERS = sorted({path.relative_to(ROOT).parts[1] for path in (ROOT / "zofl_mpi").glob("*/*.py")})


@pytest.mark.parametrize("name", [*FOLDERS, "*.py"])
def test_docstrings_are_short_and_begin_with_a_noun_or_a_verb(name: str) -> None:
    """Mutations: a docstring that begins with "Whether"; one with a sentence of 31 words."""
    paths = (ROOT / "zofl_mpi").glob(name) if name == "*.py" else (ROOT / "zofl_mpi" / name).rglob("*.py")
    found = {str(path.relative_to(ROOT)): sentences.faults(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_faults_of_a_docstring_are_found() -> None:
    """Mutations: entries or values of a section joined; formulas counted; a constant's docstring left out."""
    long = "word " * 31
    source = f'''"""A module.

    {long}

{"word " * 20}x = y^2 + f_i(x) {"word " * 10}
"""
LIMIT = 1
"""Whether it is one."""


def f():
    """Read a thing.

    Args:
        x: {"word " * 20}; {"word " * 20}
            {long}.
        y: {"word " * 20}
    """
'''
    assert [fault.split(":")[0] for fault in sentences.faults(source)] == ["8", "12"]
