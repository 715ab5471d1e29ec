"""Tuned steps from tiny real results: the best is that of the highest mean over all seeds."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.grids import CELLS, METHODS
from tests.analysis.made import Grids, group_of, table_of


def test_the_best_step_is_that_of_the_highest_mean(
    made: Grids, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("a_tuned").main(made("a_steps").words(tmp_path / "s"))
    out, rows = capsys.readouterr().out, table_of(tmp_path / "s.csv")
    assert len(rows) == 8
    for cell in CELLS:
        for method in METHODS:
            means = {
                step: statistics.mean(made("a_steps").lasts(cell=cell, method=method, step=step))
                for step in ("low", "high")
            }
            best = max(means, key=lambda step: means[step])
            marked = {r["step"]: r["best"] for r in rows if r["cell"] == cell and r["method"] == method}
            assert marked == {step: str(step == best) for step in means}
            assert f"{means[best]:.2f} ±" in out.split("Each method")[1] and f"({best})" in out
            assert sum(f"{means[best]:.2f} ± " in line and " *" in line for line in out.split("\n")) == 1
    assert out.count(" *") - 2 == 4  # two titles say what the star means
    assert out.count(" *!") == 4 and {r["at_edge"] for r in rows if r["best"] == "True"} == {"step"}  # two steps only
    assert "! at an edge of the grid, a better step may lie beyond: ZO-HFL (" in out


def test_a_step_without_all_seeds_is_not_the_best(
    place: Grids, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"cell": "a1000-b0.9", "method": "zo_hfl"}
    low, high = (place("a_steps").lasts(**where, step=step) for step in ("low", "high"))
    assert statistics.mean(high) > statistics.mean(low)
    worst = "1" if high[0] < high[1] else "2"
    place("a_steps").member(**where, step="high", seed=worst).out.unlink()
    script("a_tuned").main(place("a_steps").words(tmp_path / "s", "--partial"))
    (row,) = [
        r
        for r in table_of(tmp_path / "s.csv")
        if r["best"] == "True" and r["cell"] == where["cell"] and r["method"] == where["method"]
    ]
    assert row["step"] == "low"


LOCAL, SERVER = ("l1", "l2", "l3"), ("s1", "s2")
AXES = {"local": LOCAL, "server": SERVER}


def at(local: str, server: str, accuracy: float = 0.5) -> Any:
    where = {"data": "mnist", "cell": "c", "method": "zo_hfl", "local": local, "server": server}
    return group_of([accuracy], where=where)


@pytest.mark.parametrize(
    ("best", "left_out", "expected"),
    [
        (("l2", "s2"), [], ["server"]),
        (("l1", "s2"), [], ["local", "server"]),
        (("l3", "s1"), [], ["local", "server"]),
        (("l2", "s2"), [("l3", "s2")], ["local", "server"]),  # l3 was tried, but beside s1 alone
        (("l2", "s1"), [("l1", "s2"), ("l2", "s2"), ("l3", "s2")], []),  # one server step is not tuned
    ],
)
def test_a_best_step_is_inside_if_it_has_a_smaller_and_a_larger_one_beside_it(
    script: Any, best: tuple[str, str], left_out: list[tuple[str, str]], expected: list[str]
) -> None:
    """Mutation: the ends of the grid in place of those of what was tried beside the best."""
    edges = script("shared.edges")
    tried = [at(one, other) for one in LOCAL for other in SERVER if (one, other) not in left_out]
    (chosen,) = [group for group in tried if (group.where["local"], group.where["server"]) == best]
    assert edges.at_edge(chosen, tried, AXES) == expected


def test_a_best_step_inside_has_no_mark(script: Any) -> None:
    """The middle one of three is inside, whatever the order of the groups; without a neighbour it is at an edge."""
    tuned = script("a_tuned")
    groups = [at("l3", "s1", 0.4), at("l1", "s1", 0.3), at("l2", "s1", 0.6)]
    assert tuned.edge_of(groups, AXES) == [] and tuned.at_edges(groups, AXES) == []
    assert tuned.table(groups, AXES).count(" *") == 1 and "*!" not in tuned.table(groups, AXES)
    assert "Every best step" in script("shared.edges").told([])
    groups[0] = replace(groups[0], runs=())
    assert tuned.edge_of(groups, AXES) == ["local"] and "60.00 *!" in tuned.table(groups, AXES)
    assert tuned.at_edges(groups, AXES) == ["ZO-HFL (l2 s1)"]
