"""The engine's contract (`tests/mpi/test_engine.py`) with threads of this process as ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.mpi.test_engine import *  # noqa: F403  (the tests)
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.run.local import LocalClients

pytestmark: list[Any] = []  # not those of the imported tests, which need mpirun
del test_the_seconds_of_a_round_add_up_on_every_rank  # noqa: F821  (threads wait for the interpreter, too)


@pytest.fixture(params=[False, True], ids=["eager", "synchronous"])
def synchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[2, 3, 5])
def both(request: pytest.FixtureRequest, synchronous: bool) -> Callable[..., tuple[Any, Any]]:
    """both(method, data, program): program's result on LocalClients, and on MPIClients of 2, 3 or 5 ranks."""

    def run(method: Any, data: list[Any], program: Callable[[Any], Any]) -> tuple[Any, Any]:
        results = run_ranks(
            request.param, lambda world: serve_or_ask(world, method, data, program), synchronous=synchronous
        )
        return program(LocalClients(data)), results[0]

    return run
