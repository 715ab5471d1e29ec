"""Clients of one process: the order of turns, whose bytes are whose, and what errors say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.ledger import SERVER
from zofl_mpi.errors import UserError
from zofl_mpi.run.client_memory import STEPS, Acknowledged, Memory
from zofl_mpi.run.local import LocalClients


@dataclass(frozen=True)
class Note:
    a: Any
    k: int = 0


class Steps:
    """Steps of a method that keeps a diary of who computed when."""

    def __init__(self) -> None:
        self.diary: list[tuple[int, int]] = []

    def stream(self, client: Client, message: Note) -> Iterator[Note]:
        """As many uploads as the client's data say, then the reply."""
        for q in range(client.data):
            self.diary.append((client.i, q))
            yield Note(np.full(2, float(q)), q)
        self.diary.append((client.i, client.data))
        return Note(np.full(1, -1.0), -1)

    def keep(self, client: Client, message: Note) -> Note:
        client.memory["seen"] = message.a
        return Note(client.memory["seen"])

    def own(self, client: Client, message: Note) -> Note:
        """The reply is an array that the client keeps."""
        return Note(client.memory.setdefault("mine", np.zeros(2)))

    def grow(self, client: Client, message: Note) -> Note:
        client.memory["mine"] += 1
        return Note(client.memory["mine"])

    def reuse(self, client: Client, message: Note) -> Iterator[Note]:
        workspace = np.zeros(1)
        for q in range(3):
            workspace[:] = q
            yield Note(workspace)
            workspace[:] = -99
        workspace[:] = 3
        return Note(workspace)

    def write(self, client: Client, message: Note) -> Note:
        message.a[:] = 1
        return message

    def fail(self, client: Client, message: Note) -> Iterator[Note]:
        for q in range(3):
            if client.i == 1 and q == message.k:
                raise ArithmeticError("no")
            yield Note(np.zeros(1), q)
        return Note(np.zeros(0))

    def mistake(self, client: Client, message: Note) -> Note:
        raise UserError("smaller --gamma helps")

    def value(self, client: Client, message: Note) -> Note:
        return Note(np.array([float(client.data)]), client.i)

    def unlike(self, client: Client, message: Note) -> Any:
        return Note("text") if client.i == 1 else Note(np.zeros(1))


@pytest.fixture
def steps() -> Steps:
    return Steps()


def order(lengths: dict[int, int]) -> list[tuple[int, int]]:
    """By q, then in the order of `lengths`: client i has the items 0..length."""
    return [(i, q) for q in range(max(lengths.values()) + 1) for i, length in lengths.items() if q <= length]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_items_come_by_turn_then_as_asked_and_a_short_stream_replies_early(lengths: list[int], data: Any) -> None:
    steps, clients = Steps(), LocalClients(lengths)
    to = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, unique=True))
    items = list(clients.ask(steps.stream, Note(None), to=to))
    right = order({i: lengths[i] for i in to})
    assert [i for i, _ in items] == [i for i, _ in right]
    assert [note.k for _, note in items] == [q if q < lengths[i] else -1 for i, q in right]
    assert steps.diary == right


def test_a_client_computes_only_when_its_item_is_read(steps: Steps) -> None:
    replies = LocalClients([2, 2]).ask(steps.stream, Note(None))
    assert steps.diary == []
    next(replies)
    assert steps.diary == [(0, 0)]


def test_what_the_sender_changes_later_does_not_arrive(steps: Steps) -> None:
    clients = LocalClients([None, None])
    read = [(i, float(note.a[0])) for i, note in clients.ask(steps.reuse, Note(None))]
    assert read == [(i, float(q)) for q in range(4) for i in (0, 1)]


def test_what_the_server_changes_after_asking_does_not_arrive(steps: Steps) -> None:
    clients, message = LocalClients([None, None]), Note(np.zeros(2))
    replies = clients.ask(steps.keep, message)
    message.a[:] = 7
    assert [note.a.tolist() for _, note in replies] == [[0, 0], [0, 0]]


def test_what_the_server_does_with_a_reply_does_not_reach_the_client(steps: Steps) -> None:
    clients = LocalClients([None])
    for _, note in clients.ask(steps.own, Note(None)):
        note.a[:] = 9
    assert [note.a.tolist() for _, note in clients.ask(steps.own, Note(None))] == [[0, 0]]


def test_a_client_cannot_write_into_what_it_was_sent(steps: Steps) -> None:
    with pytest.raises(ClientError, match="read-only"):
        list(LocalClients([None]).ask(steps.write, Note(np.zeros(2))))


def test_each_client_gets_its_own_message(steps: Steps) -> None:
    clients = LocalClients([None] * 3)
    each = {2: Note(np.full(2, 2.0)), 0: Note(np.full(1, 5.0))}
    replies = list(clients.ask_each(steps.keep, each))
    assert [(i, note.a.tolist()) for i, note in replies] == [(2, [2.0, 2.0]), (0, [5.0])]


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_failure_takes_the_place_of_its_item_and_all_before_it_arrive(steps: Steps, k: int) -> None:
    clients = LocalClients([None] * 3)
    read = []
    words = rf"client 1 \(rank 0\) failed in step 'fail', item {k}: ArithmeticError: no"
    with pytest.raises(ClientError, match=words) as caught:
        for i, note in clients.ask(steps.fail, Note(None, k)):
            read.append((i, note.k))
    assert read == [(i, q) for q in range(k) for i in range(3)] + [(0, k)]
    assert "Traceback" in caught.value.trace and "in fail" in caught.value.trace


