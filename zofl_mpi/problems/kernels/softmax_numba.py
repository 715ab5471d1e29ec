"""The compiled loop of softmax regression's local steps; imported when it is chosen; this and lanes.py import numba."""

from collections.abc import Callable
from typing import Any

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from zofl_mpi.problems.kernels.lanes import WIDTH, fused, load, minus, plus, prefetch, spread, store, times

Array = NDArray[Any]

VECTORS = "b9d843c5"  # the checksum of lanes.py, see there
CACHE_LINE = 64  # bytes; a vector of AVX-512 that begins elsewhere is fetched in two
PIECE = 32  # samples fetched at once: 784 inputs each are 100 KB of float32, inside a second-level cache

# Sums may be reordered into vector lanes and products fused; NaN and infinity keep their meaning, they are how a run
# that diverges is found. The GIL is released, so a communication thread runs meanwhile.
OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz"},
    "error_model": "numpy",
    "nogil": True,
}


def compiled(function: Callable[..., Any]) -> Any:
    """Compiles at the first call, some seconds; numba keeps it on disk, per processor type, where it can write.

    Two processes that compile for other types at once may write the same file, and the one's code be found for the
    other's types: it is then compiled again.
    """
    try:
        made = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(**OPTIONS)(function)
    load = made._cache.load_overload

    def own(types: tuple[Any, ...], context: Any) -> Any:
        found = load(types, context)
        return found if found is not None and found.signature.args == types else None

    made._cache.load_overload = own
    return made


def inlined(function: Callable[..., Any]) -> Any:
    """Makes a function part of the text of the one compiled function that calls it.

    Else it would be optimised once alone and once within that; the process that compiles would run the one, those that
    load it from the disk the other, and with sums reordered at will they differ in last bits.
    """
    return numba.njit(inline="always", **OPTIONS)(function)


@inlined
def confine(d: Array, radius: float) -> None:
    """Shrinks each model's d (C, p) of (k, C, p) to norm `radius` if it is longer; the norm is summed in float64."""
    for model in d:
        square = 0.0
        for row in model:
            for value in row:
                square += float(value) * float(value)
        if np.sqrt(square) > radius:
            model *= d.dtype.type(radius / np.sqrt(square))


@inlined
def gather(ready: Array, inputs: Array, rows: Array, scale: Array, offset: Array) -> None:
    """Copies the inputs at `rows`, converted, scaled where there are scales, into ready (B, p)."""
    for b in range(rows.shape[0]):
        source, target = inputs[rows[b]], ready[b]  # whole rows: loops over them become vector instructions
        for j in range(source.shape[0]):
            target[j] = source[j]
        if scale.shape[0] > 0:
            for j in range(source.shape[0]):
                target[j] = target[j] * scale[j] + offset[j]


