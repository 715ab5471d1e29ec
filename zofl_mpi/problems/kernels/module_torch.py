"""Batched local steps and losses of many clients' torch modules, on a GPU or on the CPU, by torch.func.

Each row holds one client's model: parameters, centre, mini-batches and step sizes. One computation takes a step of all
rows of a block. Several points of a client, such as the pair of a zeroth-order estimate, take a row each. Shapes never
change: the number of rows depends only on the memory of one row's step, and unused rows are zero. Each row begins at a
cache line of 64 bytes.

A row's bits may depend on the other rows, by library, processor and shape (oneDNN's grouped convolutions do on some
processors). `equal_bits` tests it, and a `Network` batches only what has passed. On a GPU CUDA graphs replay local
steps, REPLAYED_STEPS at a time and the rest one by one: the number of steps grows with the rounds. Their
tensors therefore stay in place. Losses are not replayed: each new batch size would cost a capture.
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

STEP_BYTES = 2**28  # approximate bytes of a step of all rows of a block
MAX_ROWS = 32  # most rows of a block
MAX_CPU_ROWS = 8  # the same on a CPU: more are no faster, and empty rows cost as much
REPLAYED_STEPS = 16  # steps of one replay
CACHE_LINE = 64  # bytes; a row's parameters are padded to multiples
CACHED = 16  # blocks kept with their tensors, each for one shape of calls

_BLOCKS: OrderedDict[Hashable, Any] = OrderedDict()


class BlockKey(NamedTuple):
    """Properties that rows of one block share, whichever clients they belong to."""

    function: Function
    samples: tuple[Any, ...]  # the stored samples, see `dataset_key`
    batch: int  # B
    dtype: str
    pulled: bool = False  # True if mu > 0
    confined: bool = False  # True if steps are projected onto a ball
    shifted: bool = False  # True if a shift is added to the gradients


class StepsRequest(NamedTuple):
    """A client's local steps from the rows of y (k, n), with centres x (k, n) and finite step sizes."""

    function: Function
    x: Array
    y: Array
    steps: ProximalSteps

    @property
    def data(self) -> Dataset:
        return self.steps.data

    @property
    def key(self) -> BlockKey:
        """Key of the block that can compute it."""
        own, dtype = self.steps, np.dtype(self.y.dtype).name
        kind = own.mu > 0, own.radius < np.inf, own.shift is not None
        return BlockKey(self.function, dataset_key(own.data), own.batches.shape[1], dtype, *kind)


class LossRequest(NamedTuple):
    """A client's losses at points x (k, n) on the samples at `positions` (B,), all valid."""

    function: Function
    x: Array
    data: Dataset
    positions: Batch

    @property
    def key(self) -> BlockKey:
        return BlockKey(self.function, dataset_key(self.data), len(self.positions), np.dtype(self.x.dtype).name)


def take_steps(requests: list[StepsRequest]) -> list[Array]:
    """End points (k, n) of each request's steps."""
    ends = [np.empty_like(request.y) for request in requests]
    _run_blocks(_StepBlock, requests, [len(request.steps.stepsizes) for request in requests], ends)
    return ends


def loss_sums(requests: list[LossRequest]) -> list[Vector]:
    """Loss sums (k,) of each request: outputs in the models' dtype, then float64."""
    sums = [np.empty(len(request.x)) for request in requests]
    _run_blocks(_LossBlock, requests, [1] * len(requests), sums)
    return sums


def _run_blocks(make: Callable[..., Any], requests: Sequence[Any], steps: Sequence[int], out: list[Array]) -> None:
    """Computes all requests' points into `out`; equal keys and numbers of steps share blocks."""
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
    """The cached block of this key; a new one replaces the least recently used one."""
    if (make, key) not in _BLOCKS:
        while len(_BLOCKS) >= CACHED:
            _BLOCKS.popitem(last=False)
        _BLOCKS[make, key] = make(key, data)
    _BLOCKS.move_to_end((make, key))
    return _BLOCKS[make, key]


def equal_bits(function: Function, data: Dataset, batch: int, dtype: str) -> bool:
    """True if local steps and losses are bit-identical whichever other clients share the batch.

    Tested on this device for mini-batches of size `batch`: a full block is computed in order, rotated by one row, in
    reverse, and with three rows alone. This compares each place of a block with the next, and other clients with zeros.
    """
    with LOCK:
        steps = _trial_steps(function, data, batch, dtype)
        losses = [LossRequest(function, own.y, data, own.steps.batches[0]) for own in steps]
        return _independent(take_steps, steps) and _independent(loss_sums, losses)


