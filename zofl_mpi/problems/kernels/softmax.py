"""Local steps of softmax regression ([A] Algorithm 2) for k models on the same mini-batches; choice of the kernel.

A kernel is a function (x, d, minibatches, radius, shift) that updates the displacements d = y - x in place. Models are
(k, C, p): one product of all rows with a batch (B, p) reads the batch once for all k models. The proximal term only
shrinks d, d <- (1 - gamma mu) d - gamma grad CE(x + d): one pass fewer than with y.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.projections import shrink

BLOCK_BYTES = 2**17  # of inputs prepared at once: several small batches, well inside a second-level cache
PIECES = 8  # most pieces of a product
SMALL_PRODUCT = 1_000_000  # multiplications up to which OpenBLAS uses its small-matrix kernels; see `_pieces`


class Minibatches(NamedTuple):
    """Mini-batches and step factors of H steps."""

    data: Dataset
    rows: NDArray[np.int64]  # (H, B) rows of `data.inputs`, which may be a memory map
    pull: NDArray[np.float64]  # (H,) stepsize / B, factor of the summed cross-entropy gradient
    keep: NDArray[np.float64]  # (H,) 1 - stepsize * mu, factor of y - x by the proximal term
    push: NDArray[np.float64]  # (H,) factor of `shift`, which is added to every gradient
    rescale: bool  # True if a kernel must scale and shift the stored inputs
    dtype: Any  # of the models and of a kernel's inputs

    def labels(self) -> NDArray[np.int64]:
        """Labels (H, B) of the samples."""
        return self.data.labels[self.rows].astype(np.int64)

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """Yields (first step, inputs (S, B, p) of S steps); the next block reuses the memory."""
        inputs = np.asarray(self.data.inputs)  # indexing a memory map is several times slower
        (H, B), p = self.rows.shape, self.data.features
        steps = max(1, BLOCK_BYTES // max(1, B * p * np.dtype(self.dtype).itemsize))
        ready = np.empty((min(steps, H) * B, p), self.dtype)
        raw = np.empty(ready.shape, inputs.dtype)
        for t in range(0, H, steps):
            rows = self.rows[t : t + steps].ravel()
            stored, made = raw[: len(rows)], ready[: len(rows)]
            # "raise" would copy again; `solve_client` has checked rows
            np.take(inputs, rows, axis=0, out=stored, mode="clip")
            np.copyto(made, stored, casting="same_kind")
            if self.rescale:
                made *= np.asarray(self.data.scale, self.dtype)
                made += np.asarray(self.data.shift, self.dtype)
            yield t, made.reshape(-1, B, p)


Kernel = Callable[[Array, Array, Minibatches, float, Array | None], None]


def solve_numpy(x: Array, d: Array, minibatches: Minibatches, radius: float, shift: Array | None) -> None:
    """Takes the steps d <- P[keep d - pull sum_b (softmax((x + d) input_b) - onehot_b) input_b - push shift].

    Args:
        x, d: (k, C, p) C-contiguous, of one dtype; d is overwritten.
        radius: of the ball |d| <= radius that each model is projected onto; inf for none.
        shift: (k, C, p), or None for none.
    """
    k, C, p = x.shape
    gradients = _gradients(k, C, p, minibatches)
    centre, moved, y = (a.reshape(k * C, p) for a in (x, d, x + d))
    against = None if shift is None else shift.reshape(k * C, p)
    steps = list(zip(*(a.tolist() for a in (minibatches.pull, minibatches.keep, minibatches.push)), strict=True))
    for first, block in minibatches.blocks():
        for t, batch in enumerate(block, first):
            pull, keep, push = steps[t]
            gradient = gradients(y, batch, t, pull)
            if keep != 1:
                np.multiply(moved, keep, out=moved)
            if against is not None:
                np.subtract(moved, push * against, out=moved)
            np.subtract(moved, gradient, out=moved)
            if radius < np.inf:
                d *= shrink(d.reshape(k, -1), radius)[:, :, None].astype(d.dtype)
            np.add(centre, moved, out=y)


def _gradients(k: int, C: int, p: int, minibatches: Minibatches) -> Callable[[Array, Array, int, float], Array]:
    """Returns a function (y, batch, t, pull) -> pull * summed cross-entropy gradients (k C, p) at the rows of y.

    It returns the same array each time.
    """
    B, dtype = minibatches.rows.shape[1], minibatches.dtype
    residual = np.empty((k * C, B), dtype)  # classes first: sums over them run along whole rows
    by_model, flat, row = residual.reshape(k, C, B), residual.reshape(-1), np.empty((k, 1, B), dtype)
    gradient = np.empty((k * C, p), dtype)
    logit_parts = [(part, residual[:, part]) for part in _pieces(B, k * C * p)]
    gradient_parts = [(part, gradient[:, part]) for part in _pieces(p, k * C * B)]
    combine = np.multiply if B == 1 else np.matmul  # BLAS takes 16 us for an outer product, a broadcast 2 us
    true_rows = np.arange(k)[:, None] * C + minibatches.labels()[:, None, :]
    true = (true_rows * B + np.arange(B)).reshape(len(minibatches.rows), k * B)  # indices into `flat`

    def summed(y: Array, batch: Array, t: int, pull: float) -> Array:
        for part, out in logit_parts:
            np.matmul(y, batch[part].T, out=out)
        np.maximum.reduce(by_model, axis=1, keepdims=True, out=row)
        np.subtract(by_model, row, out=by_model)  # the largest logit becomes 0: exp cannot overflow
        np.exp(residual, out=residual)
        np.add.reduce(by_model, axis=1, keepdims=True, out=row)
        np.divide(pull, row, out=row)
        np.multiply(by_model, row, out=by_model)
        flat[true[t]] -= pull
        for part, out in gradient_parts:
            combine(residual, batch[:, part], out=out)
        return gradient

    return summed


def _pieces(length: int, each: int) -> list[slice]:
    """Cuts 0..length - 1 into pieces of at most SMALL_PRODUCT / each; one piece if more than PIECES were needed.

    A product of 20 x 784 by 784 x 64 is just above SMALL_PRODUCT: with AVX-512 its two halves take 11 us, the whole
    29 us; without, 25 us and 23 us.
    """
    count = -(-length // max(1, SMALL_PRODUCT // each))
    size = length if count > PIECES else -(-length // count)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def solve_numba(x: Array, d: Array, minibatches: Minibatches, radius: float, shift: Array | None) -> None:
    """Takes the steps of `solve_numpy` in compiled code."""
    from zofl_mpi.problems.kernels.softmax_numba import advance

    data, factors = minibatches.data, (minibatches.pull, minibatches.keep, minibatches.push)
    scale = offset = np.empty(0, d.dtype)
    if minibatches.rescale:
        scale, offset = (np.full(data.features, a, d.dtype) for a in (data.scale, data.shift))
    against = np.empty((0, *d.shape[1:]), d.dtype) if shift is None else shift
    inputs = np.asarray(data.inputs)
    samples = inputs, minibatches.rows, scale, offset, minibatches.labels()
    arguments = x, d, x + d, *samples, *(a.astype(d.dtype) for a in factors), against, radius
    types = d.dtype, inputs.dtype, inputs.flags.writeable
    if types not in _LOADED:
        compile_for(advance, arguments)
        _LOADED.add(types)
    advance(*arguments)


def compile_for(function: Any, arguments: Sequence[Any]) -> None:
    """Compiles a numba function for the types of these arguments, or loads it from disk.

    Two processes that compile for different types at once may write the same file. If code for the wrong types was
    loaded, everything is compiled again.
    """
    import numba  # type: ignore[import-untyped, unused-ignore]

    types = tuple(numba.typeof(argument) for argument in arguments)  # type: ignore[no-untyped-call, unused-ignore]
    function.compile(types)
    if types not in function.signatures:
        function.recompile()
        function.compile(types)


_LOADED = set[tuple[object, ...]]()  # (dtypes, writeable) for which `advance` is compiled
KERNELS: dict[str, Kernel] = {"numpy": solve_numpy, "numba": solve_numba}


@functools.cache
def numba_installed() -> bool:
    """True if numba can be imported; cached, since the search takes as long as a local step."""
    return importlib.util.find_spec("numba") is not None


COMPILED_FROM_N = 4096
"""Smallest model length n for which "auto" uses the compiled kernel. It saves 10 to 20 us a step at smaller batches,
but loading takes 0.6 CPU seconds: short runs of small models would be slower."""
WIDEST = 2048
"""Largest input length for which "auto" uses it: with 3,072 a batch of 64 exceeds the second-level cache."""


def choose(kernel: str, classes: int, features: int) -> tuple[str, str]:
    """Name in KERNELS of `kernel`, and the reason if it is "auto".

    Depends only on sizes and installed packages, not on rounds, times or a cache: a command is always bit-identical.
    """
    if kernel == "numba" and not numba_installed():
        raise UserError("--kernel numba: numba is not installed; pip install 'zofl_mpi[fast]', or use auto or numpy")
    if kernel != "auto":
        return kernel, ""
    if not numba_installed():
        return "numpy", "numpy: numba is not installed"
    size = f"n = {classes * features} and {features} inputs"
    if classes * features >= COMPILED_FROM_N and features <= WIDEST:
        return "numba", f"numba, as for {size}: n is at least {COMPILED_FROM_N}, inputs at most {WIDEST}"
    return "numpy", f"numpy, as for {size}: numba takes n of at least {COMPILED_FROM_N}, inputs of at most {WIDEST}"
