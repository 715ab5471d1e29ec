"""A control of jobs/d_lean.toml, for --method jobs.lean_clients:UploadOnly: small devices only send smashed samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from zofl_mpi import Client, Clients
from zofl_mpi.engine.fleet import RoundWork
from zofl_mpi.engine.reduction import Reduction
from zofl_mpi.rounds.split.client import HeadLoss, Loss
from zofl_mpi.rounds.split.costs import HEADS, PARTS
from zofl_mpi.rounds.split.messages import SplitState, mean_loss
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.rules import Frozen, GradientRule, backprop


@final
@dataclass(frozen=True)
class UploadOnly(SplitMethod):
    """CSE-FSL whose clients without room for a backward pass take no steps: they send smashed samples to the server.

    They send no model, and the mean goes over the others. Where nobody has room the client's part stays as it came: a
    frozen client, at the cost of one forward pass a step.
    """

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        """CSE-FSL's loss; a forward pass alone."""
        self.training.check_local()
        return HeadLoss(self.problem), Frozen(self.training.trainable())

    @cached_property
    def rules(self) -> tuple[GradientRule, ...]:
        """CSE-FSL's, where a client's device can hold its step."""
        return backprop(self.training, self.loss), self.rule

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """As CSE-FSL's, with the mean of the models that were trained."""
        main, ended, models = self.train_server(state, r, clients)
        return main.state(self.mean(state, models), mean_loss(each.loss for each in ended.values()))

    # --- by device

    def models(self, r: int) -> Reduction | None:
        """Those that are trained."""
        trained = [i for i in self.training.participants(r) if self.has_room(i)]
        return Reduction(trained, self.training.client_weights()) if trained else None

    def train(self, client: Client, message: Any) -> Any:
        """CSE-FSL's steps; without room the model stays."""
        reply = yield from super().train(client, message)
        return reply if self.has_room(client.i) else reply.sent

    def has_room(self, i: int) -> bool:
        """Whether client i's device can hold a backward pass."""
        fleet = self.setting.fleet
        return fleet is not None and bool(fleet.way[i] == 0)

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        """No model comes up from those without room."""
        work = super().round_work(r, clients)
        kept = [sum(self.traffic.of(r, i)[kind][1] for kind in (PARTS, HEADS)) for i in work.clients]
        room = np.array([self.has_room(i) for i in work.clients])
        return work._replace(up=work.up - np.where(room, 0, kept))
