"""Split training in lockstep: each mini-batch goes up, and the gradient at the cut comes back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, cast, final

from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.errors import demand
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.client_part import own_part, padded, with_head
from zofl_mpi.rounds.split.costs import LocalStep, Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.messages import Model, Smashed, State, Trained, Update
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


class Exchange(Protocol):
    """A client's round in progress, in the client's scratch."""

    def forward(self) -> Smashed | None:
        """The next mini-batch up to the cut; None after the last."""

    def backward(self, slope: Tensor) -> None:
        """Takes the local step along what came back from the cut, `slope` (B, *smashed_shape)."""

    def done(self) -> Trained:
        """Ends the round."""


@final
class Batches:
    """A client's round in progress: forward to the cut, wait, backward from the cut, step.

    Between two questions it holds an autograd graph, which cannot travel.
    """

    def __init__(self, training: Training, client: Client, message: Model) -> None:
        self.local = LocalSteps(training, client, message, head=False)
        self.left: Iterator[tuple[int, Tensor, Tensor]] = iter(self.local)
        self.smashed: Tensor | None = None

    def forward(self) -> Smashed | None:
        """The next mini-batch up to the cut; None after the last."""
        following = next(self.left, None)
        if following is None:
            return None
        _, x, labels = following
        with self.local.at(self.local.buffers):
            self.smashed = self.local.problem.smash(x)
        return Smashed(self.smashed.detach(), labels)

    def backward(self, slope: Tensor) -> None:
        """Takes the local step along the gradient that continues `slope`, the one at the cut."""
        problem, local = self.local.problem, self.local
        with local.at(local.buffers):
            g = problem.local.gradient(cast("Tensor", self.smashed), problem.placed(slope))
        self.smashed = None
        local.step(g[local.part])

    def done(self) -> Trained:
        """Ends the round."""
        return self.local.done()


def begun(client: Client, exchange: Exchange) -> Smashed | Trained:
    """The first mini-batch up to the cut."""
    client.scratch["batches"] = exchange
    return following(client)


def following(client: Client, slope: Tensor | None = None) -> Smashed | Trained:
    """The next mini-batch up to the cut, after the step along what came back from the last one, `slope`."""
    exchange: Exchange = client.scratch["batches"]
    if slope is not None:
        exchange.backward(slope)
    upload = exchange.forward()
    if upload is None:
        del client.scratch["batches"]
        return exchange.done()
    return upload


@final
@dataclass(frozen=True)
class Lockstep:
    """A round in which the server answers every mini-batch; what SplitFed and SplitLoRA share.

    Attributes:
        setting: problem, data and random numbers.
        training: the round; every step goes up, so k must be 1. The auxiliary head plays no part.
    """

    setting: Setting[Split]
    training: Training = part()

    def __post_init__(self) -> None:
        demand(self.training.k == 1, "k", self.training.k, "1: the server answers every mini-batch")

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.training.start(head=False)

    def round(self, state: State, r: int, clients: Clients, servers: Mapping[int, Server]) -> Update:
        """Exchanges mini-batch after mini-batch with each participant; the mean of theta_l, the head as it was.

        Args:
            servers: {i: the server part that client i's mini-batches meet} of all participants.
        """
        self.exchange(state, r, clients, servers, self.begin, self.proceed)
        mean = self.training.mean(clients, self.training.participants(r))
        return with_head(self.setting.problem, state, mean)

    def exchange(
        self, state: State, r: int, clients: Clients, servers: Mapping[int, Server], begin: Step, proceed: Step
    ) -> None:
        """Exchanges mini-batch after mini-batch with each participant, whose models then wait to be asked for.

        Args:
            servers: see `round`.
            begin, proceed: the steps that clients are asked for: for the first upload, and to answer each `Cut`.
        """
        for group in self.training.groups(r):
            replies = clients.ask(begin, own_part(self.setting.problem, state, r), to=group)
            while cuts := {i: Cut(servers[i].exchange(item)) for i, item in replies if isinstance(item, Smashed)}:
                replies = clients.ask_each(proceed, cuts)

    def one_server(self, state: State, r: int, clients: Clients) -> State:
        """A round whose mini-batches all meet one server part; only the clients' parts are averaged."""
        main = Server.of(self.training, state, r)
        mean = self.round(state, r, clients, dict.fromkeys(self.training.participants(r), main))
        return main.state(mean, math.nan)

    # --- a client

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        return begun(client, Batches(self.training, client, padded(self.setting.problem, message)))

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Takes the step along what came back from the cut; the next mini-batch up to the cut."""
        return following(client, message.slope)

    # --- reports

    def loads(self) -> Loads:
        """The local steps of each client, one after the other with the server's."""
        return self.training.loads()

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        return plan_of(Traffic(self.training, head=False, returned=True), rounds, LocalStep("cut"))

    def costs(self) -> dict[str, str | float]:
        """What a client's step and the server's cost."""
        return costs_of(self.training, LocalStep("cut"))


@dataclass(frozen=True)
class LockstepMethod:
    """A method in lockstep: all but its round.

    Attributes:
        setting: problem, data and random numbers.
        lockstep: the round.
    """

    needs: ClassVar[type] = Split
    setting: Setting[Split]
    lockstep: Lockstep = part()

    @property
    def training(self) -> Training:
        """The flags of the round."""
        return self.lockstep.training

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.lockstep.start()

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients."""
        return self.training.evaluate(state, r, clients)

    @property
    def kernel(self) -> str:
        """What computes a step, for the record."""
        return self.training.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        return self.lockstep.plan(rounds)

    def costs(self) -> dict[str, str | float]:
        """What a client's step and the server's cost."""
        return self.lockstep.costs()
