"""Parameters that are one number for all clients, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, demand

PerClient = float | Sequence[float] | NDArray[np.float64]


def check(name: str, value: PerClient, m: int) -> None:
    """Refuses a negative parameter, or one that has not one value per client."""
    values = np.asarray(value, np.float64)
    if values.shape not in ((), (m,)):
        raise UserError(f"--{name} has {values.size} values for {m} clients: give one, or one per client")
    demand(bool((values >= 0).all()), name, tuple(values.ravel().tolist()), "a number, at least 0")


def of(value: PerClient, i: int) -> float:
    """Client i's value of a parameter."""
    values = np.asarray(value, np.float64)
    return float(values if values.ndim == 0 else values[i])
