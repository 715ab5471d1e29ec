"""Local steps written out, number by number."""

import numpy as np
import pytest

from zofl_mpi.numerics.descent import descend, local_descent


@pytest.mark.parametrize("mu", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("shift", [None, 3.0])
def test_two_steps_are_their_formula(mu: float, shift: float | None) -> None:
    """y <- y - gamma_t (2 y + mu (y - y_0) + shift) from 8. Mutations: the term left out at one weight; around the last
    y; a step size of another step."""
    c = shift or 0.0
    first = 8 - 0.5 * (16 + c)
    second = first - 0.25 * (2 * first + mu * (first - 8) + c)
    own = None if shift is None else np.array([shift])
    found = local_descent(np.array([8.0]), lambda y, t: 2 * y, np.array([0.5, 0.25]), mu, own)
    assert found.tolist() == [second]


def test_each_step_is_projected() -> None:
    """Mutations: only the last one; the gradient of another step."""
    seen = []

    def gradient(y: np.ndarray, t: int) -> np.ndarray:
        seen.append((float(y[0]), t))
        return np.ones(1)

    found = descend(np.array([5.0]), gradient, steps=2, stepsize=lambda t: 2.0 + t, project=lambda y: np.maximum(y, 4))
    assert seen == [(5.0, 0), (4.0, 1)] and found.tolist() == [4.0]
