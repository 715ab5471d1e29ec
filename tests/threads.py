"""Ranks as threads of one process: a strict twin of an mpi4py communicator, and runs on it.

`run_ranks(3, program)` calls program(world) in three threads; their worlds are `MPIWorld`s whose communicator moves
arrays within the process. What MPI leaves undefined, or answers by waiting for ever, is an error here, in a sentence:
`Mismatch` where ranks call different collectives or sizes, two threads of a rank are in the communicator at once, a
buffer changes while a request owns it, or a rank ends with collectives left to make; `Stuck` where nothing moves.

A rank that raises ends them all, as a launcher would, and its exception is raised again by `run_ranks`. A rank that
raises `Vanished` is gone, and the others can do what ULFM offers: what waits for it raises `RankLost`; `Revoke`, by
which every call on that communicator raises `Revoked`; `Shrink` to those that are left; `Agree`. A `Fate` says which
call a rank does not survive. `synchronous`: whether no rank leaves a collective before all have come to it.
"""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run import cli
from zofl_mpi.run.mpi.client import ClientRank
from zofl_mpi.run.mpi.server import MPIClients
from zofl_mpi.run.mpi.world import MPIWorld
from zofl_mpi.run.records import Recorder
from zofl_mpi.run.signals import Stop

PATIENCE = 60.0
"""Seconds without any movement after which the ranks are stuck."""
LOOK = 0.05
"""Seconds between two looks at whether something has moved. Looks without movement are counted, so that a process that
got no core for a while is not stuck."""
GRACE = 2.0
"""Seconds for the other threads to end once one rank has failed; one that waits in a queue never does."""
ALL, DOWN, UP = "all to all", "from rank 0", "to rank 0"
DIRECTION = {
    **dict.fromkeys(("Ibarrier", "Iallgather", "allgather"), ALL),
    **dict.fromkeys(("Ibcast", "Bcast", "bcast", "Scatterv"), DOWN),
    **dict.fromkeys(("Gatherv", "Gather", "Reduce"), UP),
}
GARBAGE = 0xA5
"""What a buffer holds that a request will fill."""


class Mismatch(AssertionError):
    """The ranks do not agree on a collective, or use it as MPI forbids."""


class Stuck(AssertionError):
    """No rank moves any more."""


class Aborted(Exception):
    """A rank has ended all of them, by `Abort`."""

    def __init__(self, rank: int, status: int) -> None:
        super().__init__(f"rank {rank} called Abort({status})")
        self.rank, self.status = rank, status


class RankLost(Exception):
    """A rank that this one waits for is gone."""


class Revoked(Exception):
    """A rank has given up this communicator."""


class Vanished(BaseException):
    """Raised by a rank that is to disappear while the others go on."""


class Killed(BaseException):
    """Raised in every call of a rank that has been ended: a process would run no line more."""


@dataclass
class Call:
    """One collective, and what the ranks that have come to it bring."""

    name: str
    sent: dict[int, Any] = field(default_factory=dict)
    sizes: dict[int, Any] = field(default_factory=dict)
    """What must agree: dtype and entries. Rank 0 of a vector brings a list, the size of each rank's part."""
    left: set[int] = field(default_factory=set)

    def enter(self, rank: int, name: str, sent: Any, sizes: Any, place: str) -> None:
        """Rank `rank` comes to this collective, which it calls `name`."""
        if name != self.name:
            others = ", ".join(f"rank {r}" for r in sorted(self.sent))
            raise Mismatch(f"{place}: rank {rank} calls {name}, {others} called {self.name}")
        self.sent[rank], self.sizes[rank] = sent, sizes
        vector = isinstance(self.sizes.get(0), list)
        if vector or name in ("Scatterv", "Gatherv"):
            wanted = dict(enumerate(self.sizes.get(0, [])))
            pairs = [(r, size, wanted[r]) for r, size in self.sizes.items() if r and r in wanted]
        else:
            first, size = next(iter(self.sizes.items()))
            pairs = [(rank, sizes, size)] if rank != first else []
        for r, size, other in pairs:
            if size != other:
                raise Mismatch(f"{place}: {name} of {size} at rank {r}, of {other} at another rank")


