"""What the scripts write of made-up results comes out again: texts, tables, drawn lines."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.written import CASES, KEPT, written

NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


@pytest.mark.parametrize("name", CASES)
def test_what_a_script_writes_comes_out_again(name: str, script: Any, tmp_path: Path) -> None:
    """Mutations: any other number, column, mark, label or line of a figure."""
    told, kept = written(name, tmp_path), (KEPT / f"{name}.txt").read_text(encoding="utf-8")
    assert re.split(NUMBER, told) == re.split(NUMBER, kept)
    here, there = ([float(number) for number in re.findall(NUMBER, text)] for text in (told, kept))
    assert here == pytest.approx(there, rel=1e-7, abs=1e-12)


def test_no_kept_text_is_of_no_case() -> None:
    assert {path.stem for path in KEPT.glob("*")} == set(CASES)
