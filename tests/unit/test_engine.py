"""The engine's contract (`tests/mpi/test_engine.py`) with threads of this process as ranks."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast

import numpy as np
import pytest

from tests.conftest import Patch
from tests.fates import Fate
from tests.mpi.test_engine import *  # noqa: F403  (the tests)
from tests.mpi.test_engine import Part, Seed, Vector, steps
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.staging import staging_of
from zofl_mpi.engine.watch import Watch
from zofl_mpi.errors import UserError
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.mpi import gather, survival
from zofl_mpi.run.mpi.client import ClientRank
from zofl_mpi.run.mpi.collectives import Collectives, Question
from zofl_mpi.run.mpi.communicator import WrappedCommunicator
from zofl_mpi.run.mpi.server import MPIClients
from zofl_mpi.run.mpi.survival import RanksLost
from zofl_mpi.run.mpi.world import MPIWorld

pytestmark = []  # type: ignore[assignment]  # not those of the imported tests, which need mpirun
del test_the_seconds_of_a_round_add_up_on_every_rank  # noqa: F821  (threads wait for the interpreter, too)


@pytest.fixture(params=[False, True], ids=["eager", "synchronous"])
def synchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[2, 3, 5])
def both(request: pytest.FixtureRequest, synchronous: bool) -> Callable[..., tuple[Any, Any]]:
    """both(method, data, program): program's result on LocalClients, and on MPIClients of 2, 3 or 5 ranks."""

    def run(method: Any, data: list[Any], program: Callable[[Any], Any]) -> tuple[Any, Any]:
        results = run_ranks(
            request.param, lambda world: serve_or_ask(world, method, data, program), synchronous=synchronous
        )
        return program(LocalClients(data)), results[0]

    return run


class Ahead:
    """A step that notes how many of its items each client has made."""

    length = 12

    @cached_property
    def made(self) -> dict[int, int]:
        return {0: 0, 1: 0}

    def stream(self, client: Client, message: Seed) -> Iterator[Part]:
        for q in range(self.length):
            self.made[client.i] = q + 1
            yield Part(0, client.i, q, np.zeros(3))
        self.made[client.i] = self.length + 1
        return Part(0, client.i, -1, np.zeros(0))


