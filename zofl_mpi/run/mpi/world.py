"""The ranks of a run, and how all of them end together. The only place that imports mpi4py."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any, final

from zofl_mpi.run.mpi.communicator import Communicator, wait
from zofl_mpi.run.world import refuse_singletons


@final
class MPIWorld:
    """All ranks of a communicator: a `run.world.World` whose ranks can also ask each other (`run.mpi.wire`).

    Args:
        comm: all ranks; nobody else may use it.
        node: the ranks of this rank's node.
        library: name and version of what carries the messages.
    """

    def __init__(self, comm: Communicator, node: Communicator, library: str) -> None:
        self.comm, self._node, self.library = comm, node, library
        self.rank, self.size = comm.rank, comm.size

    @classmethod
    def connect(cls) -> MPIWorld:
        """All processes that the launcher started, through a clone of COMM_WORLD: our traffic cannot meet a user's.

        From now on an exception in any thread of this process ends all ranks.

        Raises:
            UserError: alone, although a launcher started several processes.
            RuntimeError: the MPI library does not let two threads take turns.
        """
        import mpi4py

        mpi4py.rc.thread_level = "serialized"  # must be asked for before MPI starts, which is with its import
        from mpi4py import MPI

        refuse_singletons(MPI.COMM_WORLD.size, os.environ)
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError(
                f"this MPI gives thread level {MPI.Query_thread()}; zofl_mpi needs MPI_THREAD_SERIALIZED"
            )
        comm = MPI.COMM_WORLD.Dup()
        library = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")
        world = cls(comm, comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank), library)
        threading.excepthook = world._abort_for_thread
        return world

    def bcast(self, value: Any) -> Any:
        """Rank 0's value on all ranks."""
        wait(self.comm.Ibarrier())
        return self.comm.bcast(value)

    def allgather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on all ranks."""
        wait(self.comm.Ibarrier())
        return self.comm.allgather(value)

    def neighbours(self, value: Any) -> tuple[int, list[Any]]:
        """This rank's place on its node, and the values of the ranks there."""
        wait(self._node.Ibarrier())
        return self._node.rank, self._node.allgather(value)

    def abort(self, text: str) -> None:
        """Prints the text and ends all ranks at once, with a non-zero status that the launcher chooses."""
        sys.stdout.flush()
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()
        self.comm.Abort(1)

    def _abort_for_thread(self, args: threading.ExceptHookArgs) -> None:
        trace = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
        self.abort(f"zofl_mpi: rank {self.rank} failed in its communication thread:\n{trace}")
