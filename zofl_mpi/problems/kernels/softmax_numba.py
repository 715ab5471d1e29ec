"""Compiled local steps of softmax regression; the only module that imports numba, imported when chosen.

LLVM reorders the loops' sums for the processor's vectors: last bits differ between processor types (AVX2, AVX-512 in
halves, AVX-512 whole), as with BLAS. Sums in a fixed number of lanes are bit-identical on all of these, but take 1.8 to
2.5 times as long.
"""

from collections.abc import Callable
from typing import Any

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np

from zofl_mpi.arrays import Array

FETCHED_SAMPLES = 32  # samples fetched at once: 100 KB of float32 at 784 inputs, inside a second-level cache

# sums may be reordered and products fused, but NaN and inf keep their meaning: they reveal divergence; the GIL is
# released for communication threads
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy", "nogil": True}


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: compiles at the first call (seconds); numba caches the code on disk per processor type, if it can."""
    try:
        return numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(**OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: inlines a function into its compiled caller.

    Otherwise LLVM optimises it both alone and within the caller: the compiling process runs one version, processes that
    load from disk the other. With reordered sums their last bits differ.
    """
    return numba.njit(inline="always", **OPTIONS)(function)


@inlined
def confine(d: Array, radius: float) -> None:
    """Shrinks each model's d (C, p) of (k, C, p) to norm `radius` if it is longer; norms in float64."""
    for model in d:
        square = 0.0
        for row in model:
            for value in row:
                square += float(value) * float(value)
        if np.sqrt(square) > radius:
            model *= d.dtype.type(radius / np.sqrt(square))


@inlined
def gather(ready: Array, inputs: Array, rows: Array, scale: Array, offset: Array) -> None:
    """Copies the inputs at `rows` into ready (B, p), converted, and scaled unless `scale` is empty."""
    for b in range(rows.shape[0]):
        source, target = inputs[rows[b]], ready[b]  # whole rows: loops over them become vector instructions
        for j in range(source.shape[0]):
            target[j] = source[j]
        if scale.shape[0] > 0:
            for j in range(source.shape[0]):
                target[j] = target[j] * scale[j] + offset[j]


@inlined
def scores(y: Array, batch: Array, g: Array) -> None:
    """g[:, :B] <- y batch^T, for y (k C, p) and batch (B, p), in tiles of 2 rows by 4 samples.

    A tile's 8 sums and 6 inputs fit AVX2's registers; for so few classes BLAS takes twice the time.
    """
    rows, B, p = y.shape[0], batch.shape[0], y.shape[1]
    zero = g.dtype.type(0)
    for c in range(0, rows - 1, 2):
        y0, y1 = y[c], y[c + 1]
        for b in range(0, B - 3, 4):
            z0, z1, z2, z3 = batch[b], batch[b + 1], batch[b + 2], batch[b + 3]
            g00 = g01 = g02 = g03 = g10 = g11 = g12 = g13 = zero
            for j in range(p):
                g00 += y0[j] * z0[j]
                g01 += y0[j] * z1[j]
                g02 += y0[j] * z2[j]
                g03 += y0[j] * z3[j]
                g10 += y1[j] * z0[j]
                g11 += y1[j] * z1[j]
                g12 += y1[j] * z2[j]
                g13 += y1[j] * z3[j]
            g[c, b], g[c, b + 1], g[c, b + 2], g[c, b + 3] = g00, g01, g02, g03
            g[c + 1, b], g[c + 1, b + 1], g[c + 1, b + 2], g[c + 1, b + 3] = g10, g11, g12, g13
        for b in range(B - B % 4, B):
            z0 = batch[b]
            g00 = g10 = zero
            for j in range(p):
                g00 += y0[j] * z0[j]
                g10 += y1[j] * z0[j]
            g[c, b], g[c + 1, b] = g00, g10
    if rows % 2:
        y0 = y[rows - 1]
        for b in range(B):
            z0 = batch[b]
            g00 = zero
            for j in range(p):
                g00 += y0[j] * z0[j]
            g[rows - 1, b] = g00


