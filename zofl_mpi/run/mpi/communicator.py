"""Communicators for the engine: calls can be wrapped, requests are polled.

All ranks call the same collectives in the same order; the root is always rank 0. Buffers are contiguous arrays. For
collectives with one part per rank they are [array, (counts, offsets)], in entries, and None on ranks that ignore them.
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
    Communicator = Request = Any  # duck-typed: tests use their own

__all__ = ["Communicator", "Request", "WrappedCommunicator", "wait", "wake_in_time"]


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


PATIENCE = 1.0  # seconds that a rank waits before it calls `meanwhile`
TIMERSLACK, LATE = 29, 1_000
"""Linux's PR_SET_TIMERSLACK, how late it may wake a sleeping thread, and the value set, in nanoseconds."""


def wake_in_time() -> None:
    """Make short sleeps of this thread and its future threads end on time, on Linux.

    By default Linux wakes threads up to 50 us late, longer than most sleeps of `wait`.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(TIMERSLACK, *(ctypes.c_ulong(value) for value in (LATE, 0, 0, 0)))


def wait(request: Request, meanwhile: Callable[[], None] | None = None) -> None:
    """Poll a request until it is complete, sleeping 1/20 of the time already waited, at most 1 ms.

    Waiting inside MPI would occupy a core that another rank may need. `meanwhile` is called at each poll after
    a second; it may use MPI.
    """
    start = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - start
        if waited > 1e-4:
            time.sleep(min(1e-3, waited / 20))
        if waited > PATIENCE and meanwhile is not None:
            meanwhile()
