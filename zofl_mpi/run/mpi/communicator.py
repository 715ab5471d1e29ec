"""The part of an mpi4py communicator that the engine uses; anything that has it can carry a run."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Request(Protocol):
    """A collective that has begun."""

    def Test(self) -> bool:
        """Whether it is complete. Until then its buffers belong to it."""


class Communicator(Protocol):
    """Ranks 0 to size - 1 and their collectives, which all ranks call in the same order; the root is always rank 0.

    Names, arguments and meaning are those of `mpi4py.MPI.Intracomm`. Buffers are contiguous arrays; a vector of a part
    for each rank is [array, (counts, offsets)], counted in entries, and None on the ranks where it means nothing.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def Ibarrier(self) -> Request: ...

    def Ibcast(self, buffer: Any, /) -> Request: ...

    def Iallgather(self, own: Any, all_of_them: Any, /) -> Request: ...

    def Bcast(self, buffer: Any, /) -> None: ...

    def Scatterv(self, vector: Any, own: Any, /) -> None: ...

    def Gatherv(self, own: Any, vector: Any, /) -> None: ...

    def Gather(self, own: Any, stacked: Any, /) -> None: ...

    def Reduce(self, own: Any, total: Any, /) -> None: ...

    def bcast(self, value: Any, /) -> Any: ...

    def allgather(self, value: Any, /) -> list[Any]: ...

    def Abort(self, status: int, /) -> Any: ...


class Connected(Protocol):
    """A world whose ranks share a communicator."""

    @property
    def comm(self) -> Communicator: ...


def wait(request: Request) -> None:
    """Polls a request until it is complete, sleeping a tenth of the time already waited, at most 1 ms.

    A rank that waits inside MPI burns the core that its neighbour computes on.
    """
    start = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - start
        if waited > 1e-4:
            time.sleep(min(1e-3, waited / 10))
