"""Messages above 2^31 bytes, at their real size: opt in by TEST_LARGE=1. Each of two ranks holds 2 GiB at a time.

export MPI_TEST_DEADLINE=600 TEST_LARGE=1
mpirun -n 2 python -m pytest --with-mpi --only-mpi -o faulthandler_timeout=600 tests/mpi/test_large.py

`test_payloads_above_the_limit_travel_in_pieces` does the same with small pieces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.threads import serve_or_ask
from zofl_mpi.engine.clients import Client
from zofl_mpi.run.mpi.wire import LIMIT
from zofl_mpi.run.mpi.world import MPIWorld

pytestmark = pytest.mark.mpi(min_size=2)
SIZE = 2**31 + 4321
PLACES = [0, LIMIT - 1, LIMIT, 2**31 - 1, 2**31, SIZE - 1]
"""Around the ends of the pieces, and where a 32-bit count turns negative."""


@dataclass(frozen=True)
class Large:
    """A vector of SIZE bytes, zero but at PLACES."""

    a: np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Found:
    """Its length, and its values at PLACES."""

    size: int
    values: np.ndarray[Any, np.dtype[np.uint8]]


def large(first: int) -> Large:
    a = np.zeros(SIZE, np.uint8)  # pages that nobody wrote take no memory
    a[PLACES] = np.arange(first, first + len(PLACES))
    return Large(a)


def found(message: Large) -> Found:
    return Found(message.a.size, message.a[PLACES])


class Steps:
    def down(self, client: Client, message: Large) -> Found:
        return found(message)

    def up(self, client: Client, message: Found) -> Large:
        return large(int(message.size))


@pytest.mark.skipif("TEST_LARGE" not in os.environ, reason="takes 5 GiB: set TEST_LARGE=1")
def test_a_payload_above_two_gib_goes_down_and_up() -> None:
    """Mutations: LIMIT = 1 << 31, whose count is negative; offsets in 32 bits."""
    steps = Steps()

    def program(clients: Any) -> list[Found]:
        told = [reply for _, reply in clients.ask(steps.down, large(1))]
        return told + [found(reply) for _, reply in clients.ask(steps.up, Found(101, np.zeros(0, np.uint8)))]

    result = serve_or_ask(MPIWorld.connect(), steps, [None], program)
    if result:
        assert [each.size for each in result] == [SIZE, SIZE]
        assert [each.values.tolist() for each in result] == [
            list(range(first, first + len(PLACES))) for first in (1, 101)
        ]
