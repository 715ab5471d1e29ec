"""One contract for bilevel problems: derivatives are slopes of values, batches are means, solutions solve."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.numerics import test_fair as fair
from tests.numerics import test_hyperparameter as held_out
from tests.numerics.first_order import STREAMS, Array, close, m, n, vector
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled, Saddle
from zofl_mpi.problems.analytic.black_boxes import CVaR, Shares
from zofl_mpi.problems.fair import ClassWeights
from zofl_mpi.problems.hyperparameter import Hyperparameter

EVERY_BATCH = pytest.mark.parametrize("batch", [None, np.array([3, 5, 3, 0, 4])], ids=["all", "batch"])
"""A position twice: batches are drawn with replacement."""


class Case(NamedTuple):
    """A problem with all clients' data, and h_i at one y by other means than its gradient."""

    make: Callable[[Any], tuple[Any, Any]]
    h: Callable[..., float]


def known(cls: Any, dtype: Any, **more: Any) -> tuple[Any, Any]:
    problem, _, data = cls.random(STREAMS, n, m, noise=1.0, **more)
    return problem, data


def of_fair(name: str, dtype: Any) -> tuple[Any, Any]:
    return fair.problem(name, dtype=dtype), fair.CLIENTS


def of_held_out(name: str, dtype: Any) -> tuple[Any, Any]:
    return held_out.problem(held_out.clients(name), dtype=dtype), held_out.clients(name)


def coupled(order: Any, dtype: Any) -> tuple[Any, Any]:
    return Coupled(order, m), (range(1),) * m


def minus_f(problem: ClassWeights | Coupled | Saddle, i: int, x: Array, y: Array, data: Any, batch: Any) -> float:
    return -float(problem.f(i, x[None], y[None], data, batch)[0])


def regularised(problem: Hyperparameter, i: int, x: Array, y: Array, data: Any, batch: Any) -> float:
    return float(problem.f(i, x[None], y[None], data, batch)[0] + x[i] / 2 * y @ y)


def followed(problem: BilevelBowls, i: int, x: Array, y: Array, data: Any, batch: Any) -> float:
    return float(data.values((y - data.B @ x)[None], batch)[0])


def ridge(problem: CVaR, i: int, x: Array, y: Array, data: Any, batch: Any) -> float:
    return float(data.training.values(y[None], batch)[0] + problem.mu / 2 * (y - x[:-1]) @ (y - x[:-1]))


SAMPLED = {
    **{name: Case(partial(of_fair, name), minus_f) for name in fair.MODELS},
    **{f"held out, {name}": Case(partial(of_held_out, name), regularised) for name in held_out.SCALES},
}
CASES = SAMPLED | {
    "bowls": Case(partial(known, BilevelBowls, n_lower=3, rho=0.7, noise_upper=1.0), followed),
    "saddle": Case(partial(known, Saddle), minus_f),
    "cvar": Case(partial(known, CVaR), ridge),
    **{f"coupled, {order}": Case(partial(coupled, order), minus_f) for order in ("min-max", "max-min")},
}
ALL = pytest.mark.parametrize("name", CASES)
BLACK_BOX = {"shares": Case(partial(known, Shares), minus_f)}
"""Without a gradient of h_i."""


def place(problem: Any) -> tuple[Array, Array]:
    """x, whose entries may be regularisers, and y."""
    return 0.1 + abs(vector(1, problem.n)), vector(2, problem.n_lower)


def slopes(function: Callable[[Array], Any], at: Array, h: float = 1e-5) -> Array:
    """Central differences, one row for each entry of `at`."""
    return np.array([(np.asarray(function(at + h * e)) - function(at - h * e)) / (2 * h) for e in np.eye(len(at))])


def near(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@ALL
@EVERY_BATCH
def test_the_gradient_of_h_is_its_slope(name: str, batch: Any) -> None:
    """Mutations: a sign; a transpose; y for lam y; another client's x_i or losses; the inputs' factor once; a
    batch's noise summed; the batch ignored."""
    case = CASES[name]
    problem, clients = case.make(np.float64)
    x, y = place(problem)
    for i, lower in enumerate(problem.parts(data)[1] for data in clients):
        expected = slopes(lambda z, i=i, lower=lower: case.h(problem, i, x, z, lower, batch), y)  # type: ignore[misc]
        near(problem.gradient_h(i, x, y, lower, batch), expected)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("cvar", *fair.MODELS) and not name.startswith("coupled")]
)
@EVERY_BATCH
def test_other_derivatives_are_slopes_as_well(name: str, batch: Any) -> None:
    """Of f in x and y, and of grad_y h along u. Mutations: a sign; a transpose; the noise; the batch ignored."""
    problem, clients = CASES[name].make(np.float64)
    (x, y), u, i = place(problem), vector(3, problem.n_lower), 1
    upper, lower = problem.parts(clients[i])
    gx, gy = problem.gradients_f(i, x, y, upper, batch)
    near(gx, slopes(lambda z: problem.f(i, z[None], y[None], upper, batch)[0], x))
    near(gy, slopes(lambda z: problem.f(i, x[None], z[None], upper, batch)[0], y))
    near(problem.cross_h(i, x, y, u, lower, batch), slopes(lambda z: problem.gradient_h(i, z, y, lower, batch), x) @ u)
    along = slopes(lambda z: problem.gradient_h(i, x, z, lower, batch), y).T @ u
    near(problem.hessian_h(i, x, y, u, lower, batch), along)


