"""Local steps and losses of torch modules, on a GPU or on the CPU: many clients' models at once, by torch.func.

A row is a model: its parameters, its centre, its mini-batches and step sizes lie beside those of the other rows of a
block, and one computation takes a step of them all, whatever the module's layers are (`Function.slopes`). A client's
points, such as the pair of a zeroth-order estimate, are rows of their own. Why a row's bits do not depend on the
others, and what is replayed: see `blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.engine import device as place
from zofl_mpi.problems import Batch
from zofl_mpi.problems.kernels.blocks import CHUNK, LOCK, Batches, Room, Steps, block_of, identity, kept, row_of
from zofl_mpi.problems.module import Function, Named

Array = NDArray[Any]
Key = TypeVar("Key")

STEP_BYTES = 2**28
"""Of what the steps of a block take at once, about; where those of its rows are larger it has fewer rows."""
CPU_ROWS = 8
"""Rows of a block on a CPU, at most: it is no faster at more of them, and those that hold nothing take as long."""


class Kind(NamedTuple):
    """What rows have in common that are computed together; it does not depend on whose they are.

    Attributes:
        function: which module.
        samples: where the mini-batches come from, see `identity`.
        batch: B.
        dtype: of the models.
        pulled, confined, shifted: whether there is a mu, a ball to project onto, something to add to the gradients.
    """

    function: Function
    samples: tuple[Any, ...]
    batch: int
    dtype: str
    pulled: bool = False
    confined: bool = False
    shifted: bool = False


@final
@dataclass(frozen=True)
class Walk:
    """A client's local steps y <- P(y - stepsizes[t] (slope(y; batches[t]) + mu (y - x) + shift)) from the rows of y.

    Attributes:
        function: of which the slopes are.
        data: the client's.
        x, y: (k, n).
        batches: (H, B) positions in `data`, H >= 1, all valid.
        stepsizes: (H,) finite numbers.
        radius: P projects onto the balls of this radius around the rows of x.
        shift: (n,); None for 0.
    """

    function: Function
    data: Dataset
    x: Array
    y: Array
    batches: Batch
    stepsizes: NDArray[np.float64]
    mu: float
    radius: float
    shift: Array | None

    @property
    def kind(self) -> Kind:
        """With what it can be computed together."""
        own = identity(self.data), self.batches.shape[1], np.dtype(self.y.dtype).name
        return Kind(self.function, *own, self.mu > 0, self.radius < np.inf, self.shift is not None)


class Points(NamedTuple):
    """Points x (k, n) of a client, and the samples at `positions` (B,) in its data, all valid."""

    function: Function
    x: Array
    data: Dataset
    positions: Batch

    @property
    def kind(self) -> Kind:
        """With what they can be computed together."""
        return Kind(self.function, identity(self.data), len(self.positions), np.dtype(self.x.dtype).name)


Rows = list[tuple[int, int]]
"""Which point of which request each row is."""


def walked(walks: list[Walk]) -> list[Array]:
    """(k, n) where the steps of each client end."""
    found = [np.empty_like(walk.y) for walk in walks]
    members = {(j, k): (walk.kind, len(walk.stepsizes)) for j, walk in enumerate(walks) for k in range(len(walk.y))}
    with LOCK, torch.no_grad():
        for (kind, _), rows in _groups(members):
            loop: _Loop = kept(("steps", kind), lambda: _Loop(kind, walks[rows[0][0]].data))  # noqa: B023
            for part in _parts(rows, loop.block.size):
                for (j, k), end in zip(part, loop.run([(walks[j], k) for j, k in part]), strict=True):
                    found[j][k] = end
    return found


def summed(asked: list[Points]) -> list[NDArray[np.float64]]:
    """For each (k,), the sums over its samples of the cross-entropies: logits in the models' dtype, then float64."""
    found = [np.empty(len(points.x)) for points in asked]
    members = {(j, k): points.kind for j, points in enumerate(asked) for k in range(len(points.x))}
    with LOCK, torch.no_grad():
        for kind, rows in _groups(members):
            look: _Look = kept(("sums", kind), lambda: _Look(kind, asked[rows[0][0]].data))  # noqa: B023
            for part in _parts(rows, look.block.size):
                for (j, k), value in zip(part, look.run([(asked[j], k) for j, k in part]), strict=True):
                    found[j][k] = value
    return found


def _groups(members: dict[tuple[int, int], Key]) -> list[tuple[Key, Rows]]:
    """The rows of each key."""
    groups: dict[Key, Rows] = {}
    for row, key in members.items():
        groups.setdefault(key, []).append(row)
    return list(groups.items())


def _parts(rows: Rows, size: int) -> list[Rows]:
    return [rows[low : low + size] for low in range(0, len(rows), size)]


class Part(NamedTuple):
    """A parameter: its name and shape, where it lies in a vector (n,), and where in a row."""

    name: str
    shape: torch.Size
    flat: slice
    row: slice


