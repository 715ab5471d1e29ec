"""FedMSPP: federated minibatch stochastic proximal point.

Yuan, Li, "On Convergence of FedProx: Local Dissimilarity Invariant Bounds, Non-smoothness and Beyond", NeurIPS 2022.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Client, Purpose, at_least, demand, flag_group
from zofl_mpi.rounds.base import RoundCost, descended
from zofl_mpi.rounds.local_sgd import FirstOrder, LocalModel, LocalSGD, repeated
from zofl_mpi.rounds.report import GlobalModel


@final
@dataclass(frozen=True)
class FedMSPP(FirstOrder):
    """x <- the mean over S_r of y_i, y_i ~ argmin_y (1/b) sum over B_{i,r} of l(y; z) + (mu/2) |y - x|^2.

    B_{i,r} is ONE mini-batch a round, drawn without replacement and used in all local steps. These steps are the inner
    solver (our choice); --tau sets its accuracy. With --batch 0 this is FedProx with full gradients, bit for bit. The
    paper's mean is --weights uniform; the default is the family's, for all methods to minimise the same sum.

    Attributes:
        mu: 1/eta_t of the paper, constant over rounds; 0.01 as in FedProx here, our choice.
    """

    local: LocalSGD = flag_group(schedule_local="constant")
    mu: float = at_least(0, 0.01, "a weight")

    def __post_init__(self) -> None:
        sizes = [len(data) for data in self.setting.data]
        least, batch = min(sizes), self.local.batch
        allowed = f"at most {least}, all that client {sizes.index(least)} has to draw without replacement; or 0 for all"
        demand(batch <= least, "batch", batch, allowed)

    def train(self, client: Client, message: GlobalModel) -> LocalModel:
        """y <- y - gamma~_t (g_B(y) + mu (y - x)) from y = x, on the client's mini-batch B of this round."""
        x, gammas = message.x, self.local.steps.sizes(client.i, message.r)
        batches = repeated(self.minibatch(client, message.r), len(gammas))
        return LocalModel(descended(self.problem, client.data, x, batches, gammas, mu=self.mu))

    @property
    def round_cost(self) -> RoundCost:
        return replace(super().round_cost, vectors=1, holds_x=True)

    def minibatch(self, client: Client, r: int) -> NDArray[np.int64]:
        """(b,) B_{i,r}, ascending: all samples are then in FedProx's order."""
        drawn = self.setting.streams(Purpose.BATCH, r=r, i=client.i).permutation(len(client.data))
        return np.sort(drawn[: self.local.batch or len(drawn)])