class Death(NamedTuple):
    """When a rank vanishes: in call number `call`, counted from 0, of its round `round`, counted from 1.

    How many calls a round takes depends on what is ready when; a call after its last one is one of the next round's, or
    of the end. `after`: when the rank has done its part of the call, not before.
    """

    round: int
    call: int
    after: bool


@dataclass
class Fate:
    """What is to become of the ranks, and what became of them.

    Attributes:
        deaths: {rank: when it vanishes}.
        deceived: the rank that is not told so, but gets garbage from it; its collectives end without an error.
        begun: how many rounds each rank has begun; the end counts as one.
    """

    deaths: dict[int, Death] = field(default_factory=dict)
    deceived: int = -1
    begun: Counter[int] = field(default_factory=Counter)


@dataclass
class Agreement:
    """What the ranks bring to it, by their numbers at the start, and what came out: -1 if one of them is gone."""

    flags: dict[int, int] = field(default_factory=dict)
    result: int | None = None


@dataclass
class Group:
    """The ranks of a communicator, by their numbers at the start, and their collectives."""

    name: str
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    agreements: dict[int, Agreement] = field(default_factory=dict)
    revoked: bool = False
    shrinking: set[int] = field(default_factory=set)
    rest: Group | None = None
    letters: deque[Any] = field(default_factory=deque)
    """What was sent to rank 0 and is not read yet."""


class Ranks:
    """What all ranks and their communicators share."""

    def __init__(self, size: int, synchronous: bool, fate: Fate) -> None:
        self.size, self.synchronous, self.fate = size, synchronous, fate
        self.since: Counter[int] = Counter()  # calls of a rank since the round began in which it vanishes
        self.changed = threading.Condition()
        self.moves = 0
        self.failure: BaseException | None = None
        self.lost: set[int] = set()
        self.waiting: dict[int, str] = {}
        self._within: dict[int, str] = {}

    @contextmanager
    def within(self, rank: int) -> Iterator[None]:
        """A call of rank `rank`: one thread at a time, as MPI_THREAD_SERIALIZED demands."""
        own = threading.current_thread().name
        with self.changed:
            self.check_alive(rank)
            if rank in self._within:
                raise Mismatch(f"two threads of rank {rank} are in MPI at once: {self._within[rank]} and {own}")
            self._within[rank] = own
        try:
            yield
        finally:
            with self.changed:
                del self._within[rank]

    def check_alive(self, rank: int | None = None) -> None:
        """Raises Killed if the ranks have been ended, or this one."""
        if self.failure is not None or rank in self.lost:
            raise Killed

    def dies(self, rank: int, made: bool) -> None:
        """Lets rank `rank` vanish if its time has come: before this call, or when it has `made` its part of it.

        Raises:
            Vanished: it is gone.
        """
        death = self.fate.deaths.get(rank)
        self.since[rank] += int(made)
        if death and self.fate.begun[rank] >= death.round and (self.since[rank] - int(made), made) == death[1:]:
            self.lose(rank)
            raise Vanished

    def begins(self, rank: int) -> None:
        """Rank `rank` begins its next round."""
        with self.changed:
            self.fate.begun[rank] += 1
            if rank in self.fate.deaths and self.fate.begun[rank] == self.fate.deaths[rank].round:
                self.since[rank] = 0

    def fail(self, failure: BaseException) -> None:
        """Ends all ranks; the first failure is the one that counts."""
        with self.changed:
            self.failure = self.failure or failure
            self.changed.notify_all()

    def lose(self, rank: int) -> None:
        """Rank `rank` is gone, the others go on."""
        with self.changed:
            self.lost.add(rank)
            self.move()

    def move(self) -> None:
        """Something has happened."""
        self.moves += 1
        self.changed.notify_all()


