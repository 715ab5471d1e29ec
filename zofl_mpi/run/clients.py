"""Asking clients: the one interface that a method sees, and its single-process implementation.

A method's server program asks: `clients.ask(self.solve, message, to=S)` runs the method's own function
`solve(client, message) -> reply` for each client of S and yields `(i, reply)` in client order. A step that is a
generator streams: each `yield` is one upload, its `return` the reply. The server meets the items in the order (q, i):
the q-th item of every client that has not yet returned, by i, then q + 1. That order, and hence every bit of the
result, is the same for any number of processes.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from zofl_mpi.errors import UserError
from zofl_mpi.run import mean, messages
from zofl_mpi.run.device import peak_bytes
from zofl_mpi.run.ledger import SERVER, Clock, Ledger, Row

Step = Callable[["Client", Any], Any]
"""A bound method of the running method: (client, message) -> reply, or a generator of uploads returning its reply."""


@final
@dataclass
class Client:
    """One client, as its steps see it.

    Attributes:
        i: 0..m-1, the only identity a client has; ranks are invisible.
        data: what it holds, fixed for the run.
        memory: what it keeps between questions: arrays, tensors, numbers, strings by name; checkpointed.
    """

    i: int
    data: Any
    memory: dict[str, Any] = field(default_factory=dict)


class ClientError(Exception):
    """A client's step failed. The run cannot go on: other clients may have run ahead, their memories are undefined.

    Attributes:
        trace: the client's traceback, or "" where the sentence alone says it (a UserError in the step).
    """

    def __init__(self, i: int, rank: int, step: str, failure: Failure) -> None:
        super().__init__(f"client {i} (rank {rank}) failed in step {step!r}, item {failure.item}: {failure.sentence}")
        self.trace = failure.trace


class Clients(Protocol):
    """The clients of a run, wherever they are.

    Attributes:
        m: number of clients.
        ledger: bytes and messages so far in this round.
    """

    m: int
    ledger: Ledger

    def ask(
        self, step: Step, message: Any, *, to: Iterable[int] | None = None, counted: bool = True
    ) -> Iterator[tuple[int, Any]]:
        """Sends one message to the clients `to` (None: all) at once; yields (i, item) in the order (q, i) as read.

        What the server computes before it reads overlaps with the clients. The question is open until the
        iterator is exhausted. With counted=False the bytes do not enter the ledger (evaluation).

        Raises:
            ClientError: in place of the item of the client whose step failed.
            RuntimeError: another question is open.
        """

    def ask_each(self, step: Step, each: Mapping[int, Any], *, counted: bool = True) -> Iterator[tuple[int, Any]]:
        """Like `ask`, with a message of its own for each participant."""

    def mean(
        self, step: Step, message: Any, *, to: Iterable[int] | None = None, weights: Mapping[int, float] | None = None
    ) -> Any:
        """The weighted mean of the participants' replies, field by field, exact in any order (`run.mean`).

        Raises:
            TypeError: a step that streams, or a reply with a field that has no mean.
            ClientError: a step failed, or its reply is not finite.
        """

    def account(self) -> tuple[Row, bool]:
        """Ends a round: what it cost, and whether some rank was told by a signal to stop."""

    def close(self, status: int = 0) -> None:
        """The normal end of all client ranks, which then exit with `status`.

        Raises:
            RuntimeError: a question is open.
        """


@final
@dataclass(frozen=True)
class Failure:
    """An exception of a step on its way to the server: the item it takes the place of, what happened, the traceback."""

    item: int
    sentence: str
    trace: str


def failure(item: int, exc: BaseException) -> Failure:
    """The exception as one sentence, with its traceback unless the sentence is meant for users."""
    if isinstance(exc, UserError):
        return Failure(item, str(exc), "")
    return Failure(item, f"{type(exc).__name__}: {exc}", traceback.format_exc())


class Item(NamedTuple):
    """Item q of client i: an upload, or its last item, the reply, or in place of either a failure."""

    i: int
    q: int
    last: bool
    content: Any
    failed: Failure | None


def in_turn(
    step: Step, clients: Mapping[int, Client], inbox: Mapping[int, Any], clock: Clock, name: str
) -> Iterator[Item]:
    """The clients of one process take turns: their q-th items by i, then q + 1. Ends at the first failure.

    One client to its end first would deadlock with bounded buffers, and would be another order.
    """
    live = {i: _items(step, clients[i], inbox[i]) for i in sorted(inbox)}
    q = 0
    while live:
        for i in list(live):
            try:
                with clock.time(name, "compute"):
                    last, content = next(live[i])
                messages.size(content)  # refuses what is no message here, where the client is known
            except BaseException as exc:  # SystemExit too: the server must hear of it
                yield Item(i, q, True, None, failure(q, exc))
                return
            if last:
                del live[i]
            yield Item(i, q, last, content, None)
        q += 1


def _items(step: Step, client: Client, message: Any) -> Iterator[tuple[bool, Any]]:
    """A step as (last, item): its uploads, then its reply."""
    result = step(client, message)
    if not inspect.isgenerator(result):
        yield True, result
        return
    while True:
        try:
            upload = next(result)
        except StopIteration as stop:
            yield True, stop.value
            return
        yield False, upload


@final
@dataclass
class Turnstile:
    """At most one question is open at a time."""

    question: str | None = None

    def enter(self, name: str) -> None:
        if self.question is not None:
            raise RuntimeError(
                f"step {name!r} was asked while replies to {self.question!r} are unread: "
                "read every item of a question before the next one"
            )
        self.question = name

    def leave(self) -> None:
        self.question = None

    def check(self) -> None:
        """Raises if the run ends with a question open."""
        if self.question is not None:
            raise RuntimeError(f"the run ended while replies to {self.question!r} are unread")


def participants(to: Iterable[int] | None, m: int) -> list[int]:
    """The clients asked, ascending.

    Raises:
        ValueError: nobody, or somebody who does not exist or is named twice.
    """
    chosen = sorted(range(m) if to is None else (int(i) for i in to))
    if not chosen or chosen[0] < 0 or chosen[-1] >= m or len(set(chosen)) < len(chosen):
        raise ValueError(f"a question goes to different clients from 0..{m - 1}, not to {chosen}")
    return chosen


def refuse_stream(step: Step) -> None:
    """`mean` cannot take a stream: which of its items would it average?"""
    if inspect.isgeneratorfunction(step):
        raise TypeError(
            f"mean needs a step that returns its reply, {name_of(step)!r} streams: "
            "keep the result in client.memory and take the mean of a second step that returns it"
        )


def name_of(step: Step) -> str:
    """The name by which a step is known on every rank."""
    return str(step.__name__)


@final
@dataclass(frozen=True)
class Memory:
    """A client's memory on its way to a checkpoint and back."""

    entries: dict[str, Any]


