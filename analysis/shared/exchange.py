"""Measured costs of the engine's questions without computation, the inputs of a model of a round's time.

Each is measured as a method poses it, packing, threads and accounts included, since on one machine these cost more than
the messages themselves.
"""

import platform
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, final

import numpy as np

from zofl_mpi.engine import device
from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.world import World
from zofl_mpi.errors import UserError

Array = np.ndarray[Any, np.dtype[np.float32]]

LARGE = 4_000_000
"""Bytes of the vectors from which bandwidths are measured."""
STREAM = 16
"""Uploads of a client in one question; also the clients of a rank that has several."""
ALONE = 36_000
"""Bytes of an upload that goes in a wave of its own: of two, more than a wave takes."""
LEAST, MOST, LONG = 3, 15, 1.0
"""Repeats of each question: at least, at most, and no more after so many seconds."""


@final
@dataclass(frozen=True)
class Parcel:
    """A vector on its way to a client, and how much is to come back."""

    a: Array
    uploads: int = 0
    numbers: int = 1


@final
@dataclass(frozen=True)
class Upload:
    """A vector on its way to the server."""

    a: Array


@final
class Post:
    """A method whose clients send as many numbers as they are asked for."""

    def reply(self, client: Client, message: Parcel) -> Upload:
        """Step: so many numbers."""
        return Upload(np.ones(message.numbers, np.float32))

    def stream(self, client: Client, message: Parcel) -> Generator[Upload, None, Upload]:
        """Step: so many uploads of so many numbers each, and a reply."""
        for _ in range(message.uploads):
            yield Upload(np.ones(message.numbers, np.float32))
        return Upload(np.ones(message.numbers, np.float32))

    def compute(self, client: Client, message: Parcel) -> Upload:
        """Step: some arithmetic."""
        return Upload(arithmetic()[:1])


def arithmetic() -> Array:
    """(10,) numbers from some hundredths of a second of softmax regression's steps: gathers and small products."""
    data, w = np.ones((2_000, 784), np.float32), np.full((784, 10), 1e-3, np.float32)
    rows = np.arange(64) * 31
    for k in range(400):
        x = data[(rows + k) % 2_000]
        w -= 1e-6 * (x.T @ (x @ w))
    end: Array = w[0]
    return end


class Cost(NamedTuple):
    """Cost of one kind of question: `fixed` seconds, and seconds `per_byte` of the part that `KINDS` names."""

    fixed: float
    per_byte: float = 0.0


KINDS = {
    "ask": "a question to one client on each rank and its replies; a byte of its message",
    "reply": "a reply more on each rank; a byte of all replies",
    "upload": "a wave more: an upload of one client on each rank, its bytes aside",
    "mean": "a mean over one client on each rank; a byte of a reply",
    "account": "the accounts at a round's end",
    "alone": "some arithmetic of one rank",
    "together": "the same of all ranks at once, the server's too",
}


def measure(clients: Clients, method: Post, ranks: int) -> dict[str, Cost]:
    """The cost of each of KINDS; rank 0's part.

    Args:
        clients: STREAM on each of the client ranks.
        ranks: P, those that have clients.
    """
    one, small, large = range(ranks), np.ones(1, np.float32), np.ones(LARGE // 4, np.float32)

    def asked(step: Any, message: Parcel, to: range = one) -> float:
        return _usual(lambda: _exhaust(clients.ask(step, message, to=to)))

    def meant(numbers: int) -> float:
        return _usual(lambda: clients.mean(method.reply, Parcel(small, numbers=numbers), to=one))

    ask = asked(method.reply, Parcel(small))
    down = asked(method.reply, Parcel(large))
    up = asked(method.reply, Parcel(small, numbers=large.size))
    many = asked(method.reply, Parcel(small), range(STREAM * ranks))
    stream = asked(method.stream, Parcel(small, STREAM, ALONE // 4))
    byte = max(up - ask, 0.0) / (LARGE * ranks)
    mean, large_mean = meant(1), meant(large.size)
    account = _usual(lambda: clients.account())

    def together() -> None:
        replies = clients.ask(method.compute, Parcel(small), to=one)
        arithmetic()
        _exhaust(replies)

    return {
        "ask": Cost(ask, max(down - ask, 0.0) / LARGE),
        "reply": Cost(max(many - ask, 0.0) / (STREAM - 1), byte),
        "upload": Cost(max((stream - ask) / STREAM - ALONE * ranks * byte, 0.0)),
        "mean": Cost(mean, max(large_mean - mean, 0.0) / LARGE),
        "account": Cost(account),
        "alone": Cost(_usual(arithmetic)),
        "together": Cost(_usual(together)),
    }


def _exhaust(replies: Iterator[Any]) -> None:
    for _ in replies:
        pass


def _usual(act: Callable[[], Any]) -> float:
    """The median seconds of an act, its first time aside."""
    act()
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < LONG):
        since = time.perf_counter()
        act()
        times.append(time.perf_counter() - since)
    return median(times)


def place() -> dict[str, Any]:
    """Where this rank computes: its host, processor and number of cores."""
    return {"host": platform.node(), "processor": processor(), "cores": len(device.cores())}


def processor() -> str:
    """The processor's name, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def exchange(world: World) -> dict[str, Cost]:
    """The cost of each of KINDS between the ranks of a world, at rank 0; empty elsewhere. All ranks call it.

    Raises:
        UserError: there is one process only.
    """
    from zofl_mpi.run.mpi.client import ClientRank
    from zofl_mpi.run.mpi.server import MPIClients
    from zofl_mpi.run.mpi.world import MPIWorld

    if not isinstance(world, MPIWorld):
        raise UserError("one process has nobody to exchange messages with; start it with mpirun -n 4")
    method, ranks = Post(), world.size - 1
    m = STREAM * ranks
    if world.rank:
        ClientRank(world, method, [None] * m).serve()
        return {}
    clients = MPIClients(world, m, method=method)
    costs = measure(clients, method, ranks)
    clients.close()
    return costs
