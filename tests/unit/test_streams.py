"""Random numbers: a function of (seed, purpose, r, i, t) alone."""

import itertools

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

NAMES = (
    "SPLIT SERVER PARTITION SYNTHETIC START RESERVED PARTICIPANTS DIRECTION BATCH "
    "BATCH_MINUS SERVER_BATCH NOISE PERSONAL FILTERS MODULE LOWER_BATCH OUTPUT "
    "PROBE COIN LOWER_PARTICIPANTS AUGMENT ORDER SPECTRUM AUDIENCE VALIDATION"
)
NUMBERS = {name: k for k, name in enumerate(NAMES.split(), start=1)}
"""Purposes may be added at the end; one that changes its number changes the results of old seeds."""


def words(seed: int, purpose: int, r: int = 0, i: int = 0, t: int = 0) -> tuple[int, ...]:
    return tuple(Streams(seed)(Purpose(purpose), r=r, i=i, t=t).integers(2**63, size=4).tolist())


def test_the_numbers_of_the_purposes_never_change() -> None:
    assert {name: purpose.value for name, purpose in Purpose.__members__.items() if name in NUMBERS} == NUMBERS
    assert len(Purpose) == len(Purpose.__members__), "two names of one number"
    assert all(p.value > max(NUMBERS.values()) for name, p in Purpose.__members__.items() if name not in NUMBERS)


def test_a_generator_is_philox_with_the_documented_key_and_counter() -> None:
    """Anyone can make the numbers of a result again from these two lines."""
    right = np.random.Generator(np.random.Philox(key=[5, 8], counter=[0, 2, 7, 11]))
    assert np.array_equal(Streams(5)(Purpose.DIRECTION, r=11, i=7, t=2).standard_normal(9), right.standard_normal(9))


def test_no_two_keys_of_a_grid_share_a_number() -> None:
    """4 seeds, all purposes, 6 x 6 x 4 places: 62,208 numbers of 63 bits from 15,552 generators, none twice."""
    grid = itertools.product([0, 1, 2, 2**62], Purpose, range(6), range(6), range(4))
    drawn = [word for seed, purpose, r, i, t in grid for word in words(seed, purpose, r, i, t)]
    assert len(set(drawn)) == len(drawn) == 4 * 4 * len(Purpose) * 6 * 6 * 4
    assert words(2**63 - 1, 1) == words(2**63 - 1, 1)


def test_a_long_draw_does_not_run_into_the_next_key() -> None:
    long = Streams(1)(Purpose.BATCH).integers(2**63, size=100_000)
    others = [words(1, Purpose.BATCH, *key) for key in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1))]
    assert not set(long.tolist()) & set(itertools.chain(*others))


def test_order_of_making_and_use_does_not_matter() -> None:
    streams = Streams(3)
    first, second = streams(Purpose.BATCH, r=1), streams(Purpose.BATCH, r=2)
    late = second.integers(2**63, size=4).tolist()
    streams(Purpose.DIRECTION).standard_normal(7)
    early = first.integers(2**63, size=4).tolist()
    assert (tuple(early), tuple(late)) == (words(3, Purpose.BATCH, 1), words(3, Purpose.BATCH, 2))


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_other_seeds_are_refused_with_their_range(seed: int) -> None:
    with pytest.raises(UserError, match=rf"--seed {seed}: the seed must be a whole number from 0 to 2\^63 - 1"):
        Streams(seed)
