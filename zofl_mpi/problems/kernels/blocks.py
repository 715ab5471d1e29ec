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
from zofl_mpi.engine import device as place
from zofl_mpi.problems.device_cache import fits, resident, sent

Array = NDArray[Any]
Loop = TypeVar("Loop")
Source = Tensor | Callable[[int, int], Tensor]
"""What changes from step to step: (clients, H, ...), or what makes (clients, k, ...) of a first step and k."""

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


def block_of(each: int, limit: int = BLOCK_BYTES) -> int:
    """Clients of a block if each has a mini-batch of `each` bytes: BLOCK, or the power of 2 that `limit` allows."""
    most = max(1, min(BLOCK, limit // max(1, each)))
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

    Those of a data set that is too large for that (`resident.MOST`) are gathered on the host, step by step.

    Attributes:
        steps: of one replay; 1 if they are gathered on the host.
        targets: (steps, c, ...) what `sources` fill: rows; inputs and labels if they are gathered on the host.
        inputs: (c, B, row) those of the step that was gathered last: scaled, 1 for the bias, filled up with zeros.

    Args:
        width: entries of a row before it is filled up to whole lines, at least p and 1 for the bias.
        steps: of one replay, if the data set lies on the device.
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
        self._device, self._lie_there = device, fits(data)
        own, p = getattr(torch, dtype), data.features
        self.steps = steps if self._lie_there else 1
        shape = self.steps, clients, size
        self.targets: tuple[Tensor, ...]
        if self._lie_there:
            self._stored, self._labels = resident(data.inputs, device), resident(data.labels, device)
            self._room = Room("int32", device)
            self.targets = (torch.zeros(shape, dtype=torch.int32, device=device),)
        else:
            kind = torch.from_numpy(np.empty(0, data.inputs.dtype)).dtype
            inputs = torch.zeros((*shape, p), dtype=kind, device=device)
            self.targets = inputs, torch.zeros(shape, dtype=torch.int64, device=device)
        self._factors = [torch.tensor(a, dtype=own, device=device) for a in (data.scale, data.shift) if rescale]
        self.inputs = torch.zeros((clients, size, row_of(width, dtype)), dtype=own, device=device)
        self._features = self.inputs[:, :, :p]
        if bias:
            self.inputs[:, :, p] = 1

    def sources(self, rows: Sequence[Array]) -> tuple[Source, ...]:
        """What fills `targets`, for each client's rows (H, B)."""
        if self._lie_there:
            return (self._room.sent(rows),)
        every, data = np.stack(rows), self._data

        def inputs(t: int, steps: int) -> Tensor:
            return sent(torch.from_numpy(np.asarray(data.inputs)[every[:, t : t + steps]]), self._device)

        def labels(t: int, steps: int) -> Tensor:
            return sent(torch.from_numpy(data.labels[every[:, t : t + steps]].astype(np.int64)), self._device)

        return inputs, labels

    def fill(self, rows: Sequence[Array]) -> None:
        """Fills step 0 with each client's rows (B,)."""
        for target, source in zip(self.targets, self.sources([each[None] for each in rows]), strict=True):
            filled(target, source)

    def gather(self, t: int) -> Tensor:
        """Fetches the inputs of step t, scaled as the NumPy kernels do it: first one factor, then the other."""
        there = self.targets[0][t]
        stored = self._stored.index_select(0, there.view(-1)) if self._lie_there else there
        self._features.copy_(stored.view(self._features.shape))
        if self._factors:
            self._features.mul_(self._factors[0]).add_(self._factors[1])
        return self.inputs

    def labels(self, first: int, end: int) -> Tensor:
        """(end - first, c, B) int64, those of the steps `first` to `end` - 1."""
        rows = self.targets[-1][first:end]
        if not self._lie_there:
            return rows
        return self._labels.index_select(0, rows.view(-1)).to(torch.int64).view(rows.shape)


@final
class Steps:
    """Local steps that are replayed, several at a time.

    Args:
        batches: which say how many.
        targets: (steps, c, ...) what else changes from step to step, such as step sizes.
    """

    def __init__(self, device: str, batches: Batches, *targets: Tensor) -> None:
        self._device, self._batches, self._targets = device, batches, (*targets, *batches.targets)
        self._replays: dict[int, Callable[[], None]] = {}

    def ready(self, H: int, work: Callable[[int], None]) -> None:
        """Makes what H steps take, before any tensor of theirs is filled: to record steps is to take some.

        Args:
            work: takes the first so many of the steps in `targets`, with tensors that stay where they are.
        """
        for _, steps in self._turns(H):
            if steps not in self._replays:
                self._replays[steps] = place.replayable(self._device, partial(work, steps))

    def take(self, rows: Sequence[Array], *sources: Tensor) -> None:
        """Takes H steps, for the first clients of a block.

        Args:
            rows: (H, B) of each client's mini-batches.
            sources: (clients, H, ...) of the other targets.
        """
        every = *sources, *self._batches.sources(rows)
        for t, steps in self._turns(len(rows[0])):
            for target, source in zip(self._targets, every, strict=True):
                filled(target, source, t, steps)
            self._replays[steps]()

    def _turns(self, H: int) -> Iterator[tuple[int, int]]:
        """The first step and the number of steps of each replay."""
        chunk = self._batches.steps
        rest = H - H % chunk
        yield from ((t, chunk) for t in range(0, rest, chunk))
        yield from ((t, 1) for t in range(rest, H))


def filled(target: Tensor, source: Source, t: int = 0, steps: int = 1) -> None:
    """Copies so many steps from step t on of the clients in `source` to the first steps of (steps, c, ...)."""
    part = source[:, t : t + steps] if isinstance(source, Tensor) else source(t, steps)
    target[:steps, : len(part)].copy_(part.swapaxes(0, 1))
