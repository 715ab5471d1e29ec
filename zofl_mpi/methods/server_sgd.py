"""SGD on the server's own data: the control for how much of ZO-HFL's robustness comes from the server's iid share.

ZO-HFL with lambda = 0 takes the same steps, bit for bit.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from zofl_mpi import Clients, flag_group
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.base import ClientWeights, EstimatesCost, RoundCost, ServerStep, demand_samples
from zofl_mpi.rounds.local_sgd import LocalSGDState
from zofl_mpi.rounds.report import Reporting, SmoothReport


@final
@dataclass(frozen=True)
class ServerSGD(EstimatesCost[Smooth]):
    """x <- x - gamma_r grad f_1(x; xi_r), f_1 the mean loss on the server's data; clients are evaluated only."""

    computes: ClassVar[str] = "nothing"
    travels: ClassVar[str] = "nothing down, nothing up"
    needs: ClassVar[type] = Smooth
    uploads: ClassVar[str] = ""
    server: ServerStep = flag_group(gamma=1.0, paper={"gamma": 0.01})
    reporting: Reporting = flag_group()

    def __post_init__(self) -> None:
        demand_samples(self.setting, "--method server_sgd")

    def start(self) -> LocalSGDState:
        return LocalSGDState(self.setting.first_model(self.server.x0))

    def round(self, state: LocalSGDState, r: int, clients: Clients) -> LocalSGDState:
        """Takes one step; no client is asked."""
        return LocalSGDState(self.server.step(state.x, self.server.gradient(state.x, r), r))

    def evaluate(self, state: LocalSGDState, r: int, clients: Clients) -> SmoothReport:
        return self.reporting.report(state.x, r, clients, ClientWeights(self.setting, "size"))

    @property
    def round_cost(self) -> RoundCost:
        size = self.server.server_batch
        return RoundCost(lambda r: (), lambda i, r: 0, size, None, None, server_batch=size)