def test_clients_run_ahead_of_a_slow_server_by_four_waves_and_no_further(synchronous: bool, monkeypatch: Patch) -> None:
    """Two waves wait at the server, two buffers at a rank, one more is computed: that is all the memory it takes. An
    item is above the bound here, so each is a buffer, and a wave, by itself. Mutations: no room at the server is needed
    (all at once); DEPTH 1 or 3; a rank sends what it has though the server holds items of its; a third buffer; items
    above the bound share one."""
    monkeypatch.setattr("zofl_mpi.run.mpi.gather.BOUND", 1)
    ahead = Ahead()

    def program(clients: Any) -> None:
        for k, _ in enumerate(clients.ask(ahead.stream, Seed(0))):
            bound = min(k // 2 + 5, ahead.length + 1)
            while min(ahead.made.values()) < bound:  # they compute while the server does
                time.sleep(0.001)
            time.sleep(0.005)
            assert max(ahead.made.values()) == bound

    run_ranks(3, lambda world: serve_or_ask(world, ahead, [None] * 2, program), synchronous=synchronous)


@pytest.mark.parametrize("asked", [1, 2])
def test_a_signal_at_a_client_rank_is_told_with_its_mean(asked: int, synchronous: bool) -> None:
    """Mutations: the report leaves it out; it is the server's, or the last rank's, alone that counts."""

    def served(world: Any) -> Any:
        if world.rank:
            watch = Watch(stop=lambda: "SIGUSR1" if world.rank == asked else "")
            return ClientRank(world, steps, [None] * 4, watch).serve()
        clients = MPIClients(world, 4)
        clients.mean(steps.plain, Vector(np.ones(5)))
        _, stop = clients.account()
        clients.close()
        return stop

    assert run_ranks(3, served, synchronous=synchronous) == [True, 0, 0]


def test_the_ranks_meet_thrice_in_a_round_of_one_mean(synchronous: bool) -> None:
    """Question and model, shapes with the ranks' costs, sums: each meeting is a wait for the slowest rank.

    Mutations: the model's own broadcast from the second round on; an account by a question of its own.
    """
    met: list[str] = []

    def program(clients: Any) -> None:
        for r in range(4):
            met.append(f"round {r}")
            clients.mean(steps.plain, Vector(np.ones(500)))
            clients.account()

    def served(world: Any) -> None:
        if world.rank == 0:
            for name in ("Ibcast", "bcast", "Ibarrier", "Bcast", "Iallgather", "allgather", "Reduce", "Gather"):
                call = getattr(world.comm, name)
                setattr(world.comm, name, lambda *args, name=name, call=call: (met.append(name), call(*args))[1])
        serve_or_ask(world, steps, [None] * 4, program)

    run_ranks(3, served, synchronous=synchronous)
    rounds = " ".join(met).split("round ")[1:]
    assert rounds[2].split()[1:] == ["Ibcast", "Iallgather", "Reduce"]
    assert rounds[0].split()[1:] == ["Ibcast", "Ibcast", "Iallgather", "Reduce"]  # nothing is known of the next one yet


def test_a_question_that_is_asked_again_takes_one_collective_of_its_very_length() -> None:
    """Its room is that of the last question after the same one. Mutations: `<` for any `<=` of a frame; room
    for the shortest rank's object; a question's room that is forgotten."""

    def program(world: MPIWorld) -> None:
        calls = Counter[str]()

        def make(name: str, call: Callable[..., Any], arguments: Any) -> Any:
            calls[name] += name != "Test"
            return call(*arguments)

        comm = cast(Any, WrappedCommunicator(world.comm, make))
        collectives = Collectives(comm, lambda: None, (), staging_of(None))
        for k in range(64):  # all remainders to the boundary on which a block begins
            question, block = Question("ask", "s" * (1100 + k)), np.full(2000 + k, k, np.uint8)
            for turn in range(2):
                calls.clear()
                if world.rank == 0:
                    collectives.bcast_question(Question("account"))
                    collectives.send(question, block)
                else:
                    collectives.bcast_question()
                    assert np.array_equal(collectives.message(*collectives.bcast_question()), block)
                assert turn < 1 or calls == Counter(Ibcast=2)
            for turn in range(2):
                calls.clear()
                assert collectives.allgather_objects("x" * (1100 + k + 100 * world.rank))[0] == "x" * (1100 + k)
                assert turn < 1 or calls == Counter(Iallgather=1)

    run_ranks(2, program)


def test_errors_of_mpi_without_a_lost_rank_end_the_run() -> None:
    """Mutation: the round is begun again for ever."""

    def program(world: MPIWorld) -> Any:
        world.survive(Watch())
        if world.rank:
            return ClientRank(world, steps, [None] * 3).serve()

        def fails() -> None:
            raise RanksLost("planted")

        return MPIClients(world, 3).retry_on_rank_loss(fails)

    with pytest.raises(UserError, match="fails again and again, although no rank is lost"):
        run_ranks(3, program, fate=Fate(), patience=10)


class Endless:
    """Steps of clients of which one goes on for ever and one fails, and one that remembers what cannot be stored."""

    def stream(self, client: Client, message: Seed) -> Iterator[Part]:
        for q in itertools.count():
            if client.i == 1:
                raise RuntimeError("planted")
            yield Part(0, client.i, q, np.zeros(3))
        return Part(0, client.i, -1, np.zeros(0))

    def keeping(self, client: Client, message: Seed) -> Seed:
        client.memory["thing"] = object()
        return message


def test_a_failure_ends_the_other_ranks_streams(synchronous: bool, monkeypatch: Patch) -> None:
    """Mutations: a rank that waits for room is not woken; one that is, goes on."""
    monkeypatch.setattr(gather, "BOUND", 1)

    def program(world: MPIWorld) -> None:
        def fails(clients: Any) -> None:
            with pytest.raises(ClientError, match="planted"):
                list(clients.ask(method.stream, Seed(0)))

        method = Endless()
        serve_or_ask(world, method, [None] * 2, fails)

    run_ranks(3, program, synchronous=synchronous, patience=10)


def test_a_memory_that_cannot_be_kept_is_named() -> None:
    """Mutation: the run goes on, and a lost rank's client forgets."""

    def program(world: MPIWorld) -> Any:
        world.survive(Watch())
        method = Endless()
        if world.rank:
            return ClientRank(world, method, [None] * 2).serve()
        clients = MPIClients(world, 2, method)
        list(clients.ask(method.keeping, Seed(0), to=[1]))
        return clients.account()

    with pytest.raises(ClientError, match=r"client 1 .*<keep>"):
        run_ranks(3, program, fate=Fate(), patience=10)


def test_a_round_counts_only_if_all_ranks_agree(monkeypatch: Patch) -> None:
    """Two errors without a lost rank, each at one rank as its round ends. Mutations: an agreement that counts whatever
    comes out; one that a rank leaves out after the first one; an alarm that would end a rank which has found the
    others."""
    alarms, after = list[Any](), survival._after
    monkeypatch.setattr(survival, "_after", lambda *call: alarms.append(after(*call)) or alarms[-1])

    def program(world: MPIWorld) -> Any:
        world.survive(Watch())
        own = world.survival
        assert own is not None
        agree, first, fails = own.agree, own.comm, {(2, True), (1, False)}

        def planted() -> None:
            moment = world.rank, own.comm is first
            if moment in fails:
                fails.remove(moment)
                raise RanksLost("planted")
            agree()

        own.agree = planted  # type: ignore[method-assign]
        if world.rank:
            return ClientRank(world, steps, [None] * 3).serve()
        clients, begun = MPIClients(world, 3), list[int]()

        def one_round() -> None:
            begun.append(1)
            list(clients.ask(steps.plain, Vector(np.ones(5))))
            clients.account()

        clients.retry_on_rank_loss(one_round)
        clients.close()
        return len(begun)

    assert run_ranks(3, program, fate=Fate(), patience=10) == [3, 0, 0]
    assert len(alarms) == 2 * 3 and all(alarm.finished.is_set() for alarm in alarms)


def test_the_ranks_watches_follow_the_servers_rounds() -> None:
    """Where rounds end with means, too. Mutations: a question without the round; one that is not looked at."""

    def program(world: MPIWorld) -> int:
        watch = Watch()
        if world.rank:
            ClientRank(world, steps, [None] * 3, watch).serve()
            return watch.round
        clients = MPIClients(world, 3, watch=watch)
        for _ in range(4):
            clients.mean(steps.plain, Vector(np.ones(5)))
            clients.account()
        clients.close()
        return watch.round

    assert len(set(run_ranks(3, program))) == 1
