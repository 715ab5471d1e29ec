"""The bias of [B]'s lower solvers."""

import statistics
from typing import Any

import pytest

from tests.analysis.made import check_figure


def test_local_steps_bias_the_lower_level_and_move_the_upper_one(script: Any) -> None:
    module = script("b_bias")
    paper = module.run({"lower": "local_sgd", "T_lower": "60", "H_lower": "paper", "batch_lower": 0}, 15, 1)
    fair = module.run({"lower": "local_sgd", "T_lower": "60", "H_lower": "1", "batch_lower": 0}, 15, 1)
    exact = module.run({"lower": "exact"}, 15, 1)
    assert exact.error < 1e-14 and exact.residual < 1e-12
    assert fair.error < 0.02 and paper.error > 0.05
    assert fair.residual < paper.residual
    assert abs(fair.distance - exact.distance) < 0.1 * abs(paper.distance - exact.distance)


def test_the_table_of_the_bias_is_the_mean_over_seeds(script: Any, monkeypatch: pytest.MonkeyPatch, wrote: Any) -> None:
    module = script("b_bias")
    monkeypatch.setattr(
        module, "SOLVERS", {"exact": {"lower": "exact"}, "none": {"lower": "local_sgd", "T_lower": "0"}}
    )
    told = wrote("b_bias", ["--rounds", "4", "--seeds", "1", "2"])
    check_figure(told.stem)
    courses = [module.run({"lower": "exact"}, 4, seed) for seed in (1, 2)]
    gap = statistics.mean(float(course.gap[-1]) for course in courses)
    assert f"{gap:.2e}" in told.out and f"{statistics.mean(c.distance for c in courses):.2e}" in told.out
    assert "1.00e+00" in next(line for line in told.out.split("\n") if line.startswith("none"))  # y = 0
