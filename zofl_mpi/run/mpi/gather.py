"""Gather scheduler: the order in which the server reads items (`Order`), and a rank's buffer of them (`Outbox`).

The protocol of waves: `collectives`. Nothing here knows MPI.
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
MAX_WAVE_ITEMS = (
    60  # items that a rank packs into one wave: a header has a bit for each, whether it is its client's last
)
PAUSE = 1e-3  # seconds that a rank waits for more items since the wave before, unless it can make none
EMPTY: Bytes = np.empty(0, np.uint8)


class Sent(NamedTuple):
    """One rank's part of a wave: its header row, visible to all ranks, and its bytes."""

    items: int = 0
    size: int = 0
    last: int = 0  # bit j: item j is its client's last
    failed: int = 0  # 1 if the last of the items is a failure
    block: Bytes = EMPTY

    @property
    def header(self) -> NDArray[np.int64]:
        return np.array(self[:4], np.int64)


NOTHING_SENT = Sent()  # nothing sent


class Turn(NamedTuple):
    """The next item in reading order: client, rank, kind."""

    i: int
    rank: int
    kind: int


@final
class Order:
    """Order in which the server reads items, (q, `to`), and the ranks that send next, from the headers alone.

    Every rank computes it. Items at the server before their turn are `_ahead`.
    """

    def __init__(self, to: Sequence[int], placement: Sequence[int]) -> None:
        self._placement = placement
        self._live, self._at, self._staying = list(to), 0, list[int]()
        self._ahead = defaultdict[int, deque[int]](deque)
        self._failed = False

    @property
    def over(self) -> bool:
        """True once every stream has ended, or the server has read a failure."""
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
        """BLOCKED, OPTIONAL or REQUIRED."""
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
    """Buffer of a rank's items between its main thread, which makes them, and its communication thread.

    It holds BOUND bytes, or one larger item, beside what is being sent. Only the communication thread waits for copies
    from a GPU.
    """

    def __init__(self, staging: Staging | None = None) -> None:
        self._staging, self._changed = staging or Staging(), threading.Condition()
        self._items: list[PackedItem] = []
        self._full = self._finished = self._over = False
        self._first = True

    # --- the main thread

    def wait_for_room(self, size: int) -> bool:
        """Waits until an item of `size` bytes can be added; False if the question is over."""
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
        """Packs an item, for which there is room."""
        # for a copy from a GPU into memory that is not pinned the main thread would wait
        least = LEAST_PINNED_BYTES if any(map(messages.is_remote, message.arrays)) else 0
        block = self._staging.empty(max(message.size, least))[: message.size]
        item = PackedItem(kind, block, self._staging.write(message, block))
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def finish(self) -> None:
        """Notes that no item will follow."""
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
        """Notes that the question is over, and releases a main thread that waits for room."""
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
        """Waits for an item, and, but for the first wave, up to PAUSE for further ones."""
        since, self._first, first = time.perf_counter(), False, self._first
        # finished without an item: the headers are a lost rank's garbage
        self._changed.wait_for(lambda: self._items or self._finished)
        if not first:
            more = since + PAUSE - time.perf_counter()
            self._changed.wait_for(lambda: self._full or self._finished, max(0.0, more))


def sent(items: Sequence[PackedItem]) -> Sent:
    """The items as a part of a wave: one block, or several followed by the sizes of each (int64)."""
    if not items:
        return NOTHING_SENT
    blocks = [item.block for item in items]
    sizes = np.array([block.size for block in blocks], np.int64)
    last = sum(int(item.kind != UPLOAD) << j for j, item in enumerate(items))
    block = blocks[0] if len(items) == 1 else np.concatenate([*blocks, sizes.view(np.uint8)])
    return Sent(len(items), block.size, last, int(items[-1].kind == FAILED), block)


def pieces(block: Bytes, items: int) -> list[Bytes]:
    """The items that a rank sent in `block`: a view of a single large one, else copies, so that none keeps the others.

    An item that comes before its turn waits at the server, and may not keep a whole wave in memory meanwhile.
    """
    if items == 1:
        return [block if block.size > BOUND else block.copy()]
    ends = np.cumsum(block[len(block) - 8 * items :].view(np.int64)).tolist()
    return [block[low:high].copy() for low, high in zip([0, *ends], ends, strict=False)]
