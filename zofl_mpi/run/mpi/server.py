"""The server's side of MPI: `MPIClients`, the `Clients` of a run on several ranks."""

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, final

import numpy as np

from zofl_mpi.engine import mean, messages
from zofl_mpi.engine.between import bytes_up
from zofl_mpi.engine.clients import Booked, ClientError, Clients, Participants, Replies, Step, Weights
from zofl_mpi.engine.ledger import REDUCED, SERVER, CostReport, Costs, Row
from zofl_mpi.engine.mean import Contribution
from zofl_mpi.engine.messages import Bytes
from zofl_mpi.engine.reduction import Reduction
from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.sharing import SharedServerStep
from zofl_mpi.engine.staging import staging_of
from zofl_mpi.engine.watch import Watch
from zofl_mpi.errors import UserError
from zofl_mpi.run.loop.client_memory import STEPS, Memory
from zofl_mpi.run.loop.questions import Questions, participants
from zofl_mpi.run.mpi.collectives import Arrived, Question, make_collectives
from zofl_mpi.run.mpi.gather import FAILED, NOTHING_SENT, REPLY, Sent
from zofl_mpi.run.mpi.server_ranks import ServerRanks
from zofl_mpi.run.mpi.survival import RanksLost, Survival
from zofl_mpi.run.mpi.transport import Counts
from zofl_mpi.run.mpi.world import MPIWorld

T = TypeVar("T")
DEPTH = 2  # waves at the server: one being read, one arriving
ONLY_ERRORS = 3  # failures in succession without a lost rank that are no loss

Inbox = queue.SimpleQueue[list[Arrived] | RanksLost]