@pytest.mark.parametrize("name", [*CASES, *BLACK_BOX])
def test_a_batch_is_the_mean_of_its_samples(name: str) -> None:
    """Over all batches of one sample the whole, exactly; rows of points are independent. Mutations: N_i or B left out;
    a repeated position counted once; a batch's own class means; noise per row."""
    problem, clients = {**CASES, **BLACK_BOX}[name].make(np.float64)
    x, y = place(problem)
    xs, ys, batch = np.stack([x, 2 * x]), np.stack([y, -y]), np.array([3, 5, 3, 0, 4])
    for i, data in enumerate(clients):
        upper, lower = problem.parts(data)
        for size, ask in (
            (len(upper), lambda some, i=i, upper=upper: problem.f(i, xs, ys, upper, some)),
            (len(lower), lambda some, i=i, lower=lower: problem.gradient_h(i, x, y, lower, some)),
        )[: 1 + (name not in BLACK_BOX)]:
            each = np.stack([ask(np.array([j])) for j in range(size)])
            close(each.mean(axis=0), ask(None), 1e-10)
            close(each[batch % len(each)].mean(axis=0), ask(batch % len(each)), 1e-10)
        alone = [problem.f(i, xs[[k]], ys[[k]], upper, batch % len(upper))[0] for k in range(2)]
        close(problem.f(i, xs, ys, upper, batch % len(upper)), alone)


@ALL
def test_the_solution_is_where_the_mean_gradient_vanishes_and_curvature_is_that_of_the_mean(name: str) -> None:
    """Mutations: clients weighted by size; held-out samples; the mean of own solutions; max for mean of x; curvature of
    the sum, of one client, of the extremes over clients; a solution outside a set, or on its edge without need."""
    problem, clients = CASES[name].make(np.float64)
    x, y = place(problem)

    def mean(z: Array, x: Array = x) -> Array:
        each = (problem.gradient_h(i, x, z, problem.parts(data)[1]) for i, data in enumerate(clients))
        return np.asarray(np.mean(list(each), axis=0))

    solved = problem.solution(x, clients)
    assert problem.project_lower or np.linalg.norm(mean(solved)) <= 2e-12
    if problem.project_lower:  # where the projected step stays, whether the set binds or not
        for at in (x, -x, 0.3 * x, -0.3 * x):
            end = problem.solution(at, clients)
            near(problem.project_lower(at, end - mean(end, at)), end)
    if name == "coupled, min-max":  # linear in y
        return
    low, high = problem.curvature(x)
    for at in (0 * y, y, solved):
        matrix = slopes(mean, at)
        near(matrix, matrix.T)
        found = np.linalg.eigvalsh(matrix)[[0, -1]]
        assert low * (1 - 1e-6) <= found[0] and found[1] <= high * (1 + 1e-6)
        if not isinstance(problem, Hyperparameter):  # which states a bound
            near(found, np.array([low, high]))


@pytest.mark.parametrize("name", SAMPLED)
@EVERY_BATCH
def test_float32_stays_float32_and_close(name: str, batch: Any) -> None:
    """Mutations: gradients in float64 whatever dtype is; values in float32."""
    (single, clients), (double, _) = (CASES[name].make(dtype) for dtype in (np.float32, np.float64))
    x, y = (each.astype(np.float32) for each in place(double))
    upper, lower = single.parts(clients[1])
    found, values = single.gradient_h(1, x, y, lower, batch), single.f(1, x[None], y[None], upper, batch)
    assert found.dtype == np.float32 and values.dtype == np.float64
    np.testing.assert_allclose(found, double.gradient_h(1, x, y, lower, batch), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(values, double.f(1, x[None], y[None], upper, batch), rtol=1e-5)
