"""Caches data sets on a GPU, where mini-batches are gathered by position."""

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
"""Largest inputs cached on a GPU; mini-batches of larger data sets are gathered on the host."""
GATHERED_DTYPES = {"uint8", "int32", "int64", "float32", "float64"}  # of inputs and labels that torch can gather


@lru_cache(maxsize=16)
def is_host(device: str | torch.device) -> bool:
    """True if the device is the CPU."""
    return torch.device(device).type == "cpu"


def to_device(host: Tensor, device: str | torch.device) -> Tensor:
    """Copies a tensor to the device through pinned memory: from pageable memory the host would wait for the GPU."""
    if is_host(device) or host.device.type != "cpu" or torch.device(device).type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


_PLACED: dict[tuple[int, str], Tensor] = {}


def on_device(values: Array, device: str) -> Tensor:
    """A whole array on the device, copied once per process and released with the array."""
    key = (id(values), device)
    if key not in _PLACED:
        stored = values if values.dtype.name in GATHERED_DTYPES else values.astype(np.int64)
        _PLACED[key] = torch.tensor(np.asarray(stored), device=device)  # a copy even on the CPU: keeps no reference
        weakref.finalize(values, _PLACED.pop, key, None)
    return _PLACED[key]


def fits(data: Dataset) -> bool:
    """True if the inputs are small enough to be cached on a GPU."""
    return bool(data.inputs.nbytes <= MAX_BYTES_ON_GPU)


def samples_on(device: str, data: Dataset, positions: Batch, dtype: str) -> tuple[Tensor, Tensor]:
    """Scaled and shifted inputs (B, p), and `Dataset.answers` (B, ...), of the samples at `positions`, on the device.

    Gathered on the GPU, bit-identical to `Dataset.take`.
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
    """Copies inputs to dtype `kind` (UserError: `kind` is an integer dtype, and an input has a fraction)."""
    found = inputs.to(kind, copy=True, **layout)
    if not (kind.is_floating_point or torch.equal(found.to(inputs.dtype), inputs)):
        raise UserError("the network takes whole numbers, as its first samples are; other samples have fractions")
    return found


def _factor(value: float | NDArray[np.float64], dtype: str, device: str) -> Tensor | float:
    """Scale or shift, one for all features or one for each, in the inputs' dtype."""
    if isinstance(value, np.ndarray):
        return on_device(value, device).to(getattr(torch, dtype))
    return float(np.asarray(value, dtype))
