"""Algorithm 2 of [A] for softmax regression by torch, on a GPU or on the CPU: many clients' models at once.

Clients have mini-batches of their own, so their models are stacked along a batch axis: with k models of each of c
clients, a step is a product of (c, B, p) with (c, p, k C) for the logits and one of (c, k C, B) with (c, B, p) for the
gradients. On a GPU the H steps are replayed from a CUDA graph of `CHUNK` steps (one of a single step for the rest),
since H grows with the rounds; nothing waits for the GPU but the copy of the result.

A client's bits do not depend on which clients are computed with it, nor on its place among them:

- The products and the norms are computed for blocks of clients, always as many as `block_of` says, which looks at the
  shapes of one client alone; the last block is filled up with clients that hold nothing. So a library that chooses by
  its shapes how to sum is always asked for the same shapes, and what it does with one matrix of a batch is what it does
  with any other. Rows are filled up with zeros to whole lines of 64 bytes, so that all matrices lie alike in memory.
- All else is computed entry by entry, or for each row of C logits by itself (torch.softmax over the last dimension).
  No operation is used that multiplies and adds at once, which some entries of an array could get and others not.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.problems.kernels.resident import Source, identity, source_of
from zofl_mpi.problems.kernels.softmax import Minibatches
from zofl_mpi.run import device as place

Array = NDArray[Any]

BLOCK = 32
"""Clients of one batched product, at most."""
BLOCK_BYTES = 2**26
"""Of the mini-batches of a block; where these are larger it has fewer clients."""
CHUNK = 16
"""Steps of one replay."""
LINE = 64
"""Bytes that a row of features fills up to."""
LOOPS = 16
"""Loops that are kept, with their buffers: as many shapes of calls."""


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
        source: of the samples, see `identity`.
        models, classes, width: k, C, and p with the bias.
        batch: B.
        dtype: of the models.
        rescale, bias: see `Minibatches`.
        confined: whether there is a ball to project onto.
        shifted: whether there is something to be added to the gradients.
        device: as torch calls it.
    """

    source: tuple[Any, ...]
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
    def row(self) -> int:
        """Numbers of a row: the width, filled up to whole lines."""
        each = LINE // np.dtype(self.dtype).itemsize
        return -(-self.width // each) * each

    @property
    def block(self) -> int:
        """Clients of a block."""
        return block_of(self.batch * self.row * np.dtype(self.dtype).itemsize)


def block_of(each: int) -> int:
    """Clients of a block if each has a mini-batch of `each` bytes: BLOCK, or the power of 2 that BLOCK_BYTES allow."""
    most = max(1, min(BLOCK, BLOCK_BYTES // max(1, each)))
    return 1 << most.bit_length() - 1


_LOOPS: OrderedDict[tuple[Kind, int], _Loop] = OrderedDict()
_LOCK = threading.Lock()  # ranks may be threads of one process


def solve_torch(solves: Sequence[Solve], device: str) -> None:
    """Takes the steps of `kernels.softmax.solve_numpy` for several clients; overwrites the d of each."""
    groups: dict[tuple[Kind, int], list[Solve]] = {}
    for solve in solves:
        groups.setdefault((Kind.of(solve, device), len(solve.minibatches.rows)), []).append(solve)
    with _LOCK, torch.no_grad():
        for (kind, _), members in groups.items():
            _loop(kind, -(-len(members) // kind.block), members[0]).run(members)


def _loop(kind: Kind, blocks: int, example: Solve) -> _Loop:
    """The loop for so many blocks of clients; the one that was used least lately is given up for it."""
    key = (kind, blocks)
    if key not in _LOOPS:
        while len(_LOOPS) >= LOOPS:
            _LOOPS.popitem(last=False)
        _LOOPS[key] = _Loop(kind, blocks, example)
    _LOOPS.move_to_end(key)
    return _LOOPS[key]


@final
class _Loop:
    """The steps of some blocks of clients, c in all, in tensors that stay where they are."""

    def __init__(self, kind: Kind, blocks: int, example: Solve) -> None:
        self.kind, self.clients = kind, blocks * kind.block
        self.parts = [slice(b * kind.block, (b + 1) * kind.block) for b in range(blocks)]
        self.dtype: torch.dtype = getattr(torch, kind.dtype)
        self.data = example.minibatches.data  # keeps its arrays, whose identity the kind is made of
        self.source: Source = source_of(self.data, self.dtype, kind.device)
        c, k, C, B = self.clients, kind.models, kind.classes, kind.batch
        self.rows = self._zeros(CHUNK, c * B, dtype=torch.int64)
        self.factors = self._zeros(CHUNK, 3, c)  # pull, keep, push
        self.batch = self._zeros(c, B, kind.row)
        self.features = self.batch[:, :, : self.data.features]
        if kind.bias:
            self.batch[:, :, self.data.features] = 1
        self.x, self.d, self.y = (self._zeros(c, k * C, kind.row) for _ in range(3))
        self.shift = self._zeros(c, k * C, kind.row) if kind.shifted else None
        self.logits = self._zeros(c, B, k * C)
        self.radius, self.norms = (self._zeros(c * k, dtype=torch.float64) for _ in range(2))
        self.classes = torch.eye(C, dtype=self.dtype, device=kind.device)
        self._replays: dict[int, Callable[[], None]] = {}

    def run(self, solves: Sequence[Solve]) -> None:
        """Takes all steps of these clients, at most c of them with equally many steps."""
        H = len(solves[0].minibatches.rows)
        replays = [self._replay(steps) for steps in (CHUNK, 1)]  # before the buffers are filled: it writes into them
        rows, factors = self._filled(solves, H)
        for t, steps, replay in self._turns(H, replays):
            self.rows[:steps].copy_(rows[t : t + steps])
            self.factors[:steps].copy_(factors[t : t + steps])
            replay()
        moved = self.d[:, :, : self.kind.width].cpu().numpy()
        for solve, d in zip(solves, moved, strict=False):
            solve.d[...] = d.reshape(solve.d.shape)

    def _turns(self, H: int, replays: Sequence[Callable[[], None]]) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """The first step, the number of steps and what takes them, in turn."""
        rest = H - H % CHUNK
        yield from ((t, CHUNK, replays[0]) for t in range(0, rest, CHUNK))
        yield from ((t, 1, replays[1]) for t in range(rest, H))

    def _replay(self, steps: int) -> Callable[[], None]:
        """What takes the first `steps` steps of the buffers."""
        if steps not in self._replays:

            def work() -> None:
                onehot = self._onehot(steps)
                for t in range(steps):
                    self._step(t, onehot[t])

            self._replays[steps] = place.replayable(self.kind.device, work)
        return self._replays[steps]

    def _filled(self, solves: Sequence[Solve], H: int) -> tuple[Tensor, Tensor]:
        """Fills the buffers; rows (H, c B) and factors (H, 3, c) of all steps."""
        kind = self.kind
        own = [solve.minibatches for solve in solves]
        for target, arrays in ((self.x, [s.x for s in solves]), (self.d, [s.d for s in solves])):
            target.copy_(self._stacked(arrays))
        if self.shift is not None:
            self.shift.copy_(self._stacked([solve.shift for solve in solves]))
        radius = np.full((self.clients, kind.models), np.inf)
        radius[: len(solves)] = np.array([solve.radius for solve in solves])[:, None]
        self.radius.copy_(torch.from_numpy(radius.ravel()))
        rows = np.zeros((H, self.clients, kind.batch), np.int64)
        factors = np.zeros((H, 3, self.clients), kind.dtype)
        for j, each in enumerate(own):
            rows[:, j] = each.rows
            factors[:, 0, j], factors[:, 1, j], factors[:, 2, j] = each.pull, each.keep, each.push
        return (torch.from_numpy(a).to(kind.device) for a in (rows.reshape(H, -1), factors))  # type: ignore[return-value]

    def _stacked(self, arrays: Sequence[Any]) -> Tensor:
        """(c, k C, row) of (k, C, width) each."""
        stacked = np.zeros(self.x.shape, self.kind.dtype)
        for target, array in zip(stacked, arrays, strict=False):
            target[:, : self.kind.width] = array.reshape(len(target), -1)
        return torch.from_numpy(stacked)

    def _step(self, t: int, onehot: Tensor) -> None:
        """d <- P[keep d - push shift - pull sum_b (softmax(logits_b) - onehot_b) input_b], for every client."""
        kind, c = self.kind, self.clients
        self._gather(t)
        torch.add(self.x, self.d, out=self.y)
        for part in self.parts:
            torch.bmm(self.batch[part], self.y[part].transpose(1, 2), out=self.logits[part])
        pull, keep, push = self.factors[t].view(3, c, 1, 1).unbind()
        residual = torch.softmax(self.logits.view(c, kind.batch, kind.models, kind.classes), dim=-1)
        residual.sub_(onehot).mul_(pull[..., None])
        flat = residual.view(c, kind.batch, -1)
        self.d.mul_(keep)
        if self.shift is not None:
            self.d.sub_(self.shift * push)
        for part in self.parts:
            self.d[part].baddbmm_(flat[part].transpose(1, 2), self.batch[part], alpha=-1)
        if kind.confined:
            self._confine()

    def _onehot(self, steps: int) -> Tensor:
        """(steps, c, B, 1, C) which class each sample has."""
        labels = self.source.labels.index_select(0, self.rows[:steps].view(-1))
        return self.classes.index_select(0, labels).view(steps, self.clients, self.kind.batch, 1, -1)

    def _gather(self, t: int) -> None:
        """Fetches the inputs of step t, scaled as the NumPy kernel does it."""
        source = self.source
        self.features.copy_(source.inputs.index_select(0, self.rows[t]).view(self.features.shape))
        if self.kind.rescale:
            self.features.mul_(source.scale).add_(source.shift)

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