class Communicator:
    """One rank's end of a communicator: the methods of `zofl_mpi.run.mpi.communicator.Communicator`."""

    def __init__(self, ranks: Ranks, group: Group, own: int) -> None:
        self.rank, self.size, self._own = group.members.index(own), len(group.members), own
        self._ranks, self._group, self._calls, self._count, self._agreed = ranks, group, group.calls, 0, 0

    # --- collectives that a request completes

    def Ibarrier(self) -> Request:
        return self._request("Ibarrier", None, 0, lambda sent: None)

    def Ibcast(self, buffer: np.ndarray[Any, Any]) -> Request:
        own = _array(buffer, writable=self.rank > 0)
        if self.rank:
            _spoil(own)
        return self._request("Ibcast", own if self.rank == 0 else None, _size(own), lambda sent: _fill(own, [sent[0]]))

    def Iallgather(self, own: np.ndarray[Any, Any], all_of_them: np.ndarray[Any, Any]) -> Request:
        stacked = _array(all_of_them, writable=True)
        _demand_parts(stacked, own, self.size)
        _spoil(stacked)
        return self._request("Iallgather", _array(own), _size(own), lambda sent: _fill(stacked, self._ordered(sent)))

    # --- collectives that block

    def Bcast(self, buffer: np.ndarray[Any, Any]) -> None:
        own = _array(buffer, writable=self.rank > 0)
        _fill(own, [self._blocking("Bcast", own.copy() if self.rank == 0 else None, _size(own))[0]])

    def Scatterv(self, vector: Any, own: np.ndarray[Any, Any]) -> None:
        own = _array(own, writable=True)
        parts = None if self.rank else _parts(vector)
        sizes = _size(own) if parts is None else [_size(part) for part in parts]
        sent = self._blocking("Scatterv", None if parts is None else [part.copy() for part in parts], sizes)
        _fill(own, [sent[0][self.rank]])

    def Gatherv(self, own: np.ndarray[Any, Any], vector: Any) -> None:
        own, parts = _array(own), None if self.rank else _parts(vector, writable=True)
        sizes = _size(own) if parts is None else [_size(part) for part in parts]
        sent = self._blocking("Gatherv", own.copy(), sizes)
        for rank, part in enumerate(parts or []):
            _fill(part, [sent[rank]])

    def Gather(self, own: np.ndarray[Any, Any], stacked: np.ndarray[Any, Any] | None) -> None:
        if self.rank == 0:
            _demand_parts(_array(stacked, writable=True), own, self.size)
        sent = self._blocking("Gather", _array(own).copy(), _size(own))
        if stacked is not None:
            _fill(stacked, self._ordered(sent))

    def Reduce(self, own: np.ndarray[Any, Any], total: np.ndarray[Any, Any] | None) -> None:
        if self.rank == 0 and _size(_array(total, writable=True)) != _size(own):
            raise Mismatch(f"Reduce of {_size(own)} into {_size(total)}")
        sent = self._blocking("Reduce", _array(own).copy(), _size(own))
        if total is not None:
            _fill(total, [np.sum(self._ordered(sent), axis=0)])

    def bcast(self, value: Any) -> Any:
        return pickle.loads(self._blocking("bcast", pickle.dumps(value) if self.rank == 0 else None, "an object")[0])

    def allgather(self, value: Any) -> list[Any]:
        return [pickle.loads(b) for b in self._ordered(self._blocking("allgather", pickle.dumps(value), "an object"))]

    def Barrier(self) -> None:
        self._blocking("Ibarrier", None, 0)

    def Abort(self, status: int) -> None:
        self._ranks.fail(Aborted(self._own, status))
        raise Killed

    # --- one to rank 0

    def isend(self, value: Any, dest: int) -> None:
        assert dest == 0
        with self._ranks.within(self._own), self._ranks.changed:
            self._group.letters.append(pickle.dumps(value))

    def iprobe(self) -> bool:
        assert self.rank == 0
        return bool(self._group.letters)

    def recv(self) -> Any:
        return pickle.loads(self._group.letters.popleft())

    # --- when ranks are lost

    def Revoke(self) -> None:
        with self._ranks.within(self._own), self._ranks.changed:
            self._ranks.dies(self._own, made=False)
            self._group.revoked = True
            self._ranks.move()
            self._ranks.dies(self._own, made=True)

    def Is_revoked(self) -> bool:
        return self._group.revoked

    def Get_failed(self) -> np.ndarray[Any, Any]:
        return np.array(sorted(self._ranks.lost & set(self._group.members)))

    def Agree(self, flag: int) -> int:
        """Ends when all that are left have come, alike for all; also where the communicator is revoked."""
        group, ranks, k = self._group, self._ranks, self._agreed
        with ranks.within(self._own), ranks.changed:
            ranks.dies(self._own, made=False)
            self._agreed += 1
            agreement = group.agreements.setdefault(k, Agreement())
            agreement.flags[self._own] = flag
            ranks.waiting[self._own] = f"Agree {k} of {group.name}"
            ranks.move()
            ranks.dies(self._own, made=True)
            while agreement.result is None:
                ranks.check_alive(self._own)
                gone = ranks.lost & set(group.members)
                if set(group.members) - gone <= agreement.flags.keys():
                    flags = [agreement.flags[rank] for rank in group.members if rank not in gone]
                    agreement.result = -1 if gone else int(np.bitwise_and.reduce(flags))
                    ranks.move()
                else:
                    ranks.changed.wait()
            ranks.waiting.pop(self._own, None)
            if agreement.result < 0:
                raise RankLost("Agree: a rank is gone")
            return agreement.result

    def Shrink(self) -> Communicator:
        """The ranks that are left when all that are left have come; it works where nothing else does any more."""
        group, ranks = self._group, self._ranks
        with ranks.within(self._own), ranks.changed:
            ranks.dies(self._own, made=False)
            if self._own in group.shrinking:
                raise Mismatch(f"rank {self._own} shrinks {group.name} twice")
            group.shrinking.add(self._own)
            ranks.waiting[self._own] = f"Shrink of {group.name}"
            ranks.move()
            ranks.dies(self._own, made=True)
            while group.rest is None:
                ranks.check_alive(self._own)
                left = [rank for rank in group.members if rank not in ranks.lost]
                if set(left) <= group.shrinking:
                    group.rest = Group(f"{group.name}'", tuple(left))
                    ranks.move()
                else:
                    ranks.changed.wait()
            ranks.waiting.pop(self._own, None)
            return Communicator(ranks, group.rest, self._own)

    # --- what they share

    def _request(self, name: str, own: Any, sizes: Any, fill: Callable[[dict[int, Any]], None]) -> Request:
        with self._ranks.within(self._own):
            kept = None if own is None else own.copy()
            return Request(self, self._enter(name, kept, sizes), own, kept, fill)

    def _blocking(self, name: str, sent: Any, sizes: Any) -> dict[int, Any]:
        with self._ranks.within(self._own), self._ranks.changed:
            k = self._enter(name, sent, sizes)
            while (arrived := self.arrived(k)) is None:
                self._ranks.changed.wait()
            return arrived

    def _enter(self, name: str, sent: Any, sizes: Any) -> int:
        """Comes to this rank's next collective; returns its number."""
        k = self._count
        place = f"collective {k} of {self._group.name}"
        with self._ranks.changed:
            self._ranks.dies(self._own, made=False)
            self._check_valid()
            self._calls.setdefault(k, Call(name)).enter(self.rank, name, sent, sizes, place)
            self._count += 1
            self._ranks.waiting[self._own] = f"{name}, {place}"
            self._ranks.move()
            self._ranks.dies(self._own, made=True)
        return k

    def _check_valid(self) -> None:
        if self._group.revoked:
            raise Revoked(f"{self._group.name} is revoked")

    def _lost(self) -> set[int]:
        """The ranks of this communicator that are gone."""
        return {rank for rank, own in enumerate(self._group.members) if own in self._ranks.lost}

    def arrived(self, k: int) -> dict[int, Any] | None:
        """What the ranks sent that this one needs, None while one is missing; afterwards it has left the collective."""
        with self._ranks.changed:
            self._ranks.check_alive(self._own)
            call, lost = self._calls[k], self._lost()
            self._check_valid()
            missing = self._needed(call.name) - call.sent.keys()
            if missing and missing <= lost and self._own == self._ranks.fate.deceived:
                return dict(call.sent) | {rank: _garbage(call, rank, self.rank, self.size) for rank in missing}
            if missing & lost:
                raise RankLost(f"rank {min(missing & lost)} is gone; {call.name} at rank {self.rank}")
            if missing:
                return None
            call.left.add(self.rank)
            if len(call.left) == self.size:
                del self._calls[k]
            self._ranks.waiting.pop(self._own, None)
            self._ranks.move()
            return dict(call.sent)

    def _needed(self, name: str) -> set[int]:
        everybody, direction = set(range(self.size)), DIRECTION[name]
        if direction == ALL or self._ranks.synchronous or (direction == UP and self.rank == 0):
            return everybody
        return {0} if direction == DOWN else set()

    def _ordered(self, sent: dict[int, Any]) -> list[Any]:
        return [sent[rank] for rank in range(self.size)] if len(sent) == self.size else []


