"""Forward passes with the memory of inference: directions drawn piece by piece, and the estimate along them.

A perturbed pass reads theta + mu u layer by layer. Each layer's values exist only while it computes, from pieces of u
drawn for it. theta stays unchanged, and the losses are bit-identical to those of the whole vector theta + mu u. A step
draws the pieces once more, unless they are kept, and moves theta in place. If they are kept, and in a small network,
all layers are perturbed before the pass, in reused memory: intercepting each function's arguments costs more.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, cast, final

import numpy as np

from zofl_mpi import Purpose
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.streams import Streams
from zofl_mpi.rounds.split.client import Draw, Key, LocalSteps, Loss, NetworkLoss, Point, generator_of, random_values
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.rules import Lines, StepCost

PieceEstimates = Iterator[tuple[slice, Tensor]]
"""An estimate, part by part of theta."""
Kept = dict[tuple[int, int], Tensor]
"""{(p, j): piece j of u_p, as the generator returns it}."""
CPU_PIECE = 2**18  # numbers drawn at once on a CPU, sized for its caches; a multiple of 64, the signs of one word
AT_ONCE = 2**22  # networks with at most this many numbers are perturbed as a whole
GPU_PIECE = 2**24  # the same on a GPU, where the values depend on how many are drawn at once


@final
class PiecewiseDirections:
    """Directions u_1, ..., u_P (d,) of a step, equal to `client.drawn`'s, with one piece at a time in memory.

    The generator's state at the start of each piece is kept (5 KB on a CPU), to draw it again.
    """

    def __init__(
        self,
        seed: np.random.Generator,
        like: Tensor,
        distribution: str,
        draw: Draw = "device",
        K: Tensor | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Directions with dtype and device of `like` (d,); with K (d,) divided by its root, entry by entry.

        `kept` holds what was drawn by the same seed, and receives what will be.
        """
        self._like, self._distribution, self._K, self._kept = like, distribution, K, kept
        self.are_kept = kept is not None
        self._generator = generator_of(seed, like, draw)
        d, size = len(like), CPU_PIECE if self._generator.device.type == "cpu" else GPU_PIECE
        starts = [j * size for j in range(max(1, -(-(d - 15) // size)))]  # torch draws the last 16 numbers together
        self._size = size
        self.parts = [slice(*ends) for ends in zip(starts, [*starts[1:], d], strict=True)]
        self._states = [self._generator.get_state()]
        self._factors: dict[int, Tensor] = {}
        self._last: tuple[int, int, Tensor] = (-1, -1, like[:0])

    def __call__(self, p: int, j: int) -> Tensor:
        """The part `parts[j]` of u_p."""
        if self._last[:2] != (p, j):
            self._last = (-1, -1, self._like[:0])
            u = self._piece(p, j)
            if "sphere" in self._distribution:
                u = u * self._factor(p) if self._kept is not None else u.mul_(self._factor(p))
            u = u.to(self._like.device, non_blocking=True)
            self._last = p, j, u if self._K is None else u * self._K[self.parts[j]].rsqrt()
        return self._last[2]

    def shifted(self, x: Tensor, part: slice, p: int, mu: float, of: slice | None = None) -> Tensor:
        """A part of x + mu u_p, at an address equal to that of x's part modulo 64: see `problems.flat`."""
        lead = part.start % 64
        return self.shift(x, part, p, mu, x.new_empty(lead + part.stop - part.start)[lead:], of)

    def shift(self, x: Tensor, part: slice, p: int, mu: float, found: Tensor, of: slice | None = None) -> Tensor:
        """Write a part of x + mu u_p into `found`, with the bits that it has within the larger part `of`.

        Sums are taken piece by piece: a sum's last numbers may round differently, in a scalar loop.
        """
        for j, whole in self._pieces_of(of or part):
            start, stop, first = max(part.start, whole.start), min(part.stop, whole.stop), self.parts[j].start
            if start >= stop:
                continue
            target = found[start - part.start : stop - part.start]
            u = self(p, j)[whole.start - first : whole.stop - first]
            if stop - start == len(u):
                torch.add(x[whole], u, alpha=mu, out=target)
            else:
                target.copy_(torch.add(x[whole], u, alpha=mu)[start - whole.start : stop - whole.start])
        return found

    def rows(self, x: Tensor, part: slice, width: int, which: Tensor, p: int, mu: float) -> Tensor:
        """(k, width) the rows `which` (k,) of a part of x + mu u_p as a matrix; NaN for missing rows."""
        most = max(own.stop - own.start for _, own in self._pieces_of(part))
        found, memory = x.new_full((len(which), width), math.nan), x.new_empty(width + most)
        first, left = 0, 0  # the next row, and how many of its numbers are there
        for _, own in self._pieces_of(part):
            end = left + own.stop - own.start
            self.shift(x, own, p, mu, memory[left:end])
            complete, left = divmod(end, width)
            at = which.ge(first).logical_and_(which.lt(first + complete)).nonzero().squeeze(1)
            found[at] = memory[: complete * width].view(complete, width)[which[at] - first]
            memory[:left] = memory[end - left : end].clone()
            first += complete
        return found

    def _pieces_of(self, part: slice) -> Iterator[tuple[int, slice]]:
        """(j, overlap) of the pieces that overlap a part of x."""
        for j in range(min(part.start // self._size, len(self.parts) - 1), len(self.parts)):
            own = self.parts[j]
            if own.start >= part.stop:
                return
            yield j, slice(max(part.start, own.start), min(part.stop, own.stop))

    def _piece(self, p: int, j: int) -> Tensor:
        """The piece as the generator returns it: kept, or drawn."""
        if self._kept is None:
            return self._drawn(p, j)
        if (p, j) not in self._kept:
            self._kept[p, j] = self._drawn(p, j)
        return self._kept[p, j]

    def _drawn(self, p: int, j: int) -> Tensor:
        """The piece as the generator returns it; draws all earlier ones first if necessary."""
        wanted = p * len(self.parts) + j
        while True:
            k = min(wanted, len(self._states) - 1)
            part = self.parts[k % len(self.parts)]
            self._generator.set_state(self._states[k])
            u = random_values(part.stop - part.start, self._generator, self._like, self._distribution)
            if k + 1 == len(self._states):
                self._states.append(self._generator.get_state())
            if k == wanted:
                return u
            del u

    def _factor(self, p: int) -> Tensor:
        """() the factor that brings u_p to the sphere."""
        if p not in self._factors:
            norms = [torch.linalg.vector_norm(self._piece(p, j), dtype=torch.float64) for j in range(len(self.parts))]
            norm = torch.linalg.vector_norm(torch.stack(norms)) if len(norms) > 1 else norms[0]
            radius = math.sqrt(len(self._like)) if self._distribution == "sqrt_d_sphere" else 1.0
            self._factors[p] = norm.reciprocal_().mul_(radius)
        return self._factors[p]


@final
@dataclass(frozen=True)
class Piecewise(TwoPoint):
    """The two-point estimate of all of theta, with directions that exist as a whole only in `directions`."""

    statistics: bool = False  # True if the pass at the model itself moves BatchNorm's running statistics
    K: Tensor | None = field(default=None, compare=False)  # (d,) directions are divided by its root; None: 1
    lean: bool = False  # True to perturb even a small network one layer at a time, as a small device would

    @property
    def needs_point(self) -> bool:
        return not self.central or self.statistics

    def cost(self, loss: Loss) -> StepCost:
        return StepCost(self.passes + self.needs_point)

    def plan_lines(self) -> Lines:
        return {}

    def draw_pieces(self, like: Tensor, key: Key, kept: Kept | None = None) -> PiecewiseDirections:
        """Directions of a step, for theta like (d,); `kept` as in `PiecewiseDirections`."""
        return PiecewiseDirections(key(Purpose.DIRECTION), like, self.distribution, self.draw, self.K, kept)

    def directions(self, like: Tensor, key: Key) -> Iterator[Tensor]:
        us = self.draw_pieces(like, key)
        for p in range(self.n_p):
            yield torch.cat([us(p, j) for j in range(len(us.parts))])

    def differences(self, model: LocalSteps, point: Point, target: Tensor, us: PiecewiseDirections) -> list[Tensor]:
        """The n_p differences of losses () along u_1, ..., u_{n_p}."""
        base, found = None if self.central else self._base(model, point, target), list[Tensor]()
        for p in range(self.n_p):
            plus = self._shifted_loss(model, point.x, target, us, p, self.mu)
            other = self._shifted_loss(model, point.x, target, us, p, -self.mu) if base is None else base
            model.compare(plus, other)
            found.append(plus - other)
        return found

    def estimate(self, us: PiecewiseDirections, differences: Sequence[float | Tensor]) -> PieceEstimates:
        """(part of theta, the step's estimate there), piece by piece."""
        for j, part in enumerate(us.parts):
            terms = (self.term(difference, us(p, j)) for p, difference in enumerate(differences))
            yield part, reduce(torch.Tensor.add_, terms)

    def along(self, loss: Loss, theta: Tensor, count: int) -> AbstractContextManager[Any]:
        return _shifted(cast("NetworkLoss", loss), theta, self.draw_pieces(theta, Key(Streams(0))), 0, self.mu)

    def _shifted_loss(
        self, model: LocalSteps, x: Tensor, target: Tensor, us: PiecewiseDirections, p: int, mu: float
    ) -> Tensor:
        """() the loss at theta + mu u_p, one layer at a time, unless the network is small or directions are kept."""
        theta, flat = model.theta, cast("NetworkLoss", model.loss).flat
        if not self.lean and (us.are_kept or len(theta) <= AT_ONCE):
            for part in flat.places.values():  # one by one: a vector's last numbers may round differently
                us.shift(theta, part, p, mu, model.perturbed_theta[part])
            with torch.no_grad(), flat.bound_to(model.perturbed_theta, model.unmoved(), model.training.running):
                return model.loss(model.problem.smash(x), target)
        nowhere = theta.new_full((1,), math.nan).expand(len(theta))
        bound = flat.bound_to(nowhere, model.unmoved(), model.training.running)
        with torch.no_grad(), bound, _shifted(cast("NetworkLoss", model.loss), theta, us, p, mu):
            return model.loss(model.problem.smash(x), target)


def _shifted(
    loss: NetworkLoss, theta: Tensor, us: PiecewiseDirections, p: int, mu: float
) -> AbstractContextManager[Any]:
    """Context manager: torch's functions receive parameters of theta + mu u_p, created on demand."""
    from zofl_mpi.problems.flat import Substituted

    places = loss.flat.places

    def layer(parameter: Tensor) -> Tensor:
        return us.shifted(theta, places[id(parameter)], p, mu).view(parameter.shape)

    def some(parameter: Tensor, rows: slice) -> Tensor:
        of, width = places[id(parameter)], parameter.shape[1:].numel()
        part = slice(of.start + width * rows.start, of.start + width * rows.stop)
        return us.shifted(theta, part, p, mu, of).view(-1, *parameter.shape[1:])

    def rows(parameter: Tensor, which: Tensor) -> Tensor:
        return us.rows(theta, places[id(parameter)], parameter.shape[1], which, p, mu)

    return Substituted({key: part.stop - part.start for key, part in places.items()}, layer, some, rows)
