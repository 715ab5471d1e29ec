"""Local steps and losses of torch modules, on a GPU or on the CPU: many clients' models at once, by torch.func.

Each row holds one client's model: parameters, centre, mini-batches and step sizes. One computation takes a step of all
rows of a block. A client's points, such as the pair of a zeroth-order estimate, are rows of their own. Computations
always have the same shapes. One row's step alone determines the number of rows of a block, which is padded with rows of
zeros; each row begins at a multiple of 64 bytes.

Libraries, processor and shapes decide if a row's bits depend on the other rows (as in some of oneDNN's grouped
convolutions). `equal_bits` tests it, and a `Network` is batched only if it passes. On a GPU local steps are replayed
from CUDA graphs of REPLAYED_STEPS steps, and of a single step for the remainder. The number of steps grows with the
rounds, but the tensors of a graph stay at their addresses. Losses are not: each new batch size would cost a capture.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.engine import device
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems import Array, Batch, Vector
from zofl_mpi.problems.device_cache import answer_dtype, on_device
from zofl_mpi.problems.kernels import functional
from zofl_mpi.problems.kernels.functional import Named
from zofl_mpi.problems.module import LOCK, Function
from zofl_mpi.problems.sums import blocks as in_blocks
from zofl_mpi.problems.terms import ProximalSteps

Request = TypeVar("Request")

STEP_BYTES = 2**28  # bytes, about, that the steps of a block's rows may take together
MAX_ROWS = 32  # of a block, at most
MAX_CPU_ROWS = 8  # on a CPU, at most: more are no faster, and rows that hold nothing take as long
REPLAYED_STEPS = 16  # steps of one replay
CACHE_LINE = 64  # bytes to whose multiples the parameters of a row are padded
CACHED = 16  # blocks that are kept with their tensors, each for one shape of calls

_BLOCKS: OrderedDict[Hashable, Any] = OrderedDict()


class BlockKey(NamedTuple):
    """Properties that rows must share to be computed in one block, whichever clients they belong to."""

    function: Function
    samples: tuple[Any, ...]  # the stored samples, see `dataset_key`
    batch: int  # B
    dtype: str
    pulled: bool = False  # whether there is a mu
    confined: bool = False  # a ball to project onto
    shifted: bool = False  # something to add to the gradients


class StepsRequest(NamedTuple):
    """A client's local steps from the rows of y (k, n), around the rows of x (k, n), with finite step sizes."""

    function: Function
    x: Array
    y: Array
    steps: ProximalSteps

    @property
    def data(self) -> Dataset:
        return self.steps.data

    @property
    def key(self) -> BlockKey:
        """The block that can compute it."""
        own, dtype = self.steps, np.dtype(self.y.dtype).name
        kind = own.mu > 0, own.radius < np.inf, own.shift is not None
        return BlockKey(self.function, dataset_key(own.data), own.batches.shape[1], dtype, *kind)


class LossRequest(NamedTuple):
    """Points x (k, n) of a client, and the samples at `positions` (B,) in its data, all valid."""

    function: Function
    x: Array
    data: Dataset
    positions: Batch

    @property
    def key(self) -> BlockKey:
        return BlockKey(self.function, dataset_key(self.data), len(self.positions), np.dtype(self.x.dtype).name)


def take_steps(requests: list[StepsRequest]) -> list[Array]:
    """(k, n) where the steps of each request end."""
    ends = [np.empty_like(request.y) for request in requests]
    _run_blocks(_StepBlock, requests, [len(request.steps.stepsizes) for request in requests], ends)
    return ends


def loss_sums(requests: list[LossRequest]) -> list[Vector]:
    """(k,) the sums of the losses of each request: outputs in the models' dtype, then float64."""
    sums = [np.empty(len(request.x)) for request in requests]
    _run_blocks(_LossBlock, requests, [1] * len(requests), sums)
    return sums


def _run_blocks(make: Callable[..., Any], requests: Sequence[Any], steps: Sequence[int], out: list[Array]) -> None:
    """Computes the points of all requests into `out`, those of equal keys and numbers of steps in common blocks."""
    groups: dict[tuple[BlockKey, int], list[tuple[int, int]]] = {}
    for j, request in enumerate(requests):
        groups.setdefault((request.key, steps[j]), []).extend((j, k) for k in range(len(request.x)))
    with LOCK, torch.no_grad():
        for (key, _), rows in groups.items():
            block = _cached(make, key, requests[rows[0][0]].data)
            for part in in_blocks(rows, block.rows.size):
                for (j, k), value in zip(part, block.run([(requests[j], k) for j, k in part]), strict=True):
                    out[j][k] = value