class Request:
    """A collective that has begun. Until it is complete its buffers belong to it."""

    def __init__(self, comm: Communicator, k: int, own: Any, kept: Any, fill: Callable[[dict[int, Any]], None]) -> None:
        self._comm, self._k, self._own, self._kept, self._fill = comm, k, own, kept, fill
        self._complete = False

    def Test(self) -> bool:
        if self._complete:
            return True
        with self._comm._ranks.within(self._comm._own):
            sent = self._comm.arrived(self._k)
            if sent is None:
                return False
            if self._own is not None and self._own.tobytes() != self._kept.tobytes():
                raise Mismatch(f"rank {self._comm.rank} changed a buffer while a request owned it")
            self._fill(sent)
            self._complete = True
        return True


def _array(value: Any, writable: bool = False) -> np.ndarray[Any, Any]:
    if hasattr(value, "numpy"):  # a tensor, which mpi4py takes, too
        value = value.numpy()
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or value.dtype.hasobject:
        raise Mismatch(f"a buffer is a contiguous array, not {value!r}")
    if writable and value.size and not value.flags.writeable:
        raise Mismatch("a buffer that is received into is read-only")
    return value


def _parts(vector: Any, writable: bool = False) -> list[np.ndarray[Any, Any]]:
    """Each rank's part of rank 0's vector [array, (counts, offsets)]."""
    array, (counts, offsets) = _array(vector[0], writable), vector[1]
    if any(low < 0 or low + n > array.size for n, low in zip(counts, offsets, strict=True)):
        raise Mismatch(f"parts of {counts} at {offsets} are not all in an array of {array.size}")
    return [array[low : low + n] for n, low in zip(counts, offsets, strict=True)]


