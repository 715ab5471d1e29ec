"""One body of tests for every transport: a program gives the same on `LocalClients` and on `MPIClients`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def both() -> Callable[..., tuple[Any, Any] | None]:
    """both(method, data, program): (program's result on LocalClients, on MPIClients) at rank 0, None on the others.

    Assertions belong behind `if result:`: one that fails at rank 0 aborts all ranks (tests/conftest.py), and the
    others, which by then wait in the next test, cannot hang.
    """
    from zofl_mpi.run.local import LocalClients
    from zofl_mpi.run.mpi.client import ClientRank
    from zofl_mpi.run.mpi.server import MPIClients
    from zofl_mpi.run.mpi.world import MPIWorld

    world = MPIWorld.connect()

    def run(method: Any, data: list[Any], program: Callable[[Any], Any]) -> tuple[Any, Any] | None:
        if world.rank:
            own = {i: d for i, d in enumerate(data) if 1 + i % (world.size - 1) == world.rank}
            assert ClientRank(world, method, own).serve() == 0
            return None
        clients = MPIClients(world, len(data))
        result = program(clients)
        clients.close()
        return program(LocalClients(data)), result

    return run
