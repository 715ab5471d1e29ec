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
from zofl_mpi.run.mpi.communicator import Connected
from zofl_mpi.run.mpi.server import account_of
from zofl_mpi.run.mpi.wire import EMPTY, FAILED, NOTHING, REPLY, UPLOAD, Headers, Question, Wave, Wire, waves

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
        self, world: Connected, method: Any, data: Mapping[int, Any], stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._method = method
        self._wire = Wire(world.comm)
        self._clients = {i: Client(i, d) for i, d in data.items()}
        self._clock = Clock()
        self._stop = stop

    def serve(self) -> int:
        """Serves the server's questions until it ends the run; returns the exit status that it gave."""
        while True:
            since = time.perf_counter()
            question = self._wire.bcast_question()
            self._clock.seconds[question.step or SERVER, "wait"] += time.perf_counter() - since
            match question.kind:
                case "ask":
                    self._stream(question, self._one_message(question))
                case "each":
                    self._stream(question, self._own_messages(question))
                case "mean":
                    self._contribute(question, self._one_message(question))
                case "account":
                    self._wire.gather_tables(account_of(self._clock.take(question.extra), self._stop()))
                case _:
                    return int(question.extra)

    def _step(self, name: str) -> Step:
        step = STEPS.get(name) or step_of(self._method, name)
        if step is None:  # the server has checked it
            raise AttributeError(f"{type(self._method).__name__} has no step {name!r}")
        return step

    def _one_message(self, question: Question) -> dict[int, Any]:
        with self._clock.time(question.step, "comm"):
            block = np.empty(question.sizes[0], np.uint8)
            self._wire.bcast(block)
            message = received(block, block.size)
            return {i: message for i in question.to if i in self._clients}

    def _own_messages(self, question: Question) -> dict[int, Any]:
        sizes, inbox = dict(zip(question.to, question.sizes, strict=True)), {}
        with self._clock.time(question.step, "comm"):
            for wave in waves(question.to, self._wire.ranks):
                i = wave.get(self._wire.rank)
                block = np.empty(0 if i is None else sizes[i], np.uint8)
                self._wire.scatter(
                    [sizes[wave[rank]] if rank in wave else 0 for rank in range(self._wire.ranks + 1)], block
                )
                if i is not None:
                    inbox[i] = received(block, block.size)
        return inbox

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

        def deliver(wave: Wave, headers: Headers, block: Bytes) -> None:
            if (headers[:, 0] == FAILED).any():
                over.set()
                free.put(None)  # wakes a main thread that waits for a buffer
            elif self._wire.rank in wave:
                free.put(sending)

        thread = threading.Thread(target=self._wire.gather_waves, args=(question.to, take, deliver), daemon=True)
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
        """Serves `mean`: tells whether all went well, then, if so on every rank, adds this rank's clients to the sums.

        Where the replies have no mean it is the server that says so.
        """
        own = mean.Contribution()
        for i, message in sorted(inbox.items()):
            try:
                with self._clock.time(question.step, "compute"):
                    reply = self._step(question.step)(self._clients[i], message)
                own.add(i, reply, question.extra[i], i == question.to[0])
            except BaseException as exc:  # SystemExit too: the server must hear of it
                own.failed.append((i, self._wire.rank, failure(0, exc)))
        contributions = self._wire.allgather_objects(own.without_arrays())
        for each in mean.fields_of(contributions) if mean.exists(contributions) else []:
            mean.field_mean(each, own, question.extra, self._wire.reduce_sum)


def _packed(item: Item, slot: Bytes | None) -> Packed:
    kind = FAILED if item.failed else REPLY if item.last else UPLOAD
    buffer, size = messages.pack(item.failed or item.content, slot)
    return kind, size, buffer
