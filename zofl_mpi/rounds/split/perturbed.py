"""A client that meets the server's answers by forward passes alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from zofl_mpi.engine.clients import Client
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.messages import Model, Smashed, Trained
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from zofl_mpi.problems.signs import SignedLayers


@final
class Perturbed:
    """A client's round in progress: forward to the cut, wait, perturbed passes to the cut, step.

    Between two questions it holds a mini-batch, and its smashed samples where the estimate is one-sided; of layers that
    step along their gradient a graph too.
    """

    def __init__(
        self,
        training: Training,
        estimate: Estimate | None,
        client: Client,
        message: Model,
        kept: bool,
        layers: SignedLayers | None,
        exact: slice | None,
    ) -> None:
        """
        Args:
            training: of the problem `cut.at_cut`.
            estimate: None where nothing is estimated.
            kept: whether the differences behind the steps stay in the client's memory.
            layers: those that take signs, where each sample has a direction.
            exact: what of theta_c, the last of it, steps along its gradient.
        """
        self.estimate, self.client, self.kept, self.layers, self.exact = estimate, client, kept, layers, exact
        self.local = LocalSteps(training, client, message, head=False, exact=exact)
        self.left: Iterator[tuple[int, Tensor, Tensor]] = iter(self.local)
        self.differences: list[Tensor] = []

    def forward(self) -> Smashed | None:
        """The next mini-batch up to the cut; None after the last."""
        import torch

        following = next(self.left, None)
        if following is None:
            return None
        self.q, self.x, labels = following
        if self.exact is not None:
            smashed = self.local.smash_exact(self.x)
        else:
            with torch.no_grad(), self.local.at(self.local.buffers):
                smashed = self.local.problem.smash(self.x)
        looks = self.exact is not None or (self.estimate is not None and self.estimate.one_sided)
        self.smashed = smashed if looks else None
        return Smashed(smashed.detach(), labels)  # which whoever gets it may ask for a gradient

    def backward(self, slope: Tensor) -> None:
        """Takes the local step along the estimate of the gradient that continues `slope`, the one at the cut."""
        local = self.local
        slope = local.problem.placed(slope)
        smashed, self.smashed = self.smashed, None
        exact = None
        if self.exact is not None and smashed is not None:
            exact = local.continued(smashed, slope)
            smashed = smashed.detach()
        local.step(None if self.estimate is None else self._estimated(self.estimate, slope, smashed), exact)

    def _estimated(self, estimate: Estimate, slope: Tensor, smashed: Tensor | None) -> Tensor:
        """(d,) from the smashed samples at the point itself, which nothing else holds."""
        local = self.local
        base = None
        if estimate.one_sided and smashed is not None:
            base = local.problem.local_loss(smashed, slope) if self.layers is None else local.each(smashed, slope)
        del smashed
        directions = estimate.directions(local, self.q)
        if self.layers is not None:
            signs = local.signs(self.q, estimate.draw)
            return estimate.of_each(local, directions, self.layers, signs, self.x, slope, base)
        g, found = estimate.of(local, directions, self.x, slope, base)
        self.differences += found
        return g

    def done(self) -> Trained:
        """Ends the round; see `LocalSteps.done`."""
        if self.kept and self.estimate is not None:
            self.client.memory["differences"] = self.local.host(self.differences).reshape(-1, self.estimate.n_p)
        return self.local.done()
