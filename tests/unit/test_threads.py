"""The twin of a communicator is as strict as MPI is at its strictest, and what would hang there is an error here."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fates import Aborted, Mismatch, RankLost, Stuck, Vanished
from tests.threads import run_ranks
from zofl_mpi.run.mpi.communicator import wait


def on(size: int, program: Callable[[Any], Any], **options: Any) -> list[Any]:
    """`run_ranks` with the communicator in place of the world."""
    return run_ranks(size, lambda world: program(world.comm), **options)


@pytest.mark.parametrize("synchronous", [False, True])
def test_every_collective_moves_what_its_name_says(synchronous: bool) -> None:
    def program(comm: Any) -> list[Any]:
        rank, root = comm.rank, comm.rank == 0
        one, all_of_them = np.full(2, rank), np.zeros((3, 2), np.int64)
        bcast, ibcast = np.full(2, 7 + rank), np.full(2, 8 + rank)
        comm.Bcast(bcast)
        request = comm.Ibcast(ibcast)
        assert root or ibcast[0] != 8 + rank, "what a request will fill is not there before it is complete"
        wait(request)
        wait(comm.Ibarrier())
        wait(comm.Iallgather(one, all_of_them))
        part, gathered = np.zeros(rank, np.int64), np.zeros(3, np.int64)
        comm.Scatterv([np.arange(10, 13), ([0, 1, 2], [0, 0, 1])] if root else None, part)
        comm.Gatherv(part, [gathered, ([0, 1, 2], [0, 0, 1])] if root else None)
        stacked, total = np.zeros((3, 2), np.int64), np.zeros(2, np.int64)
        comm.Gather(one, stacked if root else None)
        comm.Reduce(one, total if root else None)
        one[:] = -1  # it has been copied
        arrays = [bcast, ibcast, all_of_them, part, gathered, stacked, total]
        return [[a.tolist() for a in arrays], comm.bcast({"rank": rank}), comm.allgather(rank)]

    ranks, nothing = [[0, 0], [1, 1], [2, 2]], [[0, 0]] * 3
    both = [[7, 7], [8, 8], ranks]
    assert on(3, program, synchronous=synchronous) == [
        [[*both, [], [10, 11, 12], ranks, [3, 3]], {"rank": 0}, [0, 1, 2]],
        [[*both, [10], [0, 0, 0], nothing, [0, 0]], {"rank": 0}, [0, 1, 2]],
        [[*both, [11, 12], [0, 0, 0], nothing, [0, 0]], {"rank": 0}, [0, 1, 2]],
    ]


def changed(comm: Any) -> None:
    buffer = np.zeros(1)
    request = comm.Ibcast(buffer)
    buffer[:] = 1
    wait(request)


def entered_twice(comm: Any) -> None:
    if comm.rank == 0:
        threading.Thread(target=comm.allgather, args=(1,), name="second", daemon=True).start()
        comm.allgather(2)  # whichever comes first stays inside: rank 1 never comes
    while comm._ranks.failure is None:
        time.sleep(0.01)


OTHER_SIZES: dict[str, Callable[[Any], Any]] = {
    "Bcast": lambda comm: comm.Bcast(np.zeros(2 + comm.rank)),
    "Ibcast": lambda comm: wait(comm.Ibcast(np.zeros(2, np.float64 if comm.rank else np.int64))),
    "Iallgather": lambda comm: wait(comm.Iallgather(np.zeros(1 + comm.rank), np.zeros((2, 1 + comm.rank)))),
    "Scatterv": lambda comm: comm.Scatterv(None if comm.rank else [np.zeros(3), ([1, 2], [0, 1])], np.zeros(1)),
    "Gatherv": lambda comm: comm.Gatherv(np.zeros(1), None if comm.rank else [np.zeros(3), ([1, 2], [0, 1])]),
    "Gather": lambda comm: comm.Gather(np.zeros(1 + comm.rank), None if comm.rank else np.zeros(2)),
    "Reduce": lambda comm: comm.Reduce(np.zeros(1 + comm.rank), None if comm.rank else np.zeros(1)),
}
REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    *((f"collective 0 of comm: {name} of ", program) for name, program in OTHER_SIZES.items()),
    ("collective 0 of comm: rank . calls ", lambda comm: wait(comm.Ibarrier()) if comm.rank else comm.allgather(0)),
    ("calls I?[Bb]cast, ", lambda comm: comm.Bcast(np.zeros(1)) if comm.rank else wait(comm.Ibcast(np.zeros(1)))),
    ("do not fill", lambda comm: comm.rank or comm.Gather(np.zeros(2), np.zeros(2))),
    ("Reduce of", lambda comm: comm.rank or comm.Reduce(np.zeros(2), np.zeros(1))),
    ("do not fill", lambda comm: comm.rank or comm.Iallgather(np.zeros(2), np.zeros(2))),
    ("not all in", lambda comm: comm.rank or comm.Gatherv(np.zeros(2), [np.zeros(3), ([2, 2], [0, 2])])),
    ("contiguous", lambda comm: comm.rank or comm.Bcast(np.zeros(4)[::2])),
    ("contiguous", lambda comm: comm.rank or comm.Bcast([1, 2])),
    ("read-only", lambda comm: comm.Bcast(np.broadcast_to(0.0, (1,)))),
    ("rank 0 changed a buffer while a request owned it", changed),
    ("rank 0 are in MPI at once: (second and rank 0|rank 0 and second)", entered_twice),
    (r"the end: ranks \[0\] have not completed Gather", lambda comm: comm.rank and comm.Gather(np.zeros(1), None)),
]


@pytest.mark.parametrize(("words", "program"), REFUSED)
def test_what_mpi_forbids_is_refused(words: str, program: Callable[[Any], Any]) -> None:
    with pytest.raises(Mismatch, match=words):
        on(2, program)


@pytest.mark.parametrize("ended", [False, True])
def test_ranks_that_wait_for_ever_are_named_with_what_they_wait_for(ended: bool) -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            wait(comm.Ibarrier())  # polled
        elif not ended:
            queue.SimpleQueue[int]().get()

    words = r"nothing moved for 1 s: rank 0 is in .*, waits for Ibarrier, collective 0 of comm; rank 1 "
    with pytest.raises(Stuck, match=words + ("has ended" if ended else "is in program")):
        on(2, program, patience=1.0)


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_rank_that_raises_ends_all_and_its_exception_is_raised(in_a_thread: bool) -> None:
    def fail() -> None:
        raise ArithmeticError("no")

    def program(comm: Any) -> None:
        if comm.rank == 1:
            threading.Thread(target=fail).start() if in_a_thread else fail()
        while comm.rank == 0 and comm._ranks.failure is None:
            time.sleep(0.01)
        comm.allgather(0)

    with pytest.raises(ArithmeticError, match="no"):
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
    assert capsys.readouterr().err == "zofl_mpi: why\n" and seen == []


def test_a_rank_that_vanishes_is_lost_to_those_who_wait_for_it_only() -> None:
    """The others can go on: what they have of it stays, a collective without need of it is complete."""

    def program(comm: Any) -> str:
        comm.Gather(np.ones(1), np.zeros(3) if comm.rank == 0 else None)
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
