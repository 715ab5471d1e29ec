"""FedAvg and FedProx.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import demand
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import LocalSGD, State, Trained
from zofl_mpi.rounds.report import Model, Report, Reporting


@final
@dataclass(frozen=True)
class FedAvg:
    """x <- x + eta_g sum over S_r of w_i (y_i - x), y_i after H_{i,r} SGD steps on F_i from x.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps and the averaging.
        reporting: what an evaluation tells.
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    local: LocalSGD = part()
    reporting: Reporting = part()

    def start(self) -> State:
        """x_0."""
        return self.local.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """A pass of the server's loop, Algorithm 1 of the paper."""
        return self.local.average(state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """Takes the client's local steps: ClientUpdate of the paper."""
        return Trained(self.local.descend(client, message.x, message.r))

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, self.local.shares())

    @property
    def kernel(self) -> str:
        """What computes the local steps."""
        return self.local.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(rounds)


@final
@dataclass(frozen=True)
class FedProx:
    """FedAvg whose clients take their steps on F_i(y) + (mu/2) |y - x|^2. With mu = 0 it is FedAvg, to the bit.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps and the averaging.
        reporting: what an evaluation tells.
        mu: mu; [A] does not give it (0.01 here; the FedProx paper tunes over 0.001, 0.01, 0.1, 1).
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    local: LocalSGD = part()
    reporting: Reporting = part()
    mu: float = 0.01

    def __post_init__(self) -> None:
        demand(0 <= self.mu < math.inf, "mu", self.mu, "a weight, at least 0")

    def start(self) -> State:
        """x_0."""
        return self.local.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """A pass of the server's loop, Algorithm 2 of the paper."""
        return self.local.average(state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """Minimises the client's proximal objective inexactly, line 6."""
        return Trained(self.local.descend(client, message.x, message.r, mu=self.mu))

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, self.local.shares())

    @property
    def kernel(self) -> str:
        """What computes the local steps."""
        return self.local.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(rounds)
