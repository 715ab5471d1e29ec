"""Messages above 2^31 bytes, at their real size: opt in by TEST_LARGE=1. Each of two ranks holds 2 GiB at a time.

export MPI_TEST_DEADLINE=600 TEST_LARGE=1
mpirun -n 2 python -m pytest --with-mpi --only-mpi -o faulthandler_timeout=600 tests/mpi/test_large.py

`test_payloads_above_the_limit_travel_in_pieces` does the same with small pieces.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.threads import serve_or_ask
from zofl_mpi.engine.clients import Client
from zofl_mpi.run.mpi.collectives import LIMIT
from zofl_mpi.run.mpi.world import MPIWorld

pytestmark = pytest.mark.mpi(min_size=2)
SIZE = 2**31 + 4321
PLACES = [0, LIMIT - 1, LIMIT, 2**31 - 1, 2**31, SIZE - 1]
"""Around the ends of the pieces, and where a 32-bit count turns negative."""


@dataclass(frozen=True)
class Large:
    """A vector of SIZE bytes, zero but at PLACES; or its values there."""

    a: np.ndarray[Any, np.dtype[np.uint8]]


def large(first: int) -> Large:
    a = np.zeros(SIZE, np.uint8)  # pages that nobody wrote take no memory
    a[PLACES] = np.arange(first, first + len(PLACES))
    return Large(a)


class Steps:
    def down(self, client: Client, message: Large) -> Large:
        assert message.a.size == SIZE
        return Large(message.a[PLACES])

    def up(self, client: Client, message: Large) -> Large:
        return large(int(message.a[0]))


@pytest.mark.skipif("TEST_LARGE" not in os.environ, reason="takes 5 GiB: set TEST_LARGE=1")
def test_a_payload_above_two_gib_goes_down_and_up() -> None:
    """Mutations: LIMIT = 1 << 31, whose count is negative; offsets in 32 bits."""
    steps = Steps()

    def program(clients: Any) -> list[list[int]]:
        ((_, down),) = clients.ask(steps.down, large(1))
        ((_, up),) = clients.ask(steps.up, Large(np.array([101], np.uint8)))
        return [down.a.tolist(), up.a[PLACES].tolist(), [up.a.size]]

    result = serve_or_ask(MPIWorld.connect(), steps, [None], program)
    if result:
        assert result == [[*range(1, 1 + len(PLACES))], [*range(101, 101 + len(PLACES))], [SIZE]]
