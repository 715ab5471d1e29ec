"""The server's part of split training: a step for each upload, and a round that ends in an average."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, final

from zofl_mpi.errors import UserError
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.split.messages import Model, Smashed, State, Trained, Update
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.clients import Clients, Step
from zofl_mpi.run.setting import Setting

Tensor = Any  # torch's, which the server's methods need not import


def averaged_round(
    setting: Setting,
    training: Training,
    state: State,
    r: int,
    clients: Clients,
    train: Step,
    average: Callable[[list[int], Mapping[int, float]], Any],
) -> State:
    """A round in which the server trains on the uploads of `train`, and then the clients' models are averaged.

    Args:
        average: the mean `Update` of the participants, by their weights.
    """
    to = training.participants(setting, r)
    main = Server(setting, training, state)
    losses = {}
    for group in training.groups(setting, r):
        for i, item in clients.ask(train, Model(state.theta, state.buffers, r, state.moments), to=group):
            match item:
                case Smashed():
                    main.step(item)
                case Trained():
                    losses[i] = item.loss
    mean = average(to, training.shares(setting))
    return main.state(mean, math.fsum(losses.values()) / len(losses))


@final
class Server:
    """The server's part while a round goes on: it takes a step for each upload."""

    def __init__(
        self, setting: Setting, training: Training, state: State, moments: Mapping[str, Any] | None = None
    ) -> None:
        import torch

        self.problem, self.training = setting.problem, training
        self.theta, self.buffers = (self.problem.placed(t).clone() for t in (state.theta_s, state.buffers_s))
        kept = state.optimiser if moments is None else moments
        self.moments = copied(kept)
        self.steps, self.label_bytes = 0, 0
        self.losses: Tensor = self.theta.new_zeros((), dtype=torch.float64)  # where it is computed, as at the clients

    def step(self, item: Smashed) -> None:
        """One step on one upload."""
        smashed, labels = self.problem.placed(item.s), self.problem.placed(item.labels)
        with self.problem.top.at(self.theta, self.buffers, self.training.running):
            loss = self.problem.server_loss(smashed, labels)
            g = self.problem.top.gradient(loss)
        self._move(g)
        self.count(loss.detach(), item)

    def exchange(self, item: Smashed) -> Tensor:
        """One step on one upload; (B, *smashed_shape) the gradient at the smashed samples, taken before the step."""
        import torch

        smashed, labels = self.problem.placed(item.s).requires_grad_(), self.problem.placed(item.labels)
        with self.problem.top.at(self.theta, self.buffers, self.training.running) as parameters:
            loss = self.problem.server_loss(smashed, labels)
            slope, *parts = torch.autograd.grad(loss, [smashed, *parameters], materialize_grads=True)
        self._move(torch.cat([part.reshape(-1) for part in parts]))
        self.count(loss.detach(), item)
        return slope

    def _move(self, g: Tensor) -> None:
        if self.training.server_state == "per_batch_reset":
            self.moments.clear()
        self.training.rule.step(self.theta, g, self.moments, self.training.lr_server)

    def count(self, loss: Tensor, item: Smashed) -> None:
        """Books a step."""
        self.steps += 1
        self.losses = self.losses + loss
        self.label_bytes += item.labels.numel() * item.labels.element_size()

    def state(self, mean: Update, local_loss: float) -> State:
        """After the round.

        Args:
            mean: of the clients' models, theta_l whole.

        Raises:
            UserError: something is not finite.
        """
        if not (bool(self.theta.isfinite().all()) and bool(mean.theta.isfinite().all())):
            raise UserError("the model is not finite after the round; smaller --lr-client or --lr-server may help")
        return State(
            mean.theta,
            mean.buffers,
            self.theta,
            self.buffers,
            self.moments,
            self.steps,
            float(self.losses) / self.steps if self.steps else math.nan,
            local_loss,
            self.label_bytes,
            mean.moments,
        )
