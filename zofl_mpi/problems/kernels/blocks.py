"""Storage of batched torch kernels: clients' models and mini-batches side by side, and local steps in CUDA graphs.

Computations are always of the same shapes: a block has as many rows (models) as follows from one row's step alone, and
is filled up with rows of zeros; each row begins on a line of 64 bytes. No library promises that a row's bits are then
the same beside other rows; `module_torch.equal_bits` finds out before a run relies on it.

On a GPU steps are replayed from CUDA graphs, of CHUNK steps and of a single one for the rest, since the number of steps
grows with the rounds. So the tensors that they compute with stay where they are.
"""

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
from zofl_mpi.problems.device_cache import on_device

Block = TypeVar("Block")

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


def send(arrays: Sequence[Array], dtype: str, device: str) -> Tensor:
    """The arrays stacked on the device, (rows, ...), through pinned memory, which torch keeps until they are there."""
    shape = (len(arrays), *arrays[0].shape)
    host = torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=device != "cpu")
    np.stack(arrays, out=host.numpy(), casting="same_kind")
    return host.to(device, non_blocking=True)


@final
class BatchGatherer:
    """Mini-batches of R rows of B, gathered on the device, where all samples lie.

    Attributes:
        positions: (steps, R, B) of the samples of one replay's steps.
        inputs: (R, B, p) the scaled inputs of the step that was gathered last, a sample at the beginning of a line.
    """

    def __init__(self, data: Dataset, rows: int, size: int, dtype: str, device: str, steps: int) -> None:
        self._data = data  # keeps the arrays by whose `dataset_key` a block is found
        self._stored, self._labels = on_device(data.inputs, device), on_device(data.labels, device)
        self.positions = torch.zeros((steps, rows, size), dtype=torch.int32, device=device)
        own, p = getattr(torch, dtype), data.features
        rescale = bool(np.any(data.scale != 1.0) or np.any(data.shift != 0.0))
        self._factors = [torch.tensor(a, dtype=own, device=device) for a in (data.scale, data.shift) if rescale]
        self.inputs = torch.zeros((rows, size, row_of(p, dtype)), dtype=own, device=device)[:, :, :p]

    def sent(self, rows: Sequence[Array]) -> Tensor:
        """(rows, H, B) each row's sample positions (H, B), on the device."""
        return send(rows, "int32", str(self.positions.device))

    def fill(self, rows: Sequence[Array]) -> None:
        """Fills step 0 with each row's sample positions (B,)."""
        copy_steps(self.positions, self.sent([each[None] for each in rows]))

    def gather(self, t: int) -> Tensor:
        """Fetches the inputs of step t, scaled and then shifted, as NumPy does it."""
        stored = self._stored.index_select(0, self.positions[t].view(-1))
        self.inputs.copy_(stored.view(self.inputs.shape))
        if self._factors:
            self.inputs.mul_(self._factors[0]).add_(self._factors[1])
        return self.inputs

    def labels(self, steps: int) -> Tensor:
        """(steps, R, B) int64 labels of the first steps."""
        rows = self.positions[:steps]
        return self._labels.index_select(0, rows.view(-1)).to(torch.int64).view(rows.shape)


@final
class StepGraphs:
    """Local steps of the sizes (steps, R, 1) on the mini-batches of `batches`, replayed several at a time."""

    def __init__(self, device: str, batches: BatchGatherer, sizes: Tensor) -> None:
        self._device, self._batches, self._sizes = device, batches, sizes
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self, H: int, work: Callable[[int], None]) -> None:
        """Captures the graphs of H steps, before any tensor of theirs is filled: CUDA-graph capture executes the steps.

        `work(steps)` takes the first `steps` steps, with tensors that stay where they are.
        """
        for _, steps in self._replays_of(H):
            if steps not in self._replays:
                self._replays[steps] = place.replayable(self._device, partial(work, steps))

    def take(self, rows: Sequence[Array], sizes: Tensor) -> None:
        """Takes H steps of the sizes (rows, H, 1) with the first rows of a block, of sample positions (H, B) each."""
        positions = self._batches.sent(rows)
        for t, steps in self._replays_of(len(rows[0])):
            copy_steps(self._sizes, sizes, t, steps)
            copy_steps(self._batches.positions, positions, t, steps)
            self._replays[steps]()

    def _replays_of(self, H: int) -> Iterator[tuple[int, int]]:
        """The first step and the number of steps of each replay."""
        chunk = len(self._batches.positions)
        rest = H - H % chunk
        yield from ((t, chunk) for t in range(0, rest, chunk))
        yield from ((t, 1) for t in range(rest, H))


def copy_steps(target: Tensor, source: Tensor, t: int = 0, steps: int = 1) -> None:
    """Copies the steps t to t + steps - 1 of `source` (rows, H, ...) to the first steps of `target` (steps, R, ...)."""
    part = source[:, t : t + steps]
    target[:steps, : len(part)].copy_(part.swapaxes(0, 1))
