"""Bilevel problems that give values or solutions and no derivatives: their known optima, who runs on them, who not.

Docstrings name the mutations to catch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.launch import launch
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.problems.analytic.cvar import CVaR
from zofl_mpi.problems.analytic.shares import Shares
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients
from zofl_mpi.settings.fedrzo import PROBLEMS

Array = np.ndarray[Any, Any]
STREAMS, n, m = Streams(5), 5, 4
CLASSES = {"cvar": CVaR, "shares": Shares}


def setting(name: str, noise: float = 0.0, **more: Any) -> Setting[Any]:
    problem, server, data = CLASSES[name].random(STREAMS, n, m, noise=noise, **more)
    return Setting(problem, STREAMS, data, server, data, None, np.dtype(np.float64))


def point(t: int, size: int = n) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(size)


def implicit(of: Setting[Any], x: Array) -> float:
    """F(x) by the problem's own functions, client by client."""
    y = of.problem.solution(x, of.data)
    return float(np.mean([of.problem.f(i, x[None], y[None], data)[0] for i, data in enumerate(of.data)]))


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# --- who runs on them


@pytest.mark.parametrize("name", CLASSES)
def test_fednest_is_refused_by_a_sentence(name: str) -> None:
    """Mutation: derivatives that are made up."""
    assert set(PROBLEMS[name].roles) == {"Bilevel"}
    (ended,) = launch(0, [("zofl_mpi.fedrzo", ["--method", "fednest", "--problem", name])])
    said = f"zofl_mpi: --method fednest needs a SecondOrder problem; --problem {name} offers Bilevel\n"
    assert (ended.status, ended.stderr) == (2, said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "share"),
    [
        ("cvar", {"gamma": 0.1, "lower": "local_sgd", "T_lower": "10", "batch_lower": 0}, 0.1),
        ("shares", {"gamma": 0.03, "lower": "exact"}, 0.15),
    ],
)
def test_fedrzo_comes_near_the_known_optimum(name: str, flags: Any, share: float) -> None:
    """From values of f alone. Mutations: f at one lower solution; a gradient where there is none."""
    of = built(FedRZOBL, setting(name), H=5, eta=0.05, batch=0, schedule="sqrt", **flags)
    best, least = of.problem.truth()
    state, clients = of.start(), LocalClients(list(of.setting.data), method=of)
    first = np.linalg.norm(state.x - best)
    for r in range(300):
        state = of.round(state, r, clients)
    assert np.linalg.norm(state.x - best) < share * first
    assert math.isnan(state.lower_residual) == (name == "shares")
    assert implicit(of.setting, state.x) - least < 0.1


def test_a_lower_level_without_gradients_asks_for_exact() -> None:
    """Mutation: a gradient of zeros."""
    with pytest.raises(UserError, match=r"only returns its solution.*take --lower exact"):
        built(FedRZOBL, setting("shares"), lower="local_sgd")
    of = setting("shares")
    with pytest.raises(UserError, match="neither gradients nor curvature"):
        of.problem.gradient_h(0, point(1), point(2), of.data[0])


# --- cvar


def test_the_prior_that_undoes_the_training_samples_is_best() -> None:
    """Every other point is worse, near and far. Mutations: the bias forgotten in x*; t* of the outliers; 1/level."""
    of = setting("cvar", noise=1.0, resolution=0.0)
    best, least = of.problem.truth()
    close(of.problem.solution(best, of.data), of.problem.best)
    close(implicit(of, best), least)
    for t in range(40):
        d = point(t) / np.linalg.norm(point(t))
        for radius in (1e-4, 1e-2, 0.3, 3.0):
            assert implicit(of, best + radius * d) > least + 1e-3 * radius
    errors = np.abs(np.concatenate([b.inputs @ of.problem.best - b.targets for b in of.data]))
    close(least, np.sort(errors)[-len(errors) // 10 :].mean())


def test_f_is_even_around_the_best_prior_at_every_threshold() -> None:
    """Mutation: targets on one side."""
    of = setting("cvar", resolution=0.0)
    best, _ = of.problem.truth()
    for t in range(5):
        d, threshold = np.append(point(t, n - 1), 0.0), np.append(np.zeros(n - 1), 0.3 * t)
        close(implicit(of, best + threshold + d), implicit(of, best + threshold - d))


def test_answers_are_whole_multiples_and_have_no_slope() -> None:
    """And move f by no more than is said. Mutations: truncation; no rounding."""
    exact, of = setting("cvar", resolution=0.0), setting("cvar", resolution=0.01)
    data, y = of.data[0], point(3, n - 1)
    answers = of.problem.answer(data.inputs, y[None])
    close(answers / 0.01, np.rint(answers / 0.01), 1e-9)
    assert np.abs(answers - data.inputs @ y).max() <= 0.005 + 1e-12
    for t in range(9):
        assert np.array_equal(of.problem.answer(data.inputs, (y + 1e-9 * point(t, n - 1))[None]), answers)
    for t in range(5):
        assert abs(implicit(of, point(t)) - implicit(exact, point(t))) <= 0.005 / 0.1 + 1e-12


def test_the_ridge_regression_is_solved() -> None:
    """Gradient zero, curvature that of the mean. Mutations: mu in one of the two; the mean of own solutions."""
    of = setting("cvar", noise=1.0)
    x = point(1)
    y = of.problem.solution(x, of.data)
    slopes = [of.problem.gradient_h(i, x, y, data) for i, data in enumerate(of.data)]
    close(np.mean(slopes, axis=0), np.zeros(n - 1), 1e-12)
    low, high = of.problem.curvature(x)
    step = 1e-3 * point(2, n - 1)
    moved = np.mean([of.problem.gradient_h(i, x, y + step, data) for i, data in enumerate(of.data)], axis=0)
    assert low * step @ step <= moved @ step <= high * step @ step and low > of.problem.mu
    with pytest.raises(UserError, match="--n 1"):
        CVaR.random(STREAMS, 1, m)


# --- shares


def test_the_service_returns_the_nearest_shares() -> None:
    """Optimality on the simplex. Mutation: scores that are normalised."""
    of = setting("shares")
    for t in range(10):
        x = 2 * point(t)
        y = of.problem.solution(x, of.data)
        assert y.min() >= 0 and y.sum() == pytest.approx(1)
        corners = np.eye(n)
        assert ((corners - y) @ (x - y)).max() <= 1e-12


def test_the_known_scores_are_best() -> None:
    """Near and far; some share is 0, and F has a kink there. Mutations: 1 + rho; + 1/n; the clients' spread."""
    of = setting("shares", noise=0.3)
    best, least = of.problem.truth()
    close(implicit(of, best), least)
    for t in range(40):
        d = point(t) / np.linalg.norm(point(t))
        for radius in (1e-4, 1e-2, 0.3, 3.0):
            assert implicit(of, best + radius * d) >= least + of.problem.rho / 4 * radius**2
    y, h = of.problem.solution(best, of.data), 1e-6
    edges = [np.eye(n)[j] for j in np.flatnonzero(y < 1e-12)]  # to rounding
    slopes = [[(implicit(of, best + s * h * e) - least) / h for s in (1, -1)] for e in edges]
    assert edges and all(right + left > 1e-3 for right, left in slopes)
