"""One contract for problems with known solutions: F is made of the clients' parts, and no point is better than x*."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.numerics.first_order import STREAMS, Array, close, m, n, vector
from zofl_mpi.engine.streams import Streams
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled, Saddle
from zofl_mpi.problems.analytic.black_boxes import CVaR, Shares
from zofl_mpi.problems.analytic.caps import Caps
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.analytic.quadratic import Corner, Quadratic

NOTHING = range(1)
"""The data of a client whose problem ignores them."""
ROUGH = {"noise": 1.5}


class Known(NamedTuple):
    """A problem, the server's data and the clients'."""

    problem: Any
    server: Any
    clients: tuple[Any, ...]


def random(cls: Any, streams: Streams = STREAMS, clients: int = m, **more: Any) -> Known:
    return Known(*cls.random(streams, n, clients, **more))


def without_data(problem: Any) -> Known:
    return Known(problem, NOTHING, (NOTHING,) * problem.m)


def tilted() -> Known:
    """Bowls whose noise does not sum to 0."""
    _, server, clients = Bowls.random(STREAMS, n, m, **ROUGH)
    moved = tuple(replace(data, noise=data.noise + vector(i)) for i, data in enumerate(clients))
    return Known(Bowls.of(moved), server, moved)


def weakly_regularised() -> Known:
    """A weight other than 1, by which one multiplies and divides alike."""
    known = random(CVaR, resolution=0.0, **ROUGH)
    return known._replace(problem=replace(known.problem, mu=0.4))


RANDOM: dict[str, Callable[..., Known]] = {
    "max-affine": partial(random, MaxAffine, **ROUGH),
    "bowls": partial(random, Bowls, **ROUGH),
    "bilevel bowls": partial(random, BilevelBowls, n_lower=3, rho=0.7, noise_upper=1.0, **ROUGH),
    "saddle": partial(random, Saddle, **ROUGH),
    "cvar": partial(random, CVaR, resolution=0.0, **ROUGH),
    "shares": partial(random, Shares, **ROUGH),
}
LIPSCHITZ = ["max-affine", "bowls"]
COUPLED = {f"coupled, {order}": partial(without_data, Coupled(order)) for order in ("min-max", "max-min")}
HIERARCHICAL: dict[str, Callable[..., Known]] = {
    "toy": partial(random, Quadratic, lam=1.7, **ROUGH),
    "toy in balls": partial(random, Quadratic, radius=0.4, **ROUGH),
    "corner": partial(without_data, Corner(n, m)),
    "caps": partial(without_data, Caps(m, n)),
}
COSTS = (0.05, 0.9, 1.0, 1.1, 9.0)
SOLVED: dict[str, Callable[..., Known]] = {
    **RANDOM,
    **COUPLED,
    **{f"max-affine of {k}": partial(RANDOM["max-affine"], clients=k) for k in (1, 5)},
    "tilted bowls": tilted,
    "cvar, weakly": weakly_regularised,
    "corner": HIERARCHICAL["corner"],
    **{
        f"caps of {k} at {c}": partial(without_data, Caps(k, n, c)) for k in (1, 10) for c in (0.05, 0.9, 1.0, 1.1, 9.0)
    },
}


def lower(known: Known, x: Array) -> Array:
    return np.asarray(known.problem.solution(x, known.clients))


def objective(known: Known, x: Array) -> float:
    """F(x), by the functions that clients and server evaluate."""
    problem, clients = known.problem, known.clients
    if hasattr(problem, "losses"):
        return float(np.mean([problem.losses(i, x[None], data)[0] for i, data in enumerate(clients)]))
    if hasattr(problem, "f2"):
        found = [problem.f2(i, x, problem.solution(i, data, x)) for i, data in enumerate(clients)]
        return float(problem.f1(x, known.server) + np.mean(found))
    y = lower(known, x)[None]
    return float(np.mean([problem.f(i, x[None], y, problem.parts(data)[0])[0] for i, data in enumerate(clients)]))


def truth(name: str, problem: Any) -> tuple[Array, float]:
    if isinstance(problem, Corner):
        return -np.ones(n), 0.0
    if isinstance(problem, Caps):
        return problem.minimiser(), problem.implicit(problem.minimiser())
    return problem.truth()  # type: ignore[no-any-return]


def score(known: Known, x: Array, data: Any) -> float:
    bilevel = hasattr(known.problem, "parts")
    return float(known.problem.score(x, *([lower(known, x)] if bilevel else []), data)["loss"])


@pytest.mark.parametrize("name", SOLVED)
def test_no_point_is_better_than_the_solution(name: str) -> None:
    """Near and far, inside X. Mutations: the server's or one client's part; a mean for a median, a weighted one for a
    plain one; a drift's sign; rho, lam, mu, 1/n or 1/level forgotten; the value without 1/m."""
    known = SOLVED[name]()
    x, value = truth(name, known.problem)
    assert objective(known, x) == pytest.approx(value, rel=1e-11, abs=1e-13)
    inside = getattr(known.problem, "project", None) if name in COUPLED else None
    for t in range(60):
        far = x + 10.0 ** (1 - t % 5) * vector(t, len(x)) / np.linalg.norm(vector(t, len(x)))
        assert objective(known, inside(0, far) if inside else far) >= value - 1e-12 * max(1.0, abs(value))


