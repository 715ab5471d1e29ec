"""Bytes, messages, seconds and memory of a round, by step, counted in one place for any number of ranks."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.device import peak_bytes

Seconds = NDArray[np.float64]
Costs = NDArray[np.void]
"""(ranks,) one entry per rank, with the fields of `costs_type`."""
Counts = dict[tuple[str, str], dict[int, int]]  # {(step, kind of count): {client: count}}

SERVER = "server"
"""Name under which rank 0's own computing is counted: all its time except waiting and communicating."""
REDUCED = "reduced"
"""Name under which the reduced parts of replies are counted: no rank sends them one by one."""
TIME_KINDS = ("compute", "wait", "comm", "staging")


def costs_type(steps: int) -> np.dtype[np.void]:
    """The costs of a rank in a round of so many steps, of a size known to all ranks.

    Fields: `seconds` (steps, 4) by TIME_KINDS; `peak_bytes`; `stops`, True if a signal asked the rank to end the run.
    """
    return np.dtype([("seconds", np.float64, (steps, len(TIME_KINDS))), ("peak_bytes", np.int64), ("stops", np.bool_)])


@final
@dataclass
class Clock:
    """Seconds of one rank, by step and kind.

    `compute` is time inside a method's functions. `comm` is packing, copying and MPI calls of the main thread, without
    the communication thread's transfers. `wait` is idle time: no question, no free buffer, no item to read, or other
    ranks' items still on their way. `staging` is copies between a GPU and the host of all threads; those of the main
    thread are in `comm` or `compute` too.
    """

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    doing: tuple[str, str, float] | None = None  # the step and kind being timed, and since when

    @contextmanager
    def time(self, step: str, what: str) -> Iterator[None]:
        """Adds the time of a `with` block to a step; `what` is compute, wait or comm."""
        start = time.perf_counter()
        self.doing = (step, what, start)
        try:
            yield
        finally:
            self.doing = None
            self.seconds[step, what] += time.perf_counter() - start

    def report(self, stop: str) -> CostReport:
        """This rank's costs since the last call; `stop`: the signal that asked it to stop, or ""."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return CostReport(taken, peak_bytes(), bool(stop))


class CostReport(NamedTuple):
    """One rank's costs of a round or of a part of it."""

    seconds: Mapping[tuple[str, str], float]  # {(step, kind): seconds}
    peak: int  # peak bytes of memory so far
    stops: bool  # True if a signal asked to end the run

    def costs(self, steps: Sequence[str]) -> Costs:
        """(1,) the report as a rank's costs, for these steps."""
        costs = np.empty(1, costs_type(len(steps)))
        for k, step in enumerate(steps):
            costs["seconds"][0, k] = [self.seconds.get((step, kind), 0.0) for kind in TIME_KINDS]
        costs["peak_bytes"], costs["stops"] = self.peak, self.stops
        return costs


@final
@dataclass(frozen=True)
class Row:
    """Bytes, messages, seconds and memory of one round.

    Protocol bytes are those of a federation's messages, alike on any number of ranks; transport bytes are what the
    ranks of this run moved, 0 in one process.
    """

    steps: list[str]  # step names, in the order of their first use in the run
    bytes_down: NDArray[np.int64]  # (steps, m) protocol bytes by `messages.size`, server to client
    bytes_up: NDArray[np.int64]  # the same, client to server
    messages: NDArray[np.int64]  # (steps, m) items that a client sent
    seconds: NDArray[np.float64]  # (steps, P + 1, 4) seconds of each rank by TIME_KINDS
    peak_bytes: NDArray[np.int64]  # (steps, P + 1) peak memory of a rank so far, host and GPU; equal for all steps
    # (steps, P + 1) bytes that a rank sent to and received from other ranks through the collectives
    transport_sent: NDArray[np.int64]
    transport_received: NDArray[np.int64]


@final
@dataclass(frozen=True)
class Overlap:
    """Computing times of clients and server, and of both at once, in each of R rounds, (R,).

    A question ends with its slowest rank, so the clients' time is, step by step, that of the rank that computed
    longest. `both` is a lower bound: time in which neither computed (sending, say) comes off it.
    """

    wall: Seconds  # seconds of the rounds
    clients: Seconds  # the sum over the steps of the largest computing time of a rank
    server: Seconds  # rank 0's own computing, recording included; the longest of several server ranks
    both: Seconds  # clients + server - wall of each round, at least 0, at most the shorter of the two

    @property
    def share(self) -> Seconds:
        """Share of the shorter computing time that overlaps the longer: 1 complete, 0 lockstep, NaN: none."""
        shorter = np.minimum(self.clients, self.server)
        return np.divide(self.both, shorter, out=np.full_like(shorter, np.nan), where=shorter > 0)

    def total(self) -> Self:
        """Sums over all rounds."""
        return type(self)(*(seconds.sum().item() for seconds in (self.wall, self.clients, self.server, self.both)))


def overlap(steps: Sequence[str], compute: Seconds, wall: Seconds) -> Overlap:
    """Overlap of client and server computing in each round, from seconds (R, steps, ranks) and wall times (R,)."""
    is_server = np.array([name == SERVER for name in steps], bool)
    server = compute[:, is_server].max(axis=2, initial=0.0).sum(axis=1)
    clients = compute[:, ~is_server].max(axis=2).sum(axis=1)
    return Overlap(wall, clients, server, np.clip(clients + server - wall, 0, np.minimum(clients, server)))


@final
@dataclass
class Ledger:
    """Protocol bytes and items of each of m clients, by step, as the server counts them; `steps` are those asked."""

    m: int
    steps: list[str] = field(default_factory=lambda: [SERVER])
    _counts: Counts = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))

    def open(self, step: str) -> None:
        """Registers the step: the row lists it even if it moves no bytes."""
        if step not in self.steps:
            self.steps.append(step)

    def sent(self, step: str, i: int, size: int) -> None:
        """Counts a message of `size` bytes down to client i."""
        self._counts[step, "down"][i] += size

    def received(self, step: str, i: int, size: int, items: int = 1) -> None:
        """Counts an item of `size` bytes up from client i, or with items=0 a further part of one."""
        self._counts[step, "up"][i] += size
        self._counts[step, "items"][i] += items

    def forget(self) -> None:
        """Drops the counts of a round that is repeated."""
        self._counts.clear()

    def row(self, costs: Costs, transport: NDArray[np.int64] | None = None) -> Row:
        """Returns the row of a round and starts the next.

        Args:
            costs: (P + 1,) of all ranks.
            transport: (steps, 2, P + 1) bytes sent and received; None: none were.
        """
        down, up, items = (self._table(what) for what in ("down", "up", "items"))
        self.forget()
        peak = np.tile(costs["peak_bytes"], (len(self.steps), 1))
        sent, received = np.zeros((2, *peak.shape), np.int64) if transport is None else transport.swapaxes(0, 1)
        return Row(list(self.steps), down, up, items, costs["seconds"].swapaxes(0, 1), peak, sent, received)

    def _table(self, what: str) -> NDArray[np.int64]:
        table = np.zeros((len(self.steps), self.m), np.int64)
        for row, step in zip(table, self.steps, strict=True):
            counts = self._counts.get((step, what), {})  # few participants of many clients
            row[list(counts)] = list(counts.values())
        return table


def bytes_in_words(count: int) -> str:
    """Bytes in a binary unit: 512 B, 3.2 KiB, 12.0 MiB, 1.5 GiB."""
    if count < 1024:
        return f"{count} B"
    power = min(int(math.log2(count)) // 10, 3)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"
