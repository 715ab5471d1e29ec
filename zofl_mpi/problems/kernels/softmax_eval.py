"""Softmax regression by torch, on a GPU or on the CPU: gradients, losses and hits of a model on many samples.

Logits are products in the dtype of the model, all that follows is float64, as by NumPy. Samples go in pieces of PIECE.
Each model by itself, so its bits depend on nothing else. Requests are computed one after the other; that they come
together only keeps all work on one thread, since libraries have room on the GPU for each thread that calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.problems import Batch
from zofl_mpi.problems.device_cache import fits, resident, taken
from zofl_mpi.problems.kernels.blocks import LOCK
from zofl_mpi.problems.sums import blocks, positions_of

Array = NDArray[Any]

PIECE = 4096
"""Samples that are looked at together, at most."""


class Look(NamedTuple):
    """Models on samples.

    Attributes:
        y: (k, C, p), or (k, C, p + 1) with a bias.
        data: the samples.
        positions: (B,) of some of them; None: all.
        bias: whether a constant 1 is appended to each input.
        weights: (C,) of a sample of each class, in `sums`.
    """

    y: Array
    data: Dataset
    positions: Batch | None
    bias: bool
    weights: NDArray[np.float64] | None = None


def gradients(asked: Sequence[Look], device: str) -> list[Array]:
    """For each (k, C, width) float64, the sum of the gradients of the cross-entropy."""
    with LOCK, torch.no_grad():
        return [_gradient(look, device) for look in asked]


def sums(asked: Sequence[Look], device: str) -> list[NDArray[np.float64]]:
    """For each, of one model, (3,) the sums of the weights, of weighted losses and of weighted hits."""
    with LOCK, torch.no_grad():
        return [_sum(look, device) for look in asked]


def hits(asked: Sequence[Look], device: str) -> list[NDArray[np.int64]]:
    """For each, of one model, (C,) how many samples of each class are classified correctly."""
    with LOCK, torch.no_grad():
        return [_hits(look, device) for look in asked]


def losses_by_class(asked: Sequence[Look], device: str) -> list[NDArray[np.float64]]:
    """For each (k, C), the sums of the losses over its samples of each class."""
    with LOCK, torch.no_grad():
        return [_by_class(look, device) for look in asked]


def _by_class(look: Look, device: str) -> NDArray[np.float64]:
    total = torch.zeros(look.y.shape[:2], dtype=torch.float64, device=device)
    for _, logits, labels in _pieces(look, device):
        own = labels[:, None, None].expand(*logits.shape[:2], 1)
        losses = -torch.log_softmax(logits, dim=-1).gather(2, own)[..., 0]  # (b, k)
        total += losses.T @ _onehot(labels, logits)
    return total.cpu().numpy()


def _gradient(look: Look, device: str) -> Array:
    total = torch.zeros(look.y.shape, dtype=torch.float64, device=device)
    for inputs, logits, labels in _pieces(look, device):
        residual = torch.softmax(logits, dim=-1)
        residual -= _onehot(labels, logits)[:, None]
        own = residual.to(inputs.dtype).flatten(1)  # (b, k C)
        total += (own.T @ inputs).view(total.shape)
    return total.cpu().numpy()


def _sum(look: Look, device: str) -> NDArray[np.float64]:
    total = torch.zeros(3, dtype=torch.float64, device=device)
    weights = torch.tensor(look.weights, device=device)
    for _, logits, labels in _pieces(look, device):
        own = weights.index_select(0, labels)
        loss = -torch.log_softmax(logits[:, 0], dim=-1).gather(1, labels[:, None])[:, 0]
        hit = (logits[:, 0].argmax(dim=-1) == labels).to(torch.float64)
        total += torch.stack([own, own * loss, own * hit]).sum(dim=1)
    return total.cpu().numpy()


def _hits(look: Look, device: str) -> NDArray[np.int64]:
    total = torch.zeros(look.y.shape[1], dtype=torch.int64, device=device)
    for _, logits, labels in _pieces(look, device):
        right = logits[:, 0].argmax(dim=-1) == labels
        total += (_onehot(labels, logits) * right[:, None]).sum(dim=0).to(torch.int64)
    return total.cpu().numpy()


def _onehot(labels: Tensor, logits: Tensor) -> Tensor:
    """(b, C) float64."""
    classes = torch.arange(logits.shape[-1], device=labels.device)
    return (labels[:, None] == classes).to(torch.float64)


def _pieces(look: Look, device: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs (b, width), logits (b, k, C) float64 and labels (b,) of the samples, in turn."""
    y = torch.tensor(look.y, device=device)
    for inputs, labels in _samples(look, y.dtype, device):
        if look.bias:
            inputs = torch.nn.functional.pad(inputs, (0, 1), value=1.0)
        logits = (inputs @ y.flatten(0, 1).T).to(torch.float64)
        yield inputs, logits.view(len(labels), *y.shape[:2]), labels


def _samples(look: Look, dtype: torch.dtype, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs (b, p), scaled and shifted, and labels (b,) of the samples, in turn; see `resident.MOST`."""
    data = look.data
    if not fits(data):
        for some in blocks(positions_of(data, look.positions), PIECE):
            yield taken(data, some, str(dtype).removeprefix("torch."), device)
        return
    stored, labels = resident(data.inputs, device), resident(data.labels, device)
    scale, shift = (torch.tensor(factor, dtype=dtype, device=device) for factor in (data.scale, data.shift))
    for rows in _rows(look, device).split(PIECE):  # type: ignore[no-untyped-call]
        inputs = stored.index_select(0, rows).to(dtype, copy=True).mul_(scale).add_(shift)
        yield inputs, labels.index_select(0, rows).to(torch.int64)


def _rows(look: Look, device: str) -> Tensor:
    """Which of the samples that lie on the device they are."""
    data = look.data
    if look.positions is not None:
        return torch.tensor(data.rows_of(look.positions), device=device)
    return torch.arange(len(data), device=device) if data.rows is None else resident(data.rows, device)
