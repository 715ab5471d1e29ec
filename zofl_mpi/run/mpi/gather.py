"""Gather scheduler, independent of MPI: the server's reading order (`Order`) and a rank's send buffer (`Outbox`).

`collectives` describes the protocol of waves.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.messages import Bytes, Prepared
from zofl_mpi.engine.staging import LEAST_PINNED_BYTES, Fetch, Staging

UPLOAD, REPLY, FAILED = range(3)
"""Kinds of items; the last two end their client's stream."""
BLOCKED, OPTIONAL, REQUIRED = range(3)
"""Items that a rank may send in a wave: none (the server still holds some), the ready ones, or at least one."""
BOUND = 1 << 16  # bytes that a rank packs into one wave, unless a single item is larger
MAX_WAVE_ITEMS = 60
"""Items that a rank packs into one wave: a header has a bit for each, which says whether it is its client's last."""
PAUSE = 1e-3  # most seconds that a rank waits for more items
EMPTY: Bytes = np.empty(0, np.uint8)


class Sent(NamedTuple):
    """One rank's part of a wave: its header row, visible to all ranks, and its bytes."""

    items: int = 0
    size: int = 0
    last: int = 0  # bit j: item j is its client's last
    failed: int = 0  # 1 if the last item is a failure
    block: Bytes = EMPTY

    @property
    def header(self) -> NDArray[np.int64]:
        return np.array(self[:4], np.int64)


NOTHING_SENT = Sent()


class Turn(NamedTuple):
    """The next item in reading order: client, rank, kind."""

    i: int
    rank: int
    kind: int


@final
class Order:
    """Reading order of the server, (q, `to`), and the ranks that send next; every rank computes it from the headers.

    `_ahead` has items that are at the server before their turn.
    """

    def __init__(self, to: Sequence[int], placement: Sequence[int]) -> None:
        self._placement = placement
        self._live, self._at, self._staying = list(to), 0, list[int]()
        self._ahead = defaultdict[int, deque[int]](deque)
        self._failed = False

    @property
    def over(self) -> bool:
        """True once all streams have ended or the server has read a failure."""
        return self._failed or not self._live

    def due(self) -> set[int]:
        """Ranks that must send: those of the next clients with a missing item, up to a repeated rank."""
        seen: set[int] = set()
        for k in range(self._at, len(self._live)):
            rank = self._placement[self._live[k]]
            if rank in seen:
                break
            seen.add(rank)
        return {rank for rank in seen if not self._ahead[rank]}

    def wish(self, rank: int) -> int:
        """Return BLOCKED, OPTIONAL or REQUIRED for a rank."""
        return BLOCKED if self._ahead[rank] else REQUIRED if rank in self.due() else OPTIONAL

    def advance(self, headers: NDArray[np.int64]) -> list[Turn]:
        """Process a wave's headers (P + 1, 4); return the items that are next in order."""
        turns: list[Turn] = []
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
            turns.append(Turn(i, rank, kind))
        return turns


class PackedItem(NamedTuple):
    """A packed item, and its GPU copies in progress."""

    kind: int
    block: Bytes
    fetched: list[Fetch]


@final
class Outbox:
    """Buffer between a rank's main thread, which produces items, and its communication thread, which sends them.

    It holds up to BOUND bytes, or one larger item, besides those being sent. Only the communication thread waits for
    copies from a GPU.
    """

    def __init__(self, staging: Staging | None = None) -> None:
        self._staging, self._changed = staging or Staging(), threading.Condition()
        self._items: list[PackedItem] = []
        self._full = self._finished = self._over = False
        self._first = True

    # --- the main thread

    def wait_for_room(self, size: int) -> bool:
        """Wait until an item of `size` bytes can be added; False if the question is over."""
        with self._changed:
            if not self.fits(size):
                self._full = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or self.fits(size))
            return not self._over

    def fits(self, size: int) -> bool:
        """True if an item of `size` bytes may be added."""
        return not self._items or (self._used() + size <= BOUND and len(self._items) < MAX_WAVE_ITEMS)

    def add(self, kind: int, message: Prepared) -> None:
        """Pack an item; there must be room for it."""
        # the main thread would wait for a copy from a GPU into unpinned memory
        least = LEAST_PINNED_BYTES if any(map(messages.is_remote, message.arrays)) else 0
        block = self._staging.empty(max(message.size, least))[: message.size]
        item = PackedItem(kind, block, self._staging.write(message, block))
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def finish(self) -> None:
        """Mark the end of the items."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def drop(self) -> None:
        """Wait for GPU copies into items that will not be sent: their memory is reused."""
        for fetch in (each for item in self._items for each in item.fetched):
            with suppress(RuntimeError):  # changed meanwhile
                fetch.wait()

    # --- the communication thread

    def take(self, wish: int) -> Sent:
        """Items of the next wave: none, the ready ones, or at least the required one."""
        with self._changed:
            if wish == REQUIRED:
                self._wait()
            elif wish == BLOCKED or not self._ready():
                return NOTHING_SENT
            items, self._items, self._full = self._items, [], False
            self._changed.notify_all()
        for fetch in (each for item in items for each in item.fetched):
            fetch.wait()
        return sent(items)

    def close(self) -> None:
        """End the question and release a main thread that waits for room."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _used(self) -> int:
        return sum(item.block.size for item in self._items)

    def _ready(self) -> bool:
        """True if there are small items with complete copies."""
        arrived = all(each.ready() for item in self._items for each in item.fetched)
        return bool(self._items) and self._used() <= BOUND and arrived

    def _wait(self) -> None:
        """Wait for an item and, except in the first wave, up to PAUSE for more."""
        since, self._first, first = time.perf_counter(), False, self._first
        # finished without an item: the headers are a lost rank's garbage
        self._changed.wait_for(lambda: self._items or self._finished)
        if not first:
            more = since + PAUSE - time.perf_counter()
            self._changed.wait_for(lambda: self._full or self._finished, max(0.0, more))


def sent(items: Sequence[PackedItem]) -> Sent:
    """Pack items into a rank's part of a wave: a single block, or all blocks followed by their sizes (int64)."""
    if not items:
        return NOTHING_SENT
    blocks = [item.block for item in items]
    sizes = np.array([block.size for block in blocks], np.int64)
    last = sum(int(item.kind != UPLOAD) << j for j, item in enumerate(items))
    block = blocks[0] if len(items) == 1 else np.concatenate([*blocks, sizes.view(np.uint8)])
    return Sent(len(items), block.size, last, int(items[-1].kind == FAILED), block)


def pieces(block: Bytes, items: int) -> list[Bytes]:
    """Unpack the items of a rank's part of a wave: a view of a single large item, else copies.

    Copies, because an item that waits for its turn must not keep the whole wave in memory.
    """
    if items == 1:
        return [block if block.size > BOUND else block.copy()]
    ends = np.cumsum(block[len(block) - 8 * items :].view(np.int64)).tolist()
    return [block[low:high].copy() for low, high in zip([0, *ends], ends, strict=False)]
