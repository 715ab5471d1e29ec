"""The zeroth-order estimate of a local step, and such steps taken again from their differences of losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import demand
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.split.client import Draw, LocalSteps, drawn

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from zofl_mpi.problems.signs import SignedLayers


@final
@dataclass(frozen=True)
class Estimate:
    """The mean of the estimates from n_p directions; see `numerics.zo`.

    Attributes:
        mu: smoothing radius, in the unit of the distribution.
        n_p: directions of a step.
        distribution: of the directions: sqrt_d_sphere, sphere or gaussian; see `estimation.Estimation`.
        central: both sides of the point, else one side and the point itself.
        tangent: the derivative along a direction in the place of differences, by forward-mode differentiation; mu has
            no meaning then.
        draw: where the directions are drawn; see `estimation.Estimation`.
        abreast: perturbed passes that are computed as one.
    """

    mu: float
    n_p: int
    distribution: str
    central: bool
    tangent: bool = False
    draw: Draw = "device"
    abreast: int = 1

    @classmethod
    def named(
        cls, mu: float, n_p: int, distribution: str, estimate: str, draw: Draw = "device", abreast: int = 1
    ) -> Estimate:
        """From the flag --estimate."""
        return cls(mu, n_p, distribution, estimate == "central", estimate == "jvp", draw, abreast)

    def __post_init__(self) -> None:
        demand(0 < self.mu < math.inf, "mu", self.mu, "a smoothing radius above 0")
        demand(self.n_p >= 1, "n_p", self.n_p, "a whole number of directions, at least 1")
        told = f"from 1 to {self.passes}, the perturbed passes of a local step (--n-p {self.n_p}"
        told += ", on both sides)" if self.central else ")"
        demand(1 <= self.abreast <= self.passes, "passes_abreast", self.abreast, told)

    @property
    def passes(self) -> int:
        """Passes of an estimate along its directions."""
        return (1 + self.central) * self.n_p

    def directions(self, local: LocalSteps, q: int) -> Iterator[Tensor]:
        """u_1, ..., u_{n_p} (d,) of a client's step q."""
        return local.directions(self.n_p, q, self.distribution, self.draw)

    def of(
        self, local: LocalSteps, directions: Iterable[Tensor], x: Tensor, labels: Tensor, base: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """(d,) the estimate on one mini-batch; () the differences of losses behind it, one a direction.

        Args:
            directions: n_p of them, (d,) each.
            base: () the unperturbed loss, for the one-sided estimate.
        """
        differences: list[Tensor] = []
        g = local.zeros()
        if self.tangent:
            for u in directions:
                differences.append(local.derivative(x, labels, u))
                g += self.term(differences[-1], u)
            return g, differences
        passes = self._passes(local, directions, x, labels)
        for u, plus in passes:
            other = next(passes)[1] if self.central else cast("Tensor", base)
            local.compare(plus, other)
            differences.append(plus - other)
            g += self.term(plus - other, u)
        return g, differences

    def _passes(
        self, local: LocalSteps, directions: Iterable[Tensor], x: Tensor, labels: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Each direction u with the loss () at theta + mu u, and with `central` once more with that at theta - mu u."""
        radii = (self.mu, -self.mu) if self.central else (self.mu,)
        moves = ((u, mu) for u in directions for mu in radii)
        while own := list(islice(moves, self.abreast)):
            one = self.abreast == 1
            losses = [local.perturbed(x, labels, *own[0])] if one else local.abreast(x, labels, own)
            yield from zip((u for u, _ in own), losses, strict=True)
            del own  # directions, before others are drawn

    def of_each(
        self,
        local: LocalSteps,
        directions: Iterable[Tensor],
        layers: SignedLayers,
        signs: torch.Generator,
        x: Tensor,
        labels: Tensor,
        base: Tensor | None,
    ) -> Tensor:
        """(d,) the estimate on one mini-batch with a direction of its own for each sample.

        Args:
            directions: n_p of them, (d,) each, which the signs of the samples turn.
            layers: of the problem, for the part of theta_l that is perturbed.
            signs: the generator that these are drawn by.
            base: (B,) what each sample adds to the unperturbed loss, for the one-sided estimate.
        """
        g = local.zeros()
        for u in directions:
            own = layers.draw(signs, len(x), u)
            plus = local.perturbed_each(x, labels, layers.perturbed(u, own, self.mu))
            if self.central:
                base = local.perturbed_each(x, labels, layers.perturbed(u, own, -self.mu))
            other = cast("Tensor", base)
            local.compare(plus, other)
            scale = (len(u) if self.distribution == "sphere" else 1) / ((1 + self.central) * self.mu * self.n_p)
            g += layers.weighted(u, own, scale * (plus - other))
        return g

    def told(self, d: int) -> dict[str, str | float]:
        """A line of --dry-run: about the cosine of an estimate with a gradient in d dimensions; none for d = 0.

        sqrt(P / (P + d + 1)) is the root of the share of the estimate's mean square that the gradient makes, for P
        Gaussian directions; nearly so for those of a sphere.
        """
        return (
            {"cosine of an estimate with the gradient, about": f"{math.sqrt(self.n_p / (self.n_p + d + 1)):.3g}"}
            if d
            else {}
        )

    @property
    def one_sided(self) -> bool:
        """Whether it needs the loss at the point itself."""
        return not (self.central or self.tangent)

    def term(self, difference: float | Tensor, u: Tensor) -> Tensor:
        """(d,) what one direction adds to the estimate."""
        span = 1.0 if self.tangent else 2 * self.mu if self.central else self.mu
        scale: zo.Distribution = "sphere" if self.distribution == "sphere" else "gaussian"  # sqrt(d) u has its d
        return cast("Tensor", zo.estimate(difference, u, span * self.n_p, scale))

    def replay(
        self,
        moving: Tensor,
        differences: NDArray[np.float64],
        seed: Callable[[int], np.random.Generator],
        step: Callable[[int, Tensor], Any],
    ) -> None:
        """Calls step(q, g) for each local step q, g (d,) its estimate, made of `differences` (h, n_p) again.

        Args:
            moving: (d,) what moves, of whose kind the directions are.
            seed: of the directions of step q.
        """
        for q, row in enumerate(differences.tolist()):
            g = moving.new_zeros(moving.shape)
            us = drawn(seed(q), moving, self.n_p, self.distribution, self.draw)
            for u, difference in zip(us, row, strict=True):
                g += self.term(difference, u)
            step(q, g)
