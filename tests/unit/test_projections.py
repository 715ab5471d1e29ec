"""Projections by their characterisation: z = P(y) iff z is in the set and <y - z, w - z> <= 0 for all w in it."""

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics import projections

GENERATOR = Streams(5)(Purpose.SYNTHETIC)
k, n = 4, 6
Y, CENTRES, NORMAL = (
    3 * GENERATOR.standard_normal((k, n)),
    GENERATOR.standard_normal((k, n)),
    GENERATOR.standard_normal(n),
)
RADII = np.array([0.0, 0.5, 2.0, 50.0])


def inside_ball(w):
    return CENTRES + (w / np.linalg.norm(w, axis=1, keepdims=True)) * RADII[:, None]


def inside_half_space(w):
    return w - np.maximum(w @ NORMAL - 0.3, 0)[:, None] / (NORMAL @ NORMAL) * NORMAL


SETS = {
    "ball": (lambda y: projections.ball(y, CENTRES, RADII), inside_ball),
    "box": (lambda y: projections.box(y, -1.0, np.arange(n)), lambda w: np.clip(w, -1, np.arange(n))),
    "half space": (lambda y: projections.half_space(y, NORMAL, 0.3), inside_half_space),
    "simplex": (lambda y: projections.simplex(y, 2.0), lambda w: 2 * np.abs(w) / np.abs(w).sum(axis=1, keepdims=True)),
}


@pytest.mark.parametrize("name", SETS)
def test_no_point_of_the_set_is_seen_at_an_acute_angle(name):
    project, inside = SETS[name]
    z = project(Y)
    for _ in range(300):
        w = inside(2 * GENERATOR.standard_normal((k, n)))
        assert np.all(np.sum((Y - z) * (w - z), axis=1) <= 1e-12)


@pytest.mark.parametrize("name", SETS)
def test_projecting_twice_is_projecting_once(name):
    """With the angle test this puts z into the set: a point outside would move."""
    project, _ = SETS[name]
    z = project(Y)
    assert not np.allclose(z, Y)
    np.testing.assert_allclose(project(z), z, atol=1e-13)


@pytest.mark.parametrize("name", SETS)
def test_rows_are_projected_on_their_own(name):
    """Mutation: a norm or a sum over all rows."""
    project, _ = SETS[name]
    changed = Y.copy()
    changed[0] += 1
    assert np.array_equal(project(changed)[1:], project(Y)[1:])


def test_members_of_the_sets():
    assert np.all(np.linalg.norm(projections.ball(Y, CENTRES, RADII) - CENTRES, axis=1) <= RADII * (1 + 1e-14))
    assert np.all(projections.half_space(Y, NORMAL, 0.3) @ NORMAL <= 0.3 + 1e-12)
    z = projections.simplex(Y, 2.0)
    assert np.all(z >= 0)
    np.testing.assert_allclose(z.sum(axis=1), 2)


def test_a_ball_leaves_what_is_inside_bit_for_bit():
    y = Y.astype(np.float32)
    for radius in (1e3, np.inf):
        z = projections.ball(y, CENTRES.astype(np.float32), radius)
        assert z.dtype == np.float32
        assert np.array_equal(z, y)


def test_a_ball_of_radius_zero_is_its_centre_also_far_away():
    """float32 squares overflow beyond 1e19. Mutation: the norm in the dtype of y."""
    y = np.array([[3e25, 4e25]], np.float32)
    np.testing.assert_allclose(projections.ball(y, np.zeros((1, 2), np.float32), 5.0), [[3, 4]], rtol=1e-6)
    assert np.array_equal(projections.ball(Y, CENTRES, 0.0), CENTRES)


def test_a_value_that_is_not_finite_stays_so():
    for bad in (np.nan, np.inf):
        y = np.array([[bad, 1.0]])
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(projections.ball(y, np.zeros((1, 2)), 1.0)).all()
