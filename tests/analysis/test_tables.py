"""made.csv names script, grids and commit of every kept table, and the pages tell how many runs a grid has."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.analysis.quotes import KEPT
from tests.conftest import ROOT
from tests.tools import tables
from zofl_mpi.run.grid import read

ROWS = tables.rows()
GRIDS = {path.stem: path for path in (ROOT / "jobs").glob("*.toml")}
NOT_RUN = {"jobs/c_table2_full.toml"}
"""Grids without a table: for a cluster with GPUs."""
PAGES = [*KEPT.glob("*.md"), ROOT / "jobs/README.md"]


def test_every_kept_table_has_its_row() -> None:
    """Mutations: a table without a row; a row without its file."""
    kept = {p for suffix in ("csv", "txt", "tex", "json") for p in KEPT.rglob(f"*.{suffix}")} - {tables.MADE}
    named = [path for row in ROWS for path in tables.files(row)]
    assert sorted(named) == sorted(kept)


def test_every_grid_has_made_a_table_or_was_not_run() -> None:
    """Mutation: a grid that no row names."""
    named = {name for row in ROWS for name in row["grids"].split() if name.endswith(".toml")}
    assert named | NOT_RUN == {f"jobs/{path.name}" for path in GRIDS.values()} and not named & NOT_RUN


@pytest.mark.parametrize("row", ROWS, ids=[row["table"] for row in ROWS])
def test_a_table_is_that_of_its_commit(row: dict[str, str]) -> None:
    """An empty commit stands until the table is committed. Mutation: another commit, in which the table differs."""
    assert (ROOT / row["script"]).is_file() and all((ROOT / name).is_file() for name in row["grids"].split())
    if not row["commit"] or tables.git("cat-file", "-e", row["commit"]).returncode:
        pytest.skip("no commit, or no history here")
    for path in tables.files(row):
        then = tables.git("show", f"{row['commit']}:{path.relative_to(ROOT).as_posix()}").stdout
        assert then == path.read_bytes(), "commit the table, then python -m tests.tools.tables"


def counts() -> list[tuple[str, list[str], int]]:
    """(words, grids, runs) of every `grid`, `grid` (N runs) of the pages; of (N of M runs), M."""
    found = []
    listed = r"`(?:jobs/)?\w+(?:\.toml)?`"
    pattern = rf"((?:{listed}(?:, | and ))*{listed}) \((?:[\d,]+ of )?([\d,]+)(?: runs?)?\)"
    for page in PAGES:
        for match in re.finditer(pattern, page.read_text(encoding="utf-8")):
            names = [Path(name).stem for name in re.findall(r"`([^`]+)`", match[1])]
            if set(names) <= set(GRIDS):
                found.append((match[0], names, int(match[2].replace(",", ""))))
    return found


@cache
def runs_of(grid: str) -> int:
    return len(read(GRIDS[grid], trust=True).runs)


@pytest.mark.parametrize(("words", "names", "runs"), counts(), ids=[words[:70] for words, *_ in counts()])
def test_a_page_tells_the_runs_of_its_grids(words: str, names: list[str], runs: int) -> None:
    """Of the last grid, or of all together. Mutations: 260 runs for 455; a grid that has grown."""
    of = [runs_of(name) for name in names]
    assert runs in (of[-1], sum(of)), words


def test_many_grids_are_counted() -> None:
    assert len(counts()) > 30
