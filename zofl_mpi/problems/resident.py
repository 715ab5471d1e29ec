"""Samples on a GPU: the data set lies there once, and mini-batches are gathered there, from their positions alone."""

from __future__ import annotations

import weakref
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Array, Dataset
from zofl_mpi.problems import Batch

MOST = 2**32
"""Bytes of the inputs of a data set that lie on a GPU; of a larger one each mini-batch is gathered on the host."""
KINDS = (np.uint8, np.float32, np.float64)
"""Inputs that torch gathers."""


def sent(host: Tensor, device: str | torch.device) -> Tensor:
    """The tensor on the device. Nobody waits for the copy: it goes through pinned memory, which torch hands out again.

    From pageable memory the host would stand still until the GPU has done all that it was asked for before.
    """
    if torch.device(device).type != "cuda" or host.device.type != "cpu":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


_PLACED: dict[tuple[int, str], Tensor] = {}


def resident(values: Array, device: str) -> Tensor:
    """All of an array on the device: copied there once for the process, given up when nobody has the array any more."""
    key = (id(values), device)
    if key not in _PLACED:
        whole = values if values.dtype in KINDS else values.astype(np.int64)
        _PLACED[key] = torch.tensor(np.asarray(whole), device=device)  # a copy, on the CPU too: it keeps no array
        weakref.finalize(values, _PLACED.pop, key, None)
    return _PLACED[key]


@final
class Resident:
    """Mini-batches of data sets, to the bits of `Dataset.take`.

    Attributes:
        device: where the samples lie.
        dtype: of the inputs as they are computed with.
    """

    def __init__(self, device: str, dtype: str) -> None:
        self.device, self.dtype = device, dtype

    def take(self, data: Dataset, positions: Batch) -> tuple[Tensor, Tensor]:
        """Inputs (B, p), scaled and shifted, and labels (B,) of the samples at `positions`."""
        if data.inputs.nbytes > MOST or data.inputs.dtype not in KINDS:
            inputs, labels = (torch.from_numpy(each) for each in data.take(positions, np.dtype(self.dtype)))
            return sent(inputs, self.device), sent(labels, self.device)
        rows = np.asarray(positions if data.rows is None else data.rows[positions], np.int64)
        at = sent(torch.from_numpy(rows), self.device)
        x = resident(data.inputs, self.device).index_select(0, at).to(getattr(torch, self.dtype))
        if np.any(data.scale != 1.0):
            x *= self._factor(data.scale)
        if np.any(data.shift != 0.0):
            x += self._factor(data.shift)
        return x, resident(data.labels, self.device).index_select(0, at).long()

    def _factor(self, value: float | NDArray[np.float64]) -> Tensor | float:
        """A number for all features, or one for each, rounded as the inputs are."""
        if np.ndim(value):
            return resident(np.asarray(value), self.device).to(getattr(torch, self.dtype))
        return float(np.asarray(value, self.dtype))
