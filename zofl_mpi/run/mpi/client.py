"""The clients' side of MPI: one rank's clients, answering the server's questions until the end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from zofl_mpi.run import mean, messages
from zofl_mpi.run.clients import Client, Step, failure, step_of
from zofl_mpi.run.desk import STEPS, Item, in_turn, received
from zofl_mpi.run.ledger import SERVER, Clock
from zofl_mpi.run.messages import Bytes
from zofl_mpi.run.mpi.server import account_of
from zofl_mpi.run.mpi.wire import EMPTY, FAILED, NOTHING, REPLY, UPLOAD, Heads, Question, Wave, Wire, waves
from zofl_mpi.run.mpi.world import MPIWorld

DEPTH = 2
"""Packed items that may be under way: one being sent, one being made."""

Packed = tuple[int, int, Bytes]
"""Kind, size and buffer of an item."""


@final
class ClientRank:
    """One of the ranks 1..P.

    Args:
        method: the running method, built alike on every rank: a question names one of its steps.
        data: {i: what client i holds} of this rank's clients.
        stop: has this process been told by a signal to stop?
    """

    def __init__(
        self, world: MPIWorld, method: Any, data: Mapping[int, Any], stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._method = method
        self._wire = Wire(world)
        self._clients = {i: Client(i, d) for i, d in data.items()}
        self._clock = Clock()
        self._stop = stop

    def serve(self) -> int:
        """Answers until the server ends the run; returns the exit status that it gave."""
        while True:
            since = time.perf_counter()
            question = self._wire.announce()
            self._clock.seconds[question.step or SERVER, "wait"] += time.perf_counter() - since
            match question.kind:
                case "ask":
                    self._stream(question, self._one_message(question))
                case "each":
                    self._stream(question, self._own_messages(question))
                case "mean":
                    self._contribute(question, self._one_message(question))
                case "account":
                    self._wire.table(account_of(self._clock.take(question.extra), self._stop()))
                case _:
                    return int(question.extra)

    def _step(self, name: str) -> Step:
        found = STEPS.get(name) or step_of(self._method, name)
        if found is None:  # the server has checked it
            raise AttributeError(f"{type(self._method).__name__} has no step {name!r}")
        return found

    def _one_message(self, question: Question) -> dict[int, Any]:
        with self._clock.time(question.step, "comm"):
            block = np.empty(question.sizes[0], np.uint8)
            self._wire.spread(block)
            message = received(block, block.size)
            return {i: message for i in question.to if i in self._clients}

    def _own_messages(self, question: Question) -> dict[int, Any]:
        sizes, found = dict(zip(question.to, question.sizes, strict=True)), {}
        with self._clock.time(question.step, "comm"):
            for wave in waves(question.to, self._wire.ranks):
                i = wave.get(self._wire.rank)
                block = np.empty(0 if i is None else sizes[i], np.uint8)
                self._wire.deal(
                    [sizes[wave[rank]] if rank in wave else 0 for rank in range(self._wire.ranks + 1)], block
                )
                if i is not None:
                    found[i] = received(block, block.size)
        return found

    def _stream(self, question: Question, inbox: dict[int, Any]) -> None:
        """Computes item after item while the communication thread delivers those before."""
        free, outbox, over = queue.SimpleQueue[Bytes | None](), queue.SimpleQueue[Packed](), threading.Event()
        for _ in range(DEPTH):
            free.put(None)
        sending = EMPTY

        def take(wave: Wave) -> Packed:
            nonlocal sending
            packed = outbox.get() if self._wire.rank in wave else (NOTHING, 0, EMPTY)
            sending = packed[2]
            return packed

        def give(wave: Wave, heads: Heads, block: Bytes) -> None:
            if (heads[:, 0] == FAILED).any():
                over.set()
                free.put(None)  # wakes a main thread that waits for a buffer
            elif self._wire.rank in wave:
                free.put(sending)

        thread = threading.Thread(target=self._wire.exchange, args=(question.to, take, give), daemon=True)
        thread.start()
        for item in in_turn(self._step(question.step), self._clients, inbox, self._clock, question.step):
            with self._clock.time(question.step, "wait"):
                slot = free.get()
            if over.is_set():
                break
            with self._clock.time(question.step, "comm"):
                outbox.put(_packed(item, slot))
        with self._clock.time(question.step, "wait"):  # for the other ranks' items: waves are common to all
            thread.join()

    def _contribute(self, question: Question, inbox: dict[int, Any]) -> None:
        """Answers `mean`: first whether all went well, then, if so on every rank, the contributions.

        Where the replies have no mean it is the server that says so.
        """
        answer = mean.Answer()
        for i, message in sorted(inbox.items()):
            try:
                with self._clock.time(question.step, "compute"):
                    reply = self._step(question.step)(self._clients[i], message)
                answer.add(i, reply, question.extra[i], i == question.to[0])
            except BaseException as exc:  # SystemExit too: the server must hear of it
                answer.failed.append((i, self._wire.rank, failure(0, exc)))
        answers = self._wire.agreed(answer.told())
        for part in mean.plan(answers) if mean.sound(answers) else []:
            mean.added(part, answer, question.extra, self._wire.total)


def _packed(item: Item, slot: Bytes | None) -> Packed:
    kind = FAILED if item.failed else REPLY if item.last else UPLOAD
    buffer, size = messages.pack(item.failed or item.content, slot)
    return kind, size, buffer
