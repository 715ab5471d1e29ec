"""Bytes, messages, seconds and memory of a round, by step: counted in one place, for any number of ranks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

SERVER = "server"
"""The pseudo step under which rank 0's own computing is booked: whatever is not waiting and not communicating."""


@final
@dataclass
class Clock:
    """Seconds of one rank, by step.

    `compute` is time inside a method's functions; `comm` is packing, copying and MPI calls of the main thread (the
    transfers of the communication thread overlap with computing and are not seen here); `wait` is having nothing to
    do: no question, no free buffer, no item to read, or other ranks' items still on their way.
    """

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def time(self, step: str, what: str) -> Iterator[None]:
        """Books the time of a `with` block under `step`; what is compute, wait or comm."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step, what] += time.perf_counter() - start

    def take(self, steps: list[str]) -> NDArray[np.float64]:
        """(steps, 3) seconds (compute, wait, comm) since the last call, which starts a new round."""
        taken = np.array([[self.seconds[s, w] for w in ("compute", "wait", "comm")] for s in steps], np.float64)
        self.seconds.clear()
        return taken.reshape(len(steps), 3)


@final
@dataclass(frozen=True)
class Row:
    """What one round cost.

    Attributes:
        steps: names of the steps, in the order of their first use in the run.
        bytes_down, bytes_up: (steps, m) bytes by `messages.size`, server to client and back.
        messages: (steps, m) items that a client sent.
        seconds: (steps, P + 1, 3) compute, wait, comm of each rank.
        peak_bytes: (steps, P + 1) largest memory a rank has used so far (the same for all steps that it took part in).
    """

    steps: list[str]
    bytes_down: NDArray[np.int64]
    bytes_up: NDArray[np.int64]
    messages: NDArray[np.int64]
    seconds: NDArray[np.float64]
    peak_bytes: NDArray[np.int64]


@final
@dataclass
class Ledger:
    """The server's book of what each client received and sent.

    Attributes:
        m: number of clients.
        steps: names of all steps seen so far.
    """

    m: int
    steps: list[str] = field(default_factory=lambda: [SERVER])
    _counts: dict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))

    def open(self, step: str) -> None:
        """Makes the step known, so that it has a place in the row even if it moves no bytes."""
        if step not in self.steps:
            self.steps.append(step)

    def sent(self, step: str, i: int, size: int) -> None:
        """A message of `size` bytes went down to client i."""
        self._counts[step, "down", i] += size

    def received(self, step: str, i: int, size: int) -> None:
        """An item of `size` bytes came up from client i."""
        self._counts[step, "up", i] += size
        self._counts[step, "items", i] += 1

    def row(self, seconds: NDArray[np.float64], peak_bytes: NDArray[np.int64]) -> Row:
        """The round's row; the next round starts empty."""
        down, up, items = (self._table(what) for what in ("down", "up", "items"))
        self._counts.clear()
        return Row(list(self.steps), down, up, items, seconds, peak_bytes)

    def _table(self, what: str) -> NDArray[np.int64]:
        return np.array([[self._counts[s, what, i] for i in range(self.m)] for s in self.steps], np.int64)
