"""Positions, blocks and class weights of sums over samples, and the dtypes of problems over samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Batch, Vector

Values = TypeVar("Values", NDArray[Any], list[Any])
QUIET = np.errstate(all="ignore")
"""NumPy gives no warnings; the caller checks that values are finite."""
Block = tuple[NDArray[Any], NDArray[np.int64]]
"""Inputs (b, p) and labels (b,)."""
BLOCK = 512
"""Samples of a block in a sum over all data."""
TARGETS = np.array([1.0, -1.0])
"""Of even and odd labels."""


@final
class Ready:
    """Cache of one data set's samples in the form that the computation takes, for the next model that is measured.

    All personal models of a rank are measured on the test samples, whose gathering and scaling takes longer than the
    product with a small model.
    """

    LIMIT = 2**26
    """Bytes of the inputs that are kept at most, were they all float64."""

    def __init__(self) -> None:
        self._data: Dataset | None = None
        self._kind, self._blocks = "", list[Block]()

    def blocks(self, data: Dataset, kind: str, made: Callable[[Dataset, Batch], Iterator[Block]]) -> Iterable[Block]:
        """Inputs and labels of all of `data`, in turn.

        Args:
            kind: with the same data and kind, `made` must make the same blocks.
            made: (data, positions) -> the blocks.
        """
        if self._data is data and self._kind == kind:
            return self._blocks
        positions = np.arange(len(data))
        if 8 * len(data) * data.features > self.LIMIT:
            return made(data, positions)
        self._data, self._kind, self._blocks = data, kind, list(made(data, positions))
        return self._blocks


READY = Ready()


def demand_floats(dtype: DTypeLike, which: str) -> None:
    """Refuses a dtype other than float32 and float64; `which` is the problem, with its verb: "networks run"."""
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise UserError(f"dtype {dtype!r}: {which} in float32 or float64")


def positions_of(data: Any, batch: Batch | None) -> Batch:
    """(B,) the positions of a mini-batch; those of all samples where there is none."""
    return np.arange(len(data)) if batch is None else batch


def blocks(values: Values, size: int) -> Iterator[Values]:
    """The values in turn, `size` of them at a time."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def unscaled(data: Dataset, positions: Batch, dtype: DTypeLike, size: int = 0) -> Iterator[Block]:
    """Inputs (b, p) in `dtype`, still to be multiplied by `data.factor`, and labels (b,), block by block."""
    return (data.unscaled(block, dtype) for block in blocks(positions, size or BLOCK))


def class_weights(data: Dataset, mix: Vector | None) -> Vector:
    """(C,) the weight of a sample of each class in a mean over `data`: 1, or for the shares `mix` (C,) of classes."""
    return np.ones(data.classes) if mix is None else mix / np.maximum(data.counts(), 1)
