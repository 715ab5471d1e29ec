"""Algorithm 2 of [A] for softmax regression by torch, on a GPU or on the CPU: many clients' models at once.

Clients have mini-batches of their own, so their models are stacked along a batch axis: with k models of each of c
clients, a step is a product of (c, B, p) with (c, p, k C) for the logits and one of (c, k C, B) with (c, B, p) for the
gradients. Nothing waits for the GPU but the copy of the result. Why a client's bits do not depend on the others, and
what is replayed: see `blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.problems.kernels.blocks import CHUNK, LOCK, Batches, Room, Steps, block_of, identity, kept, row_of
from zofl_mpi.problems.kernels.softmax import Minibatches

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Solve:
    """One client's local steps: the arguments of a kernel, see `kernels.softmax.solve_numpy`."""

    x: Array
    d: Array
    minibatches: Minibatches
    radius: float
    shift: Array | None


class Kind(NamedTuple):
    """What solves have in common that are computed together; it does not depend on who they are.

    Attributes:
        samples: where the mini-batches come from, see `identity`.
        models, classes, width: k, C, and p with the bias.
        batch: B.
        dtype: of the models.
        rescale, bias: see `Minibatches`.
        confined: whether there is a ball to project onto.
        shifted: whether there is something to be added to the gradients.
        device: as torch calls it.
    """

    samples: tuple[Any, ...]
    models: int
    classes: int
    width: int
    batch: int
    dtype: str
    rescale: bool
    bias: bool
    confined: bool
    shifted: bool
    device: str

    @classmethod
    def of(cls, solve: Solve, device: str) -> Kind:
        """The kind of a solve."""
        own, (k, C, width) = solve.minibatches, solve.x.shape
        confined, shifted = solve.radius < np.inf, solve.shift is not None
        dtype = np.dtype(own.dtype).name
        return cls(identity(own.data), k, C, width, own.size, dtype, own.rescale, own.bias, confined, shifted, device)

    @property
    def block(self) -> int:
        """Clients of a block."""
        return block_of(self.batch * row_of(self.width, self.dtype) * np.dtype(self.dtype).itemsize)


def solve_torch(solves: Sequence[Solve], device: str) -> None:
    """Takes the steps of `kernels.softmax.solve_numpy` for several clients; overwrites the d of each."""
    groups: dict[tuple[Kind, int], list[Solve]] = {}
    for solve in solves:
        groups.setdefault((Kind.of(solve, device), len(solve.minibatches.rows)), []).append(solve)
    with LOCK, torch.no_grad():
        for (kind, _), members in groups.items():
            blocks = -(-len(members) // kind.block)
            kept((kind, blocks), lambda: _Loop(kind, blocks, members[0])).run(members)  # noqa: B023  (called at once)


@final
class _Loop:
    """The steps of some blocks of clients, c in all, in tensors that stay where they are."""

    def __init__(self, kind: Kind, blocks: int, example: Solve) -> None:
        self.kind, self.clients = kind, blocks * kind.block
        self.parts = [slice(b * kind.block, (b + 1) * kind.block) for b in range(blocks)]
        self.dtype: torch.dtype = getattr(torch, kind.dtype)
        c, k, C, B = self.clients, kind.models, kind.classes, kind.batch
        data, dtype, device = example.minibatches.data, kind.dtype, kind.device
        self.batches = Batches(
            data, c, B, dtype, device, width=kind.width, steps=CHUNK, rescale=kind.rescale, bias=kind.bias
        )
        self.factors = self._zeros(CHUNK, c, 3)  # pull, keep, push
        self.x, self.d, self.y = (self._zeros(c, k * C, row_of(kind.width, dtype)) for _ in range(3))
        self.shift = torch.zeros_like(self.x) if kind.shifted else None
        self.logits = self._zeros(c, B, k * C)
        self.radius, self.norms = (self._zeros(c * k, dtype=torch.float64) for _ in range(2))
        self.classes = torch.eye(C, dtype=self.dtype, device=device)
        self.rooms = {name: Room(dtype, device) for name in ("x", "d", "shift", "factors")}
        self.steps = Steps(device, self.batches, self.factors)

    def run(self, solves: Sequence[Solve]) -> None:
        """Takes all steps of these clients, at most c of them with equally many steps."""
        self.steps.ready(len(solves[0].minibatches.rows), self._take)
        self._fill(self.x, "x", [solve.x for solve in solves])
        self._fill(self.d, "d", [solve.d for solve in solves])
        if self.shift is not None:
            self._fill(self.shift, "shift", [solve.shift for solve in solves if solve.shift is not None])
        radius = np.array([[solve.radius] * self.kind.models for solve in solves]).ravel()
        self.radius[: len(radius)].copy_(torch.from_numpy(radius))
        own = [solve.minibatches for solve in solves]
        factors = [np.stack([each.pull, each.keep, each.push], axis=1) for each in own]
        self.steps.take([each.rows for each in own], self.rooms["factors"].sent(factors))
        moved = self.rooms["d"].read(self.d[: len(solves), :, : self.kind.width])
        for solve, d in zip(solves, moved, strict=True):
            solve.d[...] = d.reshape(solve.d.shape)

    def _fill(self, target: Tensor, name: str, arrays: Sequence[Array]) -> None:
        """Copies (k, C, width) of each client into (c, k C, row); the others have zeros."""
        width = self.kind.width
        target[: len(arrays), :, :width].copy_(self.rooms[name].sent([array.reshape(-1, width) for array in arrays]))
        target[len(arrays) :].zero_()

    def _take(self, steps: int) -> None:
        """Takes the first steps of `batches` and `factors`."""
        labels = self.batches.labels(0, steps)
        onehot = self.classes.index_select(0, labels.view(-1)).view(*labels.shape, 1, -1)
        for t in range(steps):
            self._step(t, onehot[t])

    def _step(self, t: int, onehot: Tensor) -> None:
        """d <- P[keep d - push shift - pull sum_b (softmax(logits_b) - onehot_b) input_b], for every client."""
        kind, c = self.kind, self.clients
        batch = self.batches.gather(t)
        torch.add(self.x, self.d, out=self.y)
        for part in self.parts:
            torch.bmm(batch[part], self.y[part].transpose(1, 2), out=self.logits[part])
        pull, keep, push = self.factors[t][:, None, None].unbind(dim=-1)  # (c, 1, 1) each
        residual = torch.softmax(self.logits.view(c, kind.batch, kind.models, kind.classes), dim=-1)
        residual.sub_(onehot).mul_(pull[..., None])
        flat = residual.view(c, kind.batch, -1)
        self.d.mul_(keep)
        if self.shift is not None:
            self.d.sub_(self.shift * push)
        for part in self.parts:
            self.d[part].baddbmm_(flat[part].transpose(1, 2), batch[part], alpha=-1)
        if kind.confined:
            self._confine()

    def _confine(self) -> None:
        """Shrinks each model's d to norm `radius` if it is longer; see `projections.shrink`."""
        k = self.kind.models
        each = self.d.view(self.clients * k, -1)
        for part in self.parts:
            own = slice(part.start * k, part.stop * k)
            torch.linalg.vector_norm(each[own], dim=1, dtype=torch.float64, out=self.norms[own])
        factor = torch.where(self.norms > self.radius, self.radius / self.norms, 1.0)
        each.mul_(factor.to(self.dtype)[:, None])

    def _zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype or self.dtype, device=self.kind.device)
