"""Gradient rules by forward passes alone: two-point estimates, derivatives along directions, directions per sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, final

from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.split.client import Draw, Gradient, Key, LocalSteps, Point, drawn, generator_of
from zofl_mpi.rounds.split.losses import Loss
from zofl_mpi.rounds.split.rules import GradientRule, Lines, StepCost

if TYPE_CHECKING:
    from zofl_mpi.problems.signs import SignedLayers


@dataclass(frozen=True)
class _Estimate(GradientRule):
    """The mean of the estimates from n_p directions; see `estimation.Estimation`."""

    n_p: int = 1
    distribution: str = "sqrt_d_sphere"
    draw: Draw = "device"

    @property
    def span(self) -> float:
        """The distance between the two points of a difference, in units of a direction."""
        return 1.0

    def count(self, batch: int) -> int:
        """n_p, for the mini-batch as a whole."""
        return self.n_p

    def directions(self, like: Tensor, key: Key) -> Iterator[Tensor]:
        """u_1, ..., u_{n_p} (d,) of a step, of the kind of `like` (d,)."""
        return drawn(key(Purpose.DIRECTION), like, self.n_p, self.distribution, self.draw)

    def term(self, difference: float | Tensor, u: Tensor) -> Tensor:
        """(d,) a direction's share of the estimate."""
        scale: zo.Distribution = "sphere" if self.distribution == "sphere" else "gaussian"  # sqrt(d) u has its d
        return cast("Tensor", zo.estimate(difference, u, self.span * self.n_p, scale))

    def replay(self, moving: Tensor, differences: Sequence[float], key: Key) -> Tensor:
        g = moving.new_zeros(moving.shape)
        for u, difference in zip(self.directions(moving, key), differences, strict=True):
            g += self.term(difference, u)
        return g

    def lines(self) -> Lines:
        """About the cosine of an estimate with a gradient in d dimensions.

        sqrt(P / (P + d + 1)) is the root of the share of the estimate's mean square that the gradient makes, for P
        Gaussian directions; nearly so for those of a sphere.
        """
        d = self.part.stop - self.part.start
        value = f"{math.sqrt(self.n_p / (self.n_p + d + 1)):.3g}"
        return {"cosine of an estimate with the gradient, about": value} if d else {}


@dataclass(frozen=True)
class TwoPoint(_Estimate):
    """The two-point estimate, [C] (2); see `numerics.zo`."""

    mu: float = 1e-3  # in the unit of the distribution
    central: bool = False  # both sides of the point, else one side and the point itself
    scale: Tensor | None = field(default=None, compare=False)  # (d,) factor of the directions; None: 1

    @property
    def needs_point(self) -> bool:
        return not self.central

    @property
    def passes(self) -> int:
        return (1 + self.central) * self.n_p

    @property
    def span(self) -> float:
        return 2 * self.mu if self.central else self.mu

    def directions(self, like: Tensor, key: Key) -> Iterator[Tensor]:
        for u in super().directions(like, key):
            yield u if self.scale is None else u * self.scale.to(u.device)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """d/mu (F(theta + mu u) - F(theta)) u, or d/(2 mu) (F(theta + mu u) - F(theta - mu u)) u, averaged over u."""
        base = None if self.central else self._base(model, point, target)
        moving, differences = model.theta[self.part], []
        g = moving.new_zeros(moving.shape)
        for u in self.directions(moving, key):
            plus = model.perturbed(point.x, target, u, self.mu)
            other = model.perturbed(point.x, target, u, -self.mu) if base is None else base
            model.compare(plus, other)
            differences.append(plus - other)
            g += self.term(plus - other, u)
        return Gradient((g,), differences)

    def _base(self, model: LocalSteps, point: Point, target: Tensor) -> Tensor:
        """() F(theta); lets go of the smashed samples."""
        smashed, point.smashed = point.smashed, None
        return model.loss(cast("Tensor", smashed), target) if point.loss is None else point.loss


