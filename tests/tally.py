"""Transport bytes as the stand-in communicator sees them, beside those that a run counts: see `run.mpi.transport`."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from tests.communicator import Communicator
from zofl_mpi.run.mpi.server import MPIClients

Sizes = dict[str, tuple[int, int]]  # {collective: bytes that this rank hands in for others, and takes of theirs}


def _nbytes(buffer: Any) -> int:
    return int(np.asarray(buffer).nbytes)


def _of_others(vector: Any) -> int:
    """Bytes of the other ranks' parts in rank 0's vector [array, (counts, offsets)]."""
    array, (counts, _) = vector
    return int(np.asarray(array).itemsize) * sum(counts[1:])


def _down(root: bool, buffer: Any) -> tuple[int, int]:
    return (_nbytes(buffer), 0) if root else (0, _nbytes(buffer))


BUFFERS: dict[str, Callable[..., tuple[int, int]]] = {
    "Ibcast": _down,
    "Bcast": _down,
    "Iallgather": lambda root, own, stacked: (_nbytes(own), _nbytes(stacked) - _nbytes(own)),
    "Scatterv": lambda root, vector, own: (_of_others(vector), 0) if root else (0, _nbytes(own)),
    "Gatherv": lambda root, own, vector: (0, _of_others(vector)) if root else (_nbytes(own), 0),
    "Gather": lambda root, own, stacked: (0, _nbytes(stacked) - _nbytes(own)) if root else (_nbytes(own), 0),
    "Reduce": lambda root, own, total: (0, _nbytes(total)) if root else (_nbytes(own), 0),
}


class Tally:
    """What each rank handed in and took out, and what the run counted."""

    def __init__(self) -> None:
        self.moved: dict[int, Any] = defaultdict(lambda: np.zeros(2, np.int64))
        self.calls, self.counted = Counter[str](), np.zeros((2, 0), np.int64)
        self.lock = threading.Lock()

    def by_rank(self) -> Any:
        """(2, ranks) as `counted`."""
        return np.stack([self.moved[rank] for rank in range(self.counted.shape[1])], axis=1)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Counts in each collective of buffers, and keeps all that the server's accounts and its end have counted."""
    tally, take, close = Tally(), MPIClients._transport, MPIClients.close

    def counting(name: str) -> Callable[..., Any]:
        call, sizes = getattr(Communicator, name), BUFFERS[name]

        def counted(self: Communicator, *given: Any) -> Any:
            if self.size > 1:
                with tally.lock:
                    tally.moved[self._own] += sizes(self.rank == 0, *given)
                    tally.calls[name] += 1
            return call(self, *given)

        return counted

    def taken(self: MPIClients) -> Any:
        found = take(self)
        total = found.sum(axis=0)
        tally.counted = total + (tally.counted if tally.counted.size else 0)
        return found

    def closed(self: MPIClients, status: int = 0) -> None:
        close(self, status)
        taken(self)

    calls: dict[str, Any] = {name: counting(name) for name in BUFFERS}
    with (
        mock.patch.multiple(Communicator, **calls),
        mock.patch.multiple(MPIClients, _transport=taken, close=closed),
    ):
        yield tally
