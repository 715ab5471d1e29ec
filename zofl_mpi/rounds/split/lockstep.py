"""Split training in lockstep: each mini-batch goes up, and the gradient at the cut comes back."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.errors import demand
from zofl_mpi.rounds.split.client import Point
from zofl_mpi.rounds.split.costs import Traffic
from zofl_mpi.rounds.split.losses import CutLoss, Loss
from zofl_mpi.rounds.split.messages import Model, Smashed, State, Trained
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.rules import Backprop, GradientRule
from zofl_mpi.rounds.split.server import Server


@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


@dataclass(frozen=True)
class LockstepMethod(SplitMethod):
    """A method whose server answers every mini-batch, so that k must be 1; the auxiliary head plays no part."""

    def __post_init__(self) -> None:
        demand(self.training.k == 1, "k", self.training.k, "1: the server answers every mini-batch")
        super().__post_init__()

    def chosen(self) -> tuple[Loss, GradientRule]:
        """The gradient that continues the server's answer, by a backward pass."""
        return CutLoss(self.setting.problem), Backprop(self.training.trainable(head=False))

    @property
    def traffic(self) -> Traffic:
        """Smashed samples up, their gradients down, the clients' parts both ways."""
        return replace(super().traffic, head=False, returned=True)

    # --- the server

    def exchange(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> None:
        """Exchanges mini-batch after mini-batch with each participant, whose models then wait to be asked for.

        Args:
            servers: {i: the server part that client i's mini-batches meet} of all participants.
        """
        for group in self.training.groups(r):
            replies = clients.ask(self.begin, self.training.client_part(state, r), to=group)
            while cuts := {i: Cut(servers[i].exchange(item)) for i, item in replies if isinstance(item, Smashed)}:
                replies = clients.ask_each(self.proceed, cuts)

    # --- a client

    def train(self, client: Client, message: Model) -> Generator[Smashed, Tensor, Trained]:
        """Takes the local steps: each uploads a mini-batch at the cut and steps along lambda, the server's answer."""
        model = self.steps(client, message)
        for q, x, labels in model:
            point = self.rule.forward(model, q, x, labels)
            lam = yield Smashed(self._uploaded(point), labels)
            model.step(self.rule(model, point, model.problem.placed(lam), model.key(q)))
        return model.done()

    def _uploaded(self, point: Point) -> Tensor:
        """(B, *smashed_shape) without the graph; the client keeps them only where its step needs them again."""
        smashed = cast("Tensor", point.smashed)
        if not self.rule.needs_point:
            point.smashed = None
        return smashed.detach()

    def begin(self, client: Client, message: Model) -> Smashed:
        """Begins `train`, up to its first upload."""
        steps = client.scratch["steps"] = self.train(client, message)
        return next(steps)

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Goes on with `train`, up to its next upload or its end."""
        try:
            return client.scratch["steps"].send(message.slope)  # type: ignore[no-any-return]
        except StopIteration as done:
            del client.scratch["steps"]
            return done.value  # type: ignore[no-any-return]
