"""The server's side of MPI: `MPIClients`, the `Clients` of a run on several ranks."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, final

import numpy as np

from zofl_mpi.engine import mean, messages
from zofl_mpi.engine.clients import ClientError, Step, name_of
from zofl_mpi.engine.device import peak_bytes
from zofl_mpi.engine.ledger import SERVER, Row, Seconds
from zofl_mpi.engine.messages import Bytes
from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.staging import staging_of
from zofl_mpi.engine.watch import Watch
from zofl_mpi.errors import UserError
from zofl_mpi.run.client_memory import STEPS, Memory
from zofl_mpi.run.mpi.communicator import Connected, RanksLost
from zofl_mpi.run.mpi.cuda_aware import direct
from zofl_mpi.run.mpi.gather import EMPTY, FAILED, REPLY, SILENT, Sent, parcels
from zofl_mpi.run.mpi.survival import Survival, connected
from zofl_mpi.run.mpi.wire import Arrived, Question
from zofl_mpi.run.questions import Questions, participants, refuse_stream

T = TypeVar("T")
DEPTH = 2
"""Waves at the server: one being read, one arriving."""
ONLY_ERRORS = 3
"""So many failures in succession in which no rank is lost are not a loss."""

Inbox = queue.SimpleQueue[list[Arrived] | RanksLost]


@final
class MPIClients:
    """See `run.clients.Clients`. Rank 0 only; the other ranks run `ClientRank.serve`."""

    def __init__(
        self,
        world: Connected,
        m: int,
        stop: Callable[[], bool] = lambda: False,
        method: Any = None,
        watch: Watch | None = None,
        loads: Loads | None = None,
    ) -> None:
        self.m, self.lost, self._ranks = m, list[list[int]](), world.comm.size
        self._questions = Questions(m, stop, method, watch)
        self.ledger = self._questions.ledger
        self._survival: Survival | None = world.survival
        self.survives, self._watch = self._survival is not None, watch
        self._staging = staging_of(method)
        self._staging.direct = direct(self._staging.device)
        self._wire = connected(world, watch, loads, self._staging)
        self._touched: set[int] = set()
        self._kept: dict[int, Bytes] = {}

    def ask(
        self, step: Step, message: Any, *, to: Iterable[int] | None = None, counted: bool = True
    ) -> Iterator[tuple[int, Any]]:
        if self._survival is not None and step is STEPS["<recall>"]:
            return ((i, self._memory(i)) for i in participants(to, self.m))
        to = self._participants(to)
        self._send_one("ask", step, message, to)
        return self._replies(name_of(step), dict.fromkeys(to, messages.size(message)), counted)

    def ask_each(self, step: Step, each: Mapping[int, Any], *, counted: bool = True) -> Iterator[tuple[int, Any]]:
        to = self._participants(each)
        packed = {i: self._staging.packed(messages.prepare(each[i])) for i in to}
        name = self._questions.open(step)
        with self._questions.clock.time(name, "comm"):
            self._wire.bcast_question(Question("each", name, to, [packed[i].size for i in to]))
            for wave in parcels(to, {i: packed[i].size for i in to}, self._wire.placement):
                sizes = [sum(packed[i].size for i in wave.get(rank, ())) for rank in range(self._wire.ranks + 1)]
                self._wire.scatter(sizes, EMPTY, np.concatenate([packed[i] for own in wave.values() for i in own]))
        return self._replies(name, {i: messages.size(each[i]) for i in to}, counted)

    def mean(
        self,
        step: Step,
        message: Any,
        *,
        to: Iterable[int] | None = None,
        weights: Mapping[int, float] | None = None,
        counted: bool = True,
    ) -> Any:
        refuse_stream(step)
        to = sorted(self._participants(to))
        shares, name = mean.normalised(to, weights), name_of(step)
        own = mean.Contribution()  # the server has no client
        self._send_one("mean", step, message, to, shares)
        with self._questions.clock.time(name, "wait"):
            contributions = self._wire.allgather_objects(own)
        self._questions.close()
        failed = mean.first_failure(contributions)
        if failed:
            raise ClientError(failed[0], self._named(failed[1]), name, failed[2])
        averaged = mean.fields_of(contributions)
        with self._questions.clock.time(name, "comm"):
            means = {each.path: mean.field_mean(each, own, shares, self._wire.reduce_sum) for each in averaged}
        for i, size in sorted(pair for c in contributions for pair in c.sizes.items()) if counted else ():
            self.ledger.sent(name, i, messages.size(message))
            self.ledger.received(name, i, size)
        return messages.replace_arrays(mean.result_template(contributions), means)

    def account(self) -> tuple[Row, bool]:
        self._questions.check_closed("the round")
        changed = self._changed()
        staging = self._questions.clock.take_staging(self.ledger.steps)
        own = account_of(self._questions.seconds(), staging, self._questions.stop())
        with self._questions.clock.time(SERVER, "wait"):  # counts for the next round
            self._wire.bcast_question(Question("account", extra=self.ledger.steps))
            tables = self._wire.gather_tables(own)
        if self._survival is not None:
            self._survival.agree()  # else what came may be garbage
            self._kept |= changed
            self._touched.clear()
            tables, left = np.zeros((self._ranks, *own.shape)), tables
            tables[self._survival.alive] = left
        seconds, peaks, stop = tables[:, :-1, :3], tables[:, :-1, 3], bool(tables[:, -1].any())
        row = self._questions.row(seconds.transpose(1, 0, 2), peaks.T.astype(np.int64), tables[:, :-1, 4].T)
        return row, stop

    def steadily(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except RanksLost:
                self._recover()
            except Exception:
                if self._survival is None or not self._survival.lost():
                    raise
                self._recover()

    def close(self, status: int = 0) -> None:
        self._questions.check_closed("the run")
        self.steadily(lambda: self._end(status))

    def _end(self, status: int) -> None:
        self._wire.bcast_question(Question("end", extra=status))
        if self._survival is not None:
            self._survival.agree()

    def _participants(self, to: Iterable[int] | None) -> list[int]:
        chosen = participants(to, self.m)
        if self._survival is not None:
            self._touched.update(chosen)
        return chosen

    def _changed(self) -> dict[int, Bytes]:
        """The memories that changed since the last account, if lost ranks are to be survived.

        Raises:
            ClientError: a memory cannot travel.
        """
        if self._survival is None:
            return {}
        with self._questions.clock.time(SERVER, "comm"):
            self._wire.bcast_question(Question("keep", to=sorted(self._touched)))
            memories, failed = self._wire.gather_memories({})
        for i, problem in failed:
            raise ClientError(i, self._named(self._wire.placement[i]), "<keep>", problem)
        return memories

    def _named(self, rank: int) -> int:
        """The number that a rank had at the start."""
        return rank if self._survival is None else self._survival.alive[rank]

    def _memory(self, i: int) -> Memory:
        """Client i's memory as at the last account."""
        kept = self._kept.get(i)
        return Memory({}) if kept is None else messages.unpack(kept)

    def _recover(self) -> None:
        """Comes together with the ranks that are left, and gives the clients, on their new ranks, their memories.

        Raises:
            UserError: no client rank is left.
        """
        assert self._survival is not None
        while True:
            self.lost.append(self._survival.recover())
            left = self._survival.comm.size - 1
            if not left:
                raise UserError(f"all client ranks are lost; {self._watch.remedy() if self._watch else ''}")
            if self.lost[-ONLY_ERRORS:] == [[]] * ONLY_ERRORS:
                raise UserError("MPI fails again and again, although no rank is lost")
            told = ", ".join(f"rank {rank}" for rank in self.lost[-1]) or "no rank"
            print(f"zofl_mpi: {told} lost; client ranks that go on: {left}", file=sys.stderr, flush=True)
            self._wire = self._wire.over(self._survival.guarded())
            self._questions.restart()
            self._touched.update(self._kept)
            given = {i: self._memory(i) for i in sorted(self._kept)}
            try:
                for _ in self.ask_each(STEPS["<restore>"], given, counted=False) if given else ():
                    pass
                return
            except Exception as exc:
                if not isinstance(exc, RanksLost) and not self._survival.lost():
                    raise

    def _send_one(self, kind: str, step: Step, message: Any, to: list[int], extra: Any = None) -> None:
        block, used = messages.pack(message)
        name = self._questions.open(step)
        with self._questions.clock.time(name, "comm"):
            self._wire.bcast_question(Question(kind, name, to, [used], extra))
            self._wire.bcast(block[:used])

    def _replies(self, name: str, down: dict[int, int], counted: bool) -> Iterator[tuple[int, Any]]:
        """Starts the communication thread at once; the items are read by the iterator that is returned."""
        for i, size in down.items() if counted else ():
            self.ledger.sent(name, i, size)
        room, inbox = threading.Semaphore(DEPTH), Inbox()

        def take(wish: int) -> Sent:
            room.acquire()  # a slow server holds its clients back instead of filling its memory
            return SILENT

        def gather() -> None:
            try:
                self._wire.gather_waves(list(down), take, inbox.put)
            except Exception as exc:
                if self._survival is None:
                    raise
                inbox.put(RanksLost(str(exc)))

        thread = threading.Thread(target=gather, daemon=True)
        thread.start()
        return self._read(name, len(down), room, inbox, thread, counted)

    def _read(
        self, name: str, live: int, room: threading.Semaphore, inbox: Inbox, thread: threading.Thread, counted: bool
    ) -> Iterator[tuple[int, Any]]:
        while live:
            with self._questions.clock.time(name, "wait"):
                arrived = inbox.get()
            if isinstance(arrived, RanksLost):
                thread.join()
                raise arrived
            arrived.reverse()
            while arrived:  # the memory of an item is free as soon as the method lets go of it
                i, rank, kind, piece = arrived.pop()
                with self._questions.clock.time(name, "comm"), self._staging.beside():
                    item = messages.unpack(piece)
                if kind == FAILED:
                    thread.join()
                    self._questions.close()
                    raise ClientError(i, self._named(rank), name, item)
                live -= int(kind == REPLY)
                if counted:
                    self.ledger.received(name, i, messages.size(item))
                yield i, item
                del item, piece
            room.release()
        with self._questions.clock.time(name, "comm"):
            thread.join()
        self._questions.clock.staging[name] += self._staging.taken()
        self._questions.close()


def account_of(seconds: Seconds, staging: Seconds, stop: bool) -> Seconds:
    """One rank's table of a round's account, (steps + 1, 5): by step seconds, peak bytes and seconds of staging; then
    its wish to stop.
    """
    table = np.zeros((len(seconds) + 1, 5))
    table[:-1, :3] = seconds
    table[:-1, 3] = peak_bytes()
    table[:-1, 4] = staging
    table[-1] = stop
    return table
