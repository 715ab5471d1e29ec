"""The twin of a communicator is as strict as MPI is at its strictest, and what would hang there is an error here."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fates import Mismatch, RankLost, Vanished
from tests.threads import run_ranks
from zofl_mpi.run.mpi.communicator import wait


def on(size: int, program: Callable[[Any], Any]) -> list[Any]:
    """`run_ranks` with the communicator in place of the world."""
    return run_ranks(size, lambda world: program(world.comm))


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


def test_what_a_request_will_fill_is_spoilt_until_it_is_complete() -> None:
    def program(comm: Any) -> tuple[bool, float]:
        buffer = np.full(1, 7.0 + comm.rank)
        request = comm.Ibcast(buffer)
        spoilt = float(buffer[0]) not in (7.0, 8.0)
        wait(request)
        return spoilt, float(buffer[0])

    assert on(2, program) == [(False, 7.0), (True, 7.0)]


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
