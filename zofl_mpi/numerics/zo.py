"""Zeroth-order gradient estimates of all three papers, their directions, and an estimate of the squared gradient norm.

For a unit vector v and a loss F, evaluated with one fixed mini-batch, the estimates are (n = length of v)

    one-sided   n / mu     (F(x + mu v) - F(x)) v
    central     n / (2 mu) (F(x + mu v) - F(x - mu v)) v           [A] Lemma 7 and Algorithm 1, line 5

The mean of both is the gradient of the smoothed loss F_mu(x) = E F(x + mu w), w uniform in the unit BALL; for quadratic
F it is the gradient of F. With standard normal v the factor n is absent and the smoothing Gaussian: mu then moves x by
about mu sqrt(n), and is never converted here.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.errors import UserError

Vector = Any  # a NumPy array or a torch tensor; torch is not imported here
Loss = Callable[[Vector], float]
Distribution = Literal["sphere", "gaussian"]


def direction(generator: np.random.Generator, n: int, dtype: DTypeLike = np.float64) -> Array:
    """Random direction (n,), uniform on the unit sphere.

    Drawn and normalised in float64, then cast: float32 and float64 runs use the same directions.

    Args:
        generator: `streams(Purpose.DIRECTION, r=r, i=i)` for client i in round r.
    """
    z = generator.standard_normal(n)
    z /= np.sqrt(z @ z)
    return z.astype(dtype, copy=False)


def estimate(
    difference: float | Any, v: Vector, span: float, distribution: Distribution = "sphere", n: int = 0
) -> Vector:
    """Gradient estimate (n,): n * difference / span * v; without the factor n for a normal v.

    Args:
        difference: of the two losses, computed in float64; a number, or a tensor () on v's device.
        v: (n,) of norm 1 ("sphere"), or with standard normal entries ("gaussian").
        span: distance of the two points in units of v: mu one-sided, 2 mu central.
        n: length of the whole direction if v is a part of it; 0: v is the whole.

    Returns:
        float64 for a NumPy v of any dtype, for exact sums over clients; a tensor keeps its dtype.
    """
    scale = difference / span
    if distribution == "sphere":
        scale *= n or len(v)
    if isinstance(v, np.ndarray):
        return np.multiply(v, float(scale), dtype=np.float64)
    return scale * v


ORDINARY = 1e4  # largest entry of x at which a smoothing radius without effect is a mistake, not divergence


def demand_move(x: Array, step: Array, eta: float) -> None:
    """Raises UserError for a smoothing radius so small that x + eta v rounds to x: the estimate would be noise.

    `step` is eta v, for one direction or several. A diverged x is accepted: eta is not its cause.
    """
    if len(x) and bool((x + step == x).all()) and float(np.max(np.abs(x))) <= ORDINARY:
        most = float(np.max(np.abs(step)))
        raise UserError(
            f"--eta {eta:g}: x + eta v = x in {x.dtype} (no entry of eta v is beyond {most:.2g}, those of x go up to "
            f"{float(np.max(np.abs(x))):.2g}): use a larger --eta, or --dtype float64"
        )


def central(F: Loss, x: Vector, v: Vector, mu: float) -> Vector:
    """Central estimate (n,): n / (2 mu) (F(x + mu v) - F(x - mu v)) v."""
    return estimate(F(x + mu * v) - F(x - mu * v), v, 2 * mu)


class EstimateWithError(NamedTuple):
    """An estimate from random directions, and its standard error."""

    value: float
    error: float


def gradient_squared(estimates: NDArray[np.float64], shift: NDArray[np.float64] | float = 0.0) -> EstimateWithError:
    """Estimates |E g + shift|^2 from independent copies g_1, ..., g_N (N, n) of a random vector g.

    Averages products of different copies, 1/(N (N - 1)) sum over j != k of (g_j + shift)' (g_k + shift). This is
    unbiased, and may be negative if the true value is near 0; the squared mean of zeroth-order estimates would be too
    large by n |E g|^2 / N. The standard error is the jackknife's. The value is NaN for N < 2, the error for N < 3.
    """
    g = estimates + shift
    N = len(g)
    if N < 2:
        return EstimateWithError(math.nan, math.nan)
    total, squares = g.sum(axis=0), np.einsum("jn,jn->j", g, g)
    pairs = total @ total - squares.sum()
    value = float(pairs / (N * (N - 1)))
    if N < 3:
        return EstimateWithError(value, math.nan)
    without = (pairs - 2 * (g @ total - squares)) / ((N - 1) * (N - 2))  # each value without its j-th copy
    error = math.sqrt((N - 1) / N * float(np.sum(np.square(without - without.mean()))))
    return EstimateWithError(value, error)
