"""Random numbers as a function of (seed, purpose, round, client, step): never of a rank or of the order of calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, final

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from zofl_mpi.engine.lazy import torch
from zofl_mpi.errors import UserError

WORDS = 624  # of 32 bits, the state of a Mersenne Twister (MT19937)


class Purpose(IntEnum):
    """Purpose of random numbers, a part of their key. Append only: a changed number changes old results."""

    SPLIT = 1  # training and test part of a data set
    SERVER = 2  # the server's share of the training part
    PARTITION = 3  # the clients' shares of the rest
    SYNTHETIC = 4  # made-up data sets and problems
    START = 5  # x_0
    RESERVED = 6  # numbers are never used again: each is the seed of a stream
    PARTICIPANTS = 7  # S_r
    DIRECTION = 8  # v_{i,r}
    BATCH = 9  # mini-batches of a client's local steps
    BATCH_MINUS = 10  # those of the second solve, where the two do not share their samples
    SERVER_BATCH = 11  # the server's mini-batch xi_r
    NOISE = 12  # gradient noise of the toy problems
    PERSONAL = 13  # mini-batches of the local solves that only an evaluation asks for
    FILTERS = 14  # random convolutional filters
    MODULE = 15  # initial values of a torch module, frozen weights too
    LOWER_BATCH = 16  # mini-batches of the lower level; t is its communication round
    OUTPUT = 17  # which iterate is kept as the uniformly drawn one
    PROBE = 18  # directions of the reports on stationarity
    COIN = 19  # numbers of local steps between two communications of Scaffnew
    LOWER_PARTICIPANTS = 20  # clients that a round of the lower level samples
    AUGMENT = 21  # crops and mirrors of a client's images
    ORDER = 22  # order in which the server reads the clients' uploads of a round
    SPECTRUM = 23  # samples, starts and probes of an estimate of a Hessian's spectrum
    AUDIENCE = 24  # clients that an evaluation asks, where it does not ask all
    VALIDATION = 25  # samples of the training part that nobody trains on
    CONTEXTS = 26  # contexts of texts that a model is pretrained on
    NEUMANN = 27  # how many products a hypergradient's series takes
    SIGNS = 28  # of each sample's direction, where a mini-batch has one a sample
    COMPRESSION = 29  # random rounding of a quantised upload
    EVALUATION = 30  # samples of a client, or of the server, that evaluations read, where they do not read all
    DEVICES = 31  # class of each client's device
    AVAILABLE = 32  # clients that can be asked in a round
    ATTACK = 33  # who lies, and the noise that liars send
    PRIVACY = 34  # noise on clipped replies: of client i, or of the server, i = m
    SEEDS = 35  # which of K directions a local step takes


@final
@dataclass(frozen=True)
class Streams:
    """Independent generators from one seed.

    Counter-based (Philox4x64): the key is (seed, purpose), the counter starts at (0, t, i, r), so each
    generator has 2^64 blocks of four numbers to itself.
    """

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed {self.seed}: the seed must be a whole number from 0 to 2^63 - 1")

    def __call__(self, purpose: Purpose, r: int = 0, i: int = 0, t: int = 0) -> np.random.Generator:
        """The generator for `purpose` in round `r`, for client `i`, at step `t`; it takes about 5 us to make."""
        key = _Key(np.array([self.seed, int(purpose)], np.uint64))
        return np.random.Generator(np.random.Philox(key, counter=[0, t, i, r]))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """The key of a Philox, as the seed sequence from which it takes it.

    Given as `key`, NumPy would first ask the system for random numbers that nobody uses, at four times the cost.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        """The key: Philox asks for nothing else."""
        return self.words


def seed_torch(target: torch.Generator, generator: np.random.Generator) -> torch.Generator:
    """Sets the whole state of torch's generator `target` from `generator`.

    On a CPU not by `manual_seed`, which keeps 32 bits: among 200,000 seeds some five pairs give the same numbers. The
    state of a GPU's generator, which is counter-based, is its seed of 64 bits.
    """
    if target.device.type != "cpu":
        return target.manual_seed(int(generator.integers(2**63)))
    state = torch.Generator().get_state()  # a new one's: no word is used yet, and no second normal number is kept
    fields = state.numpy().view(np.uint64)  # the seed; how many words are left; the next; then the words, one in each
    pairs = generator.bit_generator.random_raw(WORDS // 2)
    fields[3 : 3 + WORDS] = pairs.astype("<u8", copy=False).view("<u4")  # the lower half of each first
    return target.set_state(state)