def _cached(make: Callable[..., Any], key: BlockKey, data: Dataset) -> Any:
    """The block of that key, made if need be in place of the least recently used one."""
    if (make, key) not in _BLOCKS:
        while len(_BLOCKS) >= CACHED:
            _BLOCKS.popitem(last=False)
        _BLOCKS[make, key] = make(key, data)
    _BLOCKS.move_to_end((make, key))
    return _BLOCKS[make, key]


def equal_bits(function: Function, data: Dataset, batch: int, dtype: str) -> bool:
    """True if local steps and losses have the same bits whichever other clients share the batch.

    Tried on this device, for mini-batches of this size.

    The rows of a full block are computed together, each one place further, in the opposite order, and three of them
    alone. So every place of a block is compared with the next one, and other rows with rows of zeros.
    """
    with LOCK:
        steps = _trial_steps(function, data, batch, dtype)
        losses = [LossRequest(function, own.y, data, own.steps.batches[0]) for own in steps]
        return _independent(take_steps, steps) and _independent(loss_sums, losses)


def _trial_steps(function: Function, data: Dataset, batch: int, dtype: str) -> list[StepsRequest]:
    """A step of each row of a block, with all that a step may have, from models and samples of its own.

    It is so long that the slopes are not rounded away in the sum: where two of them differ, their ends do.
    """
    generator, first = Streams(0)(Purpose.SYNTHETIC), function.initial().astype(dtype)
    steps = []
    for _ in range(_Rows(BlockKey(function, dataset_key(data), batch, dtype), data, 1).size):
        noise, near, shift = generator.standard_normal((3, 1, len(first))).astype(dtype)
        x, positions = first + noise / 100, generator.integers(0, len(data), (1, batch))
        own = ProximalSteps(data, positions, np.array([1e4]), 0.5, 100.0, shift[0] / 10**6)
        steps.append(StepsRequest(function, x, x + near / 10**6, own))
    return steps


