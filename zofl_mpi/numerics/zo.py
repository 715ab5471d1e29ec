"""The zeroth-order gradient estimate, used by all three papers, its directions, and a measure of stationarity from it.

For a unit vector v and a loss F, evaluated with one fixed mini-batch, the estimates are (n = length of v)

    one-sided   n / mu     (F(x + mu v) - F(x)) v
    central     n / (2 mu) (F(x + mu v) - F(x - mu v)) v           [A] Lemma 7 and Algorithm 1, line 5

Both have the gradient of the smoothed loss F_mu(x) = E F(x + mu w), w uniform in the unit BALL, as their mean:
exactly the gradient of F where F is quadratic. With standard normal v the factor n is absent, and the smoothing is
Gaussian; such a radius mu moves x by about mu sqrt(n), and is never converted here.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.errors import UserError

Vector = Any  # a NumPy array or a torch tensor, which is not imported here
Loss = Callable[[Vector], float]
Distribution = Literal["sphere", "gaussian"]


def direction(generator: np.random.Generator, n: int, dtype: DTypeLike = np.float64) -> Array:
    """(n,) uniform on the unit sphere.

    Drawn and normalised in float64 and cast once, so that float32 and float64 runs go the same ways.

    Args:
        generator: `streams(Purpose.DIRECTION, r=r, i=i)` for client i in round r.
    """
    z = generator.standard_normal(n)
    z /= np.sqrt(z @ z)
    return z.astype(dtype, copy=False)


def estimate(
    difference: float | Any, v: Vector, span: float, distribution: Distribution = "sphere", n: int = 0
) -> Vector:
    """(n,) the estimate n * difference / span * v; without the factor n for a normal v.

    Args:
        difference: of the two losses, formed in float64; for a tensor v possibly a tensor () of its device.
        v: (n,) of norm 1 ("sphere"), or with standard normal entries ("gaussian").
        span: how far apart the two points are in units of v: mu one-sided, 2 mu central.
        n: where v is a part of the direction, of how many entries; 0: v is all of it.

    Returns:
        float64 for a NumPy v of any dtype, so that a sum over clients loses nothing; a tensor keeps its dtype.
    """
    scale = difference / span
    if distribution == "sphere":
        scale *= n or len(v)
    if isinstance(v, np.ndarray):
        return np.multiply(v, float(scale), dtype=np.float64)
    return scale * v


ORDINARY = 1e4  # entries of x up to which a smoothing radius without effect is a mistake, not a sign of divergence


def demand_move(x: Array, step: Array, eta: float) -> None:
    """Refuses a smoothing radius with which x + eta v is x itself in the precision of x: the estimate would be noise.

    `step` is eta v, of one direction or of several. Where x has diverged, eta is not to blame, and nothing is refused.
    """
    if len(x) and bool((x + step == x).all()) and float(np.max(np.abs(x))) <= ORDINARY:
        most = float(np.max(np.abs(step)))
        raise UserError(
            f"--eta {eta:g}: x + eta v = x in {x.dtype} (no entry of eta v is beyond {most:.2g}, those of x go up to "
            f"{float(np.max(np.abs(x))):.2g}): a larger --eta, or --dtype float64"
        )


def central(F: Loss, x: Vector, v: Vector, mu: float) -> Vector:
    """(n,) n / (2 mu) (F(x + mu v) - F(x - mu v)) v."""
    return estimate(F(x + mu * v) - F(x - mu * v), v, 2 * mu)


class EstimateWithError(NamedTuple):
    """An estimate from random directions, with its standard error."""

    value: float
    error: float


def gradient_squared(estimates: NDArray[np.float64], shift: NDArray[np.float64] | float = 0.0) -> EstimateWithError:
    """|E g + shift|^2 from independent copies g_1, ..., g_N (N, n) of a random vector g, and its standard error.

    The square of their mean is too large by n |E g|^2 / N for zeroth-order estimates. Hence only products of different
    copies are averaged, 1/(N (N - 1)) sum over j != k of (g_j + shift)' (g_k + shift): unbiased, and possibly negative
    near 0. The error is the jackknife's.

    The value is not-a-number for N < 2, its error for N < 3.
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
