"""Euclidean projections of an array's rows onto balls and simplices."""

import numpy as np

from zofl_mpi.arrays import Array

Bound = float | Array


def shrink(displacement: Array, radius: Bound) -> Array:
    """Factors (k, 1) float64 min(1, radius / |d|) for the rows d of `displacement` (k, n); 1 if d is 0 or NaN.

    Norms are float64: squares of float32 entries beyond 1e19 would overflow.
    """
    rows = displacement.astype(np.float64, copy=False)
    norm = np.sqrt(np.einsum("kn,kn->k", rows, rows))
    factor: Array = np.divide(radius, norm, out=np.ones_like(norm), where=norm > radius)
    return factor[:, None]


def ball(y: Array, centre: Array, radius: Bound) -> Array:
    """Projects each row of y onto a ball: centre + min(1, radius / |y - centre|) (y - centre).

    Source: [A] Algorithm 2 with Y_i(x) the ball around x. y (k, n), centre (k, n) or (n,), radius >= 0, a number or
    (k,); returns (k, n) in y's dtype. Rows inside their ball stay bit-identical.
    """
    displacement = y - centre
    factor = shrink(displacement, radius)
    moved = centre + factor.astype(y.dtype) * displacement
    return np.where(factor < 1, moved, y).astype(y.dtype, copy=False)


def simplex(y: Array) -> Array:
    """Projects each row of y (k, n) onto the simplex z >= 0, sum z = 1: (y - theta)_+ with the matching theta.

    Source: Held, Wolfe, Crowder, Validation of subgradient optimization (1974): sort, then read off theta.
    """
    descending = -np.sort(-y, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1.0
    counts = np.arange(1, y.shape[-1] + 1)
    support = np.sum(descending * counts > excess, axis=-1, keepdims=True)
    theta = np.take_along_axis(excess, support - 1, axis=-1) / support
    return np.asarray(np.maximum(y - theta, 0))
