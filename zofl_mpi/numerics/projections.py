"""Euclidean projections of the rows of an array. Each docstring states the problem that the projection solves."""

import numpy as np

from zofl_mpi.arrays import Array

Bound = float | Array


def shrink(displacement: Array, radius: Bound) -> Array:
    """(k, 1) float64: min(1, radius / |d|) for the rows d of `displacement` (k, n); 1 where d is 0 or not a number.

    The norms are taken in float64, so that float32 rows beyond 1e19 are not mistaken for infinite ones.
    """
    rows = displacement.astype(np.float64, copy=False)
    norm = np.sqrt(np.einsum("kn,kn->k", rows, rows))
    factor: Array = np.divide(radius, norm, out=np.ones_like(norm), where=norm > radius)
    return factor[:, None]


def ball(y: Array, centre: Array, radius: Bound) -> Array:
    """argmin |z - y| over |z - centre| <= radius, for each row: centre + min(1, radius / |y - centre|) (y - centre).

    Source: [A] Algorithm 2 with Y_i(x) the ball around x. For y (k, n), centre (k, n) or (n,), radius >= 0, a number or
    (k,), (k, n) in the dtype of y. Rows inside their ball come back unchanged, bit for bit.
    """
    displacement = y - centre
    factor = shrink(displacement, radius)
    moved = centre + factor.astype(y.dtype) * displacement
    return np.where(factor < 1, moved, y).astype(y.dtype, copy=False)


def simplex(y: Array, total: float = 1.0) -> Array:
    """argmin |z - y| over z >= 0, sum z = total > 0, for each row of y (k, n): (y - theta)_+ with the theta that fits.

    Source: Held, Wolfe, Crowder, Validation of subgradient optimization (1974): sort, then read off theta.
    """
    descending = -np.sort(-y, axis=-1)
    excess = np.cumsum(descending, axis=-1) - total
    counts = np.arange(1, y.shape[-1] + 1)
    support = np.sum(descending * counts > excess, axis=-1, keepdims=True)
    theta = np.take_along_axis(excess, support - 1, axis=-1) / support
    return np.asarray(np.maximum(y - theta, 0))
