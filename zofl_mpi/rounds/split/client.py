"""A client of the split methods: its local steps, with or without backward passes, and the directions of these."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.streams import Purpose, seed_torch
from zofl_mpi.problems import optional
from zofl_mpi.rounds.split.messages import Model, Trained
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from zofl_mpi.problems.stacked import Stacked

Draw = Literal["device", "host"]
"""Where directions are drawn."""
HeadGradient = Callable[[Any, Any], tuple[Any, Any]]
_warned: list[bool] = []


@final
class LocalSteps:
    """A client's local steps of a round, one after the other; its model moves in place.

    Nothing of it lies in the modules between two calls, so that clients of one process may take turns. Losses stay
    where they are computed until the round ends: a GPU that had to tell the host each one would stand still meanwhile.
    """

    def __init__(
        self, training: Training, client: Client, message: Model, head: bool = True, exact: slice | None = None
    ) -> None:
        """
        Args:
            head: whether the method trains the auxiliary head, which then travels.
            exact: what of theta_l, the last of what trains, steps along a gradient of its own, with moments of its own.
        """
        import torch

        self.training, self.client, self.r, self.head = training, client, message.r, head
        self.problem = training.problem
        self.theta, self.buffers = (self.problem.placed(t).clone() for t in (message.theta, message.buffers))
        self.scratch = self.buffers.clone()
        self.point = torch.empty_like(self.theta)
        self.part = training.trainable(head)
        self.moments = training.moments(client, message)
        self.exact = exact or slice(self.part.stop, self.part.stop)
        if exact is not None:
            self.part = slice(self.part.start, exact.start)
            self.exact_moments = training.moments(client, message, "exact_moments")
        self.reset()
        self.moved = 0
        self.compared = 0
        self.vague = self.theta.new_zeros((), dtype=torch.int64)

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(q, inputs, labels) of each local step."""
        for q, positions in enumerate(self.training.batches(self.client.i, self.r)):
            yield q, *self.training.inputs(self.client, positions, self.r, q)

    def reset(self) -> None:
        """Resets the running mean loss."""
        import torch

        self.loss, self.count = self.theta.new_zeros((), dtype=torch.float64), 0

    def at(self, buffers: Tensor) -> AbstractContextManager[list[nn.Parameter]]:
        """Context manager: binds the local part to this client's theta_l, with these buffers (b_l,)."""
        return self.problem.local.at(self.theta, buffers, self.training.running)

    def uploads(self, q: int) -> bool:
        """Whether local step q goes up."""
        return self.training.uploads(self.client.i, q)

    def host(self, values: Sequence[Tensor]) -> NDArray[np.float64]:
        """(len(values),) the numbers () on the host."""
        import torch

        found = torch.stack(list(values)) if values else self.theta.new_zeros(0)
        return np.asarray(found.double().cpu().numpy())

    def zeros(self) -> Tensor:
        """(d,) zeros in the shape of what trains of theta_l."""
        return self.theta[self.part].new_zeros(self.part.stop - self.part.start)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The smashed activations and () the local loss at the model itself; moves BatchNorm's running statistics."""
        import torch

        with torch.no_grad(), self.at(self.buffers):
            smashed = self.problem.smash(x)
            loss = self.problem.local_loss(smashed, labels)
        self.loss, self.count = self.loss + loss, self.count + 1
        return smashed, loss

    def forward_head(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `forward`, and (n_a,) the gradient of the local loss in theta_a, by the same forward pass."""
        import torch

        with torch.no_grad(), self.at(self.buffers):
            smashed = self.problem.smash(x)
            loss, g = cast("HeadGradient", optional.head_gradient(self.problem))(smashed, labels)
        self.loss, self.count = self.loss + loss, self.count + 1
        return smashed, loss, g

    def backward_exact(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `forward`, and the gradient of the local loss in what is exact, by a backward pass through that alone."""
        import torch

        from zofl_mpi.problems.tail import only, slope_of

        with self.at(self.buffers), only(self.problem.local, self.exact) as parameters:
            smashed = self.problem.smash(x)
            loss = self.problem.local_loss(smashed, labels)
            g = slope_of(loss, parameters)
        self.loss, self.count = self.loss + loss.detach(), self.count + 1
        smashed = smashed.detach()
        with torch.no_grad(), self.at(self.scratch.copy_(self.buffers)):  # in the precision of the perturbed ones
            base = self.problem.local_loss(smashed, labels)
        return smashed, base, g

    def smash_exact(self, x: Tensor) -> Tensor:
        """The smashed activations, with a graph of what is exact alone."""
        from zofl_mpi.problems.tail import only

        with self.at(self.buffers), only(self.problem.local, self.exact):
            return self.problem.smash(x)

    def continued(self, smashed: Tensor, slope: Tensor) -> Tensor:
        """The gradient in what is exact that continues `slope`, the one at the smashed activations of `smash_exact`."""
        from zofl_mpi.problems.tail import only, slope_of

        with self.at(self.buffers), only(self.problem.local, self.exact) as parameters:
            return slope_of(smashed, parameters, slope)

    def perturbed(self, x: Tensor, labels: Tensor, u: Tensor, mu: float) -> Tensor:
        """() the local loss at theta_l + mu u, a point that has memory of its own: the model stays as it is."""
        import torch

        buffers = self.buffers
        if self.training.batchnorm == "batch":
            buffers = self.scratch.copy_(self.buffers)
        if len(u) == len(self.theta):
            torch.add(self.theta, u, alpha=mu, out=self.point)
        else:
            self.point.copy_(self.theta)[self.part].add_(u, alpha=mu)
        with torch.no_grad(), self.problem.local.at(self.point, buffers, self.training.running):
            return self.problem.local_loss(self.problem.smash(x), labels)

    def abreast(self, x: Tensor, labels: Tensor, moves: Sequence[tuple[Tensor, float]]) -> Tensor:
        """(k,) the local losses at theta_l + mu u for each (u, mu) of `moves`, all by one forward pass."""
        import torch

        own = self.theta[self.part]
        points = own.new_empty(len(moves), len(own))
        for point, (u, mu) in zip(points, moves, strict=True):
            torch.add(own, u, alpha=mu, out=point)
        x = self._stacked.inputs(x)
        with torch.no_grad(), self.at(self.buffers):
            return self._stacked.losses(points, lambda: self.problem.local_loss(self.problem.smash(x), labels))

    @cached_property
    def _stacked(self) -> Stacked:
        from zofl_mpi.problems.stacked import Stacked

        return Stacked(self.problem.local, self.part)

    def derivative(self, x: Tensor, labels: Tensor, u: Tensor) -> Tensor:
        """() the derivative of the local loss along u, without a graph; statistics stay as in `perturbed`."""
        import torch

        from zofl_mpi.problems.tangents import channels_first, tangent_of, tangents

        buffers = self.buffers
        if self.training.batchnorm == "batch":
            buffers = self.scratch.copy_(self.buffers)
        x = channels_first(x)
        with torch.no_grad(), self.at(buffers), tangents(self.problem.local, self.part, u):
            return tangent_of(self.problem.local_loss(self.problem.smash(x), labels))

    def each(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """(B,) what each sample adds to the local loss at the model itself."""
        import torch

        with torch.no_grad(), self.at(self.buffers):
            return self._losses(smashed, labels)

    def perturbed_each(self, x: Tensor, labels: Tensor, along: AbstractContextManager[Any]) -> Tensor:
        """(B,) what each sample adds to the local loss at a point of its own, within `along`."""
        import torch

        with torch.no_grad(), self.at(self.buffers), along:
            return self._losses(self.problem.smash(x), labels)

    @property
    def _losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        return cast("Callable[[Tensor, Tensor], Tensor]", optional.local_losses(self.problem))

    def gradient(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The smashed activations and (d,) the gradient of the local loss."""
        with self.at(self.buffers):
            smashed = self.problem.smash(x)
            loss = self.problem.local_loss(smashed, labels)
            g = self.problem.local.gradient(loss)
        self.loss, self.count = self.loss + loss.detach(), self.count + 1
        return smashed.detach(), g[self.part]

    def directions(self, count: int, q: int, distribution: str, draw: Draw = "device") -> Iterator[Tensor]:
        """u_1, ..., u_count (d,) of step q, where the model is; see `drawn`."""
        seed = self.training.setting.streams(Purpose.DIRECTION, r=self.r, i=self.client.i, t=q)
        return drawn(seed, self.theta[self.part], count, distribution, draw)

    def signs(self, q: int, draw: Draw = "device") -> torch.Generator:
        """Draws the signs of step q, where the model is or on the host; see `problems.signs`."""
        seed = self.training.setting.streams(Purpose.SIGNS, r=self.r, i=self.client.i, t=q)
        return generator_of(seed, self.theta, draw)

    def compare(self, plus: Tensor, other: Tensor) -> None:
        """Counts the pairs of losses that differ by too little to mean anything in their precision.

        A direction that is nearly orthogonal to the gradient gives such a pair at any radius; `done` warns of many.
        """
        self.compared += plus.numel()
        self.vague += ((plus - other).abs() <= self._rounding() * plus.abs().maximum(other.abs())).sum()

    def _rounding(self) -> float:
        """Relative rounding error of a loss."""
        import torch

        return 8 * float(torch.finfo(self.theta.dtype).eps)

    def _warn(self) -> None:
        """Warns, once a process, where most differences of losses were rounding."""
        vague = int(self.vague)
        if 2 * vague <= self.compared or _warned:
            return
        _warned.append(True)
        dtype = np.dtype(self.training.setting.dtype)
        print(
            f"zofl_mpi: warning: {vague} of {self.compared} losses of a perturbed pass differ from the other loss "
            f"of their step by less than {self._rounding():.1g} of their size, which is rounding in {dtype}: take a "
            f"larger --mu{', or --dtype float64' if dtype == np.float32 else ''}",
            file=sys.stderr,
        )

    def step(self, g: Tensor | None, exact: Tensor | None = None) -> None:
        """Moves the model by the optimiser's step along g (d,), and what has a gradient of its own along `exact`.

        Args:
            g: None leaves what it is of as it is.
        """
        size = self.training.client_size(self.r, self.client.i, self.moved)
        if g is not None:
            self.training.rule.step(self.theta[self.part], g, self.moments, size)
        if exact is not None:
            self.training.rule.step(self.theta[self.exact], exact, self.exact_moments, size)
        self.moved += 1

    def done(self) -> Trained:
        """Ends the round: the model stays in the client's memory until it is asked for, without a head that stays."""
        self._warn()
        theta = self.theta if self.head else self.theta[: self.problem.n_client].clone()
        self.client.memory["theta"], self.client.memory["buffers"] = theta, self.buffers
        return Trained(float(self.loss) / self.count if self.count else math.nan)


def drawn(
    seed: np.random.Generator, like: Tensor, count: int, distribution: str, draw: Draw = "device"
) -> Iterator[Tensor]:
    """Yields `count` directions u (d,) of the dtype of `like` (d,), on its device.

    Args:
        seed: the whole state of the generator that draws them follows from it.
        distribution: see `estimation.Estimation`.
        draw: by a generator of that device, or of the host. From the host they come through pinned memory, which torch
            hands out again; nobody waits: while a GPU takes one step, the host draws for the next.
    """
    import torch

    generator = generator_of(seed, like, draw)
    d, place = like.numel(), generator.device
    pinned = place != like.device
    for _ in range(count):
        u = torch.randn(d, generator=generator, device=place, dtype=like.dtype, pin_memory=pinned)
        if distribution != "gaussian":
            norm = torch.linalg.vector_norm(u, dtype=torch.float64)
            u.mul_((math.sqrt(d) if distribution == "sqrt_d_sphere" else 1.0) / norm)
        yield u.to(like.device, non_blocking=True)


def generator_of(seed: np.random.Generator, like: Tensor, draw: Draw) -> torch.Generator:
    """torch's generator of the device of `like`, or of the host."""
    import torch

    return seed_torch(torch.Generator(like.device if draw == "device" else "cpu"), seed)
