"""Communicators as the engine uses them: calls that may be wrapped, requests that are polled.

All ranks call the same collectives in the same order; the root is always rank 0. Buffers are contiguous arrays; a
vector of a part for each rank is [array, (counts, offsets)], counted in entries, and None on the ranks where it means
nothing.
"""

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py.MPI import Comm as Communicator
    from mpi4py.MPI import Request
else:
    Communicator = Request = Any  # anything with their methods can carry a run, as that of `tests.communicator`

__all__ = ["Communicator", "RanksLost", "Request", "WrappedCommunicator", "wait", "wake_in_time"]


class RanksLost(Exception):
    """Ranks are lost: abandon this round and regroup the remaining ranks.

    With --survive only; otherwise the launcher ends all ranks.
    """


class WrappedCommunicator:
    """Wrapper of a communicator, its requests and parts: every call goes through `make(name, call, arguments)`."""

    def __init__(self, inner: Any, make: Callable[[str, Callable[..., Any], Any], Any]) -> None:
        self._inner, self._make = inner, make
        self.rank, self.size = getattr(inner, "rank", 0), getattr(inner, "size", 0)

    def __getattr__(self, name: str) -> Any:
        call, make = getattr(self._inner, name), self._make

        def made(*arguments: Any) -> Any:
            result = make(name, call, arguments)
            return WrappedCommunicator(result, make) if hasattr(result, "Test") or name == "Split" else result

        self.__dict__[name] = made
        return made


PATIENCE = 1.0  # seconds that a rank waits before it does anything else
TIMERSLACK, LATE = 29, 1_000
"""Linux's number for how late a sleeping thread may be woken (PR_SET_TIMERSLACK), and the nanoseconds allowed."""


def wake_in_time() -> None:
    """Makes short sleeps of this thread, and of those that it will start, end in time, on Linux.

    Linux wakes a thread up to 50 us late, longer than most sleeps of `wait`; a round of small models has half a dozen.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(TIMERSLACK, *(ctypes.c_ulong(value) for value in (LATE, 0, 0, 0)))


def wait(request: Request, meanwhile: Callable[[], None] | None = None) -> None:
    """Polls a request until it is complete, sleeping a twentieth of the time already waited, at most 1 ms.

    A rank that waits inside MPI burns the core that its neighbour computes on. `meanwhile`, called at each poll after a
    second, may use MPI, too.
    """
    start = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - start
        if waited > 1e-4:
            time.sleep(min(1e-3, waited / 20))
        if waited > PATIENCE and meanwhile is not None:
            meanwhile()
