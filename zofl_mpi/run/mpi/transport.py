"""Transport bytes: bytes moved by collectives, by step and rank, counted at rank 0.

Rank 0 knows each rank's share, as collectives are rooted at it or give all ranks the same. A rank *sends* the bytes it
passes to MPI for others, and *receives* those it gets from others. A broadcast of n bytes counts n sent by rank 0 and n
received by each other rank, by whatever route. A rank's own part, envelopes and barriers do not count.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@final
class Transport:
    """Counts the bytes that each of `ranks` > 1 ranks sends and receives, by step, between calls of `take`."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._counts = ranks, defaultdict[str, Counts](lambda: np.zeros((2, ranks), np.int64))

    def broadcasts(self, step: str, size: int) -> None:
        """Count a broadcast: rank 0 sends `size` bytes to all."""
        self._add(step, [size, *[0] * (self._ranks - 1)], [0, *[size] * (self._ranks - 1)])

    def scatters(self, step: str, sizes: Sequence[int]) -> None:
        """Count a scatter: rank 0 sends sizes[k] bytes to rank k."""
        self._add(step, [sum(sizes[1:]), *[0] * (self._ranks - 1)], [0, *sizes[1:]])

    def gathers(self, step: str, sizes: Sequence[int]) -> None:
        """Count a gather: rank k sends sizes[k] bytes to rank 0."""
        self._add(step, [0, *sizes[1:]], [sum(sizes[1:]), *[0] * (self._ranks - 1)])

    def reduces(self, step: str, size: int) -> None:
        """Count a reduction: each rank sends `size` bytes; rank 0 receives their sum, of `size` bytes."""
        self._add(step, [0, *[size] * (self._ranks - 1)], [size, *[0] * (self._ranks - 1)])

    def allgathers(self, step: str, size: int) -> None:
        """Count an allgather: each rank sends `size` bytes to all."""
        self._add(step, [size] * self._ranks, [size * (self._ranks - 1)] * self._ranks)

    def take(self, steps: Sequence[str], rest: str) -> Counts:
        """Return and reset the bytes sent and received, (steps, 2, ranks); unlisted steps count under `rest`."""
        table = np.zeros((len(steps), 2, self._ranks), np.int64)
        for step, counts in self._counts.items():
            table[steps.index(step if step in steps else rest)] += counts
        self._counts.clear()
        return table

    def _add(self, step: str, sent: Sequence[int], received: Sequence[int]) -> None:
        self._counts[step] += np.array([sent, received], np.int64)