@pytest.mark.parametrize("name", SOLVED)
def test_f_and_the_score_are_means_over_the_clients(name: str) -> None:
    """The score of one client's data is that client's own part. Mutations: of the first client alone; a sum; another
    formula where F is known in closed form."""
    known = SOLVED[name]()
    problem, x = known.problem, vector(3, len(truth(name, known.problem)[0]))
    if hasattr(problem, "implicit"):
        assert problem.implicit(x) == pytest.approx(objective(known, x), rel=1e-11)
    whole = score(known, x, known.clients)
    assert whole == pytest.approx(objective(known, x), rel=1e-11)
    if not hasattr(problem, "f2"):
        assert np.mean([score(known, x, data) for data in known.clients]) == pytest.approx(whole, rel=1e-11)


@pytest.mark.parametrize("name", RANDOM)
def test_random_problems_depend_on_the_seed_alone(name: str) -> None:
    """Mutations: a generator of its own; a seed that is ignored."""
    first, again, other = (truth(name, RANDOM[name](streams=Streams(seed)).problem) for seed in (1, 1, 2))
    assert np.array_equal(first[0], again[0]) and first[1] == again[1]
    assert np.abs(first[0] - other[0]).max() > 0.01


@pytest.mark.parametrize("name", LIPSCHITZ)
def test_losses_of_a_batch_share_their_samples(name: str) -> None:
    """A batch adds <the mean of its samples' noise, x> to every row; all samples add nothing. Mutations: noise per row,
    a sum over the batch, noise that does not sum to 0, a noise the server shares with a client."""
    problem, server, clients = RANDOM[name]()
    xs = np.stack([vector(1), vector(2), vector(3)])
    batch = np.array([3, 3, 7])
    for i, data in enumerate(clients):
        plain = problem.losses(i, xs, replace(data, noise=0 * data.noise))
        close(problem.losses(i, xs, data, batch), plain + xs @ (2 * data.noise[3] + data.noise[7]) / 3)
        close(problem.losses(i, xs, data), plain)
        close([problem.losses(i, x[None], data, batch)[0] for x in xs], problem.losses(i, xs, data, batch))
        assert len(data) == 32 == len(data.noise) and np.std(data.noise) == pytest.approx(1.5, rel=0.2)
        assert not np.allclose(data.noise, server.noise)
        assert np.array_equal(problem.project(i, xs[0]), xs[0])


def h(problem: Any, i: int, data: Any, x: Array, y: Array, batch: Array) -> float:
    """h_i(x, y) as the classes' docstrings print it."""
    if isinstance(problem, Corner):
        return float((y - x) @ (y - x) / 2)
    if isinstance(problem, Caps):
        return float((y - problem.wishes[i]) @ (y - problem.wishes[i]) / 2)
    return float(data.values(y[None], batch)[0] + problem.mu[i] / 2 * (y - x) @ (y - x))


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_lower_levels_descend_along_slopes_into_their_set(name: str) -> None:
    """The slopes of f_1 and h_i by central differences; Y_i(x) by the angle at the nearest point; Algorithm 2, for two
    points at once, ends in the solution, or where its projected step stays. Mutations: a sign; mu's client; a step
    without projection; the set of the other row's x; a max for a min."""
    problem, server, clients = HIERARCHICAL[name]()
    every, e = np.arange(len(clients[0])), 1e-5 * np.eye(n)
    xs, ys = np.stack([vector(1), 1 + abs(vector(2))]), np.stack([vector(3), vector(4)])
    x, y = xs[0], ys[0]
    slope = [(problem.f1(x + d, server) - problem.f1(x - d, server)) / 2e-5 for d in e]
    close(problem.gradient_f1(x, server, np.arange(len(server))), slope, 1e-8)
    for i, data in enumerate(clients):
        slope = [(h(problem, i, data, x, y + d, every) - h(problem, i, data, x, y - d, every)) / 2e-5 for d in e]
        close(problem.gradient_h(i, data, xs, ys, every)[0], slope, 1e-8)
        ends = problem.solve_client(i, data, xs, ys, np.tile(every, (150, 1)), np.full(150, 0.3))
        assert ends.dtype == np.float64 and np.array_equal(ys[0], vector(3))
        nearest, other = problem.project(i, xs, ys), problem.project(i, xs, np.tile(vector(5), (2, 1)))
        close(problem.project(i, xs, other), other)
        assert np.einsum("kn,kn->k", ys - nearest, other - nearest).max() <= 1e-12
        close(problem.project(i, xs, ends - 0.5 * problem.gradient_h(i, data, xs, ends, every)), ends, 1e-9)
        solved = [problem.solution(i, data, at) for at in xs]
        assert all((each is None) == (name == "toy in balls") for each in solved)
        if name != "toy in balls":
            close(ends, np.stack(solved), 1e-9)
