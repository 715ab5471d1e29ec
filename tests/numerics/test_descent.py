"""The inner loop against a closed form."""

import numpy as np

from zofl_mpi.numerics.descent import descend
from zofl_mpi.numerics.schedules import stepsizes

a, start = np.array([1.0, -2.0, 3.0]), np.array([4.0, 0.0, -1.0])


def test_steps_on_a_quadratic_follow_their_product():
    """y_H - a = prod_t (1 - gamma_t) (y_0 - a).

    Mutations: t from 1; a constant step size; the sign; one step too many.
    """
    gammas = stepsizes("harmonic", 0.7, 9)
    y = descend(start, lambda y, t: y - a, steps=9, stepsize=lambda t: gammas[t])
    np.testing.assert_allclose(y - a, np.prod(1 - gammas) * (start - a), rtol=1e-13)


def test_the_gradient_is_told_the_step_and_the_start_is_left_alone():
    """Mutations: y -= ... in place; the same t in each step."""
    y0, seen = start.copy(), []
    descend(y0, lambda y, t: seen.append(t) or y, steps=4, stepsize=lambda t: 0.1)
    assert seen == [0, 1, 2, 3]
    assert np.array_equal(y0, start)


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


def test_no_steps_return_the_start():
    assert descend(start, lambda y, t: y, steps=0, stepsize=lambda t: 1.0) is start