def test_a_failed_question_is_closed(steps: Steps) -> None:
    clients = LocalClients([4.0] * 2)
    for ask in (clients.ask, clients.mean):
        with pytest.raises(ClientError):
            list(ask(steps.mistake, Note(None)))
        assert len(list(clients.ask(steps.value, Note(None)))) == 2
    clients.close()


def test_a_sentence_meant_for_users_comes_without_a_traceback(steps: Steps) -> None:
    with pytest.raises(ClientError, match="item 0: smaller --gamma helps") as caught:
        list(LocalClients([None]).ask(steps.mistake, Note(None)))
    assert caught.value.trace == ""


@pytest.mark.parametrize("to", [[], [3], [-1], [0, 0], [0, 1, 2, 3]])
def test_a_question_to_nobody_to_strangers_or_twice_is_refused(steps: Steps, to: list[int]) -> None:
    clients = LocalClients([1.0] * 3)
    for ask in (clients.ask, clients.mean):
        with pytest.raises(ValueError, match=r"a question goes to different clients from 0\.\.2, not to \["):
            ask(steps.value, Note(None), to=to)
    clients.close()


def test_one_question_at_a_time_and_none_open_at_the_end(steps: Steps) -> None:
    clients = LocalClients([2, 2])
    replies = clients.ask(steps.stream, Note(None))
    next(replies)
    for ask in (clients.ask, clients.mean):
        with pytest.raises(RuntimeError, match="step 'value' was asked while replies to 'stream' are unread"):
            ask(steps.value, Note(None))
    with pytest.raises(RuntimeError, match="was asked while replies to 'stream' are unread"):
        clients.ask_each(steps.value, {0: Note(None)})
    with pytest.raises(RuntimeError, match="the run ended while replies to 'stream' are unread"):
        clients.close()
    assert len(list(replies)) == 5
    clients.close()


def test_the_mean_weighs_the_replies(steps: Steps) -> None:
    clients = LocalClients([1.0, 2.0, 10.0])
    found = clients.mean(steps.value, Note(None), to=[0, 2], weights={0: 1.0, 2: 3.0})
    assert found.a.tolist() == [(1.0 + 3 * 10.0) / 4] and found.k == (0 + 3 * 2) / 4


def test_the_mean_refuses_a_stream_and_names_who_sent_what_has_no_mean(steps: Steps) -> None:
    clients = LocalClients([1, 1])
    with pytest.raises(TypeError, match="mean needs a step that returns its reply, 'stream' streams"):
        clients.mean(steps.stream, Note(None))
    with pytest.raises(ClientError, match=r"client 1 \(rank 0\) failed in step 'unlike', item 0: .*Note\.a"):
        clients.mean(steps.unlike, Note(None))
    assert clients.mean(steps.value, Note(None)).a.tolist() == [1.0]


def test_counted_bytes_and_items_enter_the_round_and_uncounted_ones_do_not(steps: Steps) -> None:
    clients = LocalClients([0, 2])
    list(clients.ask(steps.stream, Note(np.zeros(3))))
    list(clients.ask(steps.keep, Note(np.zeros(5)), counted=False))
    row, stop = clients.account()
    assert row.steps == [SERVER, "stream", "keep"] and stop is False
    assert row.bytes_down.tolist() == [[0, 0], [3 * 8 + 8] * 2, [0, 0]]
    assert row.bytes_up.tolist() == [[0, 0], [16, 16 + 2 * 24], [0, 0]]
    assert row.messages.tolist() == [[0, 0], [1, 3], [0, 0]]
    assert clients.account()[0].bytes_down.sum() == 0


def test_a_mean_counts_its_bytes_like_a_question(steps: Steps) -> None:
    clients = LocalClients([1.0, 2.0])
    clients.mean(steps.value, Note(None), to=[1])
    row, _ = clients.account()
    assert row.bytes_up.tolist() == [[0, 0], [0, 16]] and row.bytes_down.tolist() == [[0, 0], [0, 8]]


def test_a_memory_is_recalled_and_restored_without_a_place_in_the_ledger(steps: Steps) -> None:
    clients = LocalClients([None, None])
    list(clients.ask(steps.keep, Note(np.arange(2.0)), to=[1]))
    kept = dict(clients.ask(STEPS["<recall>"], Acknowledged(), counted=False))
    assert kept[0] == Memory({}) and kept[1].entries["seen"].tolist() == [0, 1]
    list(clients.ask_each(STEPS["<restore>"], {0: kept[1]}, counted=False))
    again = dict(clients.ask(STEPS["<recall>"], Acknowledged(), counted=False))
    assert again[0].entries["seen"].tolist() == [0, 1]
    assert clients.account()[0].steps == [SERVER, "keep"]


def test_a_restored_memory_can_be_written(steps: Steps) -> None:
    clients = LocalClients([None])
    list(clients.ask_each(STEPS["<restore>"], {0: Memory({"mine": np.ones(2)})}, counted=False))
    assert [note.a.tolist() for _, note in clients.ask(steps.grow, Note(None))] == [[2.0, 2.0]]


def test_a_signal_is_told_with_the_account() -> None:
    assert LocalClients([None], stop=lambda: True).account()[1] is True
