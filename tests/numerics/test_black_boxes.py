"""Bilevel problems that give values or solutions and no derivatives: their known optima, who runs on them, who not.

Docstrings name the mutations to catch.
"""

from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import STREAMS, Array, close, m, n, vector
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.problems.analytic.black_boxes import CVaR, Shares
from zofl_mpi.problems.analytic.caps import Caps
from zofl_mpi.run.command.flags import from_flags

CLASSES = {"cvar": CVaR, "shares": Shares}


def setting(name: str, noise: float = 0.0, **more: Any) -> Setting[Any]:
    problem, server, data = CLASSES[name].random(STREAMS, n, m, noise=noise, **more)
    return Setting(problem, STREAMS, data, server, data, None, np.dtype(np.float64))


def implicit(of: Setting[Any], x: Array) -> float:
    """F(x) by the problem's own functions, client by client."""
    y = of.problem.solution(x, of.data)
    return float(np.mean([of.problem.f(i, x[None], y[None], data)[0] for i, data in enumerate(of.data)]))


def test_what_a_black_box_lacks_is_told() -> None:
    """Mutation: a gradient of zeros."""
    with pytest.raises(UserError, match=r"only returns its solution.*use --lower exact"):
        from_flags(FedRZOBL, setting("shares"), lower="local_sgd")
    of = setting("shares")
    with pytest.raises(UserError, match="neither gradients nor curvature"):
        of.problem.gradient_h(0, vector(1), vector(2), of.data[0])
    with pytest.raises(UserError, match="--n 1"):
        CVaR.random(STREAMS, 1, m)


# --- cvar


def test_the_solution_is_the_mean_of_the_largest_tenth_of_the_errors() -> None:
    """Mutations: the bias forgotten in x*; t* of the outliers; 1/level."""
    of = setting("cvar", noise=1.0, resolution=0.0)
    best, least = of.problem.truth()
    close(of.problem.solution(best, of.data), of.problem.best)
    errors = np.abs(np.concatenate([b.inputs @ of.problem.best - b.targets for b in of.data]))
    close(least, np.sort(errors)[-len(errors) // 10 :].mean())


def test_answers_are_whole_multiples_and_have_no_slope() -> None:
    """And move f by no more than is said. Mutations: truncation; no rounding."""
    exact, of = setting("cvar", resolution=0.0), setting("cvar", resolution=0.01)
    data, y = of.data[0], vector(3, n - 1)
    answers = of.problem.answer(data.inputs, y[None])
    close(answers / 0.01, np.rint(answers / 0.01), 1e-9)
    assert np.abs(answers - data.inputs @ y).max() <= 0.005 + 1e-12
    for t in range(9):
        assert np.array_equal(of.problem.answer(data.inputs, (y + 1e-9 * vector(t, n - 1))[None]), answers)
    for t in range(5):
        assert abs(implicit(of, vector(t)) - implicit(exact, vector(t))) <= 0.005 / 0.1 + 1e-12


# --- shares


def test_the_service_returns_the_nearest_shares() -> None:
    """Optimality on the simplex. Mutation: scores that are normalised."""
    of = setting("shares")
    for t in range(10):
        x = 2 * vector(t)
        y = of.problem.solution(x, of.data)
        assert y.min() >= 0 and y.sum() == pytest.approx(1)
        corners = np.eye(n)
        assert ((corners - y) @ (x - y)).max() <= 1e-12


def test_the_known_scores_lie_at_a_kink() -> None:
    """Some share is 0, and F has a kink there. Mutations: 1 + rho; + 1/n."""
    of = setting("shares", noise=0.3)
    best, least = of.problem.truth()
    y, h = of.problem.solution(best, of.data), 1e-6
    edges = [np.eye(n)[j] for j in np.flatnonzero(y < 1e-12)]  # to rounding
    slopes = [[(implicit(of, best + s * h * e) - least) / h for s in (1, -1)] for e in edges]
    assert edges and all(right + left > 1e-3 for right, left in slopes)


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


@pytest.mark.parametrize(("cost", "kink"), [(1.1, True), (1.0, False), (0.05, True), (9.0, False), (0.9, False)])
def test_the_minimiser_is_a_kink_or_lies_between_two(cost: float, kink: bool) -> None:
    """That no point is better: test_contract_known.py. Mutations: the first kink; the stationary point of another
    piece."""
    problem = Caps(n=1, cost=cost)
    best = float(problem.minimiser()[0])
    assert (np.abs(problem.wishes - best).min() < 1e-12) == kink
    left, right = problem.slopes(best)
    assert left <= 1e-12 and right >= -1e-12


def test_the_surrogates_limit_is_no_stationary_point_and_algorithm_2_stays_below_the_cap() -> None:
    """The slope of F at 0 is -level, whatever the cost. Mutations: a shortfall from the wish."""
    problem = Caps()
    assert problem.slopes(0.0) == (-problem.level, -problem.level)
    problem = Caps(n=2)
    x = np.array([[1.5, 0.3], [1.2, 2.5]])
    for i in range(problem.m):
        y = problem.solve_client(i, None, x, x, np.zeros((60, 1), np.int64), np.full(60, 0.5))
        assert (y <= x).all()
        np.testing.assert_allclose(y, problem.solution(i, None, x), atol=1e-12)