def _size(array: Any) -> str:
    return f"{array.size} {array.dtype}"


def _demand_parts(stacked: np.ndarray[Any, Any], own: np.ndarray[Any, Any], ranks: int) -> None:
    if stacked.dtype != own.dtype or stacked.size != ranks * own.size:
        raise Mismatch(f"{ranks} times {_size(own)} do not fill {_size(stacked)}")


def _garbage(call: Call, rank: int, own: int, size: int) -> Any:
    """What a rank is told that rank `rank` sent, which is gone: anything, of the right size."""
    if call.sizes[own] == "an object":
        return bytes([GARBAGE]) * 8
    root = call.sizes.get(0)
    if not isinstance(call.sizes[own], str):
        return np.full(2, -1, np.int64) if not isinstance(root, list) else _garbled(root[rank])
    part = root[rank] if isinstance(root, list) else call.sizes[own]
    return [_garbled(part)] * size if call.name == "Scatterv" else _garbled(part)


def _garbled(size: str) -> np.ndarray[Any, Any]:
    entries, dtype = size.split()
    garbled = np.empty(int(entries), dtype)
    _spoil(garbled)
    return garbled


def _spoil(buffer: np.ndarray[Any, Any]) -> None:
    buffer.reshape(-1).view(np.uint8)[...] = GARBAGE


