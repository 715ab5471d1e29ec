"""Waves: in which order the server meets the items of a question, and what a rank packs into one wave.

Nothing here knows MPI: `Order` is the same computation on every rank, `Outbox` stands between the two threads of one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.messages import Bytes, Prepared
from zofl_mpi.engine.staging import Fetch, Staging
from zofl_mpi.run.mpi.placement import ClientPlacement

UPLOAD, REPLY, FAILED = range(3)
"""Kinds of an item; the last two end their client's stream."""
EARLY, WELCOME, DUE = range(3)
"""May a rank send in a wave? No, the server still holds items of its; if some are ready; at least one, it is next."""
BOUND = 1 << 16
"""Bytes that a rank packs into one wave, unless a single item is larger."""
MOST = 60
"""Items that a rank packs into one wave: a bit of a header tells of each whether it is its client's last."""
PAUSE = 1e-3
"""Seconds that a rank waits for more items since the wave before, unless it can make none."""
EMPTY: Bytes = np.empty(0, np.uint8)


class Sent(NamedTuple):
    """One rank's part of a wave: its row of the headers, which all ranks see, and its bytes."""

    items: int = 0
    size: int = 0
    last: int = 0
    """Bit j: item j is its client's last."""
    failed: int = 0
    """1 if the last of the items tells a failure."""
    block: Any = EMPTY
    """An array; a tensor where MPI reads a GPU's memory."""

    @property
    def header(self) -> NDArray[np.int64]:
        return np.array(self[:4], np.int64)


SILENT = Sent()
"""Nothing sent."""


class Met(NamedTuple):
    """An item that the server meets next."""

    i: int
    rank: int
    kind: int


@final
class Order:
    """Which items the server meets, and who sends in the next wave: known to all ranks from the headers alone.

    The items' order is (q, `to`): the q-th of every client that has not ended, in the order of the question, then
    q + 1. A rank sends its own in that order; those that come before their turn are `ahead`.
    """

    def __init__(self, to: Sequence[int], placement: ClientPlacement) -> None:
        self._placement = placement
        self._live, self._at, self._staying = list(to), 0, list[int]()
        self._ahead = [deque[int]() for _ in range(placement.ranks + 1)]
        self._failed = False

    @property
    def over(self) -> bool:
        """Every stream has ended, or the server has met a failure."""
        return self._failed or not self._live

    def due(self) -> set[int]:
        """The ranks that must send: of the next clients, one a rank at most, those whose item is not there yet."""
        seen: set[int] = set()
        for k in range(self._at, len(self._live)):
            rank = self._placement[self._live[k]]
            if rank in seen:
                break
            seen.add(rank)
        return {rank for rank in seen if not self._ahead[rank]}

    def wish(self, rank: int) -> int:
        """EARLY, WELCOME or DUE."""
        return EARLY if self._ahead[rank] else DUE if rank in self.due() else WELCOME

    def meets(self, headers: NDArray[np.int64]) -> list[Met]:
        """Takes a wave's headers (P + 1, 4); returns the items whose turn has come, in order."""
        met: list[Met] = []
        for rank, (items, _, last, failed) in enumerate(headers.tolist()):
            for j in range(items):
                kind = REPLY if last >> j & 1 else UPLOAD
                self._ahead[rank].append(FAILED if failed and j == items - 1 else kind)
        while not self.over:
            i = self._live[self._at]
            rank = self._placement[i]
            if not self._ahead[rank]:
                break
            kind = self._ahead[rank].popleft()
            self._failed = kind == FAILED
            if kind == UPLOAD:
                self._staying.append(i)
            self._at += 1
            if self._at == len(self._live):
                self._live, self._at, self._staying = self._staying, 0, []
            met.append(Met(i, rank, kind))
        return met


@final
class Outbox:
    """A rank's items on their way from the main thread, which makes them, to the communication thread.

    It holds two buffers: one being filled and one being sent, each of BOUND bytes or of one larger item. What is on a
    GPU is still on its way into a buffer while the main thread goes on; the communication thread waits for it.
    """

    def __init__(self, staging: Staging | None = None) -> None:
        self._changed = threading.Condition()
        self._filling, self._spare = (Buffer(staging or Staging()) for _ in range(2))
        self._full = self._finished = self._over = False
        self._first = True

    # --- the main thread

    def wait_for_room(self, size: int) -> bool:
        """Waits until an item of so many bytes can be added; False if the question is over."""
        with self._changed:
            if not self._filling.fits(size):
                self._full = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or self._filling.fits(size))
            return not self._over

    def add(self, kind: int, item: Prepared) -> None:
        """Packs an item, for which there is room."""
        with self._changed:
            self._filling.add(kind, item)
            self._changed.notify_all()

    def finish(self) -> None:
        """No item will follow."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    # --- the communication thread

    def take(self, wish: int) -> Sent:
        """Items of the next wave: none, those that are ready, or at least the one that is due.

        Its bytes are untouched until the next call.
        """
        sent = self._taken(wish)
        if sent.items:
            self._spare.arrive()
        return sent

    def _taken(self, wish: int) -> Sent:
        if wish == DUE:
            with self._changed:
                since, self._first, first = time.perf_counter(), False, self._first
                self._changed.wait_for(
                    lambda: self._filling.sizes or self._finished
                )  # none follows: a lost rank's garbage
                if not first:
                    more = since + PAUSE - time.perf_counter()
                    self._changed.wait_for(lambda: self._full or self._finished, max(0.0, more))
                return self._swap()
        if wish == WELCOME and self._changed.acquire(blocking=False):  # the main thread may be packing a large one
            try:
                if self._filling.sizes and self._filling.used <= BOUND and self._filling.arrived():
                    return self._swap()
            finally:
                self._changed.release()
        return SILENT

    def close(self) -> None:
        """The question is over: lets a main thread go that waits for room."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _swap(self) -> Sent:
        sent = self._filling.closed()
        self._filling, self._spare = self._spare, self._filling  # what was sent before has arrived
        self._filling.clear()
        self._full = False
        self._changed.notify_all()
        return sent


