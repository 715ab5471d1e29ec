"""torch's random numbers from the streams: HERON's directions and the first parameters of modules."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

from zofl_mpi.engine.streams import WORDS, Purpose, Streams, seed_torch
from zofl_mpi.problems.network import seeded
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.rounds.split.estimates import TwoPoint

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


def test_random_signs_have_the_identity_as_their_covariance() -> None:
    """u u' has ones on its diagonal in every draw, and off it the mean of all of them is 0 to sampling: the signs are
    independent within a word, across words and draws; one half are +1. Mutations: a bit that is used twice; bits of 31;
    words of one draw again; a float64 of other signs."""
    d, count = 150, 4000
    us = directions((0, 0, 1), d, count, "rademacher")
    assert (us.abs() == 1).all()
    covariance = (us.T @ us) / count
    off = covariance - torch.eye(d).double()
    assert float(off.abs().max()) < beyond(d * d) / math.sqrt(count) and not off.diagonal().any()
    assert float(us.mean(dim=0).abs().max()) < beyond(d) / math.sqrt(count)
    assert float((us[1:] * us[:-1]).mean(dim=1).abs().max()) < beyond(count) / math.sqrt(d)
    wide = torch.stack(list(drawn(generator((0, 0, 1)), torch.zeros(d, dtype=torch.float64), count, "rademacher")))
    assert wide.dtype == torch.float64 and torch.equal(wide, us)


def test_over_all_signs_the_estimate_of_a_quadratic_is_its_gradient() -> None:
    """Exactly, for any radius: the mean of the central estimates over the 2^d sign vectors, since that of u u' is the
    identity. Mutations: the sphere's factor d; a span of mu."""
    d, mu = 6, 0.7
    rule = TwoPoint(slice(0, d), 1, "rademacher", "device", mu, True)
    draws = torch.stack([torch.tensor(signs) for signs in itertools.product((-1.0, 1.0), repeat=d)]).double()
    A, b = torch.randn(2, d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x, A, b = b[0], A @ A.T, b[1]
    F = lambda y: 0.5 * y @ A @ y + b @ y  # noqa: E731
    g = sum(rule.term(F(x + mu * u) - F(x - mu * u), u) for u in draws) / len(draws)
    torch.testing.assert_close(g, A @ x + b, rtol=1e-12, atol=1e-12)
