"""Storage of batched torch kernels: clients' models and mini-batches side by side, and local steps in CUDA graphs.

Computations are always of the same shapes: a block has as many rows (models) as follows from one row's step alone, and
is filled up with rows of zeros; each row begins on a line of 64 bytes. No library promises that a row's bits are then
the same beside other rows; `module_torch.equal_bits` finds out before a run relies on it.

On a GPU steps are replayed from CUDA graphs, of CHUNK steps and of a single one for the rest, since the number of steps
grows with the rounds. So the tensors that they compute with stay where they are.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.engine import device as place
from zofl_mpi.problems import Array
from zofl_mpi.problems.device_cache import fits, on_device, to_device

Block = TypeVar("Block")
Source = Tensor | Callable[[int, int], Tensor]
"""Values that change from step to step, (rows, H, ...), or a function that gives (rows, k, ...) of step t and k."""

BLOCK = 32  # rows of one batched computation, at most
CHUNK = 16  # steps of one replay
LINE = 64  # bytes to whose multiples the parameters of a row are padded
CACHED = 16  # blocks that are kept with their tensors, each for one shape of calls
LOCK = threading.RLock()  # held while torch computes, since ranks may be threads of one process

_BLOCKS: OrderedDict[Hashable, Any] = OrderedDict()


def row_of(width: int, dtype: str) -> int:
    """Length of `width` numbers after padding to whole lines."""
    each = LINE // np.dtype(dtype).itemsize
    return -(-width // each) * each


def block_of(each: int, limit: int) -> int:
    """Rows of a block whose steps take `each` bytes: BLOCK, or the power of 2 that `limit` allows."""
    most = max(1, min(BLOCK, limit // max(1, each)))
    return 1 << most.bit_length() - 1


def cached(key: Hashable, make: Callable[[], Block]) -> Block:
    """Returns the block of that key, made if need be in place of the least recently used one."""
    if key not in _BLOCKS:
        while len(_BLOCKS) >= CACHED:
            _BLOCKS.popitem(last=False)
        _BLOCKS[key] = make()
    _BLOCKS.move_to_end(key)
    return _BLOCKS[key]  # type: ignore[no-any-return]


def dataset_key(data: Dataset) -> tuple[Any, ...]:
    """Key that is equal for subsets of the same stored samples, scaled alike."""
    factors = (a if isinstance(a, int | float) else id(a) for a in (data.scale, data.shift))
    return (id(data.inputs), id(data.labels), *factors)


@final
class StagingBuffer:
    """Memory through which arrays are sent to the device together; reused when the values sent before are computed."""

    def __init__(self, dtype: str, device: str) -> None:
        self._dtype, self._device = getattr(torch, dtype), device
        self._host = self._on_device = torch.empty(0)

    def send(self, arrays: Sequence[Array]) -> Tensor:
        """Returns the arrays stacked on the device, (rows, ...)."""
        shape = (len(arrays), *arrays[0].shape)
        size = math.prod(shape)
        if size > len(self._host):
            most = 1 << (size - 1).bit_length()
            self._host = torch.empty(most, dtype=self._dtype, pin_memory=self._device != "cpu")
            self._on_device = torch.empty(most, dtype=self._dtype, device=self._device)
        host = self._host[:size].view(shape)
        np.stack(arrays, out=host.numpy(), casting="same_kind")
        return self._on_device[:size].view(shape).copy_(host, non_blocking=True)


@final
class BatchGatherer:
    """Mini-batches of R rows of B, gathered on the device; of a data set too large for it on the host, step by step.

    Attributes:
        steps: of one replay; 1 if they are gathered on the host.
        targets: (steps, R, ...) tensors that `sources` fill: positions; inputs and labels if gathered on the host.
        inputs: (R, B, p) the scaled inputs of the step that was gathered last, a sample at the beginning of a line.
    """

    def __init__(self, data: Dataset, rows: int, size: int, dtype: str, device: str, steps: int) -> None:
        self._data = data  # keeps the arrays by whose `dataset_key` a block is found
        self._device, self._lie_there = device, fits(data)
        own, p = getattr(torch, dtype), data.features
        self.steps = steps if self._lie_there else 1
        shape = self.steps, rows, size
        self.targets: tuple[Tensor, ...]
        if self._lie_there:
            self._stored, self._labels = on_device(data.inputs, device), on_device(data.labels, device)
            self._buffer = StagingBuffer("int32", device)
            self.targets = (torch.zeros(shape, dtype=torch.int32, device=device),)
        else:
            kind = torch.from_numpy(np.empty(0, data.inputs.dtype)).dtype
            inputs = torch.zeros((*shape, p), dtype=kind, device=device)
            self.targets = inputs, torch.zeros(shape, dtype=torch.int64, device=device)
        rescale = bool(np.any(data.scale != 1.0) or np.any(data.shift != 0.0))
        self._factors = [torch.tensor(a, dtype=own, device=device) for a in (data.scale, data.shift) if rescale]
        self.inputs = torch.zeros((rows, size, row_of(p, dtype)), dtype=own, device=device)[:, :, :p]

    def sources(self, rows: Sequence[Array]) -> tuple[Source, ...]:
        """Values for `targets`, of each row's sample positions (H, B)."""
        if self._lie_there:
            return (self._buffer.send(rows),)
        every = np.stack(rows)

        def gathered(values: Array, t: int, steps: int) -> Tensor:
            return to_device(torch.from_numpy(values[every[:, t : t + steps]]), self._device)

        return partial(gathered, np.asarray(self._data.inputs)), partial(gathered, self._data.labels.astype(np.int64))

    def fill(self, rows: Sequence[Array]) -> None:
        """Fills step 0 with each row's sample positions (B,)."""
        for target, source in zip(self.targets, self.sources([each[None] for each in rows]), strict=True):
            copy_steps(target, source)

    def gather(self, t: int) -> Tensor:
        """Fetches the inputs of step t, scaled and then shifted, as NumPy does it."""
        there = self.targets[0][t]
        stored = self._stored.index_select(0, there.view(-1)) if self._lie_there else there
        self.inputs.copy_(stored.view(self.inputs.shape))
        if self._factors:
            self.inputs.mul_(self._factors[0]).add_(self._factors[1])
        return self.inputs

    def labels(self, steps: int) -> Tensor:
        """(steps, R, B) int64 labels of the first steps."""
        rows = self.targets[-1][:steps]
        if not self._lie_there:
            return rows
        return self._labels.index_select(0, rows.view(-1)).to(torch.int64).view(rows.shape)


