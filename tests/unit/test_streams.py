"""Random numbers: a function of (seed, purpose, r, i, t) alone."""

import itertools

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

NUMBERS = {
    "SPLIT": 1,
    "SERVER": 2,
    "PARTITION": 3,
    "SYNTHETIC": 4,
    "START": 5,
    "RESERVED": 6,
    "PARTICIPANTS": 7,
    "DIRECTION": 8,
    "BATCH": 9,
    "BATCH_MINUS": 10,
    "SERVER_BATCH": 11,
    "NOISE": 12,
    "PERSONAL": 13,
    "FILTERS": 14,
    "MODULE": 15,
    "LOWER_BATCH": 16,
    "OUTPUT": 17,
    "PROBE": 18,
    "COIN": 19,
    "LOWER_PARTICIPANTS": 20,
    "AUGMENT": 21,
    "ORDER": 22,
    "SPECTRUM": 23,
    "AUDIENCE": 24,
    "VALIDATION": 25,
    "CONTEXTS": 26,
    "NEUMANN": 27,
    "SIGNS": 28,
    "COMPRESSION": 29,
    "EVALUATION": 30,
    "DEVICES": 31,
    "AVAILABLE": 32,
    "ATTACK": 33,
    "PRIVACY": 34,
    "SEEDS": 35,
}
"""Each purpose by its value. More are added at the end, here too; another number changes the results of old seeds."""


def words(seed: int, purpose: int, r: int = 0, i: int = 0, t: int = 0) -> tuple[int, ...]:
    return tuple(Streams(seed)(Purpose(purpose), r=r, i=i, t=t).integers(2**63, size=4).tolist())


def test_the_numbers_of_the_purposes_never_change() -> None:
    """Mutations: two that are swapped, the last ones too; one that is renamed, removed or not listed here."""
    assert {name: purpose.value for name, purpose in Purpose.__members__.items()} == NUMBERS
    assert sorted(NUMBERS.values()) == list(range(1, len(NUMBERS) + 1))


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