def _fill(buffer: np.ndarray[Any, Any], parts: Sequence[np.ndarray[Any, Any] | None]) -> None:
    """Copies what has arrived; None and an empty list stand for what this rank does not receive."""
    if parts and parts[0] is not None and (buffer.flags.writeable and buffer.size):
        buffer.reshape(-1)[...] = np.concatenate([np.reshape(part, -1) for part in parts])


# --- running


def run_ranks(
    size: int,
    program: Callable[[MPIWorld], Any],
    *,
    synchronous: bool = False,
    patience: float = PATIENCE,
    fate: Fate | None = None,
) -> list[Any]:
    """Calls program(world) on ranks 0 to size - 1, each a thread; returns their results, None for a rank that vanished.

    Args:
        fate: of the ranks of a world that may survive the loss of some.

    Raises:
        Aborted: a rank called Abort.
        Stuck, Mismatch: see above.
        Exception: whatever a rank raised first.
    """
    ranks = Ranks(size, synchronous, fate or Fate())
    groups = [Group(name, tuple(range(size))) for name in NAMES]
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = program(_world(ranks, groups, rank, fate is not None))
        except Killed:
            pass
        except Vanished:
            ranks.lose(rank)
        except BaseException as exc:
            ranks.fail(exc)
        with ranks.changed:
            ranks.move()

    def failed(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, Killed | Vanished):
            ranks.fail(args.exc_value)

    before = set(threading.enumerate())
    threads = [threading.Thread(target=work, args=(k,), name=f"rank {k}", daemon=True) for k in range(size)]
    with mock.patch.object(threading, "excepthook", failed):
        for thread in threads:
            thread.start()
        _watch(ranks, threads, patience)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and (ranks.failure or ranks.lost) and _working(before):
            time.sleep(0.002)
    if ranks.failure is not None or 0 in ranks.lost:
        _close_results()
    if ranks.failure is not None:
        raise ranks.failure
    if not ranks.lost:
        for group in groups:
            for k, call in group.calls.items():
                missing, place = sorted(set(range(size)) - call.left), f"collective {k} of {group.name}"
                raise Mismatch(f"the end: ranks {missing} have not completed {call.name}, {place}")
    return results


def _close_results() -> None:
    """Closes the result of a rank 0 that has ended, as its process would: its thread may wait in a queue for ever."""
    for found in gc.get_objects():
        if type(found) is Recorder:
            found.abandon()


def _working(before: set[threading.Thread]) -> bool:
    """Whether a thread is still there that was not before; one that looks at a round's time, or a timer, may stay."""
    new = [thread for thread in set(threading.enumerate()) - before if not isinstance(thread, threading.Timer)]
    return any(Watch._look.__name__ not in thread.name for thread in new)


NAMES = ("comm", "node")


def _world(ranks: Ranks, groups: Sequence[Group], rank: int, ulfm: bool) -> MPIWorld:
    comm, node = (Communicator(ranks, group, rank) for group in groups)
    world = MPIWorld(comm, node, "threads", *(((RankLost, Revoked), "") if ulfm else ((), "ULFM")))

    def abort(text: str, stopped: Sequence[Any] = ()) -> None:
        with ranks.changed:
            ranks.check_alive(rank)  # a process that has been ended prints nothing more
        sys.stderr.write(f"{text}\n")
        if world.survival is None:
            comm.Abort(1)
        ranks.lose(rank)
        raise Vanished

    def survive(watch: Watch) -> None:
        MPIWorld.survive(world, watch)
        setattr(world.survival, "_give_up", give_up)  # noqa: B010
        begins = watch.begins

        def noted(following: bool = True) -> None:
            begins(following)
            if following:
                ranks.begins(rank)

        watch.begins = noted  # type: ignore[method-assign]

    def give_up() -> None:
        if rank not in ranks.lost:  # a process that is gone has no watch
            ranks.fail(Stuck(f"rank {rank} gives up"))

    world.survive = survive  # type: ignore[method-assign]
    world.abort = world.halt = abort  # type: ignore[method-assign]
    world.leave = lambda status, limit=0.0: None  # type: ignore[method-assign]
    return world


