"""Sums over samples: positions, blocks and class weights."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.data import Dataset
from zofl_mpi.problems import Batch, Vector

Values = TypeVar("Values", NDArray[Any], list[Any])
Block = tuple[NDArray[Any], NDArray[np.int64]]  # inputs (b, p) and labels (b,)
SAMPLES_AT_ONCE = 512  # samples of a block in a sum over all data
KEPT_BYTES = 2**26  # most bytes of inputs, counted as float64, that `all_scaled` caches
TARGETS = np.array([1.0, -1.0])  # of even and odd labels


def positions_of(data: Any, batch: Batch | None) -> Batch:
    """Positions (B,) of a mini-batch; None: of all samples."""
    return np.arange(len(data)) if batch is None else batch


def blocks(values: Values, size: int) -> Iterator[Values]:
    """Yields the values in blocks of `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def scaled(data: Dataset, positions: Batch, dtype: DTypeLike) -> Iterator[Block]:
    """Yields inputs (b, p) in `dtype` and labels (b,), block by block."""
    return (data.take(block, dtype) for block in blocks(positions, SAMPLES_AT_ONCE))


def unscaled(data: Dataset, positions: Batch, dtype: DTypeLike, size: int = 0) -> Iterator[Block]:
    """Yields inputs (b, p) in `dtype`, not yet multiplied by `data.factor`, and labels (b,), block by block."""
    return (data.unscaled(block, dtype) for block in blocks(positions, size or SAMPLES_AT_ONCE))


def all_scaled(data: Dataset, dtype: DTypeLike) -> Iterable[Block]:
    """The `scaled` blocks of all of `data`; cached for small data sets.

    A rank evaluates all its personal models on the test samples: gathering and scaling them takes longer than the
    product with a small model.
    """
    is_small = 8 * len(data) * data.features <= KEPT_BYTES
    return _kept(data, np.dtype(dtype).str) if is_small else scaled(data, np.arange(len(data)), dtype)


@functools.lru_cache(maxsize=2)  # the test and the validation samples
def _kept(data: Dataset, dtype: str) -> list[Block]:
    return list(scaled(data, np.arange(len(data)), dtype))


def log_softmax(logits: Vector) -> Vector:
    """Log-probabilities of the classes along the last axis."""
    z = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def class_weights(data: Dataset, mix: Vector | None) -> Vector:
    """Weight (C,) of a sample of each class in a mean over `data`: 1, or by the class proportions `mix` (C,)."""
    return np.ones(data.classes) if mix is None else mix / np.maximum(data.counts(), 1)
