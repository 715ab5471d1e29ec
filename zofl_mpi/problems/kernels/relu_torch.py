"""The network of rectifiers by torch, on a GPU or on the CPU: losses, slopes and local steps of many clients at once.

Products with the inputs are computed in the dtype of the models, everything after them in float64, as by NumPy. A
model x = (Z, w) lies as (N_1, p + 1), each unit with its weight behind it; the inputs have a 0 there. Samples of one
call go in pieces of PIECE. Why a client's bits do not depend on the others, and what is replayed: see `blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofl_mpi.data import Dataset
from zofl_mpi.engine import device as place
from zofl_mpi.problems import Batch
from zofl_mpi.problems.kernels.blocks import CHUNK, LOCK, Batches, Room, Steps, block_of, identity, kept, row_of

Array = NDArray[Any]
Vector = NDArray[np.float64]

PIECE = 8192
"""Samples that are looked at together, at most."""


class Network(NamedTuple):
    """How a network is computed.

    Attributes:
        hidden: N_1.
        sharpness: s of the smooth twin's rectifier log(1 + exp(s t))/s; 0 for max(0, t).
        device: as torch calls it.
        classes: C, for sums by class.
    """

    hidden: int
    sharpness: float
    device: str
    classes: int = 1


class Points(NamedTuple):
    """Points x (k, n) of a client, and samples at `positions` in its data: (B,), or (H, B) for the steps of a walk."""

    network: Network
    x: Array
    data: Dataset
    positions: Batch

    @property
    def kind(self) -> Kind:
        """With what it can be computed together."""
        data, x = self.data, self.x
        rescale, batch = bool(np.any(data.shift)), self.positions.shape[-1]
        return Kind(self.network, identity(data), rescale, len(x), data.features, batch, x.dtype.name)

    @property
    def rows(self) -> Batch:
        """Which of the samples that lie on the device they are."""
        return self.data.rows_of(self.positions)


@final
@dataclass(frozen=True)
class Walk:
    """A client's local steps y <- y - stepsizes[t] (weight sum_b slope_b(y) + lam y + mu (y - y_0) + shift).

    Attributes:
        start: y_0, one point, and the mini-batches (H, B).
        shift: (n,).
        stepsizes: (H,).
        weight: of a sample in a mini-batch.
    """

    start: Points
    shift: Array
    stepsizes: Vector
    weight: float
    lam: float
    mu: float


class Kind(NamedTuple):
    """What is computed together has this in common; it does not depend on whose it is.

    Attributes:
        network: how it is computed.
        samples: where the mini-batches come from, see `identity`.
        rescale: whether the inputs are scaled and shifted; else the units are multiplied by the scale.
        models, features, batch: k, p, B.
        dtype: of the models.
    """

    network: Network
    samples: tuple[Any, ...]
    rescale: bool
    models: int
    features: int
    batch: int
    dtype: str

    @property
    def row(self) -> int:
        """Numbers of a unit: p, its weight, zeros."""
        return row_of(self.features + 1, self.dtype)

    @property
    def block(self) -> int:
        """Clients of a block."""
        return block_of(self.batch * self.row * np.dtype(self.dtype).itemsize)

    def zeros(self) -> Tensor:
        """(c, k N_1, row) for the units of a block."""
        shape = self.block, self.models * self.network.hidden, self.row
        return torch.zeros(shape, dtype=getattr(torch, self.dtype), device=self.network.device)

    def fill(self, target: Tensor, room: Room, x: Sequence[Array]) -> None:
        """Copies the models (k, n) of each client into (c, k N_1, row); the other clients have zeros."""
        N1, p = self.network.hidden, self.features
        units = [np.concatenate([a[:, :-N1].reshape(-1, N1, p), a[:, -N1:, None]], axis=2) for a in x]
        target[: len(x), :, : p + 1].copy_(room.sent([a.reshape(-1, p + 1) for a in units]))
        target[len(x) :].zero_()

    def flat(self, units: Array) -> Array:
        """(c, n), the inverse for one model of each client."""
        p = self.features
        return np.concatenate([units[:, :, :p].reshape(len(units), -1), units[:, :, p]], axis=1)


Term = Callable[["_Samples", Tensor], Tensor]
"""(the mini-batches of a block, its units (c, k N_1, row)) -> float64, of each client."""


def squares(asked: Sequence[Points]) -> list[Vector]:
    """For each (k,), the sum over its samples of (output - target)^2."""
    return _summed(_squares, asked)


def squares_by_class(asked: Sequence[Points]) -> list[Vector]:
    """For each (k, C), the sums of (output - target)^2 over its samples of each class."""
    return _summed(_squares_by_class, asked)


def slopes(asked: Sequence[Points]) -> list[Vector]:
    """For each, of one point, (n,) the sum over its samples of the gradients of 1/2 (output - target)^2."""
    found = _summed(_slope, asked)
    return [points.kind.flat(each[None])[0] for points, each in zip(asked, found, strict=True)]


def walked(walks: Sequence[Walk]) -> list[Array]:
    """(n,) where the steps of each client end."""
    groups: dict[tuple[Kind, int], list[int]] = {}
    for j, walk in enumerate(walks):
        groups.setdefault((walk.start.kind, len(walk.stepsizes)), []).append(j)
    found: dict[int, Array] = {}
    with LOCK, torch.no_grad():
        for (kind, _), members in groups.items():
            loop: _Loop = kept(("steps", kind), lambda: _Loop(kind, walks[members[0]].start.data))  # noqa: B023
            for part in _parts(members, kind.block):
                found.update(zip(part, loop.run([walks[j] for j in part]), strict=True))
    return [found[j] for j in range(len(walks))]


def _parts(members: list[Any], size: int) -> list[list[Any]]:
    return [members[low : low + size] for low in range(0, len(members), size)]


def _summed(term: Term, asked: Sequence[Points]) -> list[Vector]:
    """What `term` makes of each, summed over the pieces of its samples in their order."""
    groups: dict[Kind, list[tuple[int, int, Points]]] = {}
    for j, points in enumerate(asked):
        for q, low in enumerate(range(0, len(points.positions), PIECE)):
            piece = points._replace(positions=points.positions[low : low + PIECE])
            groups.setdefault(piece.kind, []).append((j, q, piece))
    found: dict[tuple[int, int], Vector] = {}
    with LOCK, torch.no_grad():
        for kind, members in groups.items():
            block: _Block = kept((term, kind), lambda: _Block(term, kind, members[0][2].data))  # noqa: B023
            for part in _parts(members, kind.block):
                sums = block.run([piece for _, _, piece in part])
                found.update(((j, q), each) for (j, q, _), each in zip(part, sums, strict=True))
    pieces: list[list[Vector]] = [[] for _ in asked]
    for j, q in sorted(found):
        pieces[j].append(found[j, q])
    return [sum(own[1:], own[0]) for own in pieces]


@final
class _Samples:
    """The mini-batches of a block, with what is computed of them."""

    def __init__(self, kind: Kind, data: Dataset, steps: int) -> None:
        self.kind, (N1, self.sharpness, device, _) = kind, kind.network
        self.shape = kind.block, kind.models, N1, kind.batch
        c, width = kind.block, kind.features + 1
        self.batches = Batches(
            data, c, kind.batch, kind.dtype, device, width=width, steps=steps, rescale=kind.rescale, bias=False
        )
        factor = np.ones(kind.row)
        factor[: kind.features] = data.factor
        self.exact = torch.from_numpy(factor).to(device)  # 1 for the weight
        self.factor = self.exact.to(getattr(torch, kind.dtype))
        self.inputs = self.labels = self.targets = torch.empty(0)

    def gather(self, t: int) -> None:
        """Fetches the inputs (c, B, row), the labels (c, B) and the targets (c, 1, B) of step t.

        The target is 1 for even labels, -1 for odd ones.
        """
        self.inputs, self.labels = self.batches.gather(t), self.batches.labels(t, t + 1)[0]
        self.targets = 1.0 - 2.0 * (self.labels % 2).to(torch.float64)[:, None]

    def products(self, units: Tensor) -> Tensor:
        """(c, k N_1, B) float64, those of the units (c, k N_1, row) with the inputs."""
        return torch.bmm(units * self.factor, self.inputs.transpose(1, 2)).to(torch.float64)

    def rectified(self, t: Tensor) -> Tensor:
        """What the rectifier makes of t."""
        if not self.sharpness:
            return t.clamp(min=0.0)
        scaled = t * self.sharpness
        return torch.logaddexp(scaled, torch.zeros_like(scaled)) / self.sharpness

    def weights(self, units: Tensor) -> Tensor:
        """(c, k N_1, 1) float64."""
        p = self.kind.features
        return units[:, :, p : p + 1].to(torch.float64)


def _squared(samples: _Samples, units: Tensor) -> Tensor:
    """(c, k, B) (output - target)^2."""
    terms = samples.weights(units) * samples.rectified(samples.products(units))
    residual = terms.view(samples.shape).sum(dim=2) - samples.targets
    return residual * residual


def _squares(samples: _Samples, units: Tensor) -> Tensor:
    """(c, k)."""
    return _squared(samples, units).sum(dim=-1)


def _squares_by_class(samples: _Samples, units: Tensor) -> Tensor:
    """(c, k, C)."""
    classes = torch.arange(samples.kind.network.classes, device=units.device)
    return torch.bmm(_squared(samples, units), (samples.labels[..., None] == classes).to(torch.float64))


def _slope(samples: _Samples, units: Tensor) -> Tensor:
    """(c, N_1, row), the gradients in the units with those in their weights."""
    p, s = samples.kind.features, samples.sharpness
    w, t = samples.weights(units), samples.products(units)
    a = samples.rectified(t)
    r = (w * a).sum(dim=1, keepdim=True) - samples.targets
    bend = torch.tanh(t * (s / 2)) * 0.5 + 0.5
    slope = torch.bmm((w * bend * r).to(units.dtype), samples.inputs).to(torch.float64) * samples.exact
    slope[:, :, p] = (a * r).sum(dim=-1)
    return slope


@final
class _Block:
    """A term, for one block of clients at a time, in tensors that stay where they are."""

    def __init__(self, term: Term, kind: Kind, data: Dataset) -> None:
        device = kind.network.device
        self.kind, self.samples = kind, _Samples(kind, data, 1)
        self.units, self.points = kind.zeros(), Room(kind.dtype, device)
        self.sums = torch.zeros_like(term(self.samples, self._gathered()))

        def work() -> None:
            self.sums.copy_(term(self.samples, self._gathered()))

        self.replay = place.replayable(device, work)

    def _gathered(self) -> Tensor:
        self.samples.gather(0)
        return self.units

    def run(self, asked: Sequence[Points]) -> list[Vector]:
        """What the term makes of each."""
        self.kind.fill(self.units, self.points, [points.x for points in asked])
        self.samples.batches.fill([points.rows for points in asked])
        self.replay()
        return list(self.sums.to("cpu", copy=True).numpy()[: len(asked)])  # `sums` is overwritten by the next call


@final
class _Loop:
    """The local steps of one block of clients at a time, in tensors that stay where they are."""

    def __init__(self, kind: Kind, data: Dataset) -> None:
        device, own = kind.network.device, getattr(torch, kind.dtype)
        self.kind, self.samples = kind, _Samples(kind, data, CHUNK)
        self.start, self.y, self.shift = (kind.zeros() for _ in range(3))
        self.rooms = {name: Room(kind.dtype, device) for name in ("start", "shift", "gammas")}
        self.gammas = torch.zeros((CHUNK, kind.block), dtype=own, device=device)
        self.lam, self.mu = (torch.zeros((kind.block, 1, 1), dtype=own, device=device) for _ in range(2))
        self.weight = torch.zeros((kind.block, 1, 1), dtype=torch.float64, device=device)
        self.steps = Steps(device, self.samples.batches, self.gammas)

    def run(self, walks: Sequence[Walk]) -> list[Array]:
        """(n,) where the steps of each client end; they have equally many."""
        kind = self.kind
        self.steps.ready(len(walks[0].stepsizes), self._take)
        kind.fill(self.start, self.rooms["start"], [walk.start.x for walk in walks])
        kind.fill(self.shift, self.rooms["shift"], [walk.shift[None] for walk in walks])
        self.y.copy_(self.start)
        for target, values in (
            (self.lam, [w.lam for w in walks]),
            (self.mu, [w.mu for w in walks]),
            (self.weight, [w.weight for w in walks]),
        ):
            target[: len(walks), 0, 0] = torch.tensor(values, dtype=target.dtype, device=target.device)
        gammas = self.rooms["gammas"].sent([walk.stepsizes for walk in walks])
        self.steps.take([walk.start.rows for walk in walks], gammas)
        return list(kind.flat(self.y.cpu().numpy()[: len(walks)]))

    def _take(self, steps: int) -> None:
        for t in range(steps):
            self.samples.gather(t)
            slope = self.weight * _slope(self.samples, self.y) + self.lam * self.y
            direction = slope.to(self.y.dtype) + self.mu * (self.y - self.start) + self.shift
            self.y.sub_(self.gammas[t][:, None, None] * direction)
