"""Lost ranks survived, by MPI's user-level failure mitigation (ULFM; Open MPI under `mpirun --with-ft ulfm`).

Where a rank is gone, some calls of some ranks fail. Whoever meets a failure, in whichever thread, gives up what is
under way and revokes the communicator, by which every call of every other rank fails, too. So all come to `recover`,
where the rest shrinks to a new communicator, in the order of the old one. Rank 0 decides what is done next: it gives
the clients' memories as they were at the round's start to their new ranks, and begins the round again. Only what it has
got of all ranks counts, so nobody else has anything to undo. A loss in the middle of this is one more failure.

What the library does badly is allowed for. Its errors differ from rank to rank, so each counts as a loss. A collective
in which a rank dies may end without an error and with garbage at another, so a round counts only once all ranks agree
that nobody died in it (`agree`), and any mistake is a loss if somebody did (`lost`). An agreement waits for all that
are alive, revoked or not: who gives up a round takes part in the one that the others may already wait in. One rank's
Abort and MPI's end (Finalize) hang after a loss, so a rank that ends all kills itself, and the end is a barrier, which
may fail, and _exit.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast, final

import numpy as np

from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Client, failure
from zofl_mpi.engine.setting import Loads
from zofl_mpi.engine.staging import Staging
from zofl_mpi.engine.watch import Watch
from zofl_mpi.engine.world import Ended
from zofl_mpi.run.client_memory import Memory
from zofl_mpi.run.mpi.communicator import Communicator, Connected, Mortal, RanksLost
from zofl_mpi.run.mpi.wire import Wire

TIMEOUT = 20.0
"""Seconds for the rest to come together, and for the end, beyond those of the longest round so far: a rank that is
computing comes when it has done so."""
TRIES = 20
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "prte", "prted")
NEWS = 2.0
"""Seconds after which every rank knows of a loss."""


class _Guarded:
    """A communicator, or a request, that raises RanksLost in place of whatever the library raises."""

    def __init__(self, inner: Any, faults: tuple[type[Exception], ...]) -> None:
        self._inner, self._faults = inner, faults
        self.rank, self.size = getattr(inner, "rank", 0), getattr(inner, "size", 0)

    def __getattr__(self, name: str) -> Any:
        call, faults = getattr(self._inner, name), self._faults

        def guarded(*arguments: Any) -> Any:
            try:
                result = call(*arguments)
            except faults as exc:
                raise RanksLost(f"{name}: {exc}") from exc
            return _Guarded(result, faults) if hasattr(result, "Test") else result

        self.__dict__[name] = guarded
        return guarded


@final
class Survival:
    """Ranks that are left.

    Args:
        comm: all ranks.
        faults: what its calls raise where ranks are lost.
        watch: ends this rank if the others cannot be found again.

    Attributes:
        comm: the ranks that are left.
        alive: their numbers at the start, by rank.
    """

    def __init__(self, comm: Communicator, faults: tuple[type[Exception], ...], watch: Watch) -> None:
        self.comm, self.faults = cast(Mortal, comm), faults
        self.alive = list(range(comm.size))
        self._rank, self._watch, self._disagreed = comm.rank, watch, False

    def guarded(self) -> Communicator:
        """The ranks that are left; raises RanksLost where one of them is gone."""
        return cast(Communicator, _Guarded(self.comm, self.faults))

    def recover(self) -> list[int]:
        """Comes together with the ranks that are left; returns which are lost.

        Raises:
            Ended: rank 0 is lost, which has been told.
        """
        self._watch.arm(TIMEOUT + self._watch.longest, self._give_up)
        comm, before = self.comm, self.alive
        with suppress(*self.faults):
            comm.Revoke()
        if not self._disagreed:  # others may stand in `agree`, which only all of them together can leave
            with suppress(*self.faults):
                comm.Agree(0)
        self._disagreed = False
        for _ in range(TRIES):
            try:
                comm.Revoke()
                comm = comm.Shrink()
            except self.faults:  # the others count this rank as lost
                self._give_up()
            try:
                self.alive, found = comm.allgather(self._rank), True
            except Exception:  # one more is lost, or what came is garbage
                found = False
            with suppress(*self.faults):
                if comm.Agree(int(found)):
                    break
        else:
            self._give_up()
        self.comm = comm
        self._watch.disarm()
        self._watch.others = [rank for rank in self.alive if rank]
        if self.alive[0] != 0:
            if comm.rank == 0:
                self._say(f"rank 0, which leads the run, is lost; {self._watch.remedy()}")
            raise Ended(1)
        return [rank for rank in before if rank not in self.alive]

    def agree(self) -> None:
        """Returns on all ranks, if none of them has been lost, or else on none.

        Raises:
            RanksLost: some have been lost.
        """
        with suppress(*self.faults):
            if self.comm.Agree(1):
                return
        self._disagreed = True
        raise RanksLost("some have been lost")

    def lost(self) -> bool:
        """Whether something that went wrong may be due to a loss; the news of one takes a moment."""
        deadline = time.monotonic() + NEWS
        while not self.comm.Is_revoked() and not self.comm.Get_failed().size:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def leave(self, status: int) -> NoReturn:
        """Ends this process with the others; see above."""
        self._watch.arm(TIMEOUT, lambda: _exit(status))
        with suppress(*self.faults):
            self.comm.Barrier()
        _exit(status)

    def _give_up(self) -> None:
        self._say(f"rank {self._rank} cannot find the ranks that are left; {self._watch.remedy()}")
        end_stuck()

    def _say(self, sentence: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"zofl_mpi: {sentence}\n")
        sys.stderr.flush()


@final
class Changes:
    """Which memories of a rank's clients are no longer what the server holds of them."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}

    def of(self, clients: Mapping[int, Client], to: Iterable[int]) -> tuple[dict[int, messages.Bytes], Any]:
        """The changed memories, packed, of those of `to` that are among `clients`; and (i, failure) if one cannot be.

        Untouched clients cost nothing, memories that did not change a checksum.
        """
        packed: dict[int, messages.Bytes] = {}
        for i in to:
            if i not in clients or not (clients[i].memory or i in self._known):
                continue
            try:
                memory = Memory(clients[i].memory)
                checksum = _checksum(memory)
                if self._known.get(i) != checksum:
                    block, used = messages.pack(memory)
                    packed[i], self._known[i] = block[:used], checksum
            except Exception as exc:  # what a client remembers is the user's
                return {}, (i, failure(0, exc))
        return packed, None


