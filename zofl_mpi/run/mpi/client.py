"""Ranks other than rank 0: each answers for its clients, or as a further server rank, until the run ends."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, final

import numpy as np

from zofl_mpi.engine import mean, messages
from zofl_mpi.engine.batching import batched
from zofl_mpi.engine.between import adding, answering, bytes_up
from zofl_mpi.engine.clients import Client, Step, failure, step_of
from zofl_mpi.engine.fields import without_warnings
from zofl_mpi.engine.hidden import Unchanged
from zofl_mpi.engine.ledger import SERVER, Clock
from zofl_mpi.engine.ownership import Shared, own_memory
from zofl_mpi.engine.reduction import Adder, whole
from zofl_mpi.engine.roles import program_of
from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.staging import staging_of
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.command import unread
from zofl_mpi.run.loop.client_memory import STEPS
from zofl_mpi.run.loop.questions import forget_scratch, received, round_robin
from zofl_mpi.run.mpi.collectives import Collectives, Question, make_collectives
from zofl_mpi.run.mpi.gather import FAILED, REPLY, UPLOAD, Outbox
from zofl_mpi.run.mpi.server_ranks import serve_step
from zofl_mpi.run.mpi.survival import Survival, changed
from zofl_mpi.run.mpi.world import MPIWorld


@final
class ClientRank:
    """A rank beside rank 0: computes for its clients what the server asks, or for the server (`server_ranks`).

    The method is built alike on every rank, since a question names one of its steps, and `loads` are the same on all.
    `data` are those of every client: this rank may have to take over any.
    """

    def __init__(
        self, world: MPIWorld, method: Any, data: Sequence[Any], watch: Watch | None = None, loads: Loads | None = None
    ) -> None:
        self._method, self._staging = method, staging_of(method)
        self._batched = program_of(method).backend.batched_clients
        self._data, self._watch = data, watch or Watch()
        self._connect = partial(make_collectives, world, self._watch, self._staging, len(data), loads)
        self._pair: Collectives | None = None
        self._adder = Adder()
        if world.is_server:  # another rank of the server, which has no clients
            self._connect = partial(make_collectives, world, self._watch, self._staging)
            self._pair = self._connect(comm=world.pairs[world.rank - 1])
        self._clock = self._watch.clock = Clock()
        self._survival = world.survival
        self._unchanged, self._parts = Unchanged(method), unread.unusual(method)
        self._begin()

    def serve(self) -> int:
        """Answer the server's questions until it ends the run; return its exit status."""
        status = None
        while status is None:
            try:
                status = self._answer()
            except Exception as exc:  # not of a client's step: those go to the server
                if self._survival is None or not self._survival.lost(exc):
                    raise
                self._recover(self._survival)
        return status

    def _answer(self) -> int | None:
        """Answer one question; return the exit status if it was the last."""
        since = time.perf_counter()
        question, block = self._collectives.bcast_question()
        self._clock.seconds[question.step or SERVER, "wait"] += time.perf_counter() - since
        if question.round > self._watch.round:
            self._watch.begins()
            forget_scratch(self._clients, self._asked)
        match question.kind:
            case "ask" | "each" | "mean" | "sum":
                with unread.noting(self._parts):
                    self._compute(question, block)
            case "reduce":
                self._add_up(self._adder.own)
                self._adder = Adder()
            case "step":
                serve_step(self._collectives, cast(Collectives, self._pair), self._method, question, block, self._clock)
            case "holders":
                self._collectives.allgather_objects([i for i, client in self._clients.items() if client.memory])
            case "keep":
                self._collectives.gather_memories(*changed(self._clients, question.to, self._kept))
            case "account":
                self._collectives.gather_costs(self._clock.report(self._watch.stop()).costs(question.steps))
                if self._survival is not None:
                    self._survival.agree()
                self._watch.begins()
            case _:
                if self._survival is not None:
                    self._survival.agree()
                return question.status
        return None

    def _compute(self, question: Question, block: messages.Bytes | None) -> None:
        """Run the step of a question."""
        self._asked.update(i for i in question.to if i in self._clients)
        if question.kind == "each":
            self._stream(question, self._own_messages(question))
        elif question.kind == "ask":
            self._stream(question, self._one_message(question, block))
        else:
            self._contribute(question, self._one_message(question, block))

    def _recover(self, survival: Survival) -> None:
        """Regroup with the remaining ranks and take over clients, with their memories from the server."""
        survival.recover()
        self._begin()
        self._watch.begins(following=False)

    def _begin(self) -> None:
        self._collectives = self._connect()
        self._kept = dict[int, bytes]()  # checksums of memories that the server keeps
        own = (i for i, rank in enumerate(self._collectives.placement) if rank == self._collectives.rank)
        self._clients = {i: Client(i, self._data[i]) for i in own}
        self._asked: set[int] = set()  # in this round: no other client has scratch
        self._adder = Adder()

    def _take(self, question: Question) -> Callable[[int, Any], Any]:
        """Function that handles a reply: it adds the reduced part to the question's reduction."""
        if not question.reduction:
            return whole
        if self._adder.number != question.reduction:
            self._adder = Adder(question.first, number=question.reduction)
        self._adder.shares.update(question.shares or {})
        return partial(self._adder.take, size=partial(bytes_up, self._method))

    def _unhidden(self) -> None:
        """Refuse state that steps of the first round hid in the method: no checkpoint holds it."""
        if self._watch.round <= 1:
            self._unchanged.check()

    def _step(self, question: Question) -> Step:
        if engine := STEPS.get(question.step):
            return engine
        step = cast(Step, step_of(self._method, question.step))  # the server has checked that it exists
        return answering(self._method, step) if question.counted else step

    def _one_message(self, question: Question, block: messages.Bytes | None) -> dict[int, Any]:
        with self._clock.time(question.step, "comm"):
            message = received(self._collectives.message(question, block))
            return {i: message for i in question.to if i in self._clients}

    def _own_messages(self, question: Question) -> dict[int, Any]:
        sizes = dict(zip(question.to, question.sizes, strict=True))
        with self._clock.time(question.step, "comm"):
            block = self._collectives.scatter(sizes)
            own = [i for i in question.to if i in self._clients]
            if len(own) == 1:
                return {own[0]: received(block)}
            ends = np.cumsum([sizes[i] for i in own]).tolist()
            # copies, so that a client that keeps its message keeps no other's
            return {i: received(block[end - sizes[i] : end].copy()) for i, end in zip(own, ends, strict=True)}

    def _stream(self, question: Question, inbox: dict[int, Any]) -> None:
        """Compute items in turn, while the communication thread delivers earlier ones."""
        outbox, lost = Outbox(self._staging), list[Exception]()

        def gather() -> None:
            try:
                self._collectives.gather_waves(question.to, outbox.take, lambda arrived: None)
            except Exception as exc:
                if self._survival is None:
                    raise
                lost.append(exc)
            outbox.close()

        thread = threading.Thread(target=gather, daemon=True)
        thread.start()
        step, how = self._step(question), (self._batched, self._unhidden, self._take(question))
        for item in round_robin(step, self._clients, inbox, self._clock, question.step, *how):
            with self._clock.time(question.step, "comm"):
                prepared = messages.prepare(item.failed or item.content)
            with self._clock.time(question.step, "wait"):
                is_open = outbox.wait_for_room(prepared.size)
            if not is_open:
                break
            with self._clock.time(question.step, "comm"):
                outbox.add(FAILED if item.failed else REPLY if item.last else UPLOAD, prepared)
        outbox.finish()
        with self._clock.time(question.step, "wait"):  # for the other ranks' items: waves are common to all
            thread.join()
        outbox.drop()
        self._clock.seconds[question.step, "staging"] += self._staging.taken()
        if lost:
            raise lost[0]

    def _contribute(self, question: Question, inbox: dict[int, Any]) -> None:
        """Serve `mean` and `sum`."""
        own, shares = mean.Contribution(), question.shares or {}
        if question.kind == "sum":
            term: Any = adding(self._method, step_of(self._method, question.term))
            own = mean.Sum(m=len(self._data), term=lambda i, reply: term(i, inbox[i], reply))
            shares = dict.fromkeys(question.to, 1.0)
        step = batched(self._step(question), self._clients, inbox, sorted(inbox), self._batched)
        shared = Shared(inbox.values(), f"step {question.step!r}")
        for i, message in sorted(inbox.items()):
            try:
                with self._clock.time(question.step, "compute"), without_warnings():
                    reply = step(self._clients[i], message)
                    own.sizes[i] = bytes_up(self._method, reply)  # refuses anything but a message
                    own.add(i, reply, shares[i], i == question.to[0])
                own_memory(self._clients[i].memory, message)
                if i == max(inbox):
                    shared.check()
                    self._unhidden()
            except BaseException as exc:  # SystemExit too: the server must hear of it
                own.failed.append((i, self._collectives.rank, failure(0, exc)))
        self._add_up(own)

    def _add_up(self, own: mean.Contribution) -> None:
        """Add this rank's part to a mean or a sum, if every rank's clients succeeded and it exists."""
        own.report = self._clock.report(self._watch.stop())
        self._watch.begins(following=False)  # the server may count this report as the round's account
        contributions = self._collectives.allgather_objects(own.without_arrays())
        if mean.has_mean(contributions):
            mean.field_means(mean.fields_of(contributions), own, self._collectives.reduce_sum)
