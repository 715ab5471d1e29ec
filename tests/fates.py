"""What ranks that are threads share, and what may become of one: see `tests.threads`."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOMENT = 0.02
"""Seconds."""


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
        self.sizes[rank] = sizes
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
        self.sent[rank] = sent  # last: nobody may read what does not match


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
class Decision:
    """What the ranks bring to it, by their numbers at the start, and what came out."""

    brought: dict[int, Any] = field(default_factory=dict)
    result: Any = None


@dataclass
class Group:
    """The ranks of a communicator, by their numbers at the start, and their collectives."""

    name: str
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    revoked: bool = False
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
        self.made: list[Group] = []
        """By splitting others."""
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

    def pause(self, moves: int) -> None:
        """Waits until something has happened since there were so many moves, at most MOMENT."""
        with self.changed:
            if self.moves == moves:
                self.changed.wait(MOMENT)
