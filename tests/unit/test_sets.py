"""Sets by their descriptions: projections by their characterisation, and every refusal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.made import complaint
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.numerics import projections, sets

GENERATOR = Streams(6)(Purpose.SYNTHETIC)
n = 4
CENTRE = np.array([1.0, 0.0, -2.0, 0.5])
FAR = 1000 * CENTRE
LOW, HIGH = np.array([0.0, -1.0, -np.inf, 2.0]), np.array([1.0, np.inf, 3.0, 2.0])


def into_ball(w, radius, centre):
    return centre + (w - centre) * min(1, radius / max(np.linalg.norm(w - centre), 1e-300))


def outside_ball(z, radius, centre):
    return np.linalg.norm(z - centre) - radius


# description: (some point of the set made of w (n,), by how much z (n,) lies outside)
SETS = {
    "all": (lambda w: w, lambda z: 0.0),
    "box:-1:2": (lambda w: np.clip(w, -1, 2), lambda z: max(np.max(z - 2), np.max(-1 - z))),
    "box:0,-1,-inf,2:1,inf,3,2": (lambda w: np.clip(w, LOW, HIGH), lambda z: max(np.max(z - HIGH), np.max(LOW - z))),
    "ball:1.5": (lambda w: into_ball(w, 1.5, 0), lambda z: outside_ball(z, 1.5, 0)),
    "ball:2:0.5": (lambda w: into_ball(w, 2, 0.5), lambda z: outside_ball(z, 2, 0.5)),
    "ball:0.5:1,0,-2,0.5": (lambda w: into_ball(w, 0.5, CENTRE), lambda z: outside_ball(z, 0.5, CENTRE)),
    "ball:0:1,0,-2,0.5": (lambda w: CENTRE, lambda z: outside_ball(z, 0, CENTRE)),
    "ball:3:1e3,0,-2e3,500": (lambda w: into_ball(w, 3, FAR), lambda z: outside_ball(z, 3, FAR)),
}
POINTS = st.lists(st.floats(-1e3, 1e3), min_size=n, max_size=n).map(np.array)


@pytest.mark.parametrize("text", SETS)
def test_the_nearest_point_of_the_set(text):
    """z is in the set and <y - z, w - z> <= 0 for all w in it. Mutations: the centre left out, LOW for HIGH."""
    inside, outside = SETS[text]
    convex = sets.parse(text, n)

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(POINTS, POINTS)
    def holds(y, w):
        z, w = convex.project(y), inside(w)
        size = 1 + np.linalg.norm(y) + np.linalg.norm(w)
        assert outside(z) <= 1e-12 * size
        assert (y - z) @ (w - z) <= 1e-11 * size**2

    holds()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("text", SETS)
def test_a_point_of_the_set_comes_back_bit_for_bit(text, dtype):
    """Also one that a projection has just put there. Mutations: no rounding rule; a projection computed in the dtype
    of the bounds; the sign of a zero lost."""
    inside, _ = SETS[text]
    convex = sets.parse(text, n)
    for _ in range(200):
        w = 3 * GENERATOR.standard_normal(n)
        for y in (inside(w).astype(dtype), inside((w + inside(w)) / 2).astype(dtype), convex.project(w.astype(dtype))):
            z = convex.project(y)
            assert z.dtype == dtype
            assert z.tobytes() == y.tobytes()
    for text in ("box:0:1", "ball:1"):
        assert np.signbit(sets.parse(text, n).project(-np.zeros(n))).all()


def test_a_float32_point_stays_float32_and_is_projected_in_float64():
    """Mutations: the norm in float32, which is infinite here; bounds that do not fit."""
    far = np.full(n, 1e30, np.float32)
    np.testing.assert_allclose(sets.parse("ball:2", n).project(far), np.ones(n), rtol=1e-6)
    for text in SETS:
        assert sets.parse(text, n).project(far).dtype == np.float32
    assert np.array_equal(sets.parse("box:-1e300:1e300", n).project(far), far)
    y = (1e3 * GENERATOR.standard_normal(n)).astype(np.float32)
    convex = sets.parse("ball:2:0.5", n)
    assert np.array_equal(convex.project(y), convex.project(y.astype(float)).astype(np.float32))


@pytest.mark.parametrize("text", SETS)
def test_what_is_not_finite_is_left_to_the_caller(text):
    """No warning, and no point of the set made of nan."""
    z = sets.parse(text, n).project(np.array([np.nan, 1, 2, 3]))
    assert not np.isfinite(z).all() or text == "ball:0:1,0,-2,0.5"


def test_rows_are_projected_on_their_own():
    """Mutation: a norm or a sum over all rows."""
    y = 3 * GENERATOR.standard_normal((3, n))
    changed = y + np.array([[1.0], [0.0], [0.0]])
    for project in (
        lambda rows: projections.ball(rows, CENTRE, np.array([0.0, 0.5, 50.0])),
        projections.simplex,
    ):
        assert not np.array_equal(project(y), y) and np.array_equal(project(changed)[1:], project(y)[1:])


def test_the_nearest_point_of_the_simplex():
    """No vertex lies beyond a right angle from it; points of the simplex stay, and rows inside a ball to the bit.
    Mutations: another sum; one entry too few or too many above theta; theta of another row."""
    y = np.concatenate([3 * GENERATOR.standard_normal((50, n)), np.ones((1, n)), -9 * np.ones((1, n)), np.eye(n)])
    z = projections.simplex(y)
    assert z.min() >= 0 and np.abs(z.sum(axis=1) - 1).max() < 1e-14
    assert np.einsum("kn,kjn->kj", y - z, np.eye(n) - z[:, None]).max() < 1e-14
    np.testing.assert_allclose(projections.simplex(z), z, atol=1e-15)
    rows = 0.1 * GENERATOR.standard_normal((9, n))
    assert np.array_equal(projections.ball(rows, CENTRE, 50.0), rows)


def test_sets_that_are_all_of_space():
    for text in ("all", "ball:inf", "box:-inf:inf"):
        x = 1e9 * GENERATOR.standard_normal(n)
        assert np.array_equal(sets.parse(text, n).project(x), x)
    assert np.array_equal(sets.parse(" box : -1 , 0 : 1 ", 2).project(np.full(2, 9.0)), [1, 1])


REFUSED = {
    "sphere:1": ["one of all, box:LOW:HIGH, ball:RADIUS[:CENTRE]"],
    "all:1": ["of the form all"],
    "box:1": ["of the form box:LOW:HIGH"],
    "ball": ["of the form ball:RADIUS[:CENTRE]"],
    "box:1:0": ["LOW <= HIGH", "empty"],
    "box:0,0,0,3:1,1,1,2": ["LOW <= HIGH", "empty"],
    "box:inf:inf": ["empty"],
    "ball:-1": ["RADIUS >= 0", "empty"],
    "ball:1:inf": ["finite CENTRE"],
    "ball:1:1,inf,1,1": ["finite CENTRE"],
    "box:0,1,2:5": ["1 or 4 numbers as LOW", "n is 4", "not 3"],
    "ball:1:1,2": ["1 or 4 numbers as CENTRE", "not 2"],
    "box:nan:1": ["made of numbers", "LOW = nan"],
    "box:0:1,2,x,4": ["made of numbers", "HIGH = 1,2,x,4"],
    "ball:1:": ["made of numbers", "CENTRE = "],
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_the_flag_the_value_and_what_is_allowed(text):
    sentence = complaint(sets.parse, text, n)
    assert sentence.startswith(f"--x-set {text}: must be ")
    assert all(part in sentence for part in REFUSED[text]), sentence
    if text == "box:0,1,2:5":
        with pytest.raises(UserError, match=r"^.{,150}5000.{,150}4999.{,50}$"):  # long values are cut
            sets.parse("box:0:" + ",".join(["1.25"] * 4999), 5000)


def test_long_texts_are_cut_to_60_characters():
    """Mutations: one less, one more."""
    for length, shown in ((60, 60 * "x"), (61, 57 * "x" + "...")):
        assert complaint(sets.parse, length * "x", n).startswith(f"--x-set {shown}: must be ")


def test_one_set_for_all_or_one_for_each():
    alike = sets.parse_all(["ball:1"], n, 3)
    assert len(alike) == 3 and alike[0] is alike[1] is alike[2]
    several = sets.parse_all(("ball:1", "box:0:1", "ball:1"), n, 3)
    assert several[0] is several[2] and isinstance(several[1], sets.Box)
    for texts in ([], ["all", "all"], ["all"] * 4):
        with pytest.raises(UserError, match=rf"one set for all, or one for each of the 3 clients, not {len(texts)}"):
            sets.parse_all(texts, n, 3)
