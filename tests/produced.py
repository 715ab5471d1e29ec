"""Grids of small runs for the tests of the analysis scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import run_process
from zofl_mpi.run import grid

CODE = """
import sys, contextlib
from zofl_mpi.run import cli, grid
from zofl_mpi.run.grid import file
for path in sys.argv[2:]:
    study = grid.read(path, sys.argv[1])
    for run in study.runs:
        run.out.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(SystemExit):
            cli.main(study.module, [*file.arguments(study.module, run.flags), "--out", str(run.out), "--quiet"])
"""


def produce(paths: Sequence[Path], results: Path, timeout: float = 60.0) -> None:
    """All runs of the grid files, in one process: a start costs more than a small run."""
    done = run_process([sys.executable, "-c", CODE, str(results), *map(str, paths)], timeout=timeout)
    assert done.returncode == 0, done.stderr
    for path in paths:
        study = grid.read(path, results)
        assert [grid.state_of(study, run)[0] for run in study.runs] == ["finished"] * len(study.runs), done.stderr
