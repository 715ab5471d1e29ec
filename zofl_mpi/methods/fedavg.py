"""FedAvg and FedProx.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from zofl_mpi.errors import demand
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import LocalSGD, Measured, Model, State, Trained, columns, measured, report
from zofl_mpi.run.clients import Client, Clients
from zofl_mpi.run.setting import Setting


@final
@dataclass(frozen=True)
class FedAvg:
    """x <- x + eta_g sum over S_r of w_i (y_i - x), y_i after H_{i,r} SGD steps on F_i from x.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps and the averaging.
    """

    needs: ClassVar[type] = Smooth
    setting: Setting
    local: LocalSGD = field(default_factory=LocalSGD)

    def __post_init__(self) -> None:
        self.local.fit(self.setting)

    def start(self) -> State:
        """x_0."""
        return State(self.local.first.point(self.setting, self.local.server_batch))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1 of the paper: the server's loop."""
        return self.local.averaged(self.setting, state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """Its ClientUpdate."""
        return Trained(self.local.descend(self.setting, client, message.x, message.r))

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(self.setting, state.x, r, clients, self.measure, self.local.shares(self.setting))

    def measure(self, client: Client, message: Model) -> Measured:
        """Step of an evaluation."""
        return measured(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return columns(self.setting)

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(self.setting, rounds)


@final
@dataclass(frozen=True)
class FedProx:
    """FedAvg whose clients take their steps on F_i(y) + (mu/2) |y - x|^2. With mu = 0 it is FedAvg, to the bit.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps and the averaging.
        mu: mu; [A] does not give it (0.01 here; the FedProx paper tunes over 0.001, 0.01, 0.1, 1).
    """

    needs: ClassVar[type] = Smooth
    setting: Setting
    local: LocalSGD = field(default_factory=LocalSGD)
    mu: float = 0.01

    def __post_init__(self) -> None:
        demand(0 <= self.mu < math.inf, "mu", self.mu, "a weight, at least 0")
        self.local.fit(self.setting)

    def start(self) -> State:
        """x_0."""
        return State(self.local.first.point(self.setting, self.local.server_batch))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 2 of the paper."""
        return self.local.averaged(self.setting, state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """The inexact minimiser of its proximal objective, line 6."""
        return Trained(self.local.descend(self.setting, client, message.x, message.r, mu=self.mu))

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(self.setting, state.x, r, clients, self.measure, self.local.shares(self.setting))

    def measure(self, client: Client, message: Model) -> Measured:
        """Step of an evaluation."""
        return measured(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return columns(self.setting)

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(self.setting, rounds)
