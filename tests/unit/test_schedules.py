"""Schedules against their formulas."""

import math

import numpy as np
import pytest

from tests.unit.made import complaint
from zofl_mpi.numerics.schedules import Pace, demand_tau, local_steps, parse_decay, stepsize, stepsizes

T = np.arange(5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", 0.3 + 0 * T),
        ("sqrt", 0.3 / np.sqrt(T + 1)),
        ("harmonic", 0.3 / (T + 1)),
        ("harmonic:8", 0.3 / (T + 8)),
        ("power:0.75", 0.3 / (T + 1) ** 0.75),
        ("power:1", 0.3 / (T + 1)),
    ],
)
def test_step_sizes_are_their_formulas(text, expected):
    values = stepsizes(text, 0.3, 5)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, expected, rtol=1e-15)
    assert [stepsize(text, 0.3, t) for t in range(5)] == values.tolist()
    with pytest.raises(ValueError, match="read-only"):  # the next caller gets the same array
        values[0] = 1.0


def test_a_warm_up_and_a_linear_decay_are_their_formulas():
    """Mutations: from 1/warmup on; a decay that begins at step 0; a size below 0; the client's length at the server."""
    pace = Pace("linear", warmup=4, decay_steps=8, decay_steps_server=12)
    np.testing.assert_allclose(
        [pace.client(0.4, t) for t in range(11)], [0, 0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0, 0, 0], atol=1e-16
    )
    np.testing.assert_allclose([pace.server(0.4, t) for t in (2, 4, 8, 12, 99)], [0.2, 0.4, 0.2, 0, 0], atol=1e-16)
    alike = Pace("linear", decay_steps=8)
    assert [alike.client(0.4, t) for t in range(9)] == [alike.server(0.4, t) for t in range(9)]
    warm = Pace(warmup=2)
    assert [warm.client(0.3, t) for t in range(4)] == [warm.server(0.3, t) for t in range(4)] == [0, 0.15, 0.3, 0.3]
    assert {Pace().client(0.3, t) for t in range(9)} == {0.3}
    assert [p.still for p in (Pace(), warm, alike)] == [True, False, False]
    shortest = Pace("linear", warmup=4, decay_steps=5, decay_steps_server=5)
    assert shortest.client(0.4, 4) == shortest.server(0.4, 4) == 0.4


def test_the_number_of_local_steps_has_its_bounds():
    """Mutations: another power of 10; a bound that is excluded."""
    demand_tau("tau", (0, 1e9))
    for tau in (1e9 + 1, -1e-9, math.nan):
        assert complaint(demand_tau, "tau", (tau,)).endswith("a number of local steps, at least 0 and at most 1e9")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"decay_steps": 9}, "--decay-steps 9: must be 0 unless --schedule is linear"),
        ({"schedule": "linear"}, "--decay-steps 0: must be a number of steps, at least 1 with --schedule linear"),
        ({"schedule": "linear", "warmup": 5, "decay_steps": 5}, "--decay-steps 5: must be a number of steps, at "),
        (
            {"schedule": "linear", "warmup": 5, "decay_steps": 9, "decay_steps_server": 3},
            "--decay-steps-server 3: must be",
        ),
    ],
)
def test_a_pace_that_cannot_be_is_refused(flags, words):
    assert words in complaint(Pace, **flags)


@pytest.mark.parametrize(
    "text", ["", "cosine", "sqrt:2", "constant:", "harmonic:0", "harmonic:inf", "power:0.5", "power:1.1", "power:nan"]
)
def test_an_unknown_schedule_names_its_flag_its_value_and_what_is_allowed(text):
    told = complaint(parse_decay, text, "--gamma-schedule")
    assert f"--gamma-schedule {text!r}" in told and "harmonic:OFFSET" in told


@pytest.mark.parametrize(("tau", "total"), [(5, 37_562), (20, 149_507), (50, 373_474)])
def test_local_steps_of_500_rounds_add_up_to_the_known_totals(tau, total):
    """[A] section IV, the cost of a round. Mutations: sqrt(r); floor for ceil."""
    assert sum(local_steps("sqrt", tau, r) for r in range(500)) == total


def test_local_steps_are_exact_where_floating_point_is_not():
    assert math.ceil(16.6 * math.sqrt(225)) == 250  # what a plain formula gives
    assert local_steps("sqrt", 16.6, 224) == 249
    assert [local_steps("sqrt", 1, r) for r in range(6)] == [1, 2, 2, 2, 3, 3]
    assert [local_steps("constant", tau, 99) for tau in (0, 0.2, 1, 2.5)] == [0, 1, 1, 3]
    assert local_steps("sqrt", 0, 10) == 0
