"""Random numbers: a function of (seed, purpose, r, i, t) alone."""

import itertools

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

PURPOSES = """
SPLIT SERVER PARTITION SYNTHETIC START RESERVED PARTICIPANTS DIRECTION BATCH BATCH_MINUS SERVER_BATCH NOISE PERSONAL
FILTERS MODULE LOWER_BATCH OUTPUT PROBE COIN LOWER_PARTICIPANTS AUGMENT ORDER SPECTRUM AUDIENCE VALIDATION CONTEXTS
NEUMANN SIGNS COMPRESSION EVALUATION DEVICES AVAILABLE ATTACK PRIVACY SEEDS
"""
"""By their numbers, from 1 on. More are added at the end, here too; another number changes the results of old seeds."""


def words(seed: int, purpose: int, r: int = 0, i: int = 0, t: int = 0) -> tuple[int, ...]:
    return tuple(Streams(seed)(Purpose(purpose), r=r, i=i, t=t).integers(2**63, size=4).tolist())


def test_the_numbers_of_the_purposes_never_change() -> None:
    """Mutations: two that are swapped, the last ones too; one that is renamed, removed or not listed here."""
    numbers = {name: purpose.value for name, purpose in Purpose.__members__.items()}
    assert numbers == {name: k for k, name in enumerate(PURPOSES.split(), 1)}


def test_a_generator_is_philox_with_the_documented_key_and_counter() -> None:
    """Anyone can make the numbers of a result again from these two lines; no two keys share one of 2^64 blocks."""
    for seed, purpose, r, i, t in itertools.product([0, 5, 2**63 - 1], (1, 8), (0, 11), (0, 7), (0, 2)):
        right = np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, t, i, r]))
        found = Streams(seed)(Purpose(purpose), r=r, i=i, t=t)
        assert np.array_equal(found.standard_normal(9), right.standard_normal(9))


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
