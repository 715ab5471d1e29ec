"""MPI collectives of the server and the client ranks.

Client i lives on one of the P client ranks (`placement`), all but rank 0; with --server-ranks these and rank 0
have a communicator of their own, and so have the server's ranks (`server_ranks`). A question goes down by `Bcast` (or
`Scatterv`) from the main thread. For the way up every rank starts one communication thread and joins it at the
question's end. Until then the main thread makes no MPI call but `Abort`: two threads are never in MPI at a time. With
several server ranks those of rank 0 take turns by a lock.

Items travel in waves. In each all ranks learn by a polled `Iallgather` how many items each of them sends, and which end
their client's stream; a `Gatherv` moves the bytes. A rank sends the items that are ready, at most BOUND bytes or one
larger item. The server reads the items in the order (q, `to`); from the headers every rank computes which those are
(`gather.Order`), and so who may send next:

- BLOCKED: the server still holds an item of this rank; it sends nothing.
- REQUIRED: the next rank in reading order must send; it blocks until its item is ready. So must the ranks of the
  clients after it, up to the first rank that occurs twice, unless their item has arrived.
- OPTIONAL: any other rank sends the items that are ready, but none above BOUND.

All that the collectives move is counted here, as transport bytes of each rank (`transport`).

Memory: a rank holds BOUND bytes, or one larger item, that wait, as much that is being sent, and one item that waits for
room. The server holds two waves and, of each rank, at most BOUND bytes ahead of their turn.

No deadlock: no wave is empty, since the item that the server reads next is required unless it has arrived. Its
rank can make it: its earlier items were sent and read, so there is room for it. Beside that a wave waits for room at
the server only: the method has then two waves to read, and needs no later one for it.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.ledger import Costs
from zofl_mpi.engine.messages import Bytes, padded
from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.staging import Staging
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.mpi.communicator import Communicator, Request, wait
from zofl_mpi.run.mpi.gather import EMPTY, MAX_WAVE_ITEMS, Order, Sent, Turn, pieces
from zofl_mpi.run.mpi.placement import place_clients
from zofl_mpi.run.mpi.transport import Transport
from zofl_mpi.run.mpi.world import MPIWorld

LIMIT = 1 << 30  # bytes a collective moves at once: counts are 32-bit integers up to MPI 3.1 (Open MPI 5)
FRAME = 1024
"""Bytes at least that go with the first collective of a question or an agreement; only what is longer needs a second
one."""
POLLED_BYTES = 1 << 16
"""Maximum bytes of a polled transfer. Libraries move a part per poll (MPICH 64 kB): more takes many sleeps."""


class Question(NamedTuple):
    """A question to all ranks; the bytes of its message follow separately."""

    # ask, each, reduce, mean, sum, holders, keep, account or end; between the server's ranks step, upload, account, end
    kind: str
    step: str = ""
    to: Sequence[int] = ()
    counted: bool = True  # as `Clients.ask` has it
    sizes: Sequence[int] = ()  # bytes of the one message that goes with it, or of each participant's (each)
    shares: Mapping[int, float] | None = None  # mean: of the participants; ask, each: of those not told before
    reduction: int = 0  # ask, each: number of the one that the reduced parts of replies are for; 0: none
    first: int = 0  # participant of the reduction
    term: str = ""  # sum: name of the step that makes a reply's term
    steps: Sequence[str] = ()  # account: rows of the table
    status: int = 0  # end: of the process
    upload: int = 0  # upload: its number
    lengths: Sequence[int] = ()  # end of a step of the server's ranks: numbers of each part of the sum
    round: int = 0  # of the server's watch


Arrived = tuple[Turn, Bytes]  # an item at the server, packed


def frame(body: bytes, room: int, block: Bytes = EMPTY) -> Bytes:
    """Pack `room` bytes: the length of `body`, then `body` and (aligned) `block`, each if it fits."""
    framed, start = np.zeros(room, np.uint8), padded(8 + len(body))
    framed[:8].view(np.int64)[0] = len(body)
    if 8 + len(body) <= room:
        framed[8 : 8 + len(body)] = np.frombuffer(body, np.uint8)
    if start + block.size <= room:
        framed[start : start + block.size] = block
    return framed


def length_of(framed: Bytes) -> int:
    """Length of the body passed to `frame`."""
    return int(framed[:8].view(np.int64)[0])


def unframe(framed: Bytes) -> bytes | None:
    """The body passed to `frame`; None if it did not fit."""
    length = length_of(framed)
    return framed[8 : 8 + length].tobytes() if 8 + length <= framed.size else None


@final
class Collectives:
    """Collectives in blocks of at most LIMIT bytes. All ranks call the same ones, in the same order.

    Args:
        meanwhile: called by a rank that waits long.
        placement: the rank of each client.
        staging: memory of the server for uploads, from which a GPU can copy them.
    """

    def __init__(
        self, comm: Communicator, meanwhile: Callable[[], None], placement: Sequence[int], staging: Staging
    ) -> None:
        self.comm, self._meanwhile, self.placement, self._staging = comm, meanwhile, placement, staging
        self.rank, self.ranks = comm.rank, comm.size - 1
        self._rooms, self._last = dict[tuple[str, ...], int](), ("", "")
        self.transport = Transport(comm.size)

    def bcast_question(self, question: Question | None = None, block: Bytes = EMPTY) -> tuple[Question, Bytes | None]:
        """Broadcast the server's question, with its message if that fits; otherwise call `message`.

        The collective's size is that of the last question after the same one: from the second round on a small model
        needs no collective of its own.
        """
        body = pickle.dumps(tuple(question)) if question else b""
        framed = frame(body, self._rooms.get(self._last, FRAME), block)
        self._wait(self.comm.Ibcast(framed))
        received, moved = unframe(framed), framed.size
        if received is None:
            long = np.frombuffer(body, np.uint8) if question else np.empty(length_of(framed), np.uint8)
            self._broadcast(long)
            received, moved = long.tobytes(), moved + long.size
        asked = question or Question(*pickle.loads(received))
        size = 0 if asked.kind == "each" else sum(asked.sizes)
        start = padded(8 + length_of(framed))
        self._learn(self._last, start + size)
        self._last = asked.kind, asked.step
        self.transport.broadcasts(asked.step, moved)
        return asked, framed[start : start + size] if start + size <= framed.size else None

    def send(self, question: Question, block: Bytes) -> None:
        """Sends the server's question and its one message."""
        if self.bcast_question(question._replace(sizes=[block.size]), block)[1] is None:
            self.bcast(block)

    def message(self, question: Question, block: Bytes | None) -> Bytes:
        """The message of a question; `block` is the result of `bcast_question`."""
        if block is None:
            block = np.empty(question.sizes[0], np.uint8)
            self.bcast(block)
        return block

    def _learn(self, key: tuple[str, ...], needed: int) -> None:
        """Record the size for the next collective of this kind, equally on all ranks."""
        self._rooms[key] = max(FRAME, needed) if needed <= POLLED_BYTES else FRAME

    def bcast(self, block: Bytes) -> None:
        """Copy the server's block into every rank's block of the same size."""
        self.transport.broadcasts(self._last[1], block.size)
        self._broadcast(block)

    def _broadcast(self, block: Bytes) -> None:
        """Broadcasts a block.

        All ranks poll, asleep in between, until a small block has arrived, or until all are ready for a large one. A
        server that waited inside Bcast would burn the core on which a sleeping rank is to wake (5 ms a round on two
        cores).
        """
        if block.size <= POLLED_BYTES:
            self._wait(self.comm.Ibcast(block))
            return
        self._wait(self.comm.Ibarrier())
        for low in range(0, block.size, LIMIT):
            self.comm.Bcast(block[low : low + LIMIT])

    def scatter(self, sizes: Mapping[int, int], block: Bytes | None = None) -> Bytes:
        """Send each rank its clients' messages, ordered by rank in the server's block."""
        totals = [0] * (self.ranks + 1)
        for i, size in sizes.items():
            totals[self.placement[i]] += size
        self.transport.scatters(self._last[1], totals)
        own = np.empty(totals[self.rank], np.uint8)
        for low, counts, offsets, cut in self._pieces(totals):
            self.comm.Scatterv(None if block is None else [block[low:], (counts, offsets)], own[cut])
        return own

    def allgather_objects(self, value: Any) -> list[Any]:
        """Every rank's object, by rank, on all ranks."""
        body, key = pickle.dumps(value), (*self._last, "all")
        frames = self._share(frame(body, self._rooms.get(key, FRAME)))
        needed = padded(8 + max(length_of(framed) for framed in frames))
        self._learn(key, needed)
        if any(unframe(framed) is None for framed in frames):
            frames = self._share(frame(body, needed))
        return [pickle.loads(unframe(framed) or b"") for framed in frames]

    def _share(self, own: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays of one shape, stacked, on all ranks."""
        stacked = np.empty((self.ranks + 1, *own.shape), own.dtype)
        self.transport.allgathers(self._last[1], own.nbytes)
        self._wait(self.comm.Iallgather(own, stacked))
        return stacked

    def gather_memories(self, own: Mapping[int, Bytes], failed: Any = None) -> tuple[dict[int, Bytes], list[Any]]:
        """Packed memories of all clients, at the server; failures, on all ranks."""
        headers = self.allgather_objects(({i: block.size for i, block in own.items()}, failed))
        sizes = {i: size for each, _ in headers for i, size in each.items()}
        totals = [sum(each.values()) for each, _ in headers]
        block = np.empty(0 if self.rank else sum(totals), np.uint8)
        self._gather(totals, np.concatenate([EMPTY, *own.values()]), block)
        ends = np.cumsum(list(sizes.values())).tolist()
        memories = {i: block[end - sizes[i] : end].copy() for i, end in zip(sizes, ends, strict=True)}
        return memories, [each for _, each in headers if each]

    def gather_costs(self, own: Costs) -> Costs:
        """(P + 1,) all ranks' costs, at the server; empty elsewhere. `own`: (1,)."""
        gathered = np.empty(self.ranks + 1 if self.rank == 0 else 0, own.dtype)
        self.transport.gathers(self._last[1], [own.nbytes] * (self.ranks + 1))
        self.comm.Gather(own.view(np.uint8), gathered.view(np.uint8) if self.rank == 0 else None)
        return gathered

    def reduce_sum(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sum over the ranks, at the server (undefined elsewhere); exact in any order, since entries are integers."""
        total = np.empty_like(own)
        self.transport.reduces(self._last[1], own.nbytes)
        self.comm.Reduce(own, total if self.rank == 0 else None)
        return total

    def gather_waves(
        self, to: Sequence[int], take: Callable[[int], Sent], deliver: Callable[[list[Arrived]], None]
    ) -> None:
        """Gathers wave after wave until every stream has ended or one has failed. Runs in the communication thread.

        `take` returns the wave's part of this rank, given BLOCKED, OPTIONAL or REQUIRED, and may block. At the server
        `deliver` is called after each wave, with the items that it reads, one at least, in order.
        """
        self._staging.enter()
        order, held = Order(to, self.placement), [deque[Bytes]() for _ in range(self.ranks + 1)]
        while not order.over:
            sent = take(order.wish(self.rank))
            headers = self._share(sent.header)
            if headers.min() < 0 or headers[:, 0].max() > MAX_WAVE_ITEMS:  # garbage, of a rank that is lost
                raise ValueError(f"no headers: {headers.tolist()}")
            sizes = headers[:, 1].tolist()
            block = EMPTY if self.rank else self._staging.empty(sum(sizes))
            self._gather(sizes, sent.block, block)
            turns = order.advance(headers)
            if self.rank == 0:
                ends = np.cumsum(sizes).tolist()
                for rank, size in enumerate(sizes):
                    held[rank].extend(pieces(block[ends[rank] - size : ends[rank]], int(headers[rank, 0])))
                del block
                deliver([(item, held[item.rank].popleft()) for item in turns])

    def _gather(self, sizes: list[int], own: Bytes, block: Bytes) -> None:
        self.transport.gathers(self._last[1], sizes)
        for low, counts, offsets, cut in self._pieces(sizes):
            self.comm.Gatherv(own[cut], None if self.rank else [block[low:], (counts, offsets)])

    def _pieces(self, sizes: Sequence[int]) -> Iterator[tuple[int, list[int], list[int], slice]]:
        """Pieces of at most LIMIT of all ranks' bytes: start, counts and offsets by rank, this rank's own part."""
        ends = np.cumsum(sizes, dtype=np.int64)
        starts = ends - sizes
        for low in range(0, int(ends[-1]), LIMIT):
            a, b = np.clip(starts, low, low + LIMIT), np.clip(ends, low, low + LIMIT)
            own = slice(int((a - starts)[self.rank]), int((b - starts)[self.rank]))
            yield low, (b - a).tolist(), (a - low).tolist(), own

    def _wait(self, request: Request) -> None:
        wait(request, self._meanwhile)


def make_collectives(
    world: MPIWorld,
    watch: Watch,
    staging: Staging,
    m: int = 0,
    loads: Loads | None = None,
    comm: Communicator | None = None,
) -> Collectives:
    """Collectives of the ranks of `comm`; by default the server's, or rank 0 and the client ranks that are left."""
    left = world.survival and world.survival.guarded()
    comm = comm or left or (world.servers if world.rank and world.is_server else world.clients)
    return Collectives(
        comm, reporting(watch, world.rank, left or world.comm), place_clients(m, comm.size - 1, loads), staging
    )


def reporting(watch: Watch, rank: int, comm: Communicator) -> Callable[[], None]:
    """Function for a rank that waits long: it reports to rank 0 that this rank is not the late one."""
    reported = set[int]()

    def report() -> None:
        if watch.overdue and rank == 0:
            while comm.iprobe():
                watch.waits(*comm.recv())
        elif watch.overdue and watch.round not in reported:
            reported.add(watch.round)
            comm.isend((rank, watch.round), 0)

    return report