@inlined
def subtract(d: Array, g: Array, batch: Array) -> None:
    """d <- d - g[:, :B] batch, in tiles of 2 rows by 4 samples; an element's sum does not depend on its tile."""
    rows, B = d.shape[0], len(batch)
    for c in range(0, rows - 1, 2):
        d0, d1 = d[c], d[c + 1]
        for b in range(0, B - 3, 4):
            z0, z1, z2, z3 = batch[b], batch[b + 1], batch[b + 2], batch[b + 3]
            g00, g01, g02, g03 = g[c, b], g[c, b + 1], g[c, b + 2], g[c, b + 3]
            g10, g11, g12, g13 = g[c + 1, b], g[c + 1, b + 1], g[c + 1, b + 2], g[c + 1, b + 3]
            for j in range(d0.shape[0]):
                d0[j] -= g00 * z0[j] + g01 * z1[j] + g02 * z2[j] + g03 * z3[j]
                d1[j] -= g10 * z0[j] + g11 * z1[j] + g12 * z2[j] + g13 * z3[j]
    for c in range(rows - rows % 2, rows):
        d0 = d[c]
        for b in range(0, B - 3, 4):
            z0, z1, z2, z3 = batch[b], batch[b + 1], batch[b + 2], batch[b + 3]
            g00, g01, g02, g03 = g[c, b], g[c, b + 1], g[c, b + 2], g[c, b + 3]
            for j in range(d0.shape[0]):
                d0[j] -= g00 * z0[j] + g01 * z1[j] + g02 * z2[j] + g03 * z3[j]
    for c in range(rows):
        d0 = d[c]
        for b in range(B - B % 4, B):
            z0, g00 = batch[b], g[c, b]
            for j in range(d0.shape[0]):
                d0[j] -= g00 * z0[j]


@inlined
def residuals(g: Array, row: Array, labels: Array, C: int, pull: float) -> None:
    """Turns the logits g[:, :B] (k C, B) into pull * (softmax - onehot) for each model's C classes.

    B is the number of labels; `row` (B,) is overwritten. Classes come first, so that loops run along whole rows.
    """
    B = len(labels)
    for low in range(0, g.shape[0], C):
        row[:B] = g[low, :B]
        for c in range(low + 1, low + C):
            for b in range(B):
                row[b] = max(row[b], g[c, b])
        for c in range(low, low + C):
            for b in range(B):
                g[c, b] = np.exp(g[c, b] - row[b])
        row[:B] = 0
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
def advance(
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
) -> None:
    """Takes the H steps of `kernels.softmax.solve_numpy`; d and y = x + d are overwritten.

    Args:
        x, d, y: (k, C, p), of one dtype.
        inputs: (N, p), as stored.
        rows, labels: (H, B).
        scale, offset: (p,), or (0,) for stored inputs.
        pull, keep, push: (H,).
        shift: (k, C, p), or (0, C, p) for none.
    """
    k, C, p = x.shape
    B = rows.shape[1]
    centre, moved, point = x.reshape(k * C, p), d.reshape(k * C, p), y.reshape(k * C, p)
    against = shift.reshape(shift.shape[0] * C, p)
    piece = min(B, FETCHED_SAMPLES)
    ready = np.empty((piece, p), d.dtype)
    g, row = np.empty((k * C, piece), d.dtype), np.empty(piece, d.dtype)
    for t in range(rows.shape[0]):
        if keep[t] != 1:
            moved *= keep[t]
        for c in range(against.shape[0]):
            rest, further = moved[c], against[c]
            for j in range(p):
                rest[j] -= push[t] * further[j]
        for low in range(0, B, piece):
            part = rows[t, low : low + piece]
            batch = ready[: len(part)]
            gather(batch, inputs, part, scale, offset)
            scores(point, batch, g)
            residuals(g, row, labels[t, low : low + piece], C, pull[t])
            subtract(moved, g, batch)
        if radius < np.inf:
            confine(d, radius)
        for c in range(k * C):
            total, middle, rest = point[c], centre[c], moved[c]
            for j in range(p):
                total[j] = middle[j] + rest[j]
