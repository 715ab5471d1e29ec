"""The compiled loop of softmax regression's local steps; imported when it is chosen, the only file to import numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Sums may be reordered into vector lanes and products fused; NaN and infinity keep their meaning, they are how a run
# that diverges is found. The GIL is released, so a communication thread runs meanwhile.
OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz"},
    "error_model": "numpy",
    "nogil": True,
}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call, about 1 s; numba keeps it on disk, per processor type, where it can write."""
    try:
        return numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(**OPTIONS)(function)


@compiled
def residuals(g: Array, labels: Array, C: int, pull: float) -> None:
    """Turn the logits g (B, k C) into pull * (softmax - onehot), each model's C classes on their own."""
    for b in range(g.shape[0]):
        for low in range(0, g.shape[1], C):
            z = g[b, low : low + C]
            top = z[0]
            for c in range(C):
                top = max(top, z[c])
            total = g.dtype.type(0)
            for c in range(C):
                z[c] = np.exp(z[c] - top)
                total += z[c]
            factor = pull / total
            for c in range(C):
                z[c] *= factor
            z[labels[b]] -= pull


@compiled
def confine(d: Array, radius: float) -> None:
    """Shrink each model's d (C, p) of (k, C, p) to norm `radius` if it is longer; the norm is summed in float64."""
    for model in d:
        square = 0.0
        for row in model:
            for value in row:
                square += float(value) * float(value)
        if np.sqrt(square) > radius:
            model *= d.dtype.type(radius / np.sqrt(square))


@compiled
def advance(
    x: Array,
    d: Array,
    y: Array,
    block: Array,
    labels: Array,
    pull: Array,
    keep: Array,
    push: Array,
    shift: Array,
    radius: float,
) -> None:
    """S steps of `softmax_kernels.solve_numpy` on the mini-batches block (S, B, p); d and y = x + d are overwritten.

    Args:
        x, d, y: (k, C, p), of one dtype with block.
        labels: (S, B).
        pull, keep, push: (S,).
        shift: (k, C, p), or (0, C, p) for none.
    """
    k, C, p = x.shape
    centre, moved, point = x.reshape(k * C, p), d.reshape(k * C, p), y.reshape(k * C, p)
    g = np.empty((block.shape[1], k * C), d.dtype)
    for t in range(block.shape[0]):
        for c in range(k * C):
            for b in range(block.shape[1]):
                total = d.dtype.type(0)
                for j in range(p):
                    total += point[c, j] * block[t, b, j]
                g[b, c] = total
        residuals(g, labels[t], C, pull[t])
        for c in range(k * C):
            factor, share = keep[t], g[0, c]
            for j in range(p):
                moved[c, j] = factor * moved[c, j] - share * block[t, 0, j]
            for b in range(1, block.shape[1]):
                share = g[b, c]
                for j in range(p):
                    moved[c, j] -= share * block[t, b, j]
        for i in range(shift.shape[0]):
            for c in range(C):
                for j in range(p):
                    d[i, c, j] -= push[t] * shift[i, c, j]
        if radius < np.inf:
            confine(d, radius)
        for c in range(k * C):
            for j in range(p):
                point[c, j] = centre[c, j] + moved[c, j]
