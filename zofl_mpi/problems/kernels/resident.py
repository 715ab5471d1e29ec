"""Data sets on a device, as they are stored: each array lies there once for a process, whoever asks for it."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Dataset

Array = NDArray[Any]

_KEPT: dict[tuple[int, str], Tensor] = {}
_LOCK = threading.Lock()


class Source(NamedTuple):
    """What the samples of a data set are gathered from.

    Attributes:
        inputs: (N, p) as they are stored.
        labels: (N,) int64.
        scale, shift: () or (p,), in the dtype of what computes.
    """

    inputs: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor


def resident(array: Array, device: str) -> Tensor:
    """The array on the device: copied there the first time, given up when nobody has the array any more."""
    key = (id(array), device)
    with _LOCK:
        if key not in _KEPT:
            _KEPT[key] = torch.tensor(np.asarray(array), device=device)  # a copy, on the CPU too: it keeps no array
            weakref.finalize(array, _KEPT.pop, key, None)
        return _KEPT[key]


def source_of(data: Dataset, dtype: torch.dtype, device: str) -> Source:
    """The samples that `data.rows` are numbers of."""
    scale, shift = (torch.tensor(a, dtype=dtype, device=device) for a in (data.scale, data.shift))
    labels = resident(data.labels, device)
    return Source(resident(data.inputs, device), labels.to(torch.int64), scale, shift)


def identity(data: Dataset) -> tuple[Any, ...]:
    """Equal for data sets whose `source_of` is the same."""
    factors = (a if isinstance(a, int | float) else id(a) for a in (data.scale, data.shift))
    return (id(data.inputs), id(data.labels), *factors)