@inlined
def fetch(inputs: Array, rows: Array) -> None:
    """Prefetches the inputs of the next samples, at `rows` (b,)."""
    for b in range(rows.shape[0]):
        for j in range(0, inputs.shape[1], CACHE_LINE // inputs.itemsize):
            prefetch(inputs[rows[b]], j)


@inlined
def decay(d: Array, keep: float, column: int, pairs: int) -> None:
    """d <- keep d, outside of the first `column` columns of the first `pairs` rows."""
    for c in range(d.shape[0]):
        rest = d[c][column if c < pairs else 0 :]
        for j in range(rest.shape[0]):
            rest[j] *= keep


@inlined
def add(y: Array, x: Array, d: Array, column: int, pairs: int) -> None:
    """y <- x + d, outside of the first `column` columns of the first `pairs` rows."""
    for c in range(y.shape[0]):
        low = column if c < pairs else 0
        total, centre, moved = y[c][low:], x[c][low:], d[c][low:]
        for j in range(total.shape[0]):
            total[j] = centre[j] + moved[j]


@inlined
def scores(y: Array, batch: Array, g: Array) -> None:
    """g[:, :B] <- y batch^T, for y (k C, p) and batch (B, p), in tiles of 2 rows by 4 samples.

    A tile's 8 sums and 6 inputs fit the registers of AVX2; BLAS, made for large matrices, takes twice the time for so
    few classes.
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
def less(d: Any, g: Array, c: int, b: int, z0: Any, z1: Any, z2: Any, z3: Any) -> Any:
    """d - the sum of g[c, b + i] z_i, in an order fixed here, which LLVM once chose: results keep their bits."""
    total = fused(times(spread(g[c, b + 2]), z2), spread(g[c, b + 1]), z1)
    return minus(d, fused(fused(total, spread(g[c, b + 3]), z3), spread(g[c, b]), z0))


@inlined
def advance_tiles(
    y: Array, x: Array, d: Array, g: Array, batch: Array, keep: float, last: bool, column: int, pairs: int
) -> None:
    """d <- keep d - g[:, :B] batch and, if `last`, y <- x + d, in the first `column` columns of the first `pairs` rows.

    In tiles of 2 rows by 2 vectors, which stay in registers while all samples are added. Where there is no second
    vector the first is computed twice.
    """
    B, p = batch.shape
    to, centre, moved, inputs = y.reshape(y.size), x.reshape(x.size), d.reshape(d.size), batch.reshape(batch.size)
    kept = spread(keep)
    for j in range(0, column, 2 * WIDTH):  # all rows in turn: a tile's inputs stay in the first-level cache
        more = WIDTH if j + WIDTH < column else 0
        for c in range(0, pairs, 2):
            i0 = c * p + j
            i1, i2, i3 = i0 + more, i0 + p, i0 + p + more
            d0, d1 = times(load(moved, i0), kept), times(load(moved, i1), kept)
            d2, d3 = times(load(moved, i2), kept), times(load(moved, i3), kept)
            for b in range(0, B - 3, 4):
                i = b * p + j
                z0, z1, z2, z3 = load(inputs, i), load(inputs, i + p), load(inputs, i + 2 * p), load(inputs, i + 3 * p)
                d0, d2 = less(d0, g, c, b, z0, z1, z2, z3), less(d2, g, c + 1, b, z0, z1, z2, z3)
                i += more
                z0, z1, z2, z3 = load(inputs, i), load(inputs, i + p), load(inputs, i + 2 * p), load(inputs, i + 3 * p)
                d1, d3 = less(d1, g, c, b, z0, z1, z2, z3), less(d3, g, c + 1, b, z0, z1, z2, z3)
            for b in range(B - B % 4, B):
                g0, g1 = spread(-g[c, b]), spread(-g[c + 1, b])
                z0, z1 = load(inputs, b * p + j), load(inputs, b * p + j + more)
                d0, d1, d2, d3 = fused(d0, g0, z0), fused(d1, g0, z1), fused(d2, g1, z0), fused(d3, g1, z1)
            store(moved, i0, d0)
            store(moved, i1, d1)
            store(moved, i2, d2)
            store(moved, i3, d3)
            if last:
                store(to, i0, plus(load(centre, i0), d0))
                store(to, i1, plus(load(centre, i1), d1))
                store(to, i2, plus(load(centre, i2), d2))
                store(to, i3, plus(load(centre, i3), d3))


@inlined
def subtract(d: Array, g: Array, batch: Array, column: int) -> None:
    """d <- d - g[:, :B] batch, where `advance_tiles` does not, in the tiles of `scores`."""
    rows, B, p = d.shape[0], batch.shape[0], d.shape[1] - column
    if p:
        for c in range(0, rows - 1, 2):
            d0, d1 = d[c][column:], d[c + 1][column:]
            for b in range(0, B - 3, 4):
                z0, z1, z2, z3 = batch[b][column:], batch[b + 1][column:], batch[b + 2][column:], batch[b + 3][column:]
                g00, g01, g02, g03 = g[c, b], g[c, b + 1], g[c, b + 2], g[c, b + 3]
                g10, g11, g12, g13 = g[c + 1, b], g[c + 1, b + 1], g[c + 1, b + 2], g[c + 1, b + 3]
                for j in range(p):
                    d0[j] -= g00 * z0[j] + g01 * z1[j] + g02 * z2[j] + g03 * z3[j]
                    d1[j] -= g10 * z0[j] + g11 * z1[j] + g12 * z2[j] + g13 * z3[j]
            for b in range(B - B % 4, B):
                z0, g00, g10 = batch[b][column:], g[c, b], g[c + 1, b]
                for j in range(p):
                    d0[j] -= g00 * z0[j]
                    d1[j] -= g10 * z0[j]
    if rows % 2:
        d0 = d[rows - 1]
        for b in range(B):
            z0, g00 = batch[b], g[rows - 1, b]
            for j in range(d.shape[1]):
                d0[j] -= g00 * z0[j]


@inlined
def residuals(g: Array, row: Array, labels: Array, C: int, pull: float) -> None:
    """Turns the logits g[:, :B] (k C, B) into pull * (softmax - onehot), each model's C classes on their own.

    B is the number of labels; `row` (B,) is overwritten. Classes come first: loops then run along whole rows.
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
        scale, offset: (p,), or (0,) where the inputs come as they are stored.
        pull, keep, push: (H,).
        shift: (k, C, p), or (0, C, p) for none.
    """
    k, C, p = x.shape
    B = rows.shape[1]
    centre, moved, point = x.reshape(k * C, p), d.reshape(k * C, p), y.reshape(k * C, p)
    against = shift.reshape(shift.shape[0] * C, p)
    piece = min(B, PIECE)
    room = np.empty(piece * p + CACHE_LINE, d.dtype)
    start = -(room.ctypes.data % CACHE_LINE) % CACHE_LINE // room.itemsize
    ready = room[start : start + piece * p].reshape(piece, p)
    g, row = np.empty((k * C, piece), d.dtype), np.empty(piece, d.dtype)
    column, pairs = p - p % WIDTH, k * C - k * C % 2
    fresh, free = against.shape[0] == 0, radius == np.inf  # nothing between decay and gradient; nothing after it
    for t in range(rows.shape[0]):
        if keep[t] != 1:
            decay(moved, keep[t], column if fresh else 0, pairs)
        for c in range(against.shape[0]):
            rest, further = moved[c], against[c]
            for j in range(p):
                rest[j] -= push[t] * further[j]
        for low in range(0, B, piece):
            part = rows[t, low : low + piece]
            batch = ready[: len(part)]
            further = rows[t, low + piece : low + 2 * piece]
            fetch(inputs, further if len(further) else rows[min(t + 1, rows.shape[0] - 1), :piece])
            gather(batch, inputs, part, scale, offset)
            scores(point, batch, g)
            residuals(g, row, labels[t, low : low + piece], C, pull[t])
            kept = keep[t] if fresh and low == 0 else keep.dtype.type(1)
            advance_tiles(point, centre, moved, g, batch, kept, free and low + piece >= B, column, pairs)
            subtract(moved, g, batch, column)
        if not free:
            confine(d, radius)
        add(point, centre, moved, column if free else 0, pairs)
