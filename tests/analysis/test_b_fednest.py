"""FedRZO beside FedNest, from tiny real results: the measure, the choice and the budgets are those computed by hand."""

from typing import Any

import numpy as np

from tests.analysis.made import Grids


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