def _trial_steps(function: Function, data: Dataset, batch: int, dtype: str) -> list[StepsRequest]:
    """One step for each row of a block, with all optional terms, each with its own model and samples.

    The step is long enough that rounding cannot hide a difference of two gradients.
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
    """True if no request's result depends on the other requests."""
    together, last = compute(requests), len(requests) - 1
    reverse, further = compute(requests[::-1])[::-1], compute(requests[-1:] + requests[:-1])
    alone = [(j, compute([requests[j]])[0]) for j in {0, last // 2, last}]
    pairs = [*enumerate(reverse), *enumerate(further[1:] + further[:1]), *alone]
    return all(together[j].tobytes() == other.tobytes() for j, other in pairs)


class Part(NamedTuple):
    """A parameter: its name, shape, slice of a vector (n,), and slice of a row."""

    name: str
    shape: torch.Size
    flat: slice
    row: slice


def rows_of(each: int, limit: int) -> int:
    """Number of rows of a block whose steps take `each` bytes: the largest power of 2 within `limit` and MAX_ROWS."""
    most = max(1, min(MAX_ROWS, limit // max(1, each)))
    return 1 << most.bit_length() - 1


def dataset_key(data: Dataset) -> tuple[Any, ...]:
    """Key that is equal for subsets of the same stored samples with the same scaling."""
    factors = (a if isinstance(a, int | float) else id(a) for a in (data.scale, data.shift))
    return (id(data.inputs), id(data.labels), id(data.targets), *factors)


@final
class _Rows:
    """Rows of a block: layout of the parameters, and mini-batches gathered on the device.

    Attributes:
        size: R, number of rows.
        positions: (steps, R, B) int32, samples of one replay's steps.
    """

    def __init__(self, key: BlockKey, data: Dataset, steps: int) -> None:
        self._key, function = key, key.function
        self._data = data  # keeps the arrays alive whose ids are in `dataset_key`
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
        self._inputs = self.zeros(self.size, key.batch, self._padded(p))[:, :, :p]  # a sample begins at a cache line
        self._classes = torch.arange(function.classes, device=self.device)
        self._parts, self._width = list[Part](), 0
        places = function.flat.places()
        trained = {name: places[id(own)] for name, own in function.module.named_parameters() if own.requires_grad}
        for name, (flat, shape) in trained.items():  # each at the start of a cache line: equal in all rows
            count = flat.stop - flat.start
            self._parts.append(Part(name, shape, flat, slice(self._width, self._width + count)))
            self._width += self._padded(count)

    def _padded(self, count: int) -> int:
        """Length of `count` numbers after padding to whole cache lines."""
        each = CACHE_LINE // self._dtype.itemsize
        return -(-count // each) * each

    def zeros(self, *shape: int) -> Tensor:
        """Zeros (*shape) in the rows' dtype; by default (R, width), the shape of all rows."""
        return torch.zeros(shape or (self.size, self._width), dtype=self._dtype, device=self.device)

    def bound(self) -> AbstractContextManager[Any]:
        """Context manager: deterministic GPU kernels; binds dummy parameters, which functional calls replace."""
        return self._key.function.bound_to(self.zeros(self._key.function.n))

    def sent(self, arrays: Sequence[Array], dtype: torch.dtype | None = None) -> Tensor:
        """Stacks arrays and copies them to the device (rows, ...), by default in the rows' dtype.

        Through pinned memory, which torch keeps until the copy is done.
        """
        shape = (len(arrays), *arrays[0].shape)
        host = torch.empty(shape, dtype=dtype or self._dtype, pin_memory=self.device != "cpu")
        np.stack(arrays, out=host.numpy(), casting="same_kind")
        return host.to(self.device, non_blocking=True)

    def fill(self, target: Tensor, vectors: Sequence[Array]) -> None:
        """Copies vectors (n,) into the first rows of `target`; sets the others to zero."""
        there = self.sent(vectors)
        for part in self._parts:
            target[: len(vectors), part.row].copy_(there[:, part.flat])
        target[len(vectors) :].zero_()

    def flat(self, rows: Tensor) -> Tensor:
        """Vectors (r, n) of rows; the inverse of `fill`."""
        return torch.cat([rows[:, part.row] for part in self._parts], dim=1)

    def views(self, rows: Tensor) -> Named:
        """Views (R, *shape) of each parameter."""
        return {part.name: rows[:, part.row].view(len(rows), *part.shape) for part in self._parts}

    def inputs(self, t: int) -> Tensor:
        """Inputs (R, B, *input_shape) of step t, scaled and then shifted, as in NumPy."""
        stored = self._stored.index_select(0, self.positions[t].view(-1))
        self._inputs.copy_(stored.view(self._inputs.shape))
        if self._factors:
            self._inputs.mul_(self._factors[0]).add_(self._factors[1])
        own = self._key.function
        return self._inputs.reshape(self.size, self._key.batch, *own.input_shape).to(own.examples.input_dtype)

    def targets(self, steps: int) -> Tensor:
        """Targets (steps, R, B, ...) of the first steps; one-hot (steps, R, B, C) for the plain cross-entropy."""
        rows = self.positions[:steps]
        found = self._answers.index_select(0, rows.view(-1)).to(self._kind)
        found = found.view(*rows.shape, *found.shape[1:])
        return (found[..., None] == self._classes).to(self._dtype) if self._key.function.objective.plain else found


@final
class _LossBlock:
    """Computes loss sums of one block of rows at a time, in tensors that stay in place."""

    def __init__(self, key: BlockKey, data: Dataset) -> None:
        self.rows = _Rows(key, data, 1)
        self._x = self.rows.zeros()
        self._costs, self._at = functional.costs(key.function), self.rows.views(self._x)

    def run(self, rows: Sequence[tuple[LossRequest, int]]) -> Array:
        """Loss sums (r,) of (request, point) pairs, r <= R."""
        with self.rows.bound():
            self.rows.fill(self._x, [request.x[k] for request, k in rows])
            positions = [request.data.rows_of(request.positions)[None] for request, _ in rows]
            copy_steps(self.rows.positions, self.rows.sent(positions, torch.int32))
            sums = self._costs(self._at, self.rows.inputs(0), self.rows.targets(1)[0])
        return sums[: len(rows)].cpu().numpy()


@final
class _StepBlock:
    """Takes local steps of one block of rows at a time, in tensors that stay in place."""

    def __init__(self, key: BlockKey, data: Dataset) -> None:
        self._key, self.rows = key, _Rows(key, data, REPLAYED_STEPS)
        size = self.rows.size
        self._x, self._y, self._slope = (self.rows.zeros() for _ in range(3))
        self._shift = torch.zeros_like(self._x) if key.shifted else None
        self._gammas, self._mu = self.rows.zeros(REPLAYED_STEPS, size, 1), self.rows.zeros(size, 1)
        self._radius = torch.zeros((size, 1), dtype=torch.float64, device=self.rows.device)
        self._slopes = functional.slopes(key.function)
        self._replays = dict[int, Callable[[], None]]()  # {number of steps: function that takes them}

    def run(self, rows: Sequence[tuple[StepsRequest, int]]) -> Array:
        """End points (r, n) of (request, point) pairs, r <= R, all with equally many steps."""
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
        """Takes all steps by replays.

        Args:
            replays: (first step, number of steps) of each.
            rows: sample positions (H, B) of each row.
            gammas: step sizes (rows, H, 1).
        """
        positions = self.rows.sent(rows, torch.int32)
        for t, steps in replays:
            copy_steps(self._gammas, gammas, t, steps)
            copy_steps(self.rows.positions, positions, t, steps)
            self._replays[steps]()

    def _take(self, steps: int) -> None:
        """Takes the first `steps` steps of the stored mini-batches and step sizes."""
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
        """Projects each row onto its ball; norms in float64."""
        moved = self._y - self._x
        norms = torch.linalg.vector_norm(moved, dim=1, keepdim=True, dtype=torch.float64)
        outside = norms > self._radius
        factor = torch.where(outside, self._radius / norms, 1.0).to(moved.dtype)
        self._y.copy_(torch.where(outside, self._x + moved * factor, self._y))


def copy_steps(target: Tensor, source: Tensor, t: int = 0, steps: int = 1) -> None:
    """Copies steps t to t + steps - 1 of `source` (rows, H, ...) to the first steps of `target` (steps, R, ...)."""
    part = source[:, t : t + steps]
    target[:steps, : len(part)].copy_(part.swapaxes(0, 1))
