"""Compressed uploads of local models with error feedback.

Top-k: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018. Stochastic quantisation: Alistarh, Grubic,
Li, Tomioka, Vojnovic, "QSGD", NeurIPS 2017, with the largest entry as the scale. Error feedback: Seide et al. 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Client, Purpose, Setting, UserError
from zofl_mpi.engine.messages import Compact
from zofl_mpi.rounds.local_sgd import Trained

NONE, TOPK, QUANTISE = "none", "topk", "quantise"


@final
@dataclass(frozen=True)
class Restored(Trained, Compact):
    """Client to server: the local model as the server restores it from what is uploaded, which is what is counted.

    The mean of the clients is formed where they are computed, as that of whole models is.
    """


@final
@dataclass(frozen=True)
class Compression:
    """Compression C of what a client uploads; what it leaves out is added to the client's next upload.

    With e_i = 0 at the start, client i sends q = C(a) of a = e_i + y_i - x and keeps e_i <- a - q.

    Attributes:
        setting: problem, data and random numbers.
        compress: none, topk:FRACTION (the entries of largest magnitude, each with its index of 4 bytes) or
            quantise:BITS (a sign and a level, rounded at random without bias, and one scale).
    """

    setting: Setting[Any]
    compress: str = NONE

    def __post_init__(self) -> None:
        _parsed(self.compress)

    def upload(self, client: Client, x: Array, y: Array, r: int) -> Restored:
        """The local model y (n,) of round r as the server, which has x (n,), restores it."""
        kind, amount = _parsed(self.compress)
        if kind == NONE or not np.isfinite(y).all():  # which is refused
            return Restored(self.bytes_up(x), y)
        target = y + client.memory.get("e", np.zeros_like(y))
        if kind == TOPK:
            restored = x.copy()
            kept = largest(np.abs(target - x), math.ceil(amount * len(x)))
            restored[kept] = target[kept]
        else:
            generator = self.setting.streams(Purpose.COMPRESSION, r=r, i=client.i)
            q = quantised(np.subtract(target, x, dtype=np.float64), int(amount), generator)
            restored = (x + q).astype(x.dtype)
        client.memory["e"] = target - restored
        return Restored(self.bytes_up(x), restored)

    def bytes_up(self, x: Array) -> int:
        """Bytes of an upload of a model like x (n,)."""
        kind, amount = _parsed(self.compress)
        if kind == TOPK:
            return math.ceil(amount * len(x)) * (4 + x.itemsize)
        return math.ceil(amount * len(x) / 8) + x.itemsize if kind == QUANTISE else x.nbytes


def largest(magnitudes: Array, k: int) -> NDArray[np.int64]:
    """(k,) positions of the k largest entries of (n,), of equal ones the first."""
    least = np.partition(magnitudes, -k)[-k]
    above = np.flatnonzero(magnitudes > least)
    return np.concatenate([above, np.flatnonzero(magnitudes == least)[: k - len(above)]])


def quantised(a: NDArray[np.float64], bits: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """(n,) a rounded at random, with mean a, to 2^(bits - 1) - 1 levels on either side of 0, the last |a|_inf."""
    scale, levels = float(np.max(np.abs(a), initial=0.0)), 2 ** (bits - 1) - 1
    if scale == 0:
        return a
    level = np.floor(levels * np.abs(a) / scale + generator.random(len(a)))
    return np.asarray(scale * np.sign(a) * np.minimum(level, levels) / levels)


def _parsed(compress: str) -> tuple[str, float]:
    """The kind and its number.

    Raises:
        UserError: no compression.
    """
    kind, _, number = compress.partition(":")
    try:
        amount = float(number or "nan")
    except ValueError:
        amount = math.nan
    whole = kind == QUANTISE and amount in range(2, 17)
    if compress == NONE or whole or (kind == TOPK and 0 < amount <= 1):
        return kind, amount
    raise UserError(
        f"--compress {compress}: choose none, topk:FRACTION with a fraction above 0 and at most 1, or quantise:BITS "
        "with a whole number of bits from 2 to 16"
    )
