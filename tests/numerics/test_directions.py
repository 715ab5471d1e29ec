"""torch's random numbers from the streams: HERON's directions and the first parameters of modules."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

from zofl_mpi.engine.streams import WORDS, Purpose, Streams, seed_torch
from zofl_mpi.problems.network import seeded
from zofl_mpi.rounds.split.client import drawn

STREAMS = Streams(1)
Key = tuple[int, int, int]
SAME_SEED = [
    ((9, 0, 19), (230, 9, 15)),
    ((191, 6, 2), (479, 8, 17)),
    ((510, 4, 8), (520, 7, 8)),
    ((548, 3, 4), (872, 0, 13)),
    ((370, 3, 16), (950, 7, 4)),
]
"""(r, i, q) whose 63 bits are the same in the 32 that `torch.Generator.manual_seed` keeps."""


def generator(key: Key, purpose: Purpose = Purpose.DIRECTION) -> np.random.Generator:
    r, i, q = key
    return STREAMS(purpose, r=r, i=i, t=q)


def directions(key: Key, d: int, count: int = 1, distribution: str = "gaussian") -> torch.Tensor:
    """(count, d) as float64, drawn in float32."""
    return torch.stack(list(drawn(generator(key), torch.zeros(d), count, distribution))).double()


def beyond(tests: int, tail: float = 1e-6) -> float:
    """What so many standard normal numbers stay below, but for a probability of at most `tail`."""
    return NormalDist().inv_cdf(1 - tail / (2 * tests))


def words(key: Key) -> np.ndarray:
    """(WORDS,) of 32 bits, the first of the stream, each number of 64 bits giving its lower half first."""
    pairs = generator(key).integers(2**64, size=WORDS // 2, dtype=np.uint64)
    return np.stack([pairs & 0xFFFFFFFF, pairs >> 32], axis=1).reshape(-1).astype(np.uint32)


@pytest.mark.parametrize("key", [(0, 0, 0), (9, 0, 19), (3, 200, 7)])
def test_a_cpu_generator_is_the_mersenne_twister_whose_words_are_the_streams(key: Key) -> None:
    """NumPy's MT19937 in that state gives the same numbers, beyond the first 624. Mutations: words in torch's state one
    place further; the first word not used; half of the words; the generator's position, or a normal number kept by it,
    left."""
    own = torch.Generator().manual_seed(3)
    torch.randn(3, generator=own, dtype=torch.float64)
    assert seed_torch(own, generator(key)) is own
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words(key), "pos": WORDS}}
    expected = (twister.random_raw(3 * WORDS) % 2**24) / 2**24  # a uniform float32 of torch is 24 bits of a word
    assert np.array_equal(torch.rand(3 * WORDS, generator=own).double().numpy(), expected)
    found = [torch.randn(5, generator=seed_torch(g, generator(key))) for g in (own, torch.Generator())]
    assert torch.equal(*found)


@pytest.mark.parametrize(("one", "other"), SAME_SEED)
def test_keys_that_share_32_bits_share_no_number(one: Key, other: Key) -> None:
    """Nor modules drawn from them. Mutation: all 63 bits by manual_seed."""
    low = [int(generator(key).integers(2**63)) % 2**32 for key in (one, other)]
    assert low[0] == low[1]
    assert len(np.unique(torch.cat([directions(key, 64)[0] for key in (one, other)]))) == 128
    layers = [seeded(lambda: nn.Linear(16, 4), generator(key)) for key in (one, other)]
    assert not (layers[0].weight == layers[1].weight).any()


def test_entries_are_standard_normal_and_those_of_other_keys_unrelated() -> None:
    """2000 directions of 256 entries: mean, variance, correlation with those of the next step, client and round.
    Bounds: beyond which a normal number lies once in 10^6 such tests. Mutations: directions of one step for the next;
    uniform numbers; few words of the state drawn."""
    d, shape = 256, (10, 10, 20)
    u = torch.stack([directions((r, i, q), d)[0] for r, i, q in np.ndindex(*shape)]).view(*shape, d).numpy()
    bound = beyond(2)
    assert abs(u.mean()) * math.sqrt(u.size) < bound
    assert abs(u.var() - 1) * math.sqrt(u.size / 2) < bound
    unit = u / np.linalg.norm(u, axis=-1, keepdims=True)
    for axis, size in enumerate(shape):
        one, other = (np.take(unit, range(k, size - 1 + k), axis).reshape(-1, d) for k in (0, 1))
        cosines = (one * other).sum(axis=1)  # of mean 0 and variance 1/d
        assert abs(cosines.sum()) * math.sqrt(d / len(cosines)) < bound
        assert np.abs(cosines).max() * math.sqrt(d) < beyond(len(cosines))
        each = (one * other).sum(axis=0) * d / math.sqrt(len(one))  # each entry over the keys: variance about 1
        assert np.abs(each).max() < beyond(d) * 1.1