@final
class Buffer:
    """Packed items one after the other, behind them the bytes of each (int64).

    Attributes:
        sizes: bytes of each item.
        used: of all of them.
    """

    def __init__(self, staging: Staging) -> None:
        self._bytes, self._staging = EMPTY, staging
        self._far: Any = None  # the same, of a GPU
        self._fetched: list[Fetch] = []
        self.clear()

    def clear(self) -> None:
        """Forgets the items, keeps the memory."""
        self._fetched.clear()
        self._far = None
        self.sizes: list[int] = []
        self.used, self._last, self._failed = 0, 0, 0

    def fits(self, size: int) -> bool:
        """Whether an item of so many bytes may be added."""
        return not self.sizes or (self.used + size <= BOUND and len(self.sizes) < MOST)

    def add(self, kind: int, item: Prepared) -> None:
        if self._staging.direct and item.size > BOUND:  # alone in its buffer
            self._far = self._staging.block(item.size + 8)
            own = np.array([item.size], np.int64)
            self._fetched.append(self._staging.place([*item.parts(), (item.size, own)], self._far))
        else:
            self._write(item)
        self._last |= int(kind != UPLOAD) << len(self.sizes)
        self._failed = int(kind == FAILED)
        self.sizes.append(item.size)
        self.used += item.size

    def _write(self, item: Prepared) -> None:
        if self._bytes.size < self.used + item.size + 8 * MOST:  # only the first
            self._bytes = self._staging.empty(max(BOUND, item.size) + 8 * MOST)
        item.write(self._bytes[self.used : self.used + item.size], self._fetch)

    def _fetch(self, tensor: Any, place: Bytes) -> None:
        self._fetched.append(self._staging.fetch(tensor, place))

    def arrived(self) -> bool:
        """Whether all that came from a GPU is there."""
        return all(each.ready() for each in self._fetched)

    def arrive(self) -> None:
        """Waits until all that comes from a GPU is there."""
        for each in self._fetched:
            each.wait()
        self._fetched.clear()

    def closed(self) -> Sent:
        """All of it, to be sent."""
        end = self.used + 8 * len(self.sizes)
        if self._far is not None:
            return Sent(1, end, self._last, self._failed, self._far)
        self._bytes[self.used : end].view(np.int64)[...] = self.sizes
        return Sent(len(self.sizes), end, self._last, self._failed, self._bytes[:end])


def pieces(block: Any, items: int) -> list[Any]:
    """The items that a rank sent in `block`: views of a single large one, else copies, so that none keeps the others.

    An item that comes before its turn waits at the server, and may not keep a whole wave in memory meanwhile.
    """
    if not items:
        return []
    ends = np.cumsum(messages.on_host(block[len(block) - 8 * items :]).view(np.int64)).tolist()
    found = [block[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    if ends[-1] > BOUND:
        return found
    return [piece.copy() if isinstance(piece, np.ndarray) else messages.on_host(piece).copy() for piece in found]


def parcels(to: Sequence[int], sizes: Mapping[int, int], placement: ClientPlacement) -> list[dict[int, list[int]]]:
    """Messages down, one for each client, cut into waves: {rank: its next clients}, BOUND bytes or one larger message.

    The waves are as few as the rank with the most needs.
    """
    cut: dict[int, list[list[int]]] = {}
    room: dict[int, int] = {}
    for i in to:
        rank = placement[i]
        if room.get(rank, -1) < sizes[i]:
            cut.setdefault(rank, []).append([])
            room[rank] = max(BOUND, sizes[i])
        cut[rank][-1].append(i)
        room[rank] -= sizes[i]
    return [
        {rank: chunks[k] for rank, chunks in sorted(cut.items()) if k < len(chunks)}
        for k in range(max(map(len, cut.values())))
    ]
