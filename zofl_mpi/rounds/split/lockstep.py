"""Split training in lockstep: each mini-batch goes up, and the gradient at the cut comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.errors import demand
from zofl_mpi.rounds.split.client import LocalSteps, Point
from zofl_mpi.rounds.split.costs import Traffic
from zofl_mpi.rounds.split.losses import CutLoss, Loss
from zofl_mpi.rounds.split.messages import Model, Smashed, State, Trained, Update
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.rules import Backprop, GradientRule
from zofl_mpi.rounds.split.server import Server

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


@final
class Exchange:
    """A client's round in progress: forward to the cut, wait for the server's answer, step.

    Between two questions it may hold an autograd graph, which cannot travel.
    """

    def __init__(self, local: LocalSteps, rule: GradientRule) -> None:
        self.local, self.rule, self.left = local, rule, iter(local)
        self.point: Point | None = None

    def proceed(self, slope: Tensor | None = None) -> Smashed | Trained:
        """The next mini-batch up to the cut, after the step along the server's answer to the last one, `slope`."""
        if slope is not None:
            self._step(self.local.problem.placed(slope))
        following = next(self.left, None)
        return self.local.done() if following is None else self._forward(*following)

    def _forward(self, q: int, x: Tensor, labels: Tensor) -> Smashed:
        self.point = self.rule.forward(self.local, q, x, labels)
        smashed = cast("Tensor", self.point.smashed)
        if not self.rule.needs_point:
            self.point.smashed = None
        return Smashed(smashed.detach(), labels)  # which whoever gets it may ask for a gradient

    def _step(self, slope: Tensor) -> None:
        point, self.point = cast(Point, self.point), None
        self.local.step(self.rule(self.local, point, slope, self.local.key(point.q)))


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
        return Traffic(self.training, head=False, returned=True)

    # --- the server

    def exchanged(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> Update:
        """Exchanges mini-batch after mini-batch with each participant; the mean of theta_l, the head as it was.

        Args:
            servers: {i: the server part that client i's mini-batches meet} of all participants.
        """
        self.exchange(state, r, clients, servers)
        return self.training.with_head(state, self.training.mean(clients, self.training.participants(r)))

    def exchange(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> None:
        """Exchanges mini-batch after mini-batch with each participant, whose models then wait to be asked for.

        Args:
            servers: see `exchanged`.
        """
        for group in self.training.groups(r):
            replies = clients.ask(self.begin, self.training.client_part(state, r), to=group)
            while cuts := {i: Cut(servers[i].exchange(item)) for i, item in replies if isinstance(item, Smashed)}:
                replies = clients.ask_each(self.proceed, cuts)

    def one_server(self, state: State, r: int, clients: Clients) -> State:
        """A round whose mini-batches all meet one server part; only the clients' parts are averaged."""
        main = Server.of(self.training, state, r)
        mean = self.exchanged(state, r, clients, dict.fromkeys(self.training.participants(r), main))
        return main.state(mean, math.nan)

    # --- a client

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        client.scratch["exchange"] = Exchange(self.steps(client, message), self.rule)
        return self._next(client)

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Takes the step along the server's answer; the next mini-batch up to the cut."""
        return self._next(client, message.slope)

    def _next(self, client: Client, slope: Tensor | None = None) -> Smashed | Trained:
        reply: Smashed | Trained = client.scratch["exchange"].proceed(slope)
        if isinstance(reply, Trained):
            del client.scratch["exchange"]
        return reply
