"""Compression of what clients upload, with error feedback."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Client, Purpose, Setting, Step
from zofl_mpi.clients import changes
from zofl_mpi.clients.changes import Change
from zofl_mpi.engine import messages
from zofl_mpi.engine.between import Between
from zofl_mpi.engine.fields import is_finite
from zofl_mpi.numerics.schedules import kind_and_number

NONE, TOPK, QUANTISE = "none", "topk", "quantise"


@final
@dataclass(frozen=True)
class Compression(Between):
    """Compression C of clients' uploads, with error feedback (Seide et al. 2014).

    With e_i = 0 at the start, client i sends q = C(a) of a = e_i + D_i and keeps e_i <- a - q, D_i its change of the
    model. A change of the client's memory, such as SCAFFOLD's c_i, has no e_i: the memory moves by q alone, and the
    next change contains the remainder. Top-k: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    Stochastic quantisation: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD", NeurIPS 2017, with the largest entry as
    the scale.

    Attributes:
        compress: compression of uploads: none; topk:FRACTION (the entries of largest magnitude, each with an index of 4
            bytes); quantise:BITS (a sign and a level, rounded at random without bias, and one scale).
    """

    setting: Setting[Any]
    compress: str = NONE
    reads_change, vectors = True, 1  # e_i
    unfit = "scalars, or counted from one another: no vectors to compress"

    def __post_init__(self) -> None:
        _parsed(self.compress)

    @classmethod
    def fits(cls, kinds: Iterable[type[Any]]) -> bool:
        return any(_vectors(kind) for kind in kinds)

    @property
    def active(self) -> bool:
        return self.compress != NONE

    def answering(self, step: Step) -> Step:
        """Wrap a step: its reply has the changes that the server decompresses."""
        return changes.with_replies(step, self._compressed)

    def _compressed(self, client: Client, message: Any, reply: Any, before: dict[str, Any]) -> Any:
        """A reply with the changes that the server decompresses."""
        found = _vectors(type(reply))
        if not all(is_finite(getattr(reply, c.name)) for c in found):  # refused elsewhere
            return reply
        restored: dict[tuple[str, ...], Any] = {
            (c.name,): self._restored(client, message, reply, c, t, before) for t, c in enumerate(found)
        }
        return messages.replace_arrays(reply, restored) if found else reply

    def _restored(
        self, client: Client, message: Any, reply: Any, change: Change, t: int, before: dict[str, Any]
    ) -> Array:
        """The t-th compressed field of a reply, as the server decompresses it."""
        y, start = messages.as_array(getattr(reply, change.name)), changes.base(type(reply), change, message)
        assert y is not None
        x = np.zeros_like(y) if start is None else np.asarray(messages.as_array(start))
        error = f"compression_error_{change.name}"
        target = y + client.memory.get(error, np.zeros_like(y))  # a change of the memory keeps no residual
        generator = self.setting.streams(Purpose.COMPRESSION, r=message.r, i=client.i, t=t)
        restored = self.compressed(x.reshape(-1), target.reshape(-1), generator).reshape(y.shape).astype(y.dtype)
        if change.memory:
            moved = before.get(change.memory, 0) + (restored - x) / changes.unit(message, change)
            client.memory[change.memory] = moved.astype(y.dtype)
        else:
            client.memory[error] = target - restored
        return restored

    def compressed(self, x: Array, target: Array, generator: np.random.Generator) -> Array:
        """(n,) x + C(target - x), for x and the target (n,)."""
        kind, amount = _parsed(self.compress)
        if kind == TOPK:
            restored = x.copy()
            kept = largest(np.abs(target - x), math.ceil(amount * len(x)))
            restored[kept] = target[kept]
            return restored
        q = quantised(np.subtract(target, x, dtype=np.float64), int(amount), generator)
        return np.asarray((x + q).astype(x.dtype))

    def saved(self, reply: Any) -> int:
        arrays = (messages.as_array(getattr(reply, c.name)) for c in _vectors(type(reply)))
        return sum(x.nbytes - self.bytes_up(x.size, x.itemsize) for x in arrays if x is not None)

    def bytes_up(self, n: int, itemsize: int) -> int:
        """Bytes of n compressed numbers that took `itemsize` bytes each."""
        kind, amount = _parsed(self.compress)
        if kind == TOPK:
            return math.ceil(amount * n) * (4 + itemsize)
        return math.ceil(amount * n / 8) + itemsize if kind == QUANTISE else n * itemsize


def largest(magnitudes: Array, k: int) -> NDArray[np.int64]:
    """(k,) positions of the k largest entries of (n,); ties go to the first."""
    least = np.partition(magnitudes, -k)[-k]
    above = np.flatnonzero(magnitudes > least)
    return np.concatenate([above, np.flatnonzero(magnitudes == least)[: k - len(above)]])


def quantised(a: NDArray[np.float64], bits: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """(n,) a rounded at random without bias, to 2^(bits - 1) - 1 levels between 0 and |a|_inf on either side."""
    scale, levels = float(np.max(np.abs(a), initial=0.0)), 2 ** (bits - 1) - 1
    if scale == 0:
        return a
    level = np.floor(levels * np.abs(a) / scale + generator.random(len(a)))
    return np.asarray(scale * np.sign(a) * np.minimum(level, levels) / levels)


def _vectors(kind: type[Any]) -> list[Change]:
    """The changes of a reply class that are vectors counted from the message, or from 0."""
    return [c for c in changes.of(kind) if not c.scalar and not changes.within_reply(kind, c)]


def _parsed(compress: str) -> tuple[str, float]:
    """Parse --compress into its kind and number; UserError if malformed."""
    kinds = {NONE: None, TOPK: lambda fraction: 0 < fraction <= 1, QUANTISE: lambda bits: bits in range(2, 17)}
    fraction = "topk:FRACTION with a fraction above 0 and at most 1"
    allowed = f"none, {fraction}, or quantise:BITS with a whole number of bits from 2 to 16"
    return kind_and_number("compress", compress, kinds, allowed)
