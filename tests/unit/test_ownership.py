"""What a client gets, keeps and gives is its own: the same bits in one process and on ranks, or an error."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine.batching import batched_call
from zofl_mpi.engine.clients import Client, ClientError, Clients
from zofl_mpi.engine.lazy import is_tensor
from zofl_mpi.engine.ownership import Shared, checksum, own_memory, own_state
from zofl_mpi.engine.roles import Backend, ClientProgram
from zofl_mpi.errors import UserError
from zofl_mpi.run.loop.local import LocalClients

M = 40  # above `mean.SUM_ON_RANKS_FROM`: ranks add up the terms of a sum


@dataclass(frozen=True)
class Message:
    x: Any
    parts: Any = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    y: Any


@dataclass(frozen=True)
class Batching(Backend):
    """A problem that computes for so many clients at once."""

    batched_clients: int


class Tiny(ClientProgram):
    """Steps with the habits of torch's users; `together`: in batches of four clients."""

    def __init__(self, together: bool = False) -> None:
        self.together = together
        self.backend = Batching(4 if together else 1)  # type: ignore[misc]

    @cached_property
    def buffer(self) -> Any:
        return np.zeros(3)

    def in_place(self, client: Client, message: Message) -> Reply:
        message.x.sub_(client.i + 1.0)
        return Reply(message.x)

    def through_numpy(self, client: Client, message: Message) -> Reply:
        message.x.numpy()[:] += client.i
        return Reply(message.x)

    def through_data(self, client: Client, message: Message) -> Reply:
        message.x.data.add_(client.i)
        return Reply(message.x)

    def in_a_dictionary(self, client: Client, message: Message) -> Reply:
        message.parts["w"].mul_(2.0)
        return Reply(message.parts["w"])

    def another_entry(self, client: Client, message: Message) -> Reply:
        message.parts["w"] = message.parts["w"] + 1.0
        return Reply(message.parts["w"])

    def buffered(self, client: Client, message: Message) -> Reply:
        self.buffer[:] = batched_call(lambda requests: requests, float(client.i))
        self.buffer += 1.0
        return Reply(self.buffer)

    def lasts(self, client: Client, message: Message) -> Reply:
        """Keeps the message, then moves what it kept."""
        if "v" not in client.memory:
            client.memory.update(v=message.x, w=message.x[:2], n={"deep": message.x})
            return Reply(message.x)
        for name in ("v", "w"):
            client.memory[name] -= 0.5 * (client.i + 1)
        client.memory["n"]["deep"] *= 2.0
        return Reply(client.memory["v"] + client.memory["w"].sum() + client.memory["n"]["deep"])

    def term(self, i: int, message: Message, reply: Reply) -> Any:
        return np.asarray(reply.y, np.float64)


def message() -> Message:
    return Message(torch.ones(3), {"w": torch.full((3,), 2.0)})


TINY: Tiny = Tiny()
TOGETHER: Tiny = Tiny(together=True)
VERBS: dict[str, Callable[[Clients, Any, Message], Any]] = {
    "ask": lambda clients, step, sent: [np.asarray(reply.y) for _, reply in clients.ask(step, sent)],
    "ask_each": lambda clients, step, sent: [
        np.asarray(reply.y) for _, reply in clients.ask_each(step, dict.fromkeys(range(M), sent))
    ],
    "mean": lambda clients, step, sent: [np.asarray(clients.mean(step, sent).y)],
    "sum": lambda clients, step, sent: [clients.sum(step, sent, TINY.term)()],
}


def outcome(program: Callable[[Clients], Any], clients: Clients) -> Any:
    """The result as bytes, or the error's sentence without its client and rank."""
    try:
        return [np.asarray(x).tobytes() for x in program(clients)]
    except ClientError as exc:
        return str(exc).partition("failed in ")[2]


def both(method: Tiny, program: Callable[[Clients], Any]) -> tuple[Any, Any]:
    """The outcomes in one process and on three ranks."""
    own = [Tiny(method.together) for _ in range(3)]  # as processes have it
    ranks = run_ranks(3, lambda world: serve_or_ask(world, own[world.rank], [None] * M, lambda c: outcome(program, c)))
    return outcome(program, LocalClients([None] * M, method)), ranks[0]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("method", [TINY, TOGETHER], ids=["one by one", "in batches"])
@pytest.mark.parametrize("step", ["in_place", "through_numpy", "through_data", "in_a_dictionary", "another_entry"])
def test_a_step_that_changes_a_shared_message_is_named(step: str, method: Tiny, verb: str) -> None:
    """In one process it gave client 1 what client 0 had made of x, other bits than on ranks. Mutations: torch's count
    of changes alone; a checksum alone (of x + 0); tensors in dictionaries, or a dictionary's entries, not looked at."""
    local, ranks = both(method, lambda clients: VERBS[verb](clients, getattr(method, step), message()))
    if verb != "ask_each":  # there each client of a rank has a copy of its own
        assert local == ranks
    name = "parts.w" if step in ("in_a_dictionary", "another_entry") else "x"
    assert f"step {step!r} changed Message.{name}, which others read, too: work on a copy" in local


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("method", [TINY, TOGETHER], ids=["one by one", "in batches"])
def test_a_reply_whose_buffer_the_step_fills_again_arrives_as_it_was(verb: str, method: Tiny) -> None:
    """`mean` kept references: each client's reply became the last one's. Mutations: no copy there; none in a batch."""
    local, ranks = both(method, lambda clients: VERBS[verb](clients, method.buffered, message()))
    assert local == ranks
    total = sum(range(1, M + 1))
    first = np.frombuffer(local[0])
    assert first.tolist() == [{"mean": total / M, "sum": total}.get(verb, 1.0)] * 3


