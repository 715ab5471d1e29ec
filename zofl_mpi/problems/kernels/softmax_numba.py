"""The compiled loop of softmax regression's local steps; imported when it is chosen: nothing else imports numba.

Its vectors are written for LLVM, in the order of the text: numba uses those of AVX2 at most, and has no prefetch. Plain
loops under `numba.njit` give the same bits on an AMD EPYC with AVX-512, but a round of FedAvg and of ZO-HFL on MNIST
takes 1.20 to 1.31 times as long, with the prefetch alone written for LLVM 1.10 to 1.13 times.
"""

from collections.abc import Callable
from typing import Any

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic, models, register_model  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

Array = NDArray[Any]
CACHE_LINE = 64  # bytes; a vector of AVX-512 that begins elsewhere is fetched in two
PIECE = 32  # samples fetched at once: 784 inputs each are 100 KB of float32, inside a second-level cache
WIDTH = 16  # numbers of a vector: one register of AVX-512, two of AVX2

# Sums may be reordered into vector lanes and products fused; NaN and infinity keep their meaning, they are how a run
# that diverges is found. The GIL is released, so a communication thread runs meanwhile.
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy", "nogil": True}


def compiled(function: Callable[..., Any]) -> Any:
    """Compiles at the first call, some seconds; numba keeps it on disk, per processor type, where it can write."""
    try:
        return numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(**OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Makes a function part of the text of the one compiled function that calls it.

    Else it would be optimised once alone and once within that; the process that compiles would run the one, those that
    load it from the disk the other, and with sums reordered at will they differ in last bits.
    """
    return numba.njit(inline="always", **OPTIONS)(function)


# --- vectors


class Lanes(numba.types.Type):  # type: ignore[misc, unused-ignore]
    """The type of WIDTH numbers of one dtype."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(f"lanes({dtype})")
        self.dtype = dtype


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc, unused-ignore]
    """One vector in LLVM."""

    def __init__(self, manager: Any, lanes: Any) -> None:
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, WIDTH))  # type: ignore[no-untyped-call, unused-ignore]


def place(context: Any, builder: Any, array: Any, value: Any, at: Any) -> Any:
    """Address of the WIDTH values of a flat array from position `at`, as one vector."""
    vector = context.get_value_type(Lanes(array.dtype))
    return builder.bitcast(
        builder.gep(context.make_array(array)(context, builder, value).data, [at]), vector.as_pointer()
    )


operation: Callable[[Any], Any] = intrinsic  # of compiled code, from its types and the writer of its instructions


@operation
def load(typing: Any, array: Any, at: Any) -> Any:
    """array[at : at + WIDTH] of a flat array, unchecked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(place(context, builder, array, *args), align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, numba.types.intp), code


@operation
def store(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """array[at : at + WIDTH] = lanes, unchecked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], place(context, builder, array, *args[:2]), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return numba.types.none(array, numba.types.intp, lanes), code


@operation
def prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Prefetches array[at] of a row into the cache; changes no value."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        address = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call, unused-ignore]
        builder.call(prefetch, [builder.bitcast(address, byte), word(0), word(2), word(1)])  # to read, second level
        return context.get_dummy_value()

    return numba.types.none(array, numba.types.intp), code


@operation
def spread(typing: Any, value: Any) -> Any:
    """Vector with a number in all lanes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(Lanes(value))
        one = builder.insert_element(vector(ir.Undefined), args[0], ir.IntType(32)(0))
        return builder.shuffle_vector(one, vector(ir.Undefined), ir.VectorType(ir.IntType(32), WIDTH)(None))

    return Lanes(value)(value), code


def arithmetic(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a formula (builder, *values) into an operation's code.

    Instructions without a flag of their own would get those of OPTIONS and be reordered.
    """
    return lambda context, builder, signature, args: formula(builder, *args)


def lanewise(instruction: str) -> Any:
    """Operation on two vectors by an LLVM instruction of this name, rounded."""

    def typed(typing: Any, one: Any, other: Any) -> Any:
        return one(one, other), arithmetic(lambda builder, a, b: getattr(builder, instruction)(a, b, flags=("nsz",)))

    return operation(typed)


times, plus, minus = lanewise("fmul"), lanewise("fadd"), lanewise("fsub")


@operation
def fused(typing: Any, total: Any, one: Any, other: Any) -> Any:
    """total + one * other, in one instruction where there is one."""

    def formula(builder: Any, total: Any, a: Any, b: Any) -> Any:
        return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))

    return total(total, one, other), arithmetic(formula)


# --- the kernel


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
def subtract(d: Array, g: Array, batch: Array, column: int, pairs: int) -> None:
    """d <- d - g[:, :B] batch, outside of the first `column` columns of the first `pairs` rows."""
    for c in range(d.shape[0]):
        low, tiled = (column, len(batch) - len(batch) % 4) if c < pairs else (0, 0)
        rest = d[c][low:]
        for b in range(0, tiled, 4):
            z0, z1, z2, z3 = batch[b][low:], batch[b + 1][low:], batch[b + 2][low:], batch[b + 3][low:]
            g0, g1, g2, g3 = g[c, b], g[c, b + 1], g[c, b + 2], g[c, b + 3]
            for j in range(rest.shape[0]):
                rest[j] -= g0 * z0[j] + g1 * z1[j] + g2 * z2[j] + g3 * z3[j]
        for b in range(tiled, len(batch)):
            z0, g0 = batch[b][low:], g[c, b]
            for j in range(rest.shape[0]):
                rest[j] -= g0 * z0[j]


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
            subtract(moved, g, batch, column, pairs)
        if not free:
            confine(d, radius)
        add(point, centre, moved, column if free else 0, pairs)