@final
@dataclass(frozen=True)
class ForwardMode(_Estimate):
    """Derivatives along the directions by forward-mode differentiation: an oracle without a radius."""

    @property
    def needs_point(self) -> bool:
        return False

    @property
    def passes(self) -> int:
        return self.n_p

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """<grad F(theta), u> u, averaged over u."""
        moving, differences = model.theta[self.part], []
        g = moving.new_zeros(moving.shape)
        for u in self.directions(moving, key):
            differences.append(self.derivative(model, point.x, target, u))
            g += self.term(differences[-1], u)
        return Gradient((g,), differences)

    def derivative(self, model: LocalSteps, x: Tensor, target: Tensor, u: Tensor) -> Tensor:
        """() the derivative of the loss along u, without a graph."""
        from zofl_mpi.problems.tangents import channels_first, tangent_of, tangents

        x = channels_first(x)
        with torch.no_grad(), model.at(model.unmoved()), tangents(model.problem.local, self.part, u):
            return tangent_of(model.loss(model.problem.smash(x), target))

    def cost(self, loss: Loss) -> StepCost:
        """Passes that take each layer's products twice."""
        return super().cost(loss)._replace(signed=self.passes)

    def trial(self, loss: Loss, theta: Tensor, x: Tensor, labels: Tensor) -> None:
        from zofl_mpi.problems.tangents import channels_first

        super().trial(loss, theta, channels_first(x), labels)

    def along(self, loss: Loss, theta: Tensor, count: int) -> AbstractContextManager[Any]:
        from zofl_mpi.problems.tangents import tangents

        return tangents(loss.problem.local, self.part, theta[self.part])


@final
@dataclass(frozen=True, kw_only=True)
class PerSample(TwoPoint):
    """The two-point estimate with a direction of its own for each sample, by random signs; see `problems.signs`."""

    layers: SignedLayers
    losses: Callable[[Tensor, Tensor], Tensor]  # (smashed, target) to (B,) each sample's contribution to the loss

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        """The mean over the directions u of the samples' estimates, each along sigma_j u."""
        moving, x, smash = model.theta[self.part], point.x, model.problem.smash
        base = None if self.central else self._each(model, lambda: cast("Tensor", point.smashed), target)
        signs, g = generator_of(key(Purpose.SIGNS), model.theta, self.draw), moving.new_zeros(moving.shape)
        for u in self.directions(moving, key):
            own = self.layers.draw(signs, len(x), u)
            plus, minus = (self.layers.perturbed(u, own, mu) for mu in (self.mu, -self.mu))
            losses = self._each(model, lambda: smash(x), target, plus)
            other = self._each(model, lambda: smash(x), target, minus) if base is None else base
            model.compare(losses, other)
            scale = (len(u) if self.distribution == "sphere" else 1) / (self.span * self.n_p)
            g += self.layers.weighted(u, own, scale * (losses - other))
        return Gradient((g,))

    def count(self, batch: int) -> int:
        """n_p of each sample."""
        return self.n_p * batch

    def _each(
        self,
        model: LocalSteps,
        smashed: Callable[[], Tensor],
        target: Tensor,
        along: AbstractContextManager[Any] | None = None,
    ) -> Tensor:
        """(B,) the samples' losses, at points of their own within `along`."""
        with torch.no_grad(), model.at(model.buffers), along or nullcontext():
            return self.losses(smashed(), target)

    def cost(self, loss: Loss) -> StepCost:
        """Passes that take each layer's products twice; the head's once more for the samples' losses at the model."""
        heads = int(self.needs_point and not loss.answered)
        return super().cost(loss)._replace(signed=self.passes, heads=heads)

    def lines(self) -> Lines:
        """None: the rule of thumb is for one direction."""
        return {}

    def along(self, loss: Loss, theta: Tensor, count: int) -> AbstractContextManager[Any]:
        u = theta[: self.layers.d]
        return self.layers.perturbed(u, self.layers.draw(torch.Generator(theta.device), count, u), 1.0)
