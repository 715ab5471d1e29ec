"""SplitFed: split learning in which the server returns the gradient of every mini-batch. SFLV1 and SFLV2.

Thapa, Arachchige, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, final

from zofl_mpi.errors import demand
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client_part import own_part, own_update, padded, with_head
from zofl_mpi.rounds.split.costs import measured_of, plan_of
from zofl_mpi.rounds.split.lockstep import Cut, Work, begun, lockstep, proceeded
from zofl_mpi.rounds.split.messages import Ask, Model, Scored, Smashed, State, Trained, Update, Whole
from zofl_mpi.rounds.split.report import COLUMNS, report, scored
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training, first_state
from zofl_mpi.run.clients import Client, Clients
from zofl_mpi.run.setting import Setting

Tensor = Any  # torch's


@final
@dataclass(frozen=True)
class SFLV2:
    """One server part, stepped after every mini-batch of every client; only the clients' parts are averaged.

    Attributes:
        setting: problem, data and random numbers.
        training: the round; every step goes up, so k must be 1. The auxiliary head plays no part.
    """

    needs: ClassVar[type] = Split
    setting: Setting
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        fit(self.training, self.setting)

    @cached_property
    def work(self) -> Work:
        """The rounds in progress of this process's clients: they hold autograd graphs, which cannot travel."""
        return {}

    def start(self) -> State:
        """The parts as the problem makes them."""
        return first_state(self.setting, self.training, head=False)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 2 of the paper, with one server part (its section on SFLV2)."""
        setting, training = self.setting, self.training
        to, main = training.participants(setting, r), Server(setting, training, state)
        message = own_part(setting, state, r)
        for group in training.groups(setting, r):
            lockstep(clients, self.begin, self.proceed, message, group, dict.fromkeys(group, main))
        mean = clients.mean(self.update, Ask(), to=to, weights=training.shares(setting))
        return main.state(with_head(setting, state, mean), math.nan)

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        return begun(self.work, self.setting, self.training, client, padded(self.setting, message))

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Back from the cut, and the next mini-batch."""
        return proceeded(self.work, client, message)

    def update(self, client: Client, message: Ask) -> Update:
        """The client's part."""
        return own_update(self.setting, self.training, client)

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(state, clients, self.score)

    def score(self, client: Client, message: Whole) -> Scored:
        """Step of an evaluation."""
        return scored(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return COLUMNS

    def measured(self) -> dict[str, str | float]:
        """What --dry-run measures."""
        return measured_of(self.setting, self.training, "cut")

    def plan(self, rounds: int) -> dict[str, str | float]:
        return plan_of(self.setting, self.training, rounds, forwards=1, backwards=True, returned=True, head=False)


@final
@dataclass(frozen=True)
class SFLV1:
    """A replica of the server's part for each client; at the end of a round both parts are averaged.

    With any cut it is FedAvg on the whole network: the same mini-batches, the same optimiser state policy.

    Attributes:
        setting: problem, data and random numbers.
        training: the round; every step goes up, so k must be 1. The auxiliary head plays no part.
    """

    needs: ClassVar[type] = Split
    setting: Setting
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        fit(self.training, self.setting)

    @cached_property
    def work(self) -> Work:
        """The rounds in progress of this process's clients: they hold autograd graphs, which cannot travel."""
        return {}

    def start(self) -> State:
        """The parts as the problem makes them."""
        return first_state(self.setting, self.training, head=False)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1 of the paper."""
        import torch

        setting, training = self.setting, self.training
        to, shares = training.participants(setting, r), training.shares(setting)
        replicas = {i: Server(setting, training, state, self._moments(state, i)) for i in to}
        message = own_part(setting, state, r)
        for group in training.groups(setting, r):
            lockstep(clients, self.begin, self.proceed, message, group, replicas)
        mean = clients.mean(self.update, Ask(), to=to, weights=shares)

        total = math.fsum(shares[i] for i in to)
        added = partial(_added, {i: shares[i] / total for i in to})
        main = Server(setting, training, state, {})
        with torch.no_grad():
            for vector in ("theta", "buffers"):
                getattr(main, vector).copy_(added({i: getattr(replicas[i], vector) for i in to}))
            each = {i: replica.moments for i, replica in replicas.items()}
            if training.state == "average":
                main.moments = {name: added({i: each[i][name] for i in to}) for name in each[to[0]]}
            else:
                main.moments = {**state.optimiser, **{str(i): moments for i, moments in each.items()}}
        main.steps = sum(replica.steps for replica in replicas.values())
        main.losses = sum(replica.losses for replica in replicas.values())
        main.label_bytes = sum(replica.label_bytes for replica in replicas.values())
        return main.state(with_head(setting, state, mean), math.nan)

    def _moments(self, state: State, i: int) -> dict[str, Any]:
        """Of the replica of client i, before a round."""
        kept: dict[str, Any] = state.optimiser.get(str(i), {})
        return {"keep": kept, "reset": {}, "average": state.optimiser}[self.training.state]

    def begin(self, client: Client, message: Model) -> Smashed | Trained:
        """The first mini-batch up to the cut."""
        return begun(self.work, self.setting, self.training, client, padded(self.setting, message))

    def proceed(self, client: Client, message: Cut) -> Smashed | Trained:
        """Back from the cut, and the next mini-batch."""
        return proceeded(self.work, client, message)

    def update(self, client: Client, message: Ask) -> Update:
        """The client's part."""
        return own_update(self.setting, self.training, client)

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(state, clients, self.score)

    def score(self, client: Client, message: Whole) -> Scored:
        """Step of an evaluation."""
        return scored(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return COLUMNS

    def measured(self) -> dict[str, str | float]:
        """What --dry-run measures."""
        return measured_of(self.setting, self.training, "cut")

    def plan(self, rounds: int) -> dict[str, str | float]:
        return plan_of(self.setting, self.training, rounds, forwards=1, backwards=True, returned=True, head=False)


def fit(training: Training, setting: Setting) -> None:
    """Refuses what has no meaning here."""
    demand(training.k == 1, "k", training.k, "1: the server answers every mini-batch")
    training.fit(setting)


def _added(shares: Mapping[int, float], values: Mapping[int, Any]) -> Any:
    """The weighted sum of tensors (as they are) or of numbers, in float64."""
    if not hasattr(next(iter(values.values())), "double"):
        return math.fsum(shares[i] * value for i, value in values.items())
    found = sum(shares[i] * value.double() for i, value in values.items())
    return found.to(next(iter(values.values())).dtype)
