"""Local steps of torch modules that classify, on a GPU or on the CPU: many clients' models at once, by torch.func.

A row is a model: its parameters, its centre, its mini-batches and step sizes lie beside those of the other rows of a
block, and one computation takes a step of them all, whatever the module's layers are (`Function.slopes`). A client's
points, such as the pair of a zeroth-order estimate, are rows of their own. Why a row's bits do not depend on the
others, and what is replayed: see `blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.problems import Batch
from zofl_mpi.problems.kernels.blocks import CHUNK, LOCK, Batches, Room, Steps, block_of, identity, kept, row_of
from zofl_mpi.problems.module import Function, Named

Array = NDArray[Any]

STEP_BYTES = 2**28
"""Of what the steps of a block take at once, about; where those of its rows are larger it has fewer rows."""
CPU_ROWS = 8
"""Rows of a block on a CPU, at most: it is no faster at more of them, and those that hold nothing take as long."""


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
    pulled: bool
    confined: bool
    shifted: bool


class Part(NamedTuple):
    """A parameter: its name and shape, where it lies in a vector (n,), and where in a row."""

    name: str
    shape: torch.Size
    flat: slice
    row: slice


def parts_of(function: Function, dtype: str) -> list[Part]:
    """The parameters of a module, each from the beginning of a line on: so they lie alike in all rows."""
    found, end = list[Part](), 0
    for name, flat, shape in function.places():
        size = flat.stop - flat.start
        found.append(Part(name, shape, flat, slice(end, end + size)))
        end += row_of(size, dtype)
    return found


def walked(walks: list[Walk]) -> list[Array]:
    """(k, n) where the steps of each client end."""
    groups: dict[tuple[Kind, int], list[tuple[int, int]]] = {}
    for j, walk in enumerate(walks):
        groups.setdefault((walk.kind, len(walk.stepsizes)), []).extend((j, k) for k in range(len(walk.y)))
    found = [np.empty_like(walk.y) for walk in walks]
    with LOCK, torch.no_grad():
        for (kind, _), members in groups.items():
            loop: _Loop = kept(("steps", kind), lambda: _Loop(kind, walks[members[0][0]].data))  # noqa: B023
            for low in range(0, len(members), loop.size):
                part = members[low : low + loop.size]
                ends = loop.run([(walks[j], k) for j, k in part])
                for (j, k), end in zip(part, ends, strict=True):
                    found[j][k] = end
    return found


@final
class _Loop:
    """The steps of one block of rows at a time, in tensors that stay where they are.

    Attributes:
        size: R, rows of a block.
    """

    def __init__(self, kind: Kind, data: Dataset) -> None:
        self.kind, self.function = kind, kind.function
        self.parts = parts_of(self.function, kind.dtype)
        self.device = str(self.function.device)
        rows = block_of(self.function.step_bytes(kind.batch), STEP_BYTES)
        self.size = min(rows, CPU_ROWS) if self.device == "cpu" else rows
        rescale = bool(np.any(data.scale != 1.0) or np.any(data.shift != 0.0))
        self.batches = Batches(
            data,
            self.size,
            kind.batch,
            kind.dtype,
            self.device,
            width=data.features,
            steps=CHUNK,
            rescale=rescale,
            bias=False,
        )
        self.features = data.features
        last = self.parts[-1].row
        width = last.start + row_of(last.stop - last.start, kind.dtype)
        self.x, self.y, self.slope = (self._zeros(self.size, width) for _ in range(3))
        self.shift = torch.zeros_like(self.x) if kind.shifted else None
        self.gammas, self.mu = self._zeros(CHUNK, self.size, 1), self._zeros(self.size, 1)
        self.radius = torch.zeros((self.size, 1), dtype=torch.float64, device=self.device)
        self.rooms = {name: Room(kind.dtype, self.device) for name in ("x", "y", "shift", "gammas")}
        self.classes = torch.arange(self.function.classes, device=self.device)
        self.slopes = self.function.slopes()
        self.steps = Steps(self.device, self.batches, self.gammas)

    def run(self, rows: Sequence[tuple[Walk, int]]) -> Array:
        """(r, n) where the steps of these rows end, at most R, which are points of walks; they have equally many."""
        walks = [walk for walk, _ in rows]
        with self.function.at(torch.zeros(self.function.n, dtype=self.y.dtype, device=self.device)):  # a GPU: same bits
            self.steps.ready(len(walks[0].stepsizes), self._take)
            self._fill(self.x, "x", [walk.x[k] for walk, k in rows])
            self._fill(self.y, "y", [walk.y[k] for walk, k in rows])
            if self.shift is not None:
                self._fill(self.shift, "shift", [walk.shift for walk in walks if walk.shift is not None])
            for target, values in ((self.mu, [w.mu for w in walks]), (self.radius, [w.radius for w in walks])):
                target[: len(rows), 0] = torch.tensor(values, dtype=target.dtype, device=self.device)
            gammas = self.rooms["gammas"].sent([walk.stepsizes[:, None] for walk in walks])
            self.steps.take([walk.data.rows_of(walk.batches) for walk in walks], gammas)
        return torch.cat([self.y[: len(rows), part.row] for part in self.parts], dim=1).cpu().numpy()

    def _fill(self, target: Tensor, name: str, vectors: Sequence[Array]) -> None:
        """Copies the (n,) of each row; the other rows have zeros."""
        there = self.rooms[name].sent(vectors)
        for part in self.parts:
            target[: len(vectors), part.row].copy_(there[:, part.flat])
        target[len(vectors) :].zero_()

    def _take(self, steps: int) -> None:
        """Takes the first steps of `batches` and `gammas`."""
        labels = (self.batches.labels(0, steps)[..., None] == self.classes).to(self.y.dtype)  # (steps, R, B, C)
        at = self._views(self.y)
        for t in range(steps):
            inputs = self.batches.gather(t)[:, :, : self.features]
            shaped = inputs.reshape(self.size, self.kind.batch, *self.function.input_shape)
            for name, slope in self.slopes(at, shaped, labels[t]).items():
                self._views(self.slope)[name].copy_(slope)
            direction = self.slope if self.shift is None else self.slope + self.shift
            if self.kind.pulled:
                direction = direction + self.mu * (self.y - self.x)
            self.y.sub_(self.gammas[t] * direction)
            if self.kind.confined:
                self._confine()

    def _confine(self) -> None:
        """Moves each row that is outside its ball to the nearest point of it; the norms in float64."""
        moved = self.y - self.x
        norms = torch.linalg.vector_norm(moved, dim=1, keepdim=True, dtype=torch.float64)
        outside = norms > self.radius
        factor = torch.where(outside, self.radius / norms, 1.0).to(self.y.dtype)
        self.y.copy_(torch.where(outside, self.x + moved * factor, self.y))

    def _views(self, rows: Tensor) -> Named:
        """(R, *shape) of each parameter."""
        return {part.name: rows[:, part.row].view(len(rows), *part.shape) for part in self.parts}

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, self.kind.dtype), device=self.device)
