"""--uplink seeds: a client's model comes back as the differences behind its steps, which the server takes again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import mean
from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.messages import APART
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.messages import Ask, State, Update
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from torch import Tensor


def check_seeds(uplink: str, estimate: str) -> None:
    """Refuses --uplink seeds of steps that no differences of losses tell.

    Raises:
        UserError: the steps are exact.
    """
    if uplink == "seeds" and estimate == "exact":
        raise UserError("--uplink seeds: --estimate exact has no differences of losses; take one-sided or central")


@final
@dataclass(frozen=True)
class Scalars:
    """Client to server, with --uplink seeds: a model as the steps that lead to it."""

    differences: NDArray[np.float64]  # (h, n_p) of the losses of each step's perturbed passes
    buffers: Tensor  # (b_l,) these are statistics of the data: no seed gives them
    exact: Tensor  # what of theta_l steps along gradients that no seed gives; empty where nothing does
    arithmetic: str = field(metadata=APART)  # a check, not communication that the method needs


@final
@dataclass(frozen=True)
class Seeds:
    """The clients' local steps, taken once more at the server.

    Attributes:
        training: the round.
        estimate: behind each step.
        head: whether the auxiliary head trains, and travels.
        exact: what of theta_l, the last of what trains, steps along gradients that are not estimated.
    """

    training: Training
    estimate: Estimate
    head: bool = True
    exact: slice | None = None

    def told(self, client: Client, message: Ask) -> Scalars:
        """What the local model can be made of again, of the `differences` in the client's memory."""
        differences = client.memory.pop("differences")
        update = self.training.update(client, message)
        exact = update.theta[self.exact or slice(0)].clone()
        return Scalars(differences, update.buffers, exact, self.training.problem.arithmetic)

    def mean(self, state: State, r: int, clients: Clients, told: Step) -> tuple[Update, dict[str, Any]]:
        """The mean of the participants' models, and {i: moments of client i's optimiser} where these are kept.

        Args:
            told: the step that clients are asked for, which is `told`.
        """
        training, models, replayed = self.training, {}, dict(state.replayed)
        for i, reply in clients.ask(told, Ask(), to=training.participants(r)):
            theta, moments = self.replay(state, r, i, reply)
            models[i] = Update(theta, reply.buffers, moments if training.state == "average" else {})
            if training.state == "keep":
                replayed[str(i)] = moments
        return mean.among(models, training.shares()), replayed

    def replay(self, state: State, r: int, i: int, reply: Scalars) -> tuple[Tensor, dict[str, Any]]:
        """Takes client i's local steps of round r once more: what of theta_l travels, and its optimiser's moments.

        Raises:
            UserError: the client has another kind of processor, whose directions are others.
        """
        training, problem = self.training, self.training.problem
        own = problem.arithmetic
        if reply.arithmetic != own:
            raise UserError(
                f"--uplink seeds: client {i} computes on {reply.arithmetic}, the server on {own}, which draws other "
                "directions from the same seeds; take processors of one kind, --device cpu, or --uplink dense"
            )
        theta = problem.placed(state.theta).clone()
        moving = theta[training.trainable(self.head)]
        if self.exact is not None:
            moving = theta[training.trainable(self.head).start : self.exact.start]
            theta[self.exact] = problem.placed(reply.exact)
        before = {"keep": state.replayed.get(str(i), {}), "reset": {}, "average": state.moments}
        moments = copied(before[training.state])

        def step(q: int, g: Tensor) -> None:
            training.rule.step(moving, g, moments, training.client_size(r, i, q))

        self.estimate.replay(
            moving, reply.differences, lambda q: training.setting.streams(Purpose.DIRECTION, r=r, i=i, t=q), step
        )
        return theta if self.head else theta[: problem.n_client].clone(), moments