@final
class StepGraphs:
    """Local steps on the mini-batches of `batches`, replayed several at a time.

    Args:
        targets: (steps, R, ...) further values that change from step to step, such as step sizes.
    """

    def __init__(self, device: str, batches: BatchGatherer, *targets: Tensor) -> None:
        self._device, self._batches, self._targets = device, batches, (*targets, *batches.targets)
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self, H: int, work: Callable[[int], None]) -> None:
        """Captures the graphs of H steps, before any tensor of theirs is filled: CUDA-graph capture executes the steps.

        `work(steps)` takes the first `steps` steps of `targets`, with tensors that stay where they are.
        """
        for _, steps in self._replays_of(H):
            if steps not in self._replays:
                self._replays[steps] = place.replayable(self._device, partial(work, steps))

    def take(self, rows: Sequence[Array], *sources: Tensor) -> None:
        """Takes H steps with the first rows of a block, of sample positions (H, B) each; `sources` (rows, H, ...) are
        the values of the other targets.
        """
        every = *sources, *self._batches.sources(rows)
        for t, steps in self._replays_of(len(rows[0])):
            for target, source in zip(self._targets, every, strict=True):
                copy_steps(target, source, t, steps)
            self._replays[steps]()

    def _replays_of(self, H: int) -> Iterator[tuple[int, int]]:
        """The first step and the number of steps of each replay."""
        chunk = self._batches.steps
        rest = H - H % chunk
        yield from ((t, chunk) for t in range(0, rest, chunk))
        yield from ((t, 1) for t in range(rest, H))


def copy_steps(target: Tensor, source: Source, t: int = 0, steps: int = 1) -> None:
    """Copies the steps t to t + steps - 1 of `source` to the first steps of `target` (steps, R, ...)."""
    part = source[:, t : t + steps] if isinstance(source, Tensor) else source(t, steps)
    target[:steps, : len(part)].copy_(part.swapaxes(0, 1))
