"""The readings of [A], of made-up results."""

from typing import Any

from tests.analysis.made import grid_files
from tests.analysis.written import made_up_results
from zofl_mpi.run import grid


def test_a_reading_without_all_its_results_is_not_ranked(stand_in_paper: None, wrote: Any) -> None:
    """Nor one that takes its place. Mutation: the mean over those that are there."""
    (path,) = grid_files("a_readings")
    where = {"cell": "a1000-b0.9", "reading": "default", "method": "fedavg", "seed": "1"}
    (gone,) = [run.name for run in grid.read(path, trust=True).runs if run.coordinates == where]
    with made_up_results(missing=[gone]):
        told = wrote("a_readings", ["--grid", str(path)], "--partial").out.split("\n")
    (last,) = [line for line in told if line.startswith("Nearest")]
    assert "Nearest to the paper: pixels-raw" in last and "(not ranked, for want of results: default, mu-10)" in last
