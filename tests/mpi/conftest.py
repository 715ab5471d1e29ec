"""The engine's contract under mpirun; `tests/unit/test_engine.py` runs the same tests on threads."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.threads import serve_or_ask
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.mpi.world import MPIWorld


@pytest.fixture
def both() -> Callable[..., tuple[Any, Any] | None]:
    """both(method, data, program): (program's result on LocalClients, on MPIClients) at rank 0, None on the others.
    Assertions belong behind `if`, or in `alike`: one that fails at rank 0 aborts all ranks (tests/conftest.py), and
    the others, which by then wait in the next test, cannot hang."""
    world = MPIWorld.connect()

    def run(method: Any, data: list[Any], program: Callable[[Any], Any]) -> tuple[Any, Any] | None:
        result = serve_or_ask(world, method, data, program)
        return None if world.rank else (program(LocalClients(data)), result)

    return run
