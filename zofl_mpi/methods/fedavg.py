"""FedAvg and FedProx.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020, Algorithm 2.
"""

from dataclasses import dataclass, replace
from typing import final

from zofl_mpi import Client, Clients, at_least, flag_group, injected
from zofl_mpi.numerics.optimisers import ServerRule
from zofl_mpi.rounds.base import RoundCost
from zofl_mpi.rounds.local_sgd import FirstOrder, LocalModel, LocalSGDState
from zofl_mpi.rounds.report import GlobalModel


@dataclass(frozen=True)
class FedAvg(FirstOrder):
    """x <- x + eta_g sum over S_r of w_i (y_i - x), y_i after H_{i,r} SGD steps on F_i from x.

    Another --server-rule takes that rule's server step along the sum.
    """

    mu: float = injected(default=0.0)  # used by FedProx
    server_rule: ServerRule = flag_group()

    def round(self, state: LocalSGDState, r: int, clients: Clients) -> LocalSGDState:
        """Averages the participants' local models."""
        return self.local.average(clients, self.train, state, r, self.server_rule)

    def train(self, client: Client, message: GlobalModel) -> LocalModel:
        """y <- y - gamma~_t (g_i(y) + mu (y - x)) from y = x, t = 0, ..., H_{i,r} - 1, g_i on mini-batch t."""
        return LocalModel(self.local.descend(client, message.x, message.r, mu=self.mu))

    @property
    def round_cost(self) -> RoundCost:
        holds_x = self.mu != 0
        return replace(super().round_cost, vectors=int(holds_x), holds_x=holds_x)


@final
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with local steps on F_i(y) + (mu/2) |y - x|^2; mu = 0 is FedAvg, bit for bit.

    Attributes:
        mu: mu; [A] does not give it (0.01 here; the FedProx paper tunes over 0.001, 0.01, 0.1, 1).
    """

    mu: float = at_least(0, 0.01, "a weight")
