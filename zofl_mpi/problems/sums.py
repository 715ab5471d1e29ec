"""What all problems over samples need: positions, blocks and class weights of sums, and the dtypes they run in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Batch

QUIET = np.errstate(all="ignore")
"""Values that are not finite are the caller's to find."""
BLOCK = 512
"""Samples that are looked at together when all data are."""


def demand_floats(dtype: DTypeLike, what: str) -> None:
    """Refuses a dtype other than float32 and float64.

    Args:
        what: the problem, with its verb: "networks run".

    Raises:
        UserError: in any other dtype.
    """
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise UserError(f"dtype {dtype!r}: {what} in float32 or float64")


def positions_of(data: Any, batch: Batch | None) -> Batch:
    """(B,) the positions of a mini-batch; those of all samples where there is none."""
    return np.arange(len(data)) if batch is None else batch


def blocks(positions: Batch, size: int) -> Iterator[Batch]:
    """The positions, `size` of them at a time."""
    for start in range(0, len(positions), size):
        yield positions[start : start + size]


def class_weights(data: Dataset, mix: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """(C,) the weight of a sample of each class in a mean over `data`: 1, or such that the classes count as in `mix`.

    Args:
        mix: (C,) weights of the classes, in place of their shares in `data`; one that `data` lacks counts nothing.
    """
    return np.ones(data.classes) if mix is None else mix / np.maximum(data.counts(), 1)
