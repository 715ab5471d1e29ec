"""Clients of one process: the order of turns, who sees what, what errors say; the rest: tests/mpi/test_engine.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.ledger import SERVER
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.loop.client_memory import STEPS, Memory
from zofl_mpi.run.loop.local import LocalClients


@dataclass(frozen=True)
class Note:
    a: Any
    k: int = 0


class Steps:
    """Steps of a method that keeps a diary of who computed when."""

    def __init__(self) -> None:
        self.diary: list[tuple[int, int]] = []

    def stream(self, client: Client, message: Note) -> Iterator[Note]:
        """As many uploads as the client's data say, then the reply; all in one array."""
        workspace = np.zeros(1)
        for q in range(client.data):
            self.diary.append((client.i, q))
            workspace[:] = q
            yield Note(workspace, q)
            workspace[:] = -99
        self.diary.append((client.i, client.data))
        return Note(workspace, -1)

    def keep(self, client: Client, message: Note) -> Note:
        client.memory["seen"] = message.a
        return Note(client.memory["seen"])

    def grow(self, client: Client, message: Note) -> Note:
        """The reply is an array that the client keeps."""
        client.memory.setdefault("mine", np.zeros(2))[:] += 1
        return Note(client.memory["mine"], client.i)

    def fail(self, client: Client, message: Note) -> Iterator[Note]:
        for q in range(3):
            if client.i == 1 and q == message.k:
                raise ArithmeticError("no")
            yield Note(np.zeros(1), q)
        return Note(np.zeros(0))


@pytest.fixture
def steps() -> Steps:
    return Steps()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_items_come_by_turn_then_as_asked_and_a_short_stream_replies_early(lengths: list[int], data: Any) -> None:
    """Mutation: an item is computed before it is read; what the sender changes later arrives."""
    steps, clients = Steps(), LocalClients(lengths)
    to = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, unique=True))
    replies = clients.ask(steps.stream, Note(None), to=to)
    assert steps.diary == []
    items = [next(replies)]
    assert len(steps.diary) == 1
    items += list(replies)
    right = [(i, q) for q in range(max(lengths) + 1) for i in to if q <= lengths[i]]
    assert [i for i, _ in items] == [i for i, _ in right] and steps.diary == right
    assert [note.k for _, note in items] == [q if q < lengths[i] else -1 for i, q in right]
    assert [float(note.a[0]) for _, note in items if note.k >= 0] == [q for i, q in right if q < lengths[i]]


def test_nobody_sees_what_another_changes_later(steps: Steps) -> None:
    """Mutations: a message or a reply that is not copied; a memory that cannot be written after a restart."""
    clients, message = LocalClients([None, None]), Note(np.zeros(2))
    replies = clients.ask(steps.keep, message)
    message.a[:] = 7
    assert [note.a.tolist() for _, note in replies] == [[0, 0], [0, 0]]
    for _, note in clients.ask(steps.grow, Note(None)):
        note.a[:] = 9
    list(clients.ask_each(STEPS["<restore>"], {0: Memory({"mine": np.ones(2)})}, counted=False))
    assert [note.a.tolist() for _, note in clients.ask(steps.grow, Note(None))] == [[2, 2], [2, 2]]
    each = {1: Note(np.full(2, 2.0)), 0: Note(np.full(1, 5.0))}
    assert [(i, note.a.tolist()) for i, note in clients.ask_each(steps.keep, each)] == [(1, [2.0, 2.0]), (0, [5.0])]
    with pytest.raises(RuntimeError, match="was asked while replies to 'grow' are unread"):
        clients.ask(steps.grow, Note(None)) and clients.ask_each(steps.keep, each)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_failure_takes_the_place_of_its_item_and_all_before_it_arrive(steps: Steps, k: int) -> None:
    clients, read = LocalClients([None] * 3), []
    words = rf"client 1 \(rank 0\) failed in step 'fail', item {k}: ArithmeticError: no"
    with pytest.raises(ClientError, match=words):
        for i, note in clients.ask(steps.fail, Note(None, k)):
            read.append((i, note.k))
    assert read == [(i, q) for q in range(k) for i in range(3)] + [(0, k)]


@pytest.mark.parametrize("to", [[], [3], [-1], [0, 0], [0, 1, 2, 3]])
def test_a_question_to_nobody_to_strangers_or_twice_is_refused(steps: Steps, to: list[int]) -> None:
    clients = LocalClients([1.0] * 3)
    for ask in (clients.ask, clients.mean):
        with pytest.raises(ValueError, match=r"a question goes to different clients from 0\.\.2, not to \["):
            ask(steps.grow, Note(None), to=to)
    clients.close()


def test_bytes_and_items_of_streams_and_means_enter_the_round(steps: Steps) -> None:
    clients = LocalClients([0, 2], watch=Watch(stop=lambda: "SIGUSR1"))
    empty, _ = clients.account()
    list(clients.ask(steps.stream, Note(np.zeros(3))))
    list(clients.ask(steps.keep, Note(np.zeros(5)), counted=False))
    clients.mean(steps.grow, Note(None), to=[1])
    row, stop = clients.account()
    assert row.steps == [SERVER, "stream", "keep", "grow"] and stop is True
    assert row.bytes_down.tolist() == [[0, 0], [3 * 8 + 8] * 2, [0, 0], [0, 8]]
    assert row.bytes_up.tolist() == [[0, 0], [16, 3 * 16], [0, 0], [0, 24]]
    assert row.messages.tolist() == [[0, 0], [1, 3], [0, 0], [0, 1]]
    assert {row.bytes_down.dtype, row.bytes_up.dtype, row.messages.dtype} == {np.dtype(np.int64)}
    assert empty.steps == [SERVER] and empty.bytes_down.shape == (1, 2), "a row stays as it was"
    assert clients.account()[0].bytes_down.sum() == 0 and LocalClients([None]).account()[1] is False