def _independent(compute: Callable[[list[Request]], list[Any]], requests: list[Request]) -> bool:
    """True if each request has the same result whatever it is computed with."""
    together, last = compute(requests), len(requests) - 1
    reverse, further = compute(requests[::-1])[::-1], compute(requests[-1:] + requests[:-1])
    alone = [(j, compute([requests[j]])[0]) for j in {0, last // 2, last}]
    pairs = [*enumerate(reverse), *enumerate(further[1:] + further[:1]), *alone]
    return all(together[j].tobytes() == other.tobytes() for j, other in pairs)


class Part(NamedTuple):
    """A parameter: its name and shape, where it lies in a vector (n,), and where in a row."""

    name: str
    shape: torch.Size
    flat: slice
    row: slice


def rows_of(each: int, limit: int) -> int:
    """Rows of a block whose steps take `each` bytes: MAX_ROWS, or the power of 2 that `limit` allows."""
    most = max(1, min(MAX_ROWS, limit // max(1, each)))
    return 1 << most.bit_length() - 1


def dataset_key(data: Dataset) -> tuple[Any, ...]:
    """Key that is equal for subsets of the same stored samples, scaled alike."""
    factors = (a if isinstance(a, int | float) else id(a) for a in (data.scale, data.shift))
    return (id(data.inputs), id(data.labels), id(data.targets), *factors)


@final
class _Rows:
    """Rows side by side: how parameters lie in them, and their mini-batches, gathered where all samples lie.

    Attributes:
        size: R, how many.
        positions: (steps, R, B) int32, of the samples of one replay's steps.
    """

    def __init__(self, key: BlockKey, data: Dataset, steps: int) -> None:
        self._key, function = key, key.function
        self._data = data  # keeps the arrays by whose `dataset_key` a block is found
        self.device = str(function.device)
        self._dtype: torch.dtype = getattr(torch, key.dtype)
        size = rows_of(functional.step_bytes(function, key.batch), STEP_BYTES)
        self.size = min(size, MAX_CPU_ROWS) if self.device == "cpu" else size
        answers = data.labels if data.targets is None else data.targets
        self._stored, self._answers = on_device(data.inputs, self.device), on_device(answers, self.device)
        self._kind: torch.dtype = getattr(torch, answer_dtype(data, key.dtype))
        self.positions = torch.zeros((steps, self.size, key.batch), dtype=torch.int32, device=self.device)
        rescale = bool(np.any(data.scale != 1.0) or np.any(data.shift != 0.0))
        factors = (data.scale, data.shift) if rescale else ()
        self._factors = [torch.tensor(a, dtype=self._dtype, device=self.device) for a in factors]
        p = data.features
        self._inputs = self.zeros(self.size, key.batch, self._padded(p))[:, :, :p]  # a sample begins on a line
        self._classes = torch.arange(function.classes, device=self.device)
        self._parts, self._width = list[Part](), 0
        for name, flat, shape in functional.places(function):  # each from the start of a line: alike in all rows
            count = flat.stop - flat.start
            self._parts.append(Part(name, shape, flat, slice(self._width, self._width + count)))
            self._width += self._padded(count)

    def _padded(self, count: int) -> int:
        """Length of so many numbers after padding to whole lines."""
        each = CACHE_LINE // self._dtype.itemsize
        return -(-count // each) * each

    def zeros(self, *shape: int) -> Tensor:
        """(*shape) zeros of the rows' dtype; without a shape, (R, width) as many as the rows hold."""
        return torch.zeros(shape or (self.size, self._width), dtype=self._dtype, device=self.device)

    def bound(self) -> AbstractContextManager[Any]:
        """Context manager: on a GPU the same bits each time; the module holds parameters, whose place others take."""
        return self._key.function.bound_to(self.zeros(self._key.function.n))

    def sent(self, arrays: Sequence[Array], dtype: torch.dtype | None = None) -> Tensor:
        """The arrays stacked on the device, (rows, ...), through pinned memory, which torch keeps until they are there;
        of the rows' dtype where no other is given.
        """
        shape = (len(arrays), *arrays[0].shape)
        host = torch.empty(shape, dtype=dtype or self._dtype, pin_memory=self.device != "cpu")
        np.stack(arrays, out=host.numpy(), casting="same_kind")
        return host.to(self.device, non_blocking=True)

    def fill(self, target: Tensor, vectors: Sequence[Array]) -> None:
        """Copies the (n,) of each row; the other rows have zeros."""
        there = self.sent(vectors)
        for part in self._parts:
            target[: len(vectors), part.row].copy_(there[:, part.flat])
        target[len(vectors) :].zero_()

    def flat(self, rows: Tensor) -> Tensor:
        """(r, n), the inverse of `fill`."""
        return torch.cat([rows[:, part.row] for part in self._parts], dim=1)

    def views(self, rows: Tensor) -> Named:
        """(R, *shape) of each parameter."""
        return {part.name: rows[:, part.row].view(len(rows), *part.shape) for part in self._parts}

    def inputs(self, t: int) -> Tensor:
        """(R, B, *input_shape) of step t, scaled and then shifted, as NumPy does it."""
        stored = self._stored.index_select(0, self.positions[t].view(-1))
        self._inputs.copy_(stored.view(self._inputs.shape))
        if self._factors:
            self._inputs.mul_(self._factors[0]).add_(self._factors[1])
        own = self._key.function
        return self._inputs.reshape(self.size, self._key.batch, *own.input_shape).to(own.examples.input_dtype)

    def targets(self, steps: int) -> Tensor:
        """(steps, R, B, ...) of the first steps; of the plain cross-entropy (steps, R, B, C), 1 for the true class."""
        rows = self.positions[:steps]
        found = self._answers.index_select(0, rows.view(-1)).to(self._kind)
        found = found.view(*rows.shape, *found.shape[1:])
        return (found[..., None] == self._classes).to(self._dtype) if self._key.function.objective.plain else found


@final
class _LossBlock:
    """Sums of the losses of one block of rows at a time, in tensors that stay where they are."""

    def __init__(self, key: BlockKey, data: Dataset) -> None:
        self.rows = _Rows(key, data, 1)
        self._x = self.rows.zeros()
        self._costs, self._at = functional.costs(key.function), self.rows.views(self._x)

    def run(self, rows: Sequence[tuple[LossRequest, int]]) -> Array:
        """(r,) the sums of these points of requests, at most R."""
        with self.rows.bound():
            self.rows.fill(self._x, [request.x[k] for request, k in rows])
            positions = [request.data.rows_of(request.positions)[None] for request, _ in rows]
            copy_steps(self.rows.positions, self.rows.sent(positions, torch.int32))
            sums = self._costs(self._at, self.rows.inputs(0), self.rows.targets(1)[0])
        return sums[: len(rows)].cpu().numpy()


@final
class _StepBlock:
    """Local steps of one block of rows at a time, in tensors that stay where they are."""

    def __init__(self, key: BlockKey, data: Dataset) -> None:
        self._key, self.rows = key, _Rows(key, data, REPLAYED_STEPS)
        size = self.rows.size
        self._x, self._y, self._slope = (self.rows.zeros() for _ in range(3))
        self._shift = torch.zeros_like(self._x) if key.shifted else None
        self._gammas, self._mu = self.rows.zeros(REPLAYED_STEPS, size, 1), self.rows.zeros(size, 1)
        self._radius = torch.zeros((size, 1), dtype=torch.float64, device=self.rows.device)
        self._slopes = functional.slopes(key.function)
        self._replays = dict[int, Callable[[], None]]()  # {steps: takes so many}

    def run(self, rows: Sequence[tuple[StepsRequest, int]]) -> Array:
        """(r, n) where the steps of these points of requests end, at most R; all have equally many."""
        taken = [request.steps for request, _ in rows]
        H = len(taken[0].stepsizes)
        rest = H - H % REPLAYED_STEPS
        replays = [*((t, REPLAYED_STEPS) for t in range(0, rest, REPLAYED_STEPS)), *((t, 1) for t in range(rest, H))]
        with self.rows.bound():
            for _, steps in replays:  # before any tensor is filled: CUDA-graph capture executes the steps
                if steps not in self._replays:
                    self._replays[steps] = device.replayable(self.rows.device, partial(self._take, steps))
            self.rows.fill(self._x, [request.x[k] for request, k in rows])
            self.rows.fill(self._y, [request.y[k] for request, k in rows])
            if self._shift is not None:
                self.rows.fill(self._shift, [np.asarray(own.shift, self._key.dtype) for own in taken])
            mus, radii = [own.mu for own in taken], [own.radius for own in taken]
            for target, values in ((self._mu, mus), (self._radius, radii)):
                target[: len(rows), 0] = torch.tensor(values, dtype=target.dtype, device=self.rows.device)
            gammas = self.rows.sent([own.stepsizes[:, None] for own in taken])
            self._replay(replays, [own.data.rows_of(own.batches) for own in taken], gammas)
        return self.rows.flat(self._y[: len(rows)]).cpu().numpy()

    def _replay(self, replays: Sequence[tuple[int, int]], rows: Sequence[Array], gammas: Tensor) -> None:
        """Takes the steps of the sizes (rows, H, 1) from the sample positions (H, B) of each row.

        `replays` are the first step and the number of steps of each.
        """
        positions = self.rows.sent(rows, torch.int32)
        for t, steps in replays:
            copy_steps(self._gammas, gammas, t, steps)
            copy_steps(self.rows.positions, positions, t, steps)
            self._replays[steps]()

    def _take(self, steps: int) -> None:
        """Takes the first steps of the mini-batches and `_gammas`."""
        targets = self.rows.targets(steps)
        at, slopes = self.rows.views(self._y), self.rows.views(self._slope)
        for t in range(steps):
            for name, slope in self._slopes(at, self.rows.inputs(t), targets[t]).items():
                slopes[name].copy_(slope)
            direction = self._slope if self._shift is None else self._slope + self._shift
            if self._key.pulled:
                direction = direction + self._mu * (self._y - self._x)
            self._y.sub_(self._gammas[t] * direction)
            if self._key.confined:
                self._confine()

    def _confine(self) -> None:
        """Moves each row that is outside its ball to the nearest point of it; the norms in float64."""
        moved = self._y - self._x
        norms = torch.linalg.vector_norm(moved, dim=1, keepdim=True, dtype=torch.float64)
        outside = norms > self._radius
        factor = torch.where(outside, self._radius / norms, 1.0).to(moved.dtype)
        self._y.copy_(torch.where(outside, self._x + moved * factor, self._y))


def copy_steps(target: Tensor, source: Tensor, t: int = 0, steps: int = 1) -> None:
    """Copies the steps t to t + steps - 1 of `source` (rows, H, ...) to the first steps of `target` (steps, R, ...)."""
    part = source[:, t : t + steps]
    target[:steps, : len(part)].copy_(part.swapaxes(0, 1))
