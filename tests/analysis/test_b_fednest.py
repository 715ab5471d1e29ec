"""FedRZO beside FedNest, from tiny real results: the measure, the choice and the budgets are those computed by hand."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.made import Grids, check_figure
from zofl_mpi.engine.streams import Streams
from zofl_mpi.problems.analytic.bilevel import Saddle


def test_the_numbers_are_those_of_the_results(made: Grids, wrote: Any) -> None:
    """Mutations: F* of another seed; seeds that steps were chosen on among those told; steps chosen on told ones."""
    told = wrote("b_fednest", made("b_fednest"))
    assert "Until the mean is where the worse of the two ends" in told.out
    check_figure(told.stem, 7.0)
    rows = told.rows
    assert len(rows) == 6 and {row["seeds"] for row in rows} == {"3"}
    for method in ("fedrzo", "fednest"):
        chosen = {}
        for row in [r for r in rows if (r["problem"], r["method"]) == ("saddle", method)]:
            runs = made("b_fednest").loaded(problem="saddle", method=method, step=row["step"])
            truths = [Saddle.random(Streams(run.config["seed"]), 4, 3)[0].truth() for run in runs]
            gaps = [
                float(run.rounds["objective_exact"][-1]) - truth[1] for run, truth in zip(runs, truths, strict=True)
            ]
            assert float(row["measure_mean"]) == pytest.approx(np.mean(gaps[:3]))
            assert float(row["measure_sd"]) == pytest.approx(np.std(gaps[:3], ddof=1))
            off = [np.linalg.norm(run.final["x"] - truth[0]) for run, truth in zip(runs, truths, strict=True)]
            assert float(row["distance_mean"]) == pytest.approx(np.mean(off[:3]))
            told_there = runs[3].rounds["objective_exact"] - truths[3][1]
            chosen[row["step"]] = np.prod(told_there[[0, 1, 3, 4]]) ** (1 / 4)
            assert float(row["chosen_by"]) == pytest.approx(chosen[row["step"]])
        best = [r["step"] for r in rows if (r["problem"], r["method"], r["best"]) == ("saddle", method, "True")]
        assert best == [min(chosen, key=lambda step: chosen[step])]
    alone = [row for row in rows if row["problem"] == "shares"]
    assert {row["reached_in_round"] for row in alone} == {""} and min(float(r["distance_mean"]) for r in alone) > 0


def test_budgets_count_every_derivative_twice(made: Grids, script: Any) -> None:
    """5 rounds of 3 clients and 8 samples. Mutations: the two calls as one; values counted as gradients; no clients."""
    module = script("b_fednest")
    groups = made("b_fednest").groups(*module.AXES)
    found = {(g.entry("problem"), g.entry("method")): module.evaluations(g)[-1] for g in groups}
    assert found["saddle", "fedrzo"] == 5 * 3 * 8 * (2 * 2 + 2 * 2 * 2)
    assert found["shares", "fedrzo"] == 5 * 3 * 8 * 2 * 2
    assert found["saddle", "fednest"] == 5 * 3 * 8 * 2 * (2 * (1 + 2 * 1) + 1 + 0 + 2 + 2 * 2)


def test_reached_is_the_first_evaluated_round_at_the_worse_end(made: Grids, script: Any) -> None:
    """Mutations: the better end; a line that begins above it and ends there."""
    module = script("b_fednest")
    groups = made("b_fednest").groups(*module.AXES)
    best = [module.told_of(choice.group) for choice in module.choices(groups) if choice.best]
    pair = [g for g in best if g.entry("problem") == "saddle"]
    ends = [np.mean([module.last(run) for run in g.runs]) for g in pair]
    for group in pair:
        at = module.reached(group, pair)
        where, values = module.curve(group)
        means = dict(zip(where.tolist(), values.mean(axis=0), strict=True))
        assert means[at] <= max(ends) and all(means[r] > max(ends) for r in where.tolist() if r < at)
    assert module.reached(pair[0], pair[:1]) is None
