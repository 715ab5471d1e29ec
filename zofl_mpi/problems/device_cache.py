"""Samples on a GPU: the data set lies there once, and mini-batches are gathered there, from their positions alone."""

import weakref
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.arrays import Array
from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Batch

MAX_BYTES_ON_GPU = 2**32
"""Bytes of the inputs of a data set that lie on a GPU; of a larger one each mini-batch is gathered on the host."""
GATHERED_DTYPES = {"uint8", "int32", "int64", "float32", "float64"}  # inputs and labels that torch gathers


@lru_cache(maxsize=16)
def is_host(device: str | torch.device) -> bool:
    """True if the device is the CPU."""
    return torch.device(device).type == "cpu"


def to_device(host: Tensor, device: str | torch.device) -> Tensor:
    """The tensor on the device, copied through pinned memory: from pageable memory the host would wait for the GPU."""
    if is_host(device) or host.device.type != "cpu" or torch.device(device).type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


_PLACED: dict[tuple[int, str], Tensor] = {}


def on_device(values: Array, device: str) -> Tensor:
    """All of an array on the device: copied there once for the process, and dropped with the array."""
    key = (id(values), device)
    if key not in _PLACED:
        stored = values if values.dtype.name in GATHERED_DTYPES else values.astype(np.int64)
        _PLACED[key] = torch.tensor(np.asarray(stored), device=device)  # a copy, on the CPU too: it keeps no array
        weakref.finalize(values, _PLACED.pop, key, None)
    return _PLACED[key]


def fits(data: Dataset) -> bool:
    """True if the data set may lie on a GPU, by the size of its inputs."""
    return bool(data.inputs.nbytes <= MAX_BYTES_ON_GPU)


def samples_on(device: str, data: Dataset, positions: Batch, dtype: str) -> tuple[Tensor, Tensor]:
    """Inputs (B, p), scaled and shifted, and `Dataset.answers` (B, ...) of the samples at `positions`: the bits of
    `Dataset.take`, gathered on a GPU itself.
    """
    stored = data.labels if data.targets is None else data.targets
    if is_host(device) or not fits(data) or not {data.inputs.dtype.name, stored.dtype.name} <= GATHERED_DTYPES:
        inputs, answers = data.take(positions, np.dtype(dtype))[0], data.answers(positions, np.dtype(dtype))
        return to_device(torch.from_numpy(inputs), device), to_device(torch.from_numpy(answers), device)
    at = to_device(torch.from_numpy(np.asarray(data.rows_of(positions), np.int64)), device)
    x = on_device(data.inputs, device).index_select(0, at).to(getattr(torch, dtype))
    if np.any(data.scale != 1.0):
        x *= _factor(data.scale, dtype, device)
    if np.any(data.shift != 0.0):
        x += _factor(data.shift, dtype, device)
    return x, on_device(stored, device).index_select(0, at).to(getattr(torch, answer_dtype(data, dtype)))


def answer_dtype(data: Dataset, dtype: str) -> str:
    """Name of the dtype of `Dataset.answers`."""
    return str(data.answers(np.zeros(0, np.int64), np.dtype(dtype)).dtype.name)


def in_kind(inputs: Tensor, kind: torch.dtype, **layout: Any) -> Tensor:
    """A copy of the inputs in another kind of numbers; refused where a part that takes whole ones would get others."""
    found = inputs.to(kind, copy=True, **layout)
    if not (kind.is_floating_point or torch.equal(found.to(inputs.dtype), inputs)):
        raise UserError("the network takes whole numbers, as its first samples are; other samples have fractions")
    return found


def _factor(value: float | NDArray[np.float64], dtype: str, device: str) -> Tensor | float:
    """A number for all features, or one for each, rounded as the inputs are."""
    if isinstance(value, np.ndarray):
        return on_device(value, device).to(getattr(torch, dtype))
    return float(np.asarray(value, dtype))
