"""Identities of the zeroth-order estimates. Each docstring names the mutations of zo.py that its test must catch."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import Array, close
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.descent import descend, local_descent
from zofl_mpi.numerics.schedules import stepsizes

STREAMS = Streams(20240607)
n, mu = 6, 0.3


def generator(t: int = 0) -> np.random.Generator:
    return STREAMS(Purpose.SYNTHETIC, t=t)


def quadratic(n: int = n):
    """A quadratic with an indefinite Hessian, and its gradient."""
    B, c = generator().standard_normal((n, n)), generator(1).standard_normal(n)
    A = (B + B.T) / 2
    return lambda x: x @ A @ x / 2 + c @ x + 0.7, lambda x: A @ x + c


def frame(n: int = n):
    """Orthonormal directions, one per row."""
    return np.linalg.qr(generator(2).standard_normal((n, n)))[0].T


def one_sided(F, x, v, mu, distribution="sphere"):
    """n / mu (F(x + mu v) - F(x)) v, as the methods of [B] and [C] form it."""
    return zo.estimate(F(x + mu * v) - F(x), v, mu, distribution)


def test_the_mean_over_a_frame_is_the_gradient_of_a_quadratic():
    """One-sided: over a frame and its negative. Mutations: no factor n; span mu for 2 mu; the two points exchanged; x
    in place of x - mu v."""
    F, gradient = quadratic()
    x = generator(3).standard_normal(n)
    close(np.mean([zo.central(F, x, v, mu) for v in frame()], axis=0), gradient(x))
    close(np.mean([one_sided(F, x, s * v, mu) for v in frame() for s in (1, -1)], axis=0), gradient(x))


def test_normal_form_with_sphere_directions_times_root_n_is_the_sphere_form():
    """Sample by sample, with a radius sqrt(n) times as large. Mutation: factor n in the normal form."""
    x, v = generator(3).standard_normal(n), zo.direction(STREAMS(Purpose.DIRECTION), n)
    cubic = lambda x: float(np.sum(x**3))  # noqa: E731
    close(one_sided(cubic, x, np.sqrt(n) * v, mu / np.sqrt(n), "gaussian"), one_sided(cubic, x, v, mu))


def test_a_direction_depends_on_its_key_alone_and_is_cast_once():
    """Mutations: drawing or normalising in float32; normalising by the largest entry."""
    first = zo.direction(STREAMS(Purpose.DIRECTION, r=3, i=7), 1000)
    again = zo.direction(STREAMS(Purpose.DIRECTION, r=3, i=7), 1000, np.float32)
    z = STREAMS(Purpose.DIRECTION, r=3, i=7).standard_normal(1000)
    close(first, z / np.linalg.norm(z), 1e-15)
    assert again.dtype == np.float32
    assert np.array_equal(first.astype(np.float32), again)
    assert not np.array_equal(first, zo.direction(STREAMS(Purpose.DIRECTION, r=3, i=8), 1000))


def test_the_estimate_of_a_direction_in_float32():
    """Mutations: rounding the scale to float32 first."""
    v = zo.direction(generator(), 7840, np.float32)
    g = zo.estimate(1 / 3, v, 0.2)
    assert g.dtype == np.float64
    close(g, 7840 * (1 / 3) / 0.2 * v.astype(np.float64), 1e-15)
    torch = pytest.importorskip("torch")
    v = torch.tensor([0.6, 0.8])
    g = zo.estimate(0.5, v, 0.1)
    assert g.dtype == v.dtype
    close(g.numpy(), 10 * np.array([0.6, 0.8]), 1e-6)


a, start = np.array([1.0, -2.0, 3.0]), np.array([4.0, 0.0, -1.0])


def test_steps_on_a_quadratic_follow_their_product():
    """y_H - a = prod_t (1 - gamma_t) (y_0 - a). Mutations: t from 1; a constant step size; the sign; one step too
    many."""
    gammas = stepsizes("harmonic", 0.7, 9)
    y = descend(start, lambda y, t: y - a, steps=9, stepsize=lambda t: gammas[t])
    np.testing.assert_allclose(y - a, np.prod(1 - gammas) * (start - a), rtol=1e-13)


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("shift", [None, np.array([0.3, -0.1, 2.0])], ids=str)
def test_local_steps_are_pulled_to_their_start_and_shifted(mu, shift):
    """To the minimiser of |z - a|^2/2 + mu/2 |z - start|^2 + <shift, z>. Mutations: a sign; mu around the current
    point; no shift without mu."""
    gammas = stepsizes("harmonic", 0.5, 9)
    end = (a + mu * start - (0 if shift is None else shift)) / (1 + mu)
    y = local_descent(start, lambda z, t: z - a, gammas, mu, shift)
    np.testing.assert_allclose(y - end, np.prod(1 - (1 + mu) * gammas) * (start - end), rtol=1e-12)


def test_the_gradient_is_told_the_step_and_the_start_is_left_alone():
    """Mutations: y -= ... in place; the same t in each step."""
    y0, seen = start.copy(), []
    descend(y0, lambda y, t: seen.append(t) or y, steps=4, stepsize=lambda t: 0.1)
    assert seen == [0, 1, 2, 3]
    assert np.array_equal(y0, start)
    assert descend(start, lambda y, t: y, steps=0, stepsize=lambda t: 1.0) is start


def test_the_projection_comes_after_each_step():
    """Mutations: projecting before the step, or only at the end (2 steps up from 0 below the ceiling 1, then down)."""
    y = descend(
        np.zeros(1),
        lambda y, t: np.array([-2.0, 0.5][t]),
        steps=2,
        stepsize=lambda t: 1.0,
        project=lambda y: np.minimum(y, 1),
    )
    assert y[0] == 0.5
    gap = descend(np.zeros(1), lambda y, t: -1.0, steps=1, stepsize=lambda t: 2.0, project=lambda y: np.minimum(y, 1))
    assert gap[0] == 1.0


def test_a_radius_without_effect_is_refused_where_x_is_ordinary() -> None:
    """Beyond that x has diverged, and its step says so. Mutations: refused there too; where one entry stays."""
    with pytest.raises(UserError, match=r"--eta 1e-30: x \+ eta v = x in float64 \(no entry of eta v is beyond 1e-30"):
        zo.demand_move(np.ones(2), np.array([1e-31, -1e-30]), 1e-30)
    zo.demand_move(np.full(2, 1e20), np.full(2, 1e-3), 1e-3)
    zo.demand_move(np.array([1e20, 1.0]), np.full(2, 1e-30), 1e-30)  # one entry has diverged
    zo.demand_move(np.ones(2), np.array([1e-30, 1e-3]), 1e-3)


# --- the square of a mean, without bias

GENERATORS = Streams(5)


def copies(count: int) -> Array:
    return GENERATORS(Purpose.START, t=count).standard_normal((count, 4))


SHIFTS = (0.0, GENERATORS(Purpose.START, r=1).standard_normal(4))


def pairs(g: Array, shift: Any) -> float:
    """The definition: products of different copies only."""
    every = [(g[j] + shift) @ (g[k] + shift) for j in range(len(g)) for k in range(len(g)) if j != k]
    return float(np.mean(every))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_value_and_error_are_those_of_pairs_and_of_the_jackknife(count: int, shift: Any) -> None:
    """Products of different copies only, and every value without one copy, computed anew. Mutations: N^2 in the
    denominator; the squares left in; the shift added once; (N - 1)/N left out or turned round; one row too few; the
    copy's own square in what is left out."""
    g = copies(count)
    found = zo.gradient_squared(g, shift)
    assert found.value == pytest.approx(pairs(g, shift), rel=1e-12, abs=1e-12)
    if count > 2:
        left = np.array([pairs(np.delete(g, j, axis=0), shift) for j in range(count)])
        expected = math.sqrt((count - 1) / count * np.sum((left - left.mean()) ** 2))
        assert found.error == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("shift", SHIFTS)
def test_it_is_unbiased_exactly(shift: Any) -> None:
    """All 4^3 ways of drawing three copies out of four vectors, averaged. Mutation: the square of the mean."""
    values = copies(4)
    drawn = [zo.gradient_squared(values[list(which)], shift).value for which in itertools.product(range(4), repeat=3)]
    assert np.mean(drawn) == pytest.approx(np.sum((values.mean(axis=0) + shift) ** 2), rel=1e-12)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_copies_tell_nothing(count: int) -> None:
    """Two have a value and no error, and it may be negative. Mutations: a division by zero; clipped at 0: a bias."""
    found = zo.gradient_squared(copies(count))
    assert math.isfinite(found.value) == (count == 2) and math.isnan(found.error)
    assert zo.gradient_squared(np.array([[1.0], [-1.0], [1.0]])).value == pytest.approx(-1 / 3)
