"""Transport bytes: bytes moved by collectives, by step and rank, counted at rank 0.

Every collective has rank 0 as its root, or gives all ranks the same, so rank 0 knows each rank's share. A rank *sends*
the bytes that it hands to MPI for other ranks, and *receives* theirs from MPI. A broadcast of n bytes counts as n sent
by rank 0 and n received by each other rank, by whatever route. Neither a rank's own part nor what the library adds
(envelopes, barriers) is counted.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@final
class Transport:
    """Counts the bytes that each of `ranks` ranks sends and receives, by step, between calls of `take`."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._counts = ranks, defaultdict[str, Counts](lambda: np.zeros((2, ranks), np.int64))

    def broadcasts(self, step: str, size: int) -> None:
        """Counts a broadcast: rank 0 sends `size` bytes to all."""
        if self._ranks > 1:
            self._add(step, [size, *[0] * (self._ranks - 1)], [0, *[size] * (self._ranks - 1)])

    def scatters(self, step: str, sizes: Sequence[int]) -> None:
        """Counts a scatter: rank 0 sends sizes[k] bytes to rank k."""
        self._add(step, [sum(sizes[1:]), *[0] * (self._ranks - 1)], [0, *sizes[1:]])

    def gathers(self, step: str, sizes: Sequence[int]) -> None:
        """Counts a gather: rank k sends sizes[k] bytes to rank 0."""
        self._add(step, [0, *sizes[1:]], [sum(sizes[1:]), *[0] * (self._ranks - 1)])

    def reduces(self, step: str, size: int) -> None:
        """Each rank sends `size` bytes; rank 0 receives their sum, of `size` bytes."""
        if self._ranks > 1:
            self._add(step, [0, *[size] * (self._ranks - 1)], [size, *[0] * (self._ranks - 1)])

    def allgathers(self, step: str, size: int) -> None:
        """Counts an allgather: each rank sends `size` bytes to all."""
        if self._ranks > 1:
            self._add(step, [size] * self._ranks, [size * (self._ranks - 1)] * self._ranks)

    def take(self, steps: Sequence[str], rest: str) -> Counts:
        """(steps, 2, ranks) bytes sent and received; unlisted steps count under `rest`."""
        table = np.zeros((len(steps), 2, self._ranks), np.int64)
        for step, counts in self._counts.items():
            table[steps.index(step if step in steps else rest)] += counts
        self._counts.clear()
        return table

    def _add(self, step: str, sent: Sequence[int], received: Sequence[int]) -> None:
        self._counts[step] += np.array([sent, received], np.int64)
