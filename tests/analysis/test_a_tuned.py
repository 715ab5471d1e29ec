"""Tuned steps from tiny real results: the best is that of the highest mean over all seeds."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.grids import CELLS, METHODS
from tests.analysis.made import Grids, table_of


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