@final
class _Block:
    """Rows side by side: how parameters lie in them, and their mini-batches.

    Attributes:
        size: R, how many.
        batches: theirs.
    """

    def __init__(self, kind: Kind, data: Dataset, steps: int) -> None:
        self._kind, function = kind, kind.function
        self.device = str(function.device)
        rows = block_of(function.step_bytes(kind.batch), STEP_BYTES)
        self.size = min(rows, CPU_ROWS) if self.device == "cpu" else rows
        rescale = bool(np.any(data.scale != 1.0) or np.any(data.shift != 0.0))
        self._features, where = data.features, (kind.dtype, self.device)
        self.batches = Batches(
            data, self.size, kind.batch, *where, width=data.features, steps=steps, rescale=rescale, bias=False
        )
        self._classes = torch.arange(function.classes, device=self.device)
        self._parts, self._width = list[Part](), 0
        for name, flat, shape in function.places():  # each from the beginning of a line on: they lie alike in all rows
            size = flat.stop - flat.start
            self._parts.append(Part(name, shape, flat, slice(self._width, self._width + size)))
            self._width += row_of(size, kind.dtype)

    def zeros(self, *shape: int) -> Tensor:
        """(*shape) numbers of the rows' kind; without a shape, (R, row) the rows themselves."""
        own = shape or (self.size, self._width)
        return torch.zeros(own, dtype=getattr(torch, self._kind.dtype), device=self.device)

    def room(self) -> Room:
        """For what goes to the rows."""
        return Room(self._kind.dtype, self.device)

    def bound(self) -> AbstractContextManager[Any]:
        """Context manager: on a GPU the same bits each time; the module holds parameters, whose place others take."""
        return self._kind.function.at(self.zeros(self._kind.function.n))

    def fill(self, target: Tensor, room: Room, vectors: Sequence[Array]) -> None:
        """Copies the (n,) of each row; the other rows have zeros."""
        there = room.sent(vectors)
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
        """(R, B, *input_shape) of step t."""
        inputs = self.batches.gather(t)[:, :, : self._features]
        return inputs.reshape(self.size, self._kind.batch, *self._kind.function.input_shape)

    def labels(self, steps: int) -> Tensor:
        """(steps, R, B, C) of the first steps: 1 for the true class, else 0."""
        labels = self.batches.labels(0, steps)[..., None] == self._classes
        return labels.to(getattr(torch, self._kind.dtype))


@final
class _Look:
    """The sums of the cross-entropies of one block of rows at a time, in tensors that stay where they are."""

    def __init__(self, kind: Kind, data: Dataset) -> None:
        self.block = _Block(kind, data, 1)
        self._x, self._room = self.block.zeros(), self.block.room()
        self._sums = torch.zeros(self.block.size, dtype=torch.float64, device=self.block.device)
        costs, at = kind.function.costs(), self.block.views(self._x)

        def work() -> None:
            self._sums.copy_(costs(at, self.block.inputs(0), self.block.labels(1)[0]))

        with self.block.bound():
            self._replay = place.replayable(self.block.device, work)

    def run(self, rows: Sequence[tuple[Points, int]]) -> Array:
        """(r,) of these rows, at most R, which are points of requests."""
        with self.block.bound():
            self.block.fill(self._x, self._room, [points.x[k] for points, k in rows])
            self.block.batches.fill([points.data.rows_of(points.positions) for points, _ in rows])
            self._replay()
        return self._sums[: len(rows)].cpu().numpy().copy()


@final
class _Loop:
    """The steps of one block of rows at a time, in tensors that stay where they are."""

    def __init__(self, kind: Kind, data: Dataset) -> None:
        self._kind, self.block = kind, _Block(kind, data, CHUNK)
        size, device = self.block.size, self.block.device
        self._x, self._y, self._slope = (self.block.zeros() for _ in range(3))
        self._shift = torch.zeros_like(self._x) if kind.shifted else None
        self._gammas, self._mu = self.block.zeros(CHUNK, size, 1), self.block.zeros(size, 1)
        self._radius = torch.zeros((size, 1), dtype=torch.float64, device=device)
        self._rooms = {name: self.block.room() for name in ("x", "y", "shift", "gammas")}
        self._slopes = kind.function.slopes()
        self._steps = Steps(device, self.block.batches, self._gammas)

    def run(self, rows: Sequence[tuple[Walk, int]]) -> Array:
        """(r, n) where the steps of these rows end, at most R, which are points of walks; they have equally many."""
        walks, rooms = [walk for walk, _ in rows], self._rooms
        with self.block.bound():
            self._steps.ready(len(walks[0].stepsizes), self._take)
            self.block.fill(self._x, rooms["x"], [walk.x[k] for walk, k in rows])
            self.block.fill(self._y, rooms["y"], [walk.y[k] for walk, k in rows])
            if self._shift is not None:
                self.block.fill(self._shift, rooms["shift"], [walk.shift for walk in walks if walk.shift is not None])
            for target, values in ((self._mu, [w.mu for w in walks]), (self._radius, [w.radius for w in walks])):
                target[: len(rows), 0] = torch.tensor(values, dtype=target.dtype, device=self.block.device)
            gammas = rooms["gammas"].sent([walk.stepsizes[:, None] for walk in walks])
            self._steps.take([walk.data.rows_of(walk.batches) for walk in walks], gammas)
        return self.block.flat(self._y[: len(rows)]).cpu().numpy()

    def _take(self, steps: int) -> None:
        """Takes the first steps of the mini-batches and `_gammas`."""
        labels = self.block.labels(steps)
        at, slopes = self.block.views(self._y), self.block.views(self._slope)
        for t in range(steps):
            for name, slope in self._slopes(at, self.block.inputs(t), labels[t]).items():
                slopes[name].copy_(slope)
            direction = self._slope if self._shift is None else self._slope + self._shift
            if self._kind.pulled:
                direction = direction + self._mu * (self._y - self._x)
            self._y.sub_(self._gammas[t] * direction)
            if self._kind.confined:
                self._confine()

    def _confine(self) -> None:
        """Moves each row that is outside its ball to the nearest point of it; the norms in float64."""
        moved = self._y - self._x
        norms = torch.linalg.vector_norm(moved, dim=1, keepdim=True, dtype=torch.float64)
        outside = norms > self._radius
        factor = torch.where(outside, self._radius / norms, 1.0).to(moved.dtype)
        self._y.copy_(torch.where(outside, self._x + moved * factor, self._y))
