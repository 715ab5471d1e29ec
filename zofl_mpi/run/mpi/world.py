"""The ranks of a run, and how all of them end together."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import Any, final

import mpi4py

from zofl_mpi.run.world import refuse_singletons

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI as MPI  # noqa: E402  (the thread level must be asked for before MPI starts)


def wait(request: MPI.Request) -> None:
    """Polls, sleeping a tenth of the time already waited, at most 1 ms.

    A rank that waits inside MPI burns the core that its neighbour computes on.
    """
    start = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - start
        if waited > 1e-4:
            time.sleep(min(1e-3, waited / 10))


@final
class MPIWorld:
    """All ranks, through a clone of COMM_WORLD, so that the library's traffic cannot meet a user's.

    Raises:
        UserError: alone, although a launcher started several processes.
        RuntimeError: the MPI library does not let two threads take turns.
    """

    def __init__(self) -> None:
        refuse_singletons(MPI.COMM_WORLD.size, os.environ)
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError(
                f"this MPI gives thread level {MPI.Query_thread()}; zofl_mpi needs MPI_THREAD_SERIALIZED"
            )
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.library = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")
        threading.excepthook = self._thread_failed

    def share(self, value: Any) -> Any:
        """Rank 0's value on all ranks."""
        wait(self.comm.Ibarrier())
        return self.comm.bcast(value)

    def collect(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on all ranks."""
        wait(self.comm.Ibarrier())
        return self.comm.allgather(value)

    def neighbours(self, value: Any) -> tuple[int, list[Any]]:
        """This rank's place on its node, and the values of the ranks there."""
        local = self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        found = (local.rank, local.allgather(value))
        local.Free()
        return found

    def abort(self, text: str) -> None:
        """Prints the text and ends all ranks at once, with a non-zero status that the launcher chooses."""
        sys.stdout.flush()
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()
        self.comm.Abort(1)

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        trace = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
        self.abort(f"zofl_mpi: rank {self.rank} failed in its communication thread:\n{trace}")
