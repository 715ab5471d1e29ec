"""The grids of the shares of the gap."""

from typing import Any

from tests.conftest import ROOT
from zofl_mpi.run import grid


def test_the_grids_of_the_repository_are_those_of_the_scripts(script: Any) -> None:
    """Mutation: steps that are not in the order of their size."""
    study = grid.read(ROOT / "jobs/c_pays.toml", trust=True)
    for axis in ("local", "server"):
        steps = [float(word.partition("-")[2]) for word in study.axes[axis] if not word.endswith("none")]
        assert steps == sorted(steps)
    search = grid.read(ROOT / "jobs/c_pays_search.toml", trust=True)
    assert tuple(search.axes["method"]) == script("c_pays_search").METHODS
