"""The readings of [A] from tiny real results: distances to a stand-in for the paper's table, computed by hand."""

import statistics
from typing import Any

import pytest

from tests.analysis.made import CELLS, PAPER, READINGS, Grids

pytestmark = pytest.mark.usefixtures("stand_in_paper")


def test_the_readings_are_compared_with_the_paper(made: Grids, wrote: Any) -> None:
    told = wrote("a_readings", made("a_readings"))
    out = told.out
    gaps: dict[str, list[float]] = {reading: [] for reading in READINGS}
    for row in told.rows:
        where = {axis: row[axis] for axis in ("cell", "reading", "method")}
        mean = statistics.mean(made("a_readings").lasts(**where))
        paper = PAPER[("digits", *CELLS[row["cell"]])].get(row["method"])
        assert float(row["accuracy_mean_percent"]) == pytest.approx(mean, rel=1e-14)
        if paper is None:
            assert row["difference_percent"] == ""
        else:
            assert float(row["difference_percent"]) == pytest.approx(mean - paper, rel=1e-12)
            assert f"({mean - paper:+.2f})" in out
            gaps[row["reading"]].append(abs(mean - paper))
            if (row["reading"], row["method"]) == ("default", "fedavg"):
                gaps["mu-10"].append(abs(mean - paper))  # a question that is none of FedAvg's
    means = {reading: statistics.mean(values) for reading, values in gaps.items()}
    best = min(means, key=lambda reading: means[reading])
    assert [len(values) for values in gaps.values()] == [3, 3, 3] and len(set(means.values())) == 3
    last = f"Nearest to the paper: {best}, mean |ours - paper| = {means[best]:.2f} points over 3 numbers."
    assert out.strip().split("\n")[-1] == last


@pytest.mark.parametrize("nearest", list(READINGS))
def test_the_nearest_reading_is_computed(
    made: Grids, script: Any, monkeypatch: pytest.MonkeyPatch, nearest: str, wrote: Any
) -> None:
    where = {"cell": "a1000-b0.9", "reading": nearest}
    there = {"zo_hfl": statistics.mean(made("a_readings").lasts(**where, method="zo_hfl"))}
    where["reading"] = nearest if nearest != "mu-10" else "default"
    there["fedavg"] = statistics.mean(made("a_readings").lasts(**where, method="fedavg"))
    monkeypatch.setattr(script("shared.paper"), "TABLE_1", {("digits", 1000.0, 0.9): there})
    last = wrote("a_readings", made("a_readings")).out.strip().split("\n")[-1]
    assert last == f"Nearest to the paper: {nearest}, mean |ours - paper| = 0.00 points over 2 numbers."


def test_a_reading_without_all_its_results_is_not_ranked(place: Grids, wrote: Any) -> None:
    place("a_readings").member(cell="a1000-b0.9", reading="default", method="fedavg", seed="1").out.unlink()
    last = wrote("a_readings", place("a_readings"), "--partial").out.strip().split("\n")[-1]
    assert "Nearest to the paper: pixels-raw" in last and "(not ranked, for want of results: default, mu-10)" in last
