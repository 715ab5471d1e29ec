"""The readings of [A] from tiny real results: distances to a stand-in for the paper's table, computed by hand."""

from typing import Any

import pytest

from tests.analysis.made import Grids

pytestmark = pytest.mark.usefixtures("stand_in_paper")


def test_a_reading_without_all_its_results_is_not_ranked(place: Grids, wrote: Any) -> None:
    place("a_readings").member(cell="a1000-b0.9", reading="default", method="fedavg", seed="1").out.unlink()
    told = wrote("a_readings", place("a_readings"), "--partial").out.split("\n")
    (last,) = [line for line in told if line.startswith("Nearest")]
    assert "Nearest to the paper: pixels-raw" in last and "(not ranked, for want of results: default, mu-10)" in last
