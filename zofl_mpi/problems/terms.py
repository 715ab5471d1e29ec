"""The terms that [A] section IV adds to any loss; parameters that are one number for all clients, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.projections import ball
from zofl_mpi.problems import Array

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


def dissimilarity(weights: NDArray[np.float64], lam: float, i: int, x: Array, y: Array) -> float:
    """f_{2,i}: m rho_i lam / 2 |x - y|^2, formed in float64."""
    difference = np.asarray(x, np.float64) - y
    return float(len(weights) * weights[i] * lam / 2 * (difference @ difference))


def into_ball(radius: PerClient, i: int, x: Array, y: Array) -> Array:
    """(k, n) the rows of y projected onto the balls around the rows of x; y itself where there is no constraint."""
    own = of(radius, i)
    return ball(y, x, own) if own < np.inf else y
