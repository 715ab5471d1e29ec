"""The tables that are kept in analysis/results, read cell by cell."""

from __future__ import annotations

import csv
import re
from functools import cache

from tests.conftest import ROOT

KEPT = ROOT / "analysis/results"


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a CSV file."""
    with (KEPT / f"{name}.csv").open(newline="", encoding="utf-8") as table:
        return tuple(csv.DictReader(table))


def column(name: str, wanted: str, **where: str) -> list[float]:
    """The numbers of a column in the rows that have these entries; at least one, cells without a number left out."""
    found = [row[wanted] for row in rows(name) if all(row[key] == entry for key, entry in where.items())]
    numbers = [float(cell) for cell in found if cell]
    assert numbers, (name, wanted, where)
    return numbers


def number(name: str, wanted: str, **where: str) -> float:
    """The number of a column in the one row that has these entries."""
    (found,) = column(name, wanted, **where)
    return found


@cache
def _lines(name: str) -> tuple[list[str], ...]:
    text = (KEPT / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(re.split(r"\s{2,}", line.strip()) for line in text.splitlines())


def printed(name: str, *first: str, cells: int = 0) -> list[str]:
    """The further cells of the one line of a printed table that begins with these; `cells`: and has so many more."""
    lines = [line[len(first) :] for line in _lines(name) if tuple(line[: len(first)]) == first]
    (found,) = [line for line in lines if len(line) == cells or (line and not cells)]
    return found
