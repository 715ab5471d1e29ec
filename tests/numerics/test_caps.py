"""`Caps`: its closed forms, and ZO-HFL on it. Docstrings name the mutations to catch."""

from __future__ import annotations

import numpy as np
import pytest

from zofl_mpi.errors import UserError
from zofl_mpi.problems.analytic.caps import Caps


def slope(problem: Caps, x: float, side: float) -> float:
    """Of an entry's F, on one side of x."""
    a, b = (problem.implicit(np.full(problem.n, x + side * h)) / problem.n for h in (1e-7, 2e-7))
    return side * (b - a) / 1e-7


@pytest.mark.parametrize("x", [0.0, 0.5, 1.0, 1.05, 1 + 2 / 9, 1.9, 2.0, 2.3])
def test_the_slopes_are_those_of_the_implicit_function(x: float) -> None:
    """Mutations: a client whose constraint is just met counted on the wrong side; the sum in place of the mean."""
    problem = Caps()
    left, right = problem.slopes(x)
    assert slope(problem, x, -1.0) == pytest.approx(left, abs=1e-5)
    assert slope(problem, x, 1.0) == pytest.approx(right, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "kink"), [(1.1, True), (1.0, False), (0.05, True), (9.0, False), (0.9, False)])
@pytest.mark.parametrize("m", [1, 10])
def test_the_minimiser_is_the_lowest_point_of_a_fine_grid(cost: float, kink: bool, m: int) -> None:
    """Mutations: the first kink; the stationary point of another piece."""
    problem = Caps(m=m, n=1, cost=cost)
    grid = np.linspace(0.0, 2.5, 25001)
    lowest = grid[np.argmin([problem.implicit(np.array([x])) for x in grid])]
    best = float(problem.minimiser()[0])
    assert best == pytest.approx(lowest, abs=1e-4)
    if m == 10:
        assert (np.abs(problem.wishes - best).min() < 1e-12) == kink
    left, right = problem.slopes(best)
    assert left <= 1e-12 and right >= -1e-12


def test_the_surrogates_limit_is_no_stationary_point() -> None:
    """The slope of F at 0 is -level, whatever the cost. Mutation: a surrogate that sees the constraint."""
    problem = Caps()
    assert np.array_equal(problem.surrogate(np.zeros(problem.n)), np.zeros(problem.n))
    assert problem.slopes(0.0) == (-problem.level, -problem.level)
    assert np.array_equal(problem.surrogate(np.full(problem.n, 2.0)), np.full(problem.n, 2 * problem.cost))


def test_algorithm_2_reaches_the_solution_and_stays_below_the_cap() -> None:
    problem = Caps(n=2)
    x = np.array([[1.5, 0.3], [1.2, 2.5]])
    for i in range(problem.m):
        y = problem.lower(i, None, x, x, np.zeros((60, 1), np.int64), np.full(60, 0.5))
        assert (y <= x).all()
        np.testing.assert_allclose(y, problem.solution(i, None, x), atol=1e-12)


@pytest.mark.parametrize(("flag", "value"), [("m", 0), ("n", 0), ("cost", 0.0), ("level", 1.5)])
def test_values_out_of_range_are_refused(flag: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{flag} "):
        Caps(**{flag: value})