def _watch(ranks: Ranks, threads: Sequence[threading.Thread], patience: float) -> None:
    """Until all ranks have ended, or one has failed, or none moves."""
    moves, looks = -1, 0
    with ranks.changed:
        while ranks.failure is None and any(
            thread.is_alive() for rank, thread in enumerate(threads) if rank not in ranks.lost
        ):
            quiet = not ranks.changed.wait(LOOK) and moves == ranks.moves
            moves, looks = ranks.moves, looks + 1 if quiet else 0
            if looks * LOOK >= patience:
                ranks.fail(Stuck(f"nothing moved for {patience:g} s: " + "; ".join(_places(ranks, threads))))


def _places(ranks: Ranks, threads: Iterable[threading.Thread]) -> Iterator[str]:
    frames = sys._current_frames()
    for rank, thread in enumerate(threads):
        if thread.is_alive() and thread.ident in frames:
            stack = traceback.extract_stack(frames[thread.ident])
            own = [f for f in stack if "threading.py" not in f.filename and f.filename != __file__]
            where = f"{own[-1].name} ({own[-1].filename.rpartition('/')[2]}:{own[-1].lineno})" if own else "its start"
            waiting = f", waits for {ranks.waiting[rank]}" if rank in ranks.waiting else ""
            yield f"rank {rank} is in {where}{waiting}"
        else:
            yield f"rank {rank} has ended"


@contextmanager
def _one_draws() -> Iterator[None]:
    """Whoever sets torch's generator, which a process has one of, is alone with it until it has been put back."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    lock, fork = threading.RLock(), torch.random.fork_rng

    @contextmanager
    def alone(*given: Any, **named: Any) -> Iterator[None]:
        with lock, fork(*given, **named):
            yield

    with mock.patch.object(torch.random, "fork_rng", alone):
        yield


def serve_or_ask(
    world: MPIWorld, method: Any, data: Sequence[Any], program: Callable[[Any], Any], loads: Loads | None = None
) -> Any:
    """At rank 0 the result of program(clients); the other ranks, which have the clients, serve it."""
    if world.rank:
        assert ClientRank(world, method, data, loads=loads).serve() == 0
        return None
    clients = MPIClients(world, len(data), loads=loads)
    result = program(clients)
    clients.close()
    return result


def run_module(
    ranks: int, module: str, *arguments: object, patience: float = PATIENCE, fate: Fate | None = None
) -> int:
    """`mpirun -n RANKS python -m MODULE ARGUMENTS`, and without mpirun for 1, in this process; its exit status.

    With a fate as under `mpirun --with-ft ulfm`, that of the ranks that are left; see `run_ranks`.
    """
    words = [str(word) for word in arguments]
    worlds = threading.local()

    def program(world: MPIWorld | None) -> int:
        worlds.own = world
        try:
            cli.main(module, words)
        except SystemExit as exc:
            return int(exc.code or 0)

    with mock.patch.object(Stop, "listen"), mock.patch.object(Stop, "ignore"), _one_draws():  # signals: main thread's
        if ranks == 1:
            return program(None)
        with mock.patch.object(cli, "connect", side_effect=lambda: worlds.own):
            try:
                statuses = run_ranks(ranks, program, patience=patience, fate=fate)
            except Aborted as exc:
                return exc.status
    left = {status for status in statuses if status is not None}  # a rank that is lost has none
    assert len(left) <= 1, statuses
    return int(left.pop()) if left else 1
