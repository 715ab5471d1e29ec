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


@compiled
def gather(ready: Array, inputs: Array, rows: Array, scale: Array, offset: Array) -> None:
    """The inputs at `rows`, converted, scaled where there are scales, into ready (B, p or p + 1)."""
    for b in range(rows.shape[0]):
        source, target = inputs[rows[b]], ready[b]  # whole rows: loops over them become vector instructions
        for j in range(source.shape[0]):
            target[j] = source[j]
        if scale.shape[0] > 0:
            for j in range(source.shape[0]):
                target[j] = target[j] * scale[j] + offset[j]


@compiled
def add(y: Array, x: Array, d: Array) -> None:
    """y <- x + d."""
    for c in range(y.shape[0]):
        total, centre, moved = y[c], x[c], d[c]
        for j in range(total.shape[0]):
            total[j] = centre[j] + moved[j]


@compiled
def class_residuals(g: Array, row: Array, labels: Array, C: int, pull: float) -> None:
    """As `residuals`, of g (k C, B), classes first: loops then run along whole rows. `row` (B,) is overwritten."""
    B = g.shape[1]
    for low in range(0, g.shape[0], C):
        for b in range(B):
            row[b] = g[low, b]
        for c in range(low + 1, low + C):
            for b in range(B):
                row[b] = max(row[b], g[c, b])
        for c in range(low, low + C):
            for b in range(B):
                g[c, b] = np.exp(g[c, b] - row[b])
        for b in range(B):
            row[b] = 0
        for c in range(low, low + C):
            for b in range(B):
                row[b] += g[c, b]
        for b in range(B):
            row[b] = pull / row[b]
        for c in range(low, low + C):
            for b in range(B):
                g[c, b] *= row[b]
        for b in range(B):
            g[low + labels[b], b] -= pull


@compiled
def advance_wide(
    x: Array,
    d: Array,
    y: Array,
    inputs: Array,
    rows: Array,
    scale: Array,
    offset: Array,
    labels: Array,
    pull: Array,
    keep: Array,
    push: Array,
    shift: Array,
    radius: float,
    small: int,
) -> None:
    """As `advance`, for larger batches: the two products are BLAS's, and the inputs are fetched here, step by step.

    Args:
        inputs: (N, p) as stored.
        rows: (H, B).
        scale, offset: (p,), or (0,) where the inputs come as they are stored.
        small: multiplications up to which all models are one product; above, each is its own.
    """
    k, C, p = x.shape
    B = rows.shape[1]
    centre, moved, point = x.reshape(k * C, p), d.reshape(k * C, p), y.reshape(k * C, p)
    against = shift.reshape(shift.shape[0] * C, p)
    high = C if k * C * B * p > small else k * C  # rows of a product: BLAS has faster kernels for small ones
    ready = np.ones((B, p), d.dtype)
    g, gradient, row = np.empty((k * C, B), d.dtype), np.empty((k * C, p), d.dtype), np.empty(B, d.dtype)
    plain = radius == np.inf and np.all(
        keep == 1
    )  # no proximal term: y itself is the state, one array in place of three
    for t in range(rows.shape[0]):
        gather(ready, inputs, rows[t], scale, offset)
        for low in range(0, k * C, high):
            np.dot(point[low : low + high], ready.T, g[low : low + high])
        class_residuals(g, row, labels[t], C, pull[t])
        for low in range(0, k * C, high):
            np.dot(g[low : low + high], ready, gradient[low : low + high])
        for c in range(against.shape[0]):
            slope, further = gradient[c], against[c]
            for j in range(p):
                slope[j] += push[t] * further[j]
        if plain:
            for c in range(k * C):
                slope, total = gradient[c], point[c]
                for j in range(p):
                    total[j] -= slope[j]
            continue
        for c in range(k * C):
            slope, rest = gradient[c], moved[c]
            for j in range(p):
                rest[j] = keep[t] * rest[j] - slope[j]
        if radius < np.inf:
            confine(d, radius)
        add(point, centre, moved)
    if plain:
        for c in range(k * C):
            for j in range(p):
                moved[c, j] = point[c, j] - centre[c, j]