@pytest.mark.parametrize("kind", ["tensor", "array"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_client_keeps_of_a_message_is_its_own(verb: str, kind: str) -> None:
    """The second question moves what the first one left in memory. Mutations: a memory that holds the message's tensor,
    which others keep too; two entries that are one array, which a checkpoint would part; entries of dictionaries."""
    sent = message() if kind == "tensor" else Message(np.ones(3), {"w": np.ones(1)})

    def program(clients: Clients) -> Any:
        VERBS[verb](clients, TINY.lasts, sent)
        return VERBS[verb](clients, TINY.lasts, sent)

    local, ranks = both(TINY, program)
    assert local == ranks
    right = np.array([(1 - 0.5 * (i + 1)) * 3 + 2.0 for i in range(M)])
    expected = {"mean": right.mean(), "sum": right.sum()}.get(verb, right[0])
    assert np.frombuffer(local[0], np.float64 if kind == "array" or verb == "sum" else np.float32)[0] == expected


def test_a_message_that_the_server_changes_before_it_reads_a_sum_is_named() -> None:
    """With few participants the terms are the server's work, by its own message. Mutation: not looked at."""
    clients, sent = LocalClients([None] * 3), Message(np.ones(3))
    read = clients.sum(TINY.buffered, sent, TINY.term)
    sent.x[:] = 2.0
    with pytest.raises(UserError, match=r"the server changed Message\.x"):
        read()


def test_a_term_that_returns_the_replys_own_array_leaves_it_alone() -> None:
    """Mutation: it is scaled in place, in what the client keeps."""
    clients = LocalClients([None] * 2)
    kept = {i: client.memory for i, client in clients._clients.items()}
    for _ in range(2):
        clients.sum(TINY.lasts, Message(np.ones(3)), lambda i, message, reply: reply.y)()
    assert all(memory["v"].max() < 1.1 for memory in kept.values())


@pytest.mark.parametrize("size", [1, 3, 511, 512, 513, 8192, 70000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.bool_])
def test_a_checksum_sees_one_changed_entry_wherever_it_lies(size: int, dtype: Any) -> None:
    """Mutations: the words beyond the last row; the bytes beyond the last word; a sum that exchanged entries keep."""
    array = np.random.default_rng(5).integers(0, 2, size).astype(dtype)
    before = checksum(array)
    for at in {0, size // 2, size - 1}:
        array[at] = not array[at]
        assert checksum(array) != before
        array[at] = not array[at]
    assert checksum(array.copy()) == before
    line = np.arange(size).astype(dtype)
    assert size < 3 or dtype is np.bool_ or checksum(line) != checksum(line[::-1].copy())


def test_messages_of_one_reader_cost_nothing() -> None:
    """Mutation: a checksum for each client of `ask_each`."""
    assert Shared([Message(np.ones(3)), Message(np.ones(3))], "nobody")._before == []


def test_states_and_memories_keep_parts_of_one_array_that_do_not_meet() -> None:
    """Mutations: a copy for two halves of a vector; none for a part of the whole."""
    x = torch.zeros(6)
    apart, met = Message(x[:3], {"rest": x[3:]}), Message(x[:4], {"rest": x[3:]})
    assert own_state(apart) is apart
    found = own_state(met)
    assert found is not met and found.x.data_ptr() != x.data_ptr()
    memory: dict[str, Any] = {"a": x[:3], "b": {"c": x[3:], "d": x[2:3]}}
    own_memory(memory, Message(np.zeros(2)))
    assert memory["b"]["c"].data_ptr() == x[3:].data_ptr() and memory["b"]["d"].data_ptr() != x[2:].data_ptr()
    assert is_tensor(memory["b"]["d"])


@pytest.mark.parametrize("x", [np.arange(8.0).reshape(4, 2), torch.arange(8.0).reshape(4, 2)], ids=["array", "tensor"])
def test_views_with_gaps_count_as_the_range_that_they_span(x: Any) -> None:
    """Mutations: a view without contiguous entries shares nothing; an empty one shares."""
    memory: dict[str, Any] = {"odd": x[1::2], "none": x[:0:2]}
    before = dict(memory)
    own_memory(memory, Message(x[::2]))
    assert memory["odd"] is not before["odd"] and memory["odd"].tolist() == before["odd"].tolist()
    assert memory["none"] is before["none"]
