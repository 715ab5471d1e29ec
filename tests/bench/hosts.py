"""How near the engine comes to a link's rate: 64 MB from each of two hosts to the server on a third.

python -m tests.bench.hosts                  # as root: hosts are network namespaces with links of 1 Gbit/s
"""

import argparse
import functools
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.conftest import run_process
from tests.threads import serve_or_ask
from tests.tools.hosts import RATE, hosts, pythons, why_not
from zofl_mpi.engine.clients import Client
from zofl_mpi.run.mpi.world import MPIWorld

SIZE = 64_000_000


@dataclass(frozen=True)
class Wish:
    size: int


@dataclass(frozen=True)
class Vector:
    a: np.ndarray[Any, np.dtype[np.uint8]]


class Steps:
    def send(self, client: Client, message: Wish) -> Vector:
        return made(message.size)


@functools.cache
def made(size: int) -> Vector:
    """A reply that is made once: what is measured is its way, not its making."""
    return Vector(np.full(size, 1, np.uint8))


def rank(turns: int) -> None:
    """One rank's part; the server prints what came out."""
    steps, world = Steps(), MPIWorld.connect()
    clients = world.size - 1

    def program(ask: Any) -> list[float]:
        found = []
        for _ in range(turns + 1):
            since = time.perf_counter()
            assert sum(reply.a.size for _, reply in ask.ask(steps.send, Wish(SIZE))) == clients * SIZE
            found.append(time.perf_counter() - since)
        return found[1:]

    seconds = serve_or_ask(world, steps, [None] * clients, program)
    if seconds:
        rates = [8 * clients * SIZE / each / RATE for each in seconds]
        print(
            f"{world.library}: {clients} x {SIZE / 1e6:.0f} MB in {statistics.median(seconds):.2f} s: "
            f"{statistics.median(rates):.0%} of the link (of {turns}: {min(rates):.0%} to {max(rates):.0%})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank(given.turns)
        return
    if reason := why_not():
        sys.exit(reason)
    with hosts(3) as three:
        for mpi, python in pythons().items():
            words = ["-m", "tests.bench.hosts", "--rank", "--turns", given.turns]
            done = run_process(three.command(mpi, python, 3, *words), 300, env=dict(three.variables(mpi)))
            print(done.stdout.strip() or done.stderr)


if __name__ == "__main__":
    main()
