"""Check this machine for runs: MPI library, hosts and devices of the ranks, times of real messages.

mpirun -n 4 python -m zofl_mpi.doctor
"""

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, final

import numpy as np

from zofl_mpi.engine import device
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.world import World, speaks_first
from zofl_mpi.errors import UserError, output_fails, plain, plain_lines, printing, refused
from zofl_mpi.run.loop.screen import columns, show
from zofl_mpi.run.mpi import binding
from zofl_mpi.run.mpi.world import MPIWorld, connect

SIZES = (1, 7_840, 1_000_000)
"""Vector lengths of the timed messages: one number, [A]'s model for MNIST, 4 MB."""


@final
@dataclass(frozen=True)
class EchoedVector:
    """Message with a vector, to a client and back."""

    a: np.ndarray[Any, np.dtype[np.float32]]


@final
class Echo:
    """Method for the timed exchanges: clients return the vector they receive."""

    def echo(self, client: Client, message: EchoedVector) -> EchoedVector:
        """Step: returns the message."""
        return message


@printing
def main(words: list[str] | None = None) -> int:
    """Print the findings; exit status 2 if the ranks cannot work together."""
    about, _, usage = (__doc__ or "").partition("\n\n")
    epilog = f"Start it as you start a run: {usage.strip()}"
    parser = argparse.ArgumentParser(prog="python -m zofl_mpi.doctor", description=about, epilog=epilog)
    parser.parse_args(words)
    try:
        world = connect()
        placements = binding.bind(world, "auto", gpu=True)
    except UserError as exc:
        return refused(exc, speaks_first())
    try:
        _examine(world, placements)
    except (OSError, UserError) as exc:
        if world.size == 1:
            raise
        if output_fails():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        world.abort(f"zofl_mpi: the check cannot go on: {plain(exc)}")  # else the other ranks would wait for this one
    return 0


def _examine(world: World, placements: Sequence[binding.RankPlacement]) -> None:
    """Print the findings, then time exchanges."""
    names = world.allgather(device.describe(placements[world.rank].device))
    lacking = world.allgather([name for name in ("squeue", "scontrol") if shutil.which(name) is None])
    if world.rank == 0:
        versions = f"zofl_mpi {metadata.version('zofl_mpi')}, Python {platform.python_version()}"
        show(plain(f"{versions}, MPI: {world.library}"))
        others = [{"name": name, "blas": place.blas} for name, place in zip(names, placements, strict=True)]
        rows = [place.row(rank, int(place.client)) | others[rank] for rank, place in enumerate(placements)]
        show(plain_lines(binding.listed(rows, columns())))
        for sentence in binding.warnings_of(placements):
            show(plain(f"warning: {sentence}"))
        show(plain(slurm(os.environ, [place.host for place in placements], lacking)))
        if world.size == 1:
            show("one process: no exchange to try; start it with mpirun -n 4")
        sys.stdout.flush()  # an exchange may hang
    if world.size > 1:
        _exchange(world)


def slurm(environment: Mapping[str, str], hosts: Sequence[str], lacking: Sequence[Sequence[str]]) -> str:
    """Sentence on whether a job can requeue itself.

    By rank: its node (`hosts`), and the Slurm commands missing there (`lacking`).
    """
    if "SLURM_JOB_ID" not in environment:
        return "Slurm: this is no job; whether one can put itself back into the queue shows on the nodes that it gets"
    job = f"Slurm: job {environment['SLURM_JOB_ID']}"
    poor = {host: words for host, words in zip(hosts, lacking, strict=True) if words}
    lack = "; ".join(f"no {' and no '.join(words)} on {host}" for host, words in poor.items())
    if not any("scontrol" in words for words in poor.values()):  # all that the scripts of jobs/ need
        return f"{job} can put itself back into the queue" + (f" ({lack}, which jobs/ does without)" if lack else "")
    return (
        f"{job} cannot put itself back into the queue ({lack}): its log then says how to continue; ask for these "
        "commands on the compute nodes, or for RequeueExit=75 in slurm.conf"
    )


def _exchange(world: World) -> None:
    """Time a question of each size to one client per rank, and print the best of five."""
    from zofl_mpi.run.mpi.client import ClientRank
    from zofl_mpi.run.mpi.server import MPIClients

    assert isinstance(world, MPIWorld)
    method, m = Echo(), world.size - 1
    if world.rank:
        ClientRank(world, method, [None] * m).serve()
        return
    clients = MPIClients(world, m)
    for size in SIZES:
        vector, best = EchoedVector(np.arange(size, dtype=np.float32)), np.inf
        for _ in range(5):
            since = time.perf_counter()
            good = all(np.array_equal(reply.a, vector.a) for _, reply in clients.ask(method.echo, vector))
            best = min(best, time.perf_counter() - since)
            if not good:
                raise UserError("a client returned another vector than it was sent: check the MPI library and network")
        show(f"{size * 4:>9,} B to {m} clients and back: {best * 1e3:8.2f} ms")
    clients.close()


if __name__ == "__main__":
    from zofl_mpi.doctor import main as run  # the messages' class under its real name

    sys.exit(run())
