"""`Smooth` problems: local steps and gradients of softmax regression and of quadratics, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    GENERATOR,
    KERNELS,
    LABELS,
    PIXELS,
    STREAMS,
    Array,
    C,
    Make,
    apart,
    close,
    loss,
    m,
    p,
    point,
    softmax,
    toy,
)
from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import Terms

PIXEL_KINDS = {
    "one scale": Dataset(PIXELS, LABELS, C, scale=1 / 255),
    "standardised": Dataset(PIXELS, LABELS, C, scale=1 / 80, shift=-1.5),
    "per feature": Dataset(
        PIXELS, LABELS, C, GENERATOR.permutation(200)[:60], GENERATOR.uniform(0.002, 0.01, p), np.linspace(-1, 1, p)
    ),
    "floats": Dataset(GENERATOR.standard_normal((200, p)), LABELS, C),
}
PLAIN, PROX, SHIFT, EVERYTHING = (0.0, False), (0.8, False), (0.0, True), (0.8, True)


def plainly(problem: Any, data: Any, y: Array, batches: Array, gammas: Array, mu: float, shift: Array | None) -> Array:
    """The steps as `Smooth.descend` states them, in float64 arithmetic on `gradient`'s values."""
    z = y.astype(np.float64)
    for batch, gamma in zip(batches, gammas, strict=True):
        g = problem.gradient(z.astype(y.dtype), data, batch).astype(np.float64)
        z = z - gamma * (g + mu * (z - y) + (0 if shift is None else shift))
    return z


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize(("mu", "shifted"), [PLAIN, PROX, SHIFT, EVERYTHING], ids=["plain", "mu", "shift", "both"])
@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_softmax_descends_as_a_plain_loop(
    kernel: str, dtype: Any, tolerance: float, mu: float, shifted: bool, kind: str
) -> None:
    """Mutations: the shift with the inputs' factor s wrong, or its square; shift not shaped as the model; the
    hierarchical mu or radius; mu of the start in place of the displacement; a step too many.
    """
    data = PIXEL_KINDS[kind]
    problem = Softmax(p, C, np.ones(m) / m, Terms(1.0, (2.0,), (0.01,)), kernel, dtype)
    y, shift = (STREAMS(Purpose.START, t=t).standard_normal(problem.n).astype(dtype) for t in (1, 2))
    kept = y.copy()
    for B in (1, 5):
        batches, gammas = STREAMS(Purpose.BATCH, t=B).integers(60, size=(7, B)), 0.3 / np.arange(1, 8)
        against = shift if shifted else None
        found = problem.descend(data, y, batches, gammas, mu=mu, shift=against)
        assert found.dtype == dtype and found.shape == y.shape
        expected = plainly(problem, data, y, batches, gammas, mu, against)
        assert apart(expected, y)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))
    assert np.array_equal(y, kept)


@pytest.mark.parametrize(("mu", "shifted"), [PLAIN, PROX, SHIFT, EVERYTHING], ids=["plain", "mu", "shift", "both"])
def test_a_quadratic_descends_as_a_plain_loop(mu: float, shifted: bool) -> None:
    setting = toy(noise=1.0)
    problem, data, y = setting.problem, setting.data[2], point(setting)
    kept, shift = y.copy(), point(setting, 2) if shifted else None
    batches, gammas = STREAMS(Purpose.BATCH).integers(len(data), size=(7, 4)), 0.3 / np.arange(1, 8)
    found = problem.descend(data, y, batches, gammas, mu=mu, shift=shift)
    close(found, plainly(problem, data, y, batches, gammas, mu, shift))
    assert np.array_equal(y, kept) and apart(found, y)


@BOTH
def test_no_steps_lead_nowhere(make: Make) -> None:
    """And the result is a new array: a client may write into it."""
    setting = make()
    x, none = point(setting), np.empty((0, 4), np.int64)
    found = setting.problem.descend(setting.data[0], x, none, np.empty(0), mu=1.0, shift=x)
    assert np.array_equal(found, x) and found is not x


@pytest.mark.parametrize("position", [-1, 60])
@pytest.mark.parametrize("kernel", KERNELS)
def test_positions_outside_the_data_are_refused(kernel: str, position: int) -> None:
    setting = softmax(kernel=kernel)
    with pytest.raises(IndexError, match=r"outside 0\.\.5"):
        setting.problem.descend(setting.data[1], point(setting), np.array([[0, position]]), np.ones(1))


@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_the_gradient_of_all_samples_is_the_mean_over_them(kind: str) -> None:
    """Also over more samples than a block holds. It is the slope of `loss`. Mutation: the first block only."""
    data = PIXEL_KINDS[kind]
    problem = Softmax(p, C, np.ones(m) / m, dtype=np.float64)
    x, v = (STREAMS(Purpose.START, t=t).standard_normal(problem.n) for t in (1, 2))
    many = data.subset(STREAMS(Purpose.BATCH).integers(len(data), size=1300))
    close(problem.gradient(x, data), np.mean([problem.gradient(x, data, [j]) for j in range(len(data))], axis=0))
    each = [problem.gradient(x, many, [j]) for j in range(1300)]
    close(problem.gradient(x, many), np.mean(each, axis=0))
    slope = (problem.loss(x + 1e-5 * v, data) - problem.loss(x - 1e-5 * v, data)) / 2e-5
    close(problem.gradient(x, data) @ v, slope, 1e-7)


def test_the_gradient_of_a_bowl_is_the_mean_over_its_samples() -> None:
    setting = toy(noise=1.0)
    for data in setting.data:
        x = point(setting)
        mean = np.mean([setting.problem.gradient(x, data, np.array([j])) for j in range(len(data))], axis=0)
        close(setting.problem.gradient(x, data), mean)
        close(mean, data.A @ (x - data.a) + data.noise.mean(axis=0))
        assert setting.problem.loss(x, data) == pytest.approx(loss(data, x), rel=1e-12)
