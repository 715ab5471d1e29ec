"""Many clients in one batched computation of torch: data sets on the device, gathered mini-batches, replayed steps.

A client's bits do not depend on which clients are computed with it, nor on its place among them, where a kernel keeps
two rules:

- Products and sums are computed for blocks of clients, always as many as `block_of` says, which looks at the shapes of
  one client alone; the last block is filled up with clients that hold nothing. So a library that chooses by its shapes
  how to sum is always asked for the same shapes, and what it does with one matrix of a batch is what it does with any
  other. Rows are filled up with zeros to whole lines of 64 bytes, so that all matrices lie alike in memory.
- All else is computed entry by entry, or for each short row by itself (torch.softmax over the last dimension). No
  operation is used that multiplies and adds at once, which some entries of an array could get and others not.

On a GPU steps are replayed from CUDA graphs, of CHUNK steps and of a single one for the rest, since the number of steps
grows with the rounds. So the tensors that they compute with stay where they are, and are filled anew for each call.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.problems.resident import resident
from zofl_mpi.run import device as place

Array = NDArray[Any]
Loop = TypeVar("Loop")

BLOCK = 32
"""Clients of one batched product, at most."""
BLOCK_BYTES = 2**26
"""Of the mini-batches of a block; where these are larger it has fewer clients."""
CHUNK = 16
"""Steps of one replay."""
LINE = 64
"""Bytes that a row of features fills up to."""
LOOPS = 16
"""Loops that are kept, with their tensors: as many shapes of calls."""
LOCK = threading.RLock()
"""For whoever computes: ranks may be threads of one process."""

_LOOPS: OrderedDict[Hashable, Any] = OrderedDict()


def row_of(width: int, dtype: str) -> int:
    """Numbers of a row: its width, filled up to whole lines."""
    each = LINE // np.dtype(dtype).itemsize
    return -(-width // each) * each


def block_of(each: int) -> int:
    """Clients of a block if each has a mini-batch of `each` bytes: BLOCK, or the power of 2 that BLOCK_BYTES allow."""
    most = max(1, min(BLOCK, BLOCK_BYTES // max(1, each)))
    return 1 << most.bit_length() - 1


def kept(key: Hashable, make: Callable[[], Loop]) -> Loop:
    """The loop of that key; if it has to be made, the one that was used least lately is given up for it."""
    if key not in _LOOPS:
        while len(_LOOPS) >= LOOPS:
            _LOOPS.popitem(last=False)
        _LOOPS[key] = make()
    _LOOPS.move_to_end(key)
    return _LOOPS[key]  # type: ignore[no-any-return]


def identity(data: Dataset) -> tuple[Any, ...]:
    """Equal for data sets that are rows of the same samples, scaled alike."""
    factors = (a if isinstance(a, int | float) else id(a) for a in (data.scale, data.shift))
    return (id(data.inputs), id(data.labels), *factors)


@final
class Room:
    """Memory for arrays that go to the device together, one of each client: on the host, pinned for a GPU, and there.

    It stays, as fresh memory costs more than the copy; not to be used again before what was sent was computed with.
    """

    def __init__(self, dtype: str, device: str) -> None:
        self._dtype, self._device = getattr(torch, dtype), device
        self._host = self._there = torch.empty(0)

    def sent(self, arrays: Sequence[Array]) -> Tensor:
        """(clients, ...) on the device."""
        shape = (len(arrays), *arrays[0].shape)
        host = self._on_host(shape)
        np.stack(arrays, out=host.numpy(), casting="same_kind")
        return self._there[: host.numel()].view(shape).copy_(host, non_blocking=True)

    def read(self, found: Tensor) -> Array:
        """What is on the device, until the next call: waits for the GPU."""
        host = self._on_host(tuple(found.shape))
        return host.copy_(found).numpy()

    def _on_host(self, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if size > len(self._host):
            most = 1 << (size - 1).bit_length()
            self._host = torch.empty(most, dtype=self._dtype, pin_memory=self._device != "cpu")
            self._there = torch.empty(most, dtype=self._dtype, device=self._device)
        return self._host[:size].view(shape)


@final
class Batches:
    """Mini-batches of c clients, gathered on the device from the samples that lie there.

    Attributes:
        rows: (steps, c, B) their rows, to be filled.
        inputs: (c, B, row) those of the step that was gathered last: scaled, 1 for the bias, filled up with zeros.

    Args:
        width: entries of a row before it is filled up to whole lines, at least p and 1 for the bias.
    """

    def __init__(
        self,
        data: Dataset,
        clients: int,
        size: int,
        dtype: str,
        device: str,
        *,
        width: int,
        steps: int,
        rescale: bool,
        bias: bool,
    ) -> None:
        self._data = data  # keeps the arrays by whose `identity` a loop is found
        own, p = getattr(torch, dtype), data.features
        self._stored, self._labels = resident(data.inputs, device), resident(data.labels, device)
        self._factors = [torch.tensor(a, dtype=own, device=device) for a in (data.scale, data.shift) if rescale]
        self.rows = torch.zeros((steps, clients, size), dtype=torch.int32, device=device)
        self.inputs = torch.zeros((clients, size, row_of(width, dtype)), dtype=own, device=device)
        self._features = self.inputs[:, :, :p]
        if bias:
            self.inputs[:, :, p] = 1

    def gather(self, t: int) -> Tensor:
        """Fetches the inputs of step t, scaled as the NumPy kernels do it: first one factor, then the other."""
        self._features.copy_(self._stored.index_select(0, self.rows[t].view(-1)).view(self._features.shape))
        if self._factors:
            self._features.mul_(self._factors[0]).add_(self._factors[1])
        return self.inputs

    def labels(self, first: int, end: int) -> Tensor:
        """(end - first, c, B) int64, those of the steps `first` to `end` - 1."""
        rows = self.rows[first:end]
        return self._labels.index_select(0, rows.view(-1)).to(torch.int64).view(rows.shape)


@final
class Steps:
    """Local steps that are replayed, several at a time.

    Args:
        targets: (CHUNK, c, ...) what changes from step to step, such as the rows of the mini-batches.
    """

    def __init__(self, device: str, targets: Sequence[Tensor]) -> None:
        self._device, self._targets = device, targets
        self._replays: dict[int, Callable[[], None]] = {}

    def ready(self, H: int, work: Callable[[int], None]) -> None:
        """Makes what H steps take, before any tensor of theirs is filled: to record steps is to take some.

        Args:
            work: takes the first so many of the steps in `targets`, with tensors that stay where they are.
        """
        for _, steps in self._turns(H):
            if steps not in self._replays:
                self._replays[steps] = place.replayable(self._device, partial(work, steps))

    def take(self, sources: Sequence[Tensor]) -> None:
        """Takes the H steps of the sources (clients, H, ...), one for each target, for the first clients of a block."""
        for t, steps in self._turns(sources[0].shape[1]):
            for target, source in zip(self._targets, sources, strict=True):
                target[:steps, : len(source)].copy_(source[:, t : t + steps].swapaxes(0, 1))
            self._replays[steps]()

    @staticmethod
    def _turns(H: int) -> Iterator[tuple[int, int]]:
        """The first step and the number of steps of each replay."""
        rest = H - H % CHUNK
        yield from ((t, CHUNK) for t in range(0, rest, CHUNK))
        yield from ((t, 1) for t in range(rest, H))
