"""Recovery from lost ranks by MPI's user-level failure mitigation (ULFM; Open MPI under `mpirun --with-ft ulfm`).

If a rank is lost, some calls of some ranks fail. A rank with a failed call, in any thread, gives up the round and
revokes the communicator, which makes every call of the other ranks fail, too. All ranks meet in `recover` and shrink to
a new communicator in the old order. Rank 0 sends the clients' memories, as of the round's start, to their new ranks and
repeats the round. A loss during recovery is handled like any other.

Workarounds for Open MPI:
- Errors differ between ranks, hence each counts as a loss.
- A collective in which a rank dies may return garbage without an error elsewhere. A round therefore counts only once
  all ranks agree that nobody died in it (`agree`), and any error is a loss if somebody did (`lost`).
- An agreement waits for all living ranks, revoked or not. A rank that gives up a round therefore joins the agreement in
  which others may already wait.
- Abort and Finalize hang after a loss. A rank that ends the run therefore kills itself, and a normal end is a barrier,
  which may fail, followed by _exit.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast, final

import numpy as np

from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Client, failure
from zofl_mpi.engine.watch import Watch
from zofl_mpi.engine.world import Ended, Faults
from zofl_mpi.run.loop.client_memory import Memory
from zofl_mpi.run.mpi.communicator import Communicator, WrappedCommunicator

TIMEOUT = 20.0
"""Seconds for recovery, and for the end, beyond the longest round: ranks may still be computing."""
TRIES = 20
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "prte", "prted")
NEWS = 2.0  # seconds until every rank knows of a loss
LOST_EARLY = "another rank is lost and --survive takes losses from the first round on; start the command again"


class RanksLost(Exception):
    """Ranks are lost: abandon this round and regroup the remaining ranks.

    Raised with --survive only; otherwise the launcher ends all ranks.
    """


@final
class Survival:
    """Remaining ranks, and their regrouping after a loss, which calls report by `faults`."""

    def __init__(self, comm: Communicator, faults: Faults, watch: Watch) -> None:
        self.comm, self.faults = comm, faults  # remaining ranks, at first all
        self.alive = list(range(comm.size))  # their ranks at the start
        self._rank, self._watch, self._disagreed = comm.rank, watch, False

    def guarded(self) -> Communicator:
        """Communicator of the remaining ranks; raises RanksLost if one of them is gone."""

        def make(name: str, call: Callable[..., Any], arguments: Any) -> Any:
            try:
                return call(*arguments)
            except self.faults as exc:
                raise RanksLost(f"{name}: {exc}") from exc

        return cast(Communicator, WrappedCommunicator(self.comm, make))

    def recover(self) -> list[int]:
        """Regroup with the remaining ranks; return the lost ones. Raises Ended if rank 0 is lost."""
        alarm = _after(TIMEOUT + self._watch.longest, self._give_up)
        comm, before = self.comm, self.alive
        with suppress(*self.faults):
            comm.Revoke()
        if not self._disagreed:  # others may wait in `agree` for this rank
            with suppress(*self.faults):
                comm.Agree(0)
        self._disagreed = False
        for _ in range(TRIES):
            try:
                comm.Revoke()
                comm = comm.Shrink()
            except self.faults:  # the others consider this rank lost
                self._give_up()
            try:
                self.alive, complete = comm.allgather(self._rank), True
            except Exception:  # one more rank is lost, or the answer is garbage
                complete = False
            with suppress(*self.faults):
                if comm.Agree(int(complete)):
                    break
        else:
            self._give_up()
        self.comm = comm
        alarm.cancel()
        self._watch.others = [rank for rank in self.alive if rank]
        if self.alive[0] != 0:
            if comm.rank == 0:
                _say(f"rank 0, which leads the run, is lost; {self._watch.remedy()}")
            raise Ended(1)
        return [rank for rank in before if rank not in self.alive]

    def agree(self) -> None:
        """Return on all ranks if none is lost; otherwise raise RanksLost on all."""
        with suppress(*self.faults):
            if self.comm.Agree(1):
                return
        self._disagreed = True
        raise RanksLost("some have been lost")

    def lost(self, exc: Exception) -> bool:
        """True if a lost rank may have caused an exception; waits a moment for the report."""
        deadline = time.monotonic() + NEWS
        while not (isinstance(exc, RanksLost) or self.comm.Is_revoked() or self.comm.Get_failed().size):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def leave(self, status: int) -> NoReturn:
        """End this process together with the others by a barrier and _exit; see the module's docstring."""
        _after(TIMEOUT, lambda: _exit(status))
        with suppress(*self.faults):
            self.comm.Barrier()
        _exit(status)

    def _give_up(self) -> None:
        _say(f"rank {self._rank} cannot reach the remaining ranks; {self._watch.remedy()}")
        end_stuck()


def changed(
    clients: Mapping[int, Client], to: Iterable[int], known: dict[int, bytes]
) -> tuple[dict[int, messages.Bytes], Any]:
    """Pack the memories of clients in `to` that live here and differ from the server's copies.

    Returns {i: packed memory} and, if one cannot be packed, (i, failure). `known` holds checksums of the server's
    copies and is updated.
    """
    packed: dict[int, messages.Bytes] = {}
    for i in to:
        if i not in clients or not (clients[i].memory or i in known):
            continue
        try:
            memory = messages.prepare(Memory(clients[i].memory))
            checksum = hashlib.blake2b(memory.header, digest_size=16)
            for array in memory.arrays:
                checksum.update(np.asarray(messages.as_array(array)).tobytes())
            if known.get(i) != checksum.digest():
                packed[i], known[i] = memory.packed(), checksum.digest()
        except Exception as exc:  # a user's method may remember anything
            return {}, (i, failure(0, exc))
    return packed, None


def _after(seconds: float, act: Callable[[], None]) -> threading.Timer:
    """Call `act` in another thread after `seconds`, unless the timer is cancelled."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


def end_all(alone: bool = False) -> NoReturn:
    """End this process; the others notice, and continue unless it was rank 0."""
    sys.stdout.flush()
    if not alone:
        os.kill(os.getpid(), signal.SIGKILL)
    _exit(1)


def end_stuck() -> NoReturn:
    """End this process and, through the launcher, stuck ones that would keep the job alive, such as stopped ranks."""
    sys.stdout.flush()
    with suppress(OSError):
        launcher = os.getppid()
        if Path(f"/proc/{launcher}/comm").read_text().strip() in LAUNCHERS:
            os.kill(launcher, signal.SIGTERM)
            time.sleep(NEWS)
    end_all()


def _say(sentence: str) -> None:
    sys.stdout.flush()
    print(f"zofl_mpi: {sentence}", file=sys.stderr, flush=True)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
