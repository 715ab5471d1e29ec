"""`Smooth` problems: local steps and gradients of softmax regression and of quadratics, against plain loops."""

from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import *
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
PLAIN, EVERYTHING = (0.0, False), (0.8, True)


def plainly(problem: Any, data: Any, y: Array, batches: Array, gammas: Array, mu: float, shift: Array | None) -> Array:
    """The steps as `Smooth.descend` states them, in float64 arithmetic on `gradient`'s values."""
    z = y.astype(np.float64)
    for batch, gamma in zip(batches, gammas, strict=True):
        g = problem.gradient(z.astype(y.dtype), data, batch).astype(np.float64)
        z = z - gamma * (g + mu * (z - y) + (0 if shift is None else shift))
    return z


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("mu", "shifted"), [PLAIN, EVERYTHING], ids=["plain", "both"])
@pytest.mark.parametrize(
    ("dtype", "tolerance", "kind"),
    [(np.float64, 1e-12, kind) for kind in PIXEL_KINDS]
    + [(np.float32, 1e-5, kind) for kind in PIXEL_KINDS if kind != "floats"],  # for which numba compiles for seconds
)
def test_softmax_descends_as_a_plain_loop(
    kernel: str, dtype: Any, tolerance: float, mu: float, shifted: bool, kind: str
) -> None:
    """Mutations: the shift with the inputs' factor s wrong, or its square; shift not shaped as the model; the
    hierarchical mu or radius; mu of the start in place of the displacement; a step too many."""
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


@pytest.mark.parametrize(("mu", "shifted"), [PLAIN, EVERYTHING], ids=["plain", "both"])
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


@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_the_gradient_of_all_samples_is_the_mean_over_them(kind: str) -> None:
    """Also over more samples than a block holds. It is the slope of `loss`. Mutation: the first block only."""
    data = PIXEL_KINDS[kind]
    problem = Softmax(p, C, np.ones(m) / m, dtype=np.float64)
    x, v = (STREAMS(Purpose.START, t=t).standard_normal(problem.n) for t in (1, 2))
    rows = STREAMS(Purpose.BATCH).integers(len(data), size=1300)
    each = np.array([problem.gradient(x, data, [j]) for j in range(len(data))])
    close(problem.gradient(x, data.subset(rows)), each[rows].mean(axis=0))
    slope = (problem.loss(x + 1e-5 * v, data) - problem.loss(x - 1e-5 * v, data)) / 2e-5
    close(problem.gradient(x, data) @ v, slope, 1e-7)
