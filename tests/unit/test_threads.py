"""The twin of a communicator is as strict as MPI is at its strictest, and what would hang there is an error here."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.threads import Aborted, Mismatch, RankLost, Stuck, Vanished, run_ranks
from zofl_mpi.engine.world import run_or_fail_all
from zofl_mpi.errors import UserError
from zofl_mpi.run.mpi.communicator import wait

SHORT = 1.0
"""Patience of tests in which the ranks are stuck for ever."""


@pytest.fixture(params=[False, True], ids=["eager", "synchronous"])
def synchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def on(size: int, program: Callable[[Any], Any], **options: Any) -> list[Any]:
    """`run_ranks` with the communicator in place of the world."""
    return run_ranks(size, lambda world: program(world.comm), **options)


def test_every_collective_moves_what_its_name_says(synchronous: bool) -> None:
    def program(comm: Any) -> list[Any]:
        rank, root = comm.rank, comm.rank == 0
        one, all_of_them = np.full(2, rank), np.zeros((3, 2), np.int64)
        bcast, ibcast = np.full(2, 7 + rank), np.full(2, 8 + rank)
        comm.Bcast(bcast)
        wait(comm.Ibcast(ibcast))
        wait(comm.Ibarrier())
        wait(comm.Iallgather(one, all_of_them))
        part, gathered = np.zeros(rank, np.int64), np.zeros(3, np.int64)
        comm.Scatterv([np.arange(10, 13), ([0, 1, 2], [0, 0, 1])] if root else None, part)
        comm.Gatherv(part, [gathered, ([0, 1, 2], [0, 0, 1])] if root else None)
        stacked, total = np.zeros((3, 2), np.int64), np.zeros(2, np.int64)
        comm.Gather(one, stacked if root else None)
        comm.Reduce(one, total if root else None)
        arrays = [bcast, ibcast, all_of_them, part, gathered, stacked, total]
        return [[a.tolist() for a in arrays], comm.bcast({"rank": rank}), comm.allgather(rank)]

    ranks, nothing = [[0, 0], [1, 1], [2, 2]], [[0, 0]] * 3
    both = [[7, 7], [8, 8], ranks]
    assert on(3, program, synchronous=synchronous) == [
        [[*both, [], [10, 11, 12], ranks, [3, 3]], {"rank": 0}, [0, 1, 2]],
        [[*both, [10], [0, 0, 0], nothing, [0, 0]], {"rank": 0}, [0, 1, 2]],
        [[*both, [11, 12], [0, 0, 0], nothing, [0, 0]], {"rank": 0}, [0, 1, 2]],
    ]


def test_what_one_sends_is_copied_before_one_goes_on() -> None:
    def program(comm: Any) -> list[int]:
        sent, seen = np.full(1, comm.rank), []
        for k in range(50):
            sent[:] = k if comm.rank == 0 else -1
            comm.Bcast(sent)
            seen.append(int(sent[0]))
        return seen

    assert on(3, program) == [list(range(50))] * 3


def test_other_collectives_than_the_others_call_are_refused(synchronous: bool) -> None:
    def program(comm: Any) -> None:
        comm.allgather(0)
        if comm.rank == 1:
            comm.allgather(1)
        else:
            wait(comm.Ibarrier())

    with pytest.raises(Mismatch, match=r"collective 1 of comm: rank . calls (allgather|Ibarrier), rank "):
        on(3, program, synchronous=synchronous)


def test_the_same_collectives_in_another_order_are_refused() -> None:
    def program(comm: Any) -> None:
        calls = [lambda: comm.bcast(1), lambda: comm.Bcast(np.zeros(1))]
        for call in calls if comm.rank else calls[::-1]:
            call()

    with pytest.raises(Mismatch, match=r"collective 0 of comm: rank . calls"):
        on(2, program)


def test_a_request_does_not_match_a_call_that_blocks() -> None:
    def program(comm: Any) -> None:
        if comm.rank:
            comm.Bcast(np.zeros(1))
        else:
            wait(comm.Ibcast(np.zeros(1)))

    with pytest.raises(Mismatch, match=r"calls I?[Bb]cast, rank . called I?[Bb]cast"):
        on(2, program)


SIZES: dict[str, Callable[[Any], Any]] = {
    "Bcast": lambda comm: comm.Bcast(np.zeros(2 + comm.rank)),
    "Ibcast": lambda comm: wait(comm.Ibcast(np.zeros(2, np.float64 if comm.rank else np.int64))),
    "Iallgather": lambda comm: wait(comm.Iallgather(np.zeros(1 + comm.rank), np.zeros((2, 1 + comm.rank)))),
    "Scatterv": lambda comm: comm.Scatterv(None if comm.rank else [np.zeros(3), ([1, 2], [0, 1])], np.zeros(1)),
    "Gatherv": lambda comm: comm.Gatherv(np.zeros(1), None if comm.rank else [np.zeros(3), ([1, 2], [0, 1])]),
    "Gather": lambda comm: comm.Gather(np.zeros(1 + comm.rank), None if comm.rank else np.zeros(2)),
    "Reduce": lambda comm: comm.Reduce(np.zeros(1 + comm.rank), None if comm.rank else np.zeros(1)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_differ_are_refused(name: str, synchronous: bool) -> None:
    with pytest.raises(Mismatch, match=f"collective 0 of comm: {name} of "):
        on(2, SIZES[name], synchronous=synchronous)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("do not fill", lambda comm: comm.Gather(np.zeros(2), np.zeros(2))),
        ("Reduce of", lambda comm: comm.Reduce(np.zeros(2), np.zeros(1))),
        ("do not fill", lambda comm: comm.Iallgather(np.zeros(2), np.zeros(2))),
        ("not all in an array of 3", lambda comm: comm.Gatherv(np.zeros(2), [np.zeros(3), ([2, 2], [0, 2])])),
        ("contiguous", lambda comm: comm.Bcast(np.zeros(4)[::2])),
        ("contiguous", lambda comm: comm.Bcast([1, 2])),
    ],
)
def test_buffers_that_do_not_fit_are_refused(words: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(Mismatch, match=words):
        on(2, lambda comm: comm.rank or call(comm))


def test_receiving_into_a_read_only_buffer_is_refused() -> None:
    def program(comm: Any) -> None:
        buffer = np.zeros(1)
        buffer.setflags(write=comm.rank == 0)
        comm.Bcast(buffer)

    with pytest.raises(Mismatch, match="read-only"):
        on(2, program)


def test_a_buffer_may_not_change_while_a_request_owns_it() -> None:
    def program(comm: Any) -> None:
        buffer = np.zeros(1)
        request = comm.Ibcast(buffer)
        buffer[:] = 1
        wait(request)

    with pytest.raises(Mismatch, match="rank 0 changed a buffer while a request owned it"):
        on(2, program)


def test_what_a_request_will_fill_is_not_there_before_it_is_complete() -> None:
    def program(comm: Any) -> int:
        buffer = np.full(1, 5)
        request = comm.Ibcast(buffer)
        early = int(buffer[0])
        wait(request)
        return early

    early = on(2, program)
    assert early[0] == 5 and early[1] != 5


def test_two_threads_of_a_rank_in_the_communicator_at_once_are_refused() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            threading.Thread(target=comm.bcast, args=(1,), name="second", daemon=True).start()
            comm.bcast(2)  # whichever comes first stays inside: rank 1 never comes
        while comm._ranks.failure is None:
            time.sleep(0.01)

    with pytest.raises(Mismatch, match=r"rank 0 are in MPI at once: (second and rank 0|rank 0 and second)"):
        on(2, program, synchronous=True)


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_is_named_with_what_it_waits_for() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 1:
            queue.SimpleQueue[int]().get()
        comm.allgather(0)

    words = r"nothing moved for 1 s: rank 0 is in .*, waits for allgather, collective 0 of comm; rank 1 is in program"
    with pytest.raises(Stuck, match=words):
        on(2, program, patience=SHORT)


def test_a_request_that_is_polled_for_ever_is_stuck() -> None:
    with pytest.raises(Stuck, match=r"rank 0 is in .*, waits for Ibarrier, collective 0 of comm; rank 1 has ended"):
        on(2, lambda comm: comm.rank or wait(comm.Ibarrier()), patience=SHORT)


def test_a_rank_that_ends_before_the_others_have_what_they_sent_it_is_refused() -> None:
    """Eagerly sent, never received: with MPI the program would end, and the bytes be lost."""

    def program(comm: Any) -> None:
        if comm.rank:
            comm.Gather(np.zeros(1), None)

    with pytest.raises(Mismatch, match=r"the end: ranks \[0\] have not completed Gather, collective 0 of comm"):
        on(2, program)


def test_a_rank_that_raises_ends_all_and_its_exception_is_raised() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 2:
            raise ArithmeticError("no")
        comm.allgather(0)

    with pytest.raises(ArithmeticError, match="no"):
        on(3, program)


def test_an_exception_in_another_thread_of_a_rank_ends_all() -> None:
    def fail() -> None:
        raise ArithmeticError("in a thread")

    def program(comm: Any) -> None:
        if comm.rank == 1:
            threading.Thread(target=fail).start()
        while comm.rank == 0 and comm._ranks.failure is None:
            time.sleep(0.01)
        comm.allgather(0)

    with pytest.raises(ArithmeticError, match="in a thread"):
        on(2, program)


def test_abort_ends_all_and_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def program(world: Any) -> None:
        try:
            if world.rank == 1:
                world.abort("zofl_mpi: why")
            world.allgather(0)
            seen.append(world.rank)
        except BaseException:
            world.abort("zofl_mpi: a rank that is dead")
            seen.append(world.rank)

    with pytest.raises(Aborted, match=r"rank 1 called Abort\(1\)"):
        run_ranks(3, program)
    assert capsys.readouterr().err == "zofl_mpi: why\n"
    assert seen == []


def test_a_rank_that_vanishes_is_lost_to_those_who_wait_for_it_only() -> None:
    """The others can go on: what they have of it stays, a collective without need of it is complete."""

    def program(comm: Any) -> str:
        stacked = np.zeros(3) if comm.rank == 0 else None
        comm.Gather(np.ones(1), stacked)
        if comm.rank == 1:
            raise Vanished
        comm.Bcast(np.ones(1))  # of rank 0, which is there
        try:
            comm.allgather(0)
        except RankLost as exc:
            return str(exc)
        return "complete"

    lost = [f"rank 1 is gone; allgather at rank {rank}" for rank in (0, 2)]
    assert on(3, program) == [lost[0], None, lost[1]]


def test_the_world_of_threads_agrees_as_one_of_processes() -> None:
    def work(rank: int) -> int:
        if rank == 1:
            raise UserError("no file")
        return rank

    def program(world: Any) -> Any:
        assert world.neighbours(world.rank) == (world.rank, [0, 1, 2])
        assert (world.bcast(world.rank), world.allgather(world.rank)) == (0, [0, 1, 2])
        with pytest.raises(UserError, match=r"no file \(rank 1 on .*; 2 of 3 ranks have no such problem\)"):
            run_or_fail_all(world, lambda: work(world.rank))
        return world.library

    assert run_ranks(3, program) == ["threads"] * 3
