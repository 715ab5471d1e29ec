"""Batched steps: what they compute in one call, in which order they go on, how they end."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine.batching import batched, batched_call
from zofl_mpi.engine.clients import Client, ClientError, Clients
from zofl_mpi.engine.roles import Backend, ClientProgram
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError
from zofl_mpi.run.loop.local import LocalClients


@dataclass(frozen=True)
class Number:
    a: Any


@dataclass(frozen=True)
class Doubling(Backend):
    """A problem that doubles numbers; `calls` are those that it was asked for at once."""

    batched_clients: int = 1
    calls: list[list[float]] = field(default_factory=list)

    def double(self, number: float) -> float:
        return batched_call(self._doubled, number)

    def _doubled(self, numbers: list[float]) -> list[float]:
        self.calls.append(list(numbers))
        if 666.0 in numbers:
            raise UserError("the device is full")
        if 13.0 in numbers:
            raise KeyboardInterrupt
        return [2 * number for number in numbers]


@dataclass(frozen=True)
class Method(ClientProgram):
    """Steps that double what clients hold; `seen` notes who computes when."""

    setting: Setting[Doubling]

    @cached_property
    def seen(self) -> dict[str, list[str]]:
        return {}

    @property
    def backend(self) -> Doubling:
        return self.setting.problem

    def once(self, client: Client, message: Number) -> Number:
        self.seen.setdefault("", []).append(f"begins {client.i}")
        found = self.setting.problem.double(client.data + message.a)
        self.seen.setdefault("", []).append(f"ends {client.i}")
        return Number(np.array([found]))

    def often(self, client: Client, message: Number) -> Number:
        """2^i times the number, in i steps of its own."""
        found = float(message.a)
        for _ in range(client.i):
            found = self.setting.problem.double(found)
        client.memory["found"] = found
        return Number(np.array([found]))

    def refuses(self, client: Client, message: Number) -> Number:
        if client.i == 2:
            raise UserError("smaller --gamma helps")
        return self.once(client, message)

    def streams(self, client: Client, message: Number) -> Iterator[Number]:
        yield Number(self.setting.problem.double(float(client.i)))
        return Number(0)


def method(most: int, data: tuple[float, ...] = (10.0, 20.0, 30.0, 40.0, 50.0)) -> Method:
    return Method(Setting(Doubling(most), Streams(1), data))


def clients_of(of: Method) -> LocalClients:
    return LocalClients(list(of.setting.data), method=of)


def replies(of: Method, step: Callable[..., Any], a: float = 1.0, **asked: Any) -> list[tuple[int, float]]:
    return [(i, float(np.sum(reply.a))) for i, reply in clients_of(of).ask(step, Number(a), **asked)]


@pytest.mark.parametrize(("most", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (100, [5])])
def test_so_many_at_once_and_each_gets_its_own_result(most: int, sizes: list[int]) -> None:
    """Mutations: answers in another order; a client left out at the end of a group, or computed twice."""
    of = method(most)
    assert replies(of, of.once) == [(i, 2.0 * (10 * i + 11)) for i in range(5)]
    assert [len(call) for call in of.setting.problem.calls] == sizes


def test_clients_take_turns_in_the_order_of_the_question() -> None:
    """Two lines of two steps never run at once: each begins when the one before waits. Mutations: threads that run as
    they like; the order of their numbers."""
    of = method(3)
    assert [i for i, _ in replies(of, of.once, to=[4, 1, 3, 0])] == [4, 1, 3, 0]
    assert of.seen[""] == [*(f"begins {i}" for i in (4, 1, 3)), *(f"ends {i}" for i in (4, 1, 3)), "begins 0", "ends 0"]


def test_steps_that_ask_more_often_go_on_with_those_that_are_left() -> None:
    """Mutation: a step that has ended is waited for."""
    of = method(100)
    assert replies(of, of.often, 3.0) == [(i, 3.0 * 2**i) for i in range(5)]
    assert [len(call) for call in of.setting.problem.calls] == [4, 3, 2, 1]


def people(count: int) -> tuple[dict[int, Client], dict[int, float]]:
    return {i: Client(i, None) for i in range(count)}, {i: float(i) for i in range(count)}


def test_where_one_is_computed_at_a_time_nothing_stands_between() -> None:
    """The CPU's path. Mutations: a wrapper that costs a call; a stream that is no generator function any more."""
    of = method(1)
    assert batched(of.once, *people(4), range(4), 1) == of.once
    assert batched(of.once, *people(1), range(1), 9) == of.once
    assert batched(of.streams, *people(4), range(4), 9) == of.streams
    assert Doubling(9).double(4.0) == 8.0  # outside of a step
    of = method(9)
    assert replies(of, of.streams)[:5] == [(i, 2.0 * i) for i in range(5)]
    assert of.setting.problem.calls == [[float(i)] for i in range(5)]
    problems = [Doubling(), Doubling()]  # requests for different computations are not mixed
    step = batched(lambda client, number: Number(problems[client.i % 2].double(number)), *people(4), range(4), 4)
    assert [step(Client(i, None), float(i)).a for i in range(4)] == [0.0, 2.0, 4.0, 6.0]
    assert [problem.calls for problem in problems] == [[[0.0, 2.0]], [[1.0, 3.0]]]


def test_what_cannot_be_computed_fails_each_that_asked() -> None:
    """Mutations: steps that wait for ever for an answer; a failure that hides replies before it; a thread a step."""
    of, met = method(9), []
    with pytest.raises(ClientError, match=r"client 2 .*: smaller --gamma helps") as told:
        for i, _ in clients_of(of).ask(of.refuses, Number(1.0)):
            met.append(i)
    assert met == [0, 1] and not told.value.trace, "in the turn of its client"
    with pytest.raises(ClientError, match=r"client 2 .*the device is full"):
        replies(of, of.often, 666.0 / 2, to=[2, 1])
    with pytest.raises(ClientError, match=r"client 1 .*the device is full"):
        replies(of, of.often, 666.0, to=[1, 2])
    before = set(threading.enumerate())
    for _ in range(9):
        replies(of, of.once)
    new = set(threading.enumerate()) - before  # while an earlier test's may end
    assert len(new) <= 10, "of 45 steps; one is idle a moment after it has woken the next"


def test_an_interrupt_ends_all_steps() -> None:
    """Mutation: threads that wait for ever, and keep what their steps hold."""
    of, ended = method(9), []

    def step(client: Client, message: Number) -> float:
        try:
            return of.setting.problem.double(13.0)
        finally:
            ended.append(client.i)

    together = batched(step, *people(3), range(3), 3)
    with pytest.raises(KeyboardInterrupt):
        together(Client(0, None), 0.0)
    assert ended == [0, 1, 2]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_compute_their_own_clients_together(ranks: int) -> None:
    """Both ways to ask. Mutation: `mean` one at a time."""
    of = method(9)

    def program(clients: Clients) -> tuple[list[float], float]:
        asked = [float(reply.a[0]) for _, reply in clients.ask(of.once, Number(1.0))]
        return asked, float(clients.mean(of.once, Number(2.0)).a[0])

    found = run_ranks(ranks, lambda world: serve_or_ask(world, of, of.setting.data, program))[0]
    assert found == ([22.0, 42.0, 62.0, 82.0, 102.0], 64.0)
    sizes = sorted(len(call) for call in of.setting.problem.calls)
    assert sizes == ([5, 5] if ranks == 2 else [2, 2, 3, 3])
