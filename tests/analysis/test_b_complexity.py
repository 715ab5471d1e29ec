"""[B]'s communication rounds: the sums of the schedules, and the messages of runs."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.made import check_figure


@pytest.mark.parametrize(("K", "m", "upper", "calls"), [(4096, 8, 2048, 8), (2**20, 8, 149797, 8), (1000, 1, 167, 1)])
def test_the_rounds_of_local_sgd_are_those_of_the_printed_formulas(
    script: Any, K: int, m: int, upper: int, calls: int
) -> None:
    """H = ceil((K/m^3)^(1/4)), R = ceil(K/H); T is so long that ceil(T/ceil(T/m)) = m in every call."""
    found = script("b_complexity").count("Local SGD", K, m)
    assert found.upper == upper
    assert found.lower == pytest.approx(2 * calls * upper, rel=1e-9)


def test_the_sum_over_some_rounds_is_near_that_over_all(script: Any) -> None:
    module = script("b_complexity")
    for name in ("FedAC-I", "LFD, T of Thm 1", "LFD, T of Alg. 3"):
        solver = module.lower_of(module.METHODS[name][0], module.Curvature(), 8)
        exact = 0
        for r in range(20_000):
            schedule = solver.schedule(np.zeros(1), r)
            exact += -(-schedule.T // schedule.H)
        assert module.summed(solver, 20_000, 400) == pytest.approx(exact, rel=0.01)
        assert module.summed(solver, 20_000, 20_000) == exact


def test_a_run_sends_as_many_messages_as_the_schedules_say(script: Any) -> None:
    module = script("b_complexity")
    for name in module.METHODS:
        found = module.measured(name, 16, 2)
        assert found.counted == (found.upper, found.lower)
        assert (found.counted[1] > 0) == (name != "upper level")


def test_a_run_that_differs_from_its_schedules_is_told(script: Any) -> None:
    module = script("b_complexity")
    told = module.checked([module.Count("FedAC-I", 16, 2, 8, 32.0, (8, 31)), module.Count("x", 16, 2, 8, 0.0, (8, 0))])
    assert told.startswith("2 runs, their messages counted: 1 differ") and "FedAC-I, K = 16, m = 2" in told


def test_the_exponents(script: Any) -> None:
    """K of the paper, long runs; LFD's is reached with the T of Theorem 1, not with Algorithm 3's."""
    module = script("b_complexity")
    slopes = {n: module.slope([module.count(n, K, 8, 300) for K in module.LONG], "K") for n in module.METHODS}
    for name in ("upper level", "Local SGD", "FedAC-I"):
        assert slopes[name] == pytest.approx(0.75, abs=0.01)
    assert slopes["LFD, T of Thm 1"] == pytest.approx(11 / 12, abs=0.04)
    assert slopes["LFD, T of Alg. 3"] > 0.98


def test_complexity_is_drawn_and_written(script: Any, monkeypatch: pytest.MonkeyPatch, wrote: Any) -> None:
    module = script("b_complexity")
    monkeypatch.setattr(module, "TERMS", 50)
    monkeypatch.setattr(module, "RUNS", ((16, 2),))
    told = wrote("b_complexity", [])
    assert "5 runs, their messages counted: 0 differ" in told.out
    check_figure(told.stem)
    assert len(told.rows) == 5 * (len(module.SHORT) + len(module.LONG) + 4 + 1)