@final
class MPIClients(Clients):
    """`Clients` of rank 0: all clients, on the client ranks, which run `ClientRank.serve`."""

    def __init__(
        self, world: MPIWorld, m: int, method: Any = None, watch: Watch | None = None, loads: Loads | None = None
    ) -> None:
        self.m, self.lost, self._ranks = m, list[list[int]](), world.comm.size
        self._watch, self._staging = watch or Watch(), staging_of(method)
        self._questions = Questions(m, method, self._watch)
        self._bytes_up = partial(bytes_up, method)
        self.ledger = self._questions.ledger
        self._survival, self._loads = world.survival, loads
        self.survives = self._survival is not None
        self._connect = partial(make_collectives, world, self._watch, self._staging)
        self._collectives = self._connect(m, loads)
        self._servers: ServerRanks | None = None
        if world.pairs:
            collectives, *pairs = (self._connect(comm=comm) for comm in (world.servers, *world.pairs))
            self._servers = ServerRanks(collectives, pairs, self._questions.clock)
        self.sharing = self._servers or SharedServerStep()
        self._touched: set[int] = set()
        self._kept: dict[int, Bytes] = {}
        self._reports: list[tuple[int, CostReport]] = []  # of this round's means, by rank
        self._rest: Callable[[], None] | None = None  # brings all ranks to the end of the open question, unread
        self._reductions = 0  # that were asked for
        self._all_reported = False  # whether the client ranks have computed nothing since their `_reports`

    def ask(
        self,
        step: Step,
        message: Any,
        *,
        to: Participants = None,
        counted: bool = True,
        booked: Booked = None,
        into: Reduction | None = None,
    ) -> Replies:
        if self._survival is not None and step is STEPS["<recall>"]:
            kept = self._kept  # as at the last account
            return ((i, messages.unpack(kept[i]) if i in kept else Memory({})) for i in participants(to, self.m))
        to = self._participants(to)
        self._send_one("ask", step, message, to, counted=counted, **self._reducing(into, to, counted))
        size = messages.size(message)
        return self._replies(step.__name__, {i: booked[i] if booked else size for i in to}, counted)

    def ask_each(
        self, step: Step, each: Mapping[int, Any], *, counted: bool = True, into: Reduction | None = None
    ) -> Replies:
        to = self._participants(each)
        prepared = {i: messages.prepare(each[i]) for i in to}
        sizes = {i: message.size for i, message in prepared.items()}
        block = self._staging.packed([prepared[i] for i in sorted(to, key=self._collectives.placement.__getitem__)])
        name = self._questions.open(step)
        with self._questions.clock.time(name, "comm"):
            reducing = self._reducing(into, to, counted)
            self._put(Question("each", name, to, counted, list(sizes.values()), **reducing))
            self._collectives.scatter(sizes, block)
        return self._replies(name, {i: messages.size(each[i]) for i in to}, counted)

    def mean(
        self,
        step: Step,
        message: Any,
        *,
        to: Participants = None,
        weights: Weights = None,
        counted: bool = True,
        booked: Booked = None,
        nobody: Any = None,
    ) -> Any:
        mean.refuse_stream(step)
        to = sorted(self._participants(to))
        shares = mean.normalised(to, weights)
        self._send_one("mean", step, message, to, counted=counted, shares=shares)
        result, sizes = self._combined(step.__name__, mean.Contribution())  # the server has no client
        if counted:
            self._book(step.__name__, message, sizes, booked)
        return result

    def sum(
        self,
        step: Step,
        message: Any,
        term: Any,
        *,
        to: Participants = None,
        booked: Booked = None,
        stretch: float | None = None,
        nobody: Any = None,
    ) -> Callable[[], Any]:
        to = sorted(self._participants(to))
        if len(to) < mean.SUM_ON_RANKS_FROM:
            return super().sum(step, message, term, to=to, booked=booked)
        mean.refuse_stream(step, "sum")
        self._send_one("sum", step, message, to, term=term.__name__)

        def read() -> Any:
            total, sizes = self._combined(step.__name__, mean.Sum(m=self.m))
            self._book(step.__name__, message, sizes, booked)
            return total

        self._rest = read
        return read

    def holders(self) -> list[int]:
        if self._survival is not None:
            return sorted(i for i, kept in self._kept.items() if messages.unpack(kept).entries)
        with self._questions.clock.time(SERVER, "comm"):
            self._put(Question("holders"))
            return sorted(i for own in self._collectives.allgather_objects(list[int]()) for i in own)

    def account(self) -> tuple[Row, bool]:
        self._questions.check_closed("the round ended")
        changed = self._changed()
        own = self._questions.account()
        costs = self._clients_costs(own)
        if self._servers is not None:
            costs = np.concatenate([self._servers.account(own, self.ledger.steps), costs[1:]])
        if self._survival is not None:
            self._survival.agree()  # RanksLost: the costs may be garbage, and the round does not count
            self._kept |= changed
            self._touched.clear()
            by_rank = np.zeros(self._ranks, costs.dtype)  # as at the start
            by_rank[self._survival.alive] = costs
            costs = by_rank
        return self._questions.row(costs, self._transport())

    def _clients_costs(self, own: Costs) -> Costs:
        """(P + 1,) the server's costs `own` and the client ranks': asked for unless all came with means."""
        if self._all_reported and self._survival is None:  # the ranks' transfers after it count for the next round
            costs = np.zeros(self._collectives.ranks + 1, own.dtype)
            costs[:1] = own
        else:
            with self._questions.clock.time(SERVER, "wait"):  # counts for the next round
                self._put(Question("account", steps=self.ledger.steps))
                costs = self._collectives.gather_costs(own)
        for rank, report in self._reports:
            reported = report.costs(self.ledger.steps)[0]
            costs["seconds"][rank] += reported["seconds"]
            costs["peak_bytes"][rank] = max(costs["peak_bytes"][rank], reported["peak_bytes"])
            costs["stops"][rank] |= reported["stops"]
        self._reports.clear()
        return costs

    def _transport(self) -> Counts:
        """(steps, 2, ranks) bytes that each rank sent and received since the last account.

        What the engine's own questions moved, as for a checkpoint, is the server's; an attempt at a round that was
        given up is left out.
        """
        total = np.zeros((len(self.ledger.steps), 2, self._ranks), np.int64)
        clients = [self._rank_at_start(rank) for rank in range(self._collectives.ranks + 1)]
        servers = self._servers.each_collectives() if self._servers else ()
        for ranks, collectives in [(clients, self._collectives), *servers]:
            total[:, :, ranks] += collectives.transport.take(self.ledger.steps, SERVER)
        return total

    def retry_on_rank_loss(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except Exception as exc:
                if self._survival is None or not self._survival.lost(exc):
                    raise
                self._recover(self._survival)

    def give_up(self) -> bool:
        if self._questions.question is None:
            return self._servers is None
        rest, self._rest = self._rest, None
        if rest is None or self._servers is not None or self._survival is not None:
            return False  # a rank may be in the middle of a collective
        with suppress(ClientError):
            rest()
        self._questions.close()
        return True

    def close(self, status: int = 0) -> None:
        self._questions.check_closed("the run ended")

        def end() -> None:
            self._put(Question("end", status=status))
            if self._servers is not None:
                self._servers.close(status)
            if self._survival is not None:
                self._survival.agree()

        self.retry_on_rank_loss(end)

    def _participants(self, to: Participants) -> list[int]:
        chosen = participants(to, self.m)
        if self._survival is not None:
            self._touched.update(chosen)
        return chosen

    def _reducing(self, into: Reduction | None, to: list[int], counted: bool) -> dict[str, Any]:
        """Fields of a question that describe the reduction of its replies."""
        if into is None:
            return {}
        self._reductions += not into.adder.number
        into.begin(into.adder.number or self._reductions, self._reduced, counted)
        return {"reduction": into.adder.number, "first": into.adder.first, "shares": into.untold(to)}

    def _reduced(self, into: Reduction) -> Any:
        """The mean of the reduced parts of replies, which the ranks have added up."""
        self._questions.check_closed("a mean of replies was read")
        self.ledger.open(REDUCED)
        self._put(Question("reduce", REDUCED))
        result, sizes = self._combined(REDUCED, into.adder.own)
        self._questions.book(into, sizes)
        return result

    def _book(self, name: str, message: Any, sizes: Mapping[int, int], booked: Booked) -> None:
        """Count a message, and the replies by {client: bytes}."""
        down = messages.size(message)
        for i, size in sizes.items():
            self.ledger.sent(name, i, booked[i] if booked else down)
            self.ledger.received(name, i, size)

    def _combined(self, name: str, own: Contribution) -> tuple[Any, dict[int, int]]:
        """The mean or the sum of what the ranks have, and {client: bytes of its reply}; ends the question."""
        self._rest = None
        with self._questions.clock.time(name, "wait"):
            contributions = self._collectives.allgather_objects(own)
        self._reports += [(rank, c.report) for rank, c in enumerate(contributions) if c.report is not None]
        self._all_reported = True
        self._questions.close()
        failed = mean.first_failure(contributions)
        if failed:
            raise ClientError(failed[0], self._rank_at_start(failed[1]), name, failed[2])
        with self._questions.clock.time(name, "comm"):
            result = mean.combined(contributions, own, self._collectives.reduce_sum)
        return result, dict(sorted(pair for c in contributions for pair in c.sizes.items()))

    def _changed(self) -> dict[int, Bytes]:
        """Memories changed since the last account; empty if a lost rank ends the run."""
        if self._survival is None:
            return {}
        with self._questions.clock.time(SERVER, "comm"):
            self._put(Question("keep", to=sorted(self._touched)))
            memories, failed = self._collectives.gather_memories({})
        for i, problem in failed:
            raise ClientError(i, self._rank_at_start(self._collectives.placement[i]), "<keep>", problem)
        return memories

    def _rank_at_start(self, rank: int) -> int:
        """The number at the start, before ranks were lost, of a rank of the collectives."""
        if self._survival is not None:
            return self._survival.alive[rank]
        return rank + self.sharing.ranks - 1 if rank else 0

    def _recover(self, survival: Survival) -> None:
        """Regroup with the remaining ranks, and restore the clients' memories on their new ranks."""
        while True:
            self.lost.append(survival.recover())
            left = survival.comm.size - 1
            if not left:
                raise UserError(f"all client ranks are lost; {self._watch.remedy()}")
            if self.lost[-ONLY_ERRORS:] == [[]] * ONLY_ERRORS:
                raise UserError("MPI fails again and again, although no rank is lost")
            names = ", ".join(f"rank {rank}" for rank in self.lost[-1]) or "no rank"
            print(f"zofl_mpi: {names} lost; client ranks that go on: {left}", file=sys.stderr, flush=True)
            self._collectives = self._connect(self.m, self._loads)
            self._questions.restart()
            self._reports.clear()
            given = {i: messages.unpack(block) for i, block in sorted(self._kept.items())}
            try:
                for _ in self.ask_each(STEPS["<restore>"], given, counted=False) if given else ():
                    pass
                return
            except Exception as exc:
                if not survival.lost(exc):
                    raise

    def _send_one(self, kind: str, step: Step, message: Any, to: list[int], **more: Any) -> None:
        block = messages.pack(message)
        name = self._questions.open(step)
        with self._questions.clock.time(name, "comm"):
            self._put(Question(kind, name, to, **more), block)

    def _put(self, question: Question, block: Bytes | None = None) -> None:
        """Send a question to all ranks, with its message if there is one."""
        self._all_reported, question = False, question._replace(round=self._watch.round)
        if block is None:
            self._collectives.bcast_question(question)
        else:
            self._collectives.send(question, block)

    def _replies(self, name: str, down: dict[int, int], counted: bool) -> Replies:
        """Starts the communication thread at once; the items are read by the iterator that is returned."""
        for i, size in down.items() if counted else ():
            self.ledger.sent(name, i, size)
        room, inbox, live, clock = threading.Semaphore(DEPTH), Inbox(), len(down), self._questions.clock

        def take(wish: int) -> Sent:
            room.acquire()  # a slow server holds its clients back instead of filling its memory
            return NOTHING_SENT

        def gather() -> None:
            try:
                self._collectives.gather_waves(list(down), take, inbox.put)
            except Exception as exc:
                if self._survival is None:
                    raise
                inbox.put(RanksLost(str(exc)))

        thread = threading.Thread(target=gather, daemon=True)
        thread.start()

        def wave() -> list[Arrived]:
            nonlocal live
            arrived = inbox.get()
            if isinstance(arrived, RanksLost):
                thread.join()
                raise arrived
            kinds = [kind for (_, _, kind), _ in arrived]
            live = 0 if FAILED in kinds else live - kinds.count(REPLY)  # now: the method may stop reading
            return arrived

        def rest() -> None:
            while live:
                room.release()
                wave()
            thread.join()

        def read() -> Replies:
            while live:
                with clock.time(name, "wait"):
                    arrived = wave()
                arrived.reverse()
                while arrived:  # the memory of an item is free as soon as the method lets go of it
                    (i, rank, kind), piece = arrived.pop()
                    with clock.time(name, "comm"):
                        item = messages.unpack(piece)
                    if kind == FAILED:
                        self._rest = None
                        thread.join()
                        self._questions.close()
                        raise ClientError(i, self._rank_at_start(rank), name, item)
                    if counted:
                        self.ledger.received(name, i, self._bytes_up(item))
                    yield i, item
                    del item, piece
                room.release()
            self._rest = None
            with clock.time(name, "comm"):
                thread.join()
            clock.seconds[name, "staging"] += self._staging.taken()
            self._questions.close()

        self._rest = rest
        return read()
