"""Transport bytes: what a run counts is what the communicator moves, to the byte, for each kind of collective."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.fates import Fate
from tests.tally import tallied
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.loop.client_memory import STEPS, Acknowledged
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.mpi import collectives
from zofl_mpi.run.mpi.client import ClientRank
from zofl_mpi.run.mpi.server import MPIClients
from zofl_mpi.run.mpi.world import MPIWorld

M = 40


@dataclass(frozen=True)
class Vector:
    a: np.ndarray


class Steps:
    def reply(self, client: Client, message: Vector) -> Vector:
        client.memory["last"] = message.a[:3] + client.i
        return Vector(message.a + client.i)

    def stream(self, client: Client, message: Vector) -> Iterator[Vector]:
        yield from (Vector(message.a[:q]) for q in range(client.i % 3))
        return Vector(message.a[: client.i])

    def term(self, i: int, message: Vector, reply: Vector) -> np.ndarray:
        return reply.a * i


steps = Steps()


def vector(size: int) -> Vector:
    return Vector(np.arange(size, dtype=np.float64))


KINDS: dict[str, Any] = {
    "a broadcast within the question": lambda c: list(c.ask(steps.reply, vector(5), to=[0, 3])),
    "a broadcast of its own": lambda c: list(c.ask(steps.reply, vector(200), to=[1])),
    "a broadcast in pieces": lambda c: list(c.ask(steps.reply, vector(20_000), to=[1])),
    "a long question": lambda c: list(c.ask(steps.reply, vector(1), to=range(M))),
    "a stream in waves": lambda c: list(c.ask(steps.stream, vector(300))),
    "a scatter": lambda c: list(c.ask_each(steps.reply, {i: vector(7 * i) for i in (1, 2, 8)})),
    "a mean": lambda c: c.mean(steps.reply, vector(60)),
    "a sum": lambda c: c.sum(steps.reply, vector(60), steps.term)(),
    "no question": lambda c: None,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_run_counts_what_its_collectives_move(kind: str, ranks: int) -> None:
    """Three rounds each, of which the first learns the frames' sizes. Mutations: any kind of collective that is not
    counted, or twice; a rank's own part among what moves; counts of another rank; room that is not filled left out;
    counts of a round that are kept for the next; a pickle of unknown length."""
    rows: list[Any] = []

    def program(clients: Any) -> None:
        for _ in range(3):
            KINDS[kind](clients)
            rows.append(clients.account()[0])

    with tallied() as tally, mock.patch.object(collectives, "LIMIT", 50_000):
        run_ranks(ranks, lambda world: serve_or_ask(world, steps, [None] * M, program))
    assert np.array_equal(tally.counted, tally.by_rank()), (tally.counted, tally.by_rank(), tally.calls)
    assert tally.counted.min() > 0 and set(tally.calls) <= {*collective_calls()}
    for row in rows:
        by_step = row.transport_sent.sum(axis=1) + row.transport_received.sum(axis=1)
        assert (by_step[1:] > 0).all()  # a question's under its step, not under the server's
    alone = LocalClients([None] * M, method=steps)
    program(alone)
    assert not rows[-1].transport_sent.any() and not rows[-1].transport_received.any()


def collective_calls() -> list[str]:
    return ["Ibcast", "Bcast", "Iallgather", "Scatterv", "Gatherv", "Gather", "Reduce"]


def test_memories_for_a_checkpoint_and_for_survival_are_counted_as_the_servers() -> None:
    """Mutations: the engine's own questions uncounted, or under a step of the method."""
    rows: dict[str, Any] = {}

    def program(clients: Any) -> None:
        list(clients.ask(steps.reply, vector(50)))
        clients.account()
        clients.account()
        rows["nothing"], _ = clients.account()
        for _ in clients.ask(STEPS["<recall>"], Acknowledged(), counted=False):
            pass
        rows["memories"], _ = clients.account()

    def survived(world: MPIWorld) -> None:
        world.survive(Watch())
        if world.rank:
            ClientRank(world, steps, [None] * M).serve()
            return
        clients = MPIClients(world, M)
        clients.retry_on_rank_loss(lambda: list(clients.ask(steps.reply, vector(50))))
        rows["kept"], _ = clients.account()
        clients.close()

    with tallied() as tally:
        run_ranks(3, lambda world: serve_or_ask(world, steps, [None] * M, program))
    assert np.array_equal(tally.counted, tally.by_rank())
    grown = rows["memories"].transport_received - rows["nothing"].transport_received
    assert grown[1:].sum() == 0 and grown[0, 0] > M * 24  # three numbers of each client, at rank 0
    with tallied() as tally:
        run_ranks(3, survived, fate=Fate())
    assert np.array_equal(tally.counted, tally.by_rank())
    assert rows["kept"].transport_received[0, 0] > M * 24
