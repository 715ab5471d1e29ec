"""Measures of stationarity, estimated from function values alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Estimate(NamedTuple):
    """An estimate from random directions, with its standard error."""

    value: float
    error: float


def gradient_squared(estimates: Vector, shift: Vector | float = 0.0) -> Estimate:
    """|E g + shift|^2 from independent copies g_1, ..., g_N (N, n) of a random vector g, and its standard error.

    The square of their mean would be too large by n |E g|^2 / N for zeroth-order estimates, so only products of
    different copies are averaged, 1/(N (N - 1)) sum over j != k of (g_j + shift)' (g_k + shift): unbiased, and
    possibly negative where the truth is near 0. The error is the jackknife's.

    Returns:
        Not-a-number for what N = 0 or 1 (the value) and N < 3 (its error) copies cannot tell.
    """
    g = estimates + shift
    N = len(g)
    if N < 2:
        return Estimate(math.nan, math.nan)
    total, squares = g.sum(axis=0), np.einsum("jn,jn->j", g, g)
    pairs = total @ total - squares.sum()
    value = float(pairs / (N * (N - 1)))
    if N < 3:
        return Estimate(value, math.nan)
    without = (pairs - 2 * (g @ total - squares)) / ((N - 1) * (N - 2))  # each value without its j-th copy
    error = math.sqrt((N - 1) / N * float(np.sum(np.square(without - without.mean()))))
    return Estimate(value, error)
