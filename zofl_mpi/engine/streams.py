"""Random numbers as a function of (seed, purpose, round, client, step), independent of ranks and call order."""

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
    SYNTHETIC = 4  # synthetic data sets and problems
    START = 5  # x_0
    RESERVED = 6  # numbers are never used again: each is the seed of a stream
    PARTICIPANTS = 7  # S_r
    DIRECTION = 8  # v_{i,r}
    BATCH = 9  # mini-batches of a client's local steps
    BATCH_MINUS = 10  # mini-batches of the second solve, if the two are separate
    SERVER_BATCH = 11  # the server's mini-batch xi_r
    NOISE = 12  # gradient noise of the toy problems
    PERSONAL = 13  # mini-batches of local solves for evaluation only
    FILTERS = 14  # random convolutional filters
    MODULE = 15  # initial values of a torch module, frozen weights too
    LOWER_BATCH = 16  # mini-batches of the lower level; t: communication round
    OUTPUT = 17  # the iterate that is reported as the uniformly drawn one
    PROBE = 18  # directions of the reports on stationarity
    COIN = 19  # number of local steps between two communications of Scaffnew
    LOWER_PARTICIPANTS = 20  # clients sampled in a round of the lower level
    AUGMENT = 21  # crops and mirrors of a client's images
    ORDER = 22  # order in which the server reads the clients' uploads of a round
    SPECTRUM = 23  # samples, starts and probes of an estimate of a Hessian's spectrum
    AUDIENCE = 24  # clients that an evaluation asks, if not all
    VALIDATION = 25  # validation samples
    CONTEXTS = 26  # contexts of texts that a model is pretrained on
    NEUMANN = 27  # number of products of a hypergradient's series
    SIGNS = 28  # direction of each sample, if a mini-batch has one per sample
    COMPRESSION = 29  # random rounding of a quantised upload
    EVALUATION = 30  # samples of a client, or of the server, that evaluations read, if not all
    DEVICES = 31  # device class of each client
    AVAILABLE = 32  # availability of clients in a round
    ATTACK = 33  # attackers, and the noise that they send
    PRIVACY = 34  # noise on clipped replies: of client i, or of the server, i = m
    SEEDS = 35  # index of the direction, among K, of a local step


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
        """The generator for `purpose` in round `r`, for client `i`, at step `t`; takes about 5 us."""
        key = _Key(np.array([self.seed, int(purpose)], np.uint64))
        return np.random.Generator(np.random.Philox(key, counter=[0, t, i, r]))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """Key of a Philox generator in the form of a seed sequence.

    With the argument `key` NumPy would first ask the system for unused entropy, at four times the cost.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        """The key: Philox requests nothing else."""
        return self.words


def seed_torch(target: torch.Generator, generator: np.random.Generator) -> torch.Generator:
    """Set the whole state of torch's generator `target` from `generator`.

    Not by `manual_seed` on a CPU, which keeps 32 bits: among 200,000 seeds about five pairs would collide. A GPU's
    generator is counter-based; its state is a seed of 64 bits.
    """
    if target.device.type != "cpu":
        return target.manual_seed(int(generator.integers(2**63)))
    state = torch.Generator().get_state()  # fresh state: no word used, no second normal number stored
    fields = state.numpy().view(np.uint64)  # seed, words left, next index; then one word per entry
    pairs = generator.bit_generator.random_raw(WORDS // 2)
    fields[3 : 3 + WORDS] = pairs.astype("<u8", copy=False).view("<u4")  # the lower half of each first
    return target.set_state(state)