@final
@dataclass(frozen=True)
class Nothing:
    """A message without content."""


def recall(client: Client, message: Nothing) -> Memory:
    """Step: the client's memory, for a checkpoint."""
    return Memory(dict(client.memory))


def restore(client: Client, message: Memory) -> Nothing:
    """Step: a memory from a checkpoint."""
    client.memory = messages.copy(message).entries
    return Nothing()


STEPS: dict[str, Step] = {"recall": recall, "restore": restore}
"""Steps of the engine itself; all others are bound methods of the running method."""


@final
class LocalClients:
    """All clients in this process, one after the other: the reference that every other transport must equal."""

    def __init__(self, data: list[Any], stop: Callable[[], bool] = lambda: False) -> None:
        self.m = len(data)
        self.ledger = Ledger(self.m)
        self._clients = {i: Client(i, d) for i, d in enumerate(data)}
        self._turnstile = Turnstile()
        self._clock = Clock()
        self._stop = stop
        self._since = time.perf_counter()

    def ask(
        self, step: Step, message: Any, *, to: Iterable[int] | None = None, counted: bool = True
    ) -> Iterator[tuple[int, Any]]:
        to = participants(to, self.m)
        return self._ask(step, dict.fromkeys(to, message), counted)

    def ask_each(self, step: Step, each: Mapping[int, Any], *, counted: bool = True) -> Iterator[tuple[int, Any]]:
        return self._ask(step, {i: each[i] for i in participants(each, self.m)}, counted)

    def mean(
        self, step: Step, message: Any, *, to: Iterable[int] | None = None, weights: Mapping[int, float] | None = None
    ) -> Any:
        refuse_stream(step)
        to = participants(to, self.m)
        shares = mean.normalised(to, weights)
        answer = mean.Answer()
        for i, reply in self._ask(step, dict.fromkeys(to, message), True):
            try:
                answer.add(i, reply, shares[i])
            except Exception as exc:
                self._turnstile.leave()
                raise ClientError(i, 0, name_of(step), failure(0, exc)) from exc
        means = {part.path: mean.added(part, answer, shares, lambda own: own) for part in mean.plan([answer])}
        return messages.replace_arrays(mean.result_template([answer]), means)

    def account(self) -> tuple[Row, bool]:
        seconds = self._clock.take(self.ledger.steps)
        now = time.perf_counter()
        seconds[self.ledger.steps.index(SERVER), 0] += now - self._since - seconds.sum()
        self._since = now
        peak = np.full((len(self.ledger.steps), 1), peak_bytes(), np.int64)
        return self.ledger.row(seconds[:, None, :], peak), self._stop()

    def close(self, status: int = 0) -> None:
        self._turnstile.check()

    def _ask(self, step: Step, each: dict[int, Any], counted: bool) -> Iterator[tuple[int, Any]]:
        name = name_of(step)
        self._turnstile.enter(name)
        if name not in STEPS:
            self.ledger.open(name)
        inbox = {i: received(*messages.pack(message)) for i, message in each.items()}
        if counted:
            for i, message in each.items():
                self.ledger.sent(name, i, messages.size(message))
        return self._replies(step, inbox, counted)

    def _replies(self, step: Step, inbox: dict[int, Any], counted: bool) -> Iterator[tuple[int, Any]]:
        name = name_of(step)
        for item in in_turn(step, self._clients, inbox, self._clock, name):
            if item.failed:
                self._turnstile.leave()
                raise ClientError(item.i, 0, name, item.failed)
            if counted:
                self.ledger.received(name, item.i, messages.size(item.content))
            yield item.i, messages.copy(item.content)
        self._turnstile.leave()


def received(block: messages.Bytes, used: int) -> Any:
    """A message as a client meets it: its arrays are read-only, since the clients of a process may share the bytes."""
    block.setflags(write=False)
    return messages.unpack(block[:used])