def _checksum(memory: Memory) -> bytes:
    """Of what a memory holds; not of its packed form, in which gaps are left as they are."""
    found = hashlib.blake2b(digest_size=16)
    for path, value in messages.leaves(memory):
        array = messages.as_array(value)
        found.update(repr((path, value if array is None else (array.dtype.str, array.shape))).encode())
        if array is not None:
            found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def end_all(alone: bool = False) -> NoReturn:
    """Ends this process; the others, who find it gone, go on if it was not rank 0."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not alone:
        os.kill(os.getpid(), signal.SIGKILL)
    _exit(1)


def end_stuck() -> NoReturn:
    """Ends this process, and by the launcher those that are stuck and would keep the job: stopped ranks, above all."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        launcher = os.getppid()
        if Path(f"/proc/{launcher}/comm").read_text().strip() in LAUNCHERS:
            os.kill(launcher, signal.SIGTERM)
            time.sleep(NEWS)
    end_all()


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def connected(world: Connected, watch: Watch | None, loads: Loads | None, staging: Staging) -> Wire:
    """The wire of a rank that has its clients still to ask or to answer for."""
    comm = world.comm if world.survival is None else world.survival.guarded()
    return Wire(comm, None if watch is None else reporting(watch, comm.rank), loads, staging)


def reporting(watch: Watch, rank: int) -> Callable[[Communicator], None]:
    """Tells rank 0, from a rank that waits long, that it is not the late one; rank 0 listens."""
    told = 0

    def report(comm: Communicator) -> None:
        nonlocal told
        if not watch.overdue:
            return
        if rank == 0:
            while comm.iprobe():
                watch.waits(*comm.recv())
        elif told != watch.round:
            told = watch.round
            comm.isend((rank, watch.round), 0)

    return report
