"""FedMSPP: federated minibatch stochastic proximal point.

Yuan, Li, "On Convergence of FedProx: Local Dissimilarity Invariant Bounds, Non-smoothness and Beyond", NeurIPS 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import demand
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import LocalSGD, State, Trained, descend, repeated
from zofl_mpi.rounds.report import Model, Report, Reporting


@final
@dataclass(frozen=True)
class FedMSPP:
    """x <- the mean over S_r of y_i, y_i ~ argmin_y (1/b) sum over B_{i,r} of l(y; z) + (mu/2) |y - x|^2.

    B_{i,r} is ONE mini-batch a round, drawn without replacement, and all local steps see it: they are the inner solver
    (a choice; the paper asks for any that reaches its accuracy), so --tau is how exactly it is solved. With all of a
    client's samples (--batch 0) this is FedProx with full gradients, to the bit.

    In the paper the mean is uniform, --weights uniform; the default is the family's, so that methods compared with one
    another minimise the same sum.

    Attributes:
        setting: problem, data and random numbers.
        local: the inner steps and the averaging; the steps' size is constant by default.
        reporting: what an evaluation tells.
        mu: 1/eta_t of the paper, constant over rounds; 0.01 as FedProx's here, which is a choice.
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    local: LocalSGD = part(schedule_local="constant")
    reporting: Reporting = part()
    mu: float = 0.01

    def __post_init__(self) -> None:
        demand(0 <= self.mu < math.inf, "mu", self.mu, "a weight, at least 0")
        sizes = [len(data) for data in self.setting.data]
        least, batch = min(sizes), self.local.batch
        allowed = f"at most {least}, all that client {sizes.index(least)} has to draw without replacement; or 0 for all"
        demand(batch <= least, "batch", batch, allowed)

    def start(self) -> State:
        """x_0."""
        return self.local.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """A pass of the server's loop, the paper's algorithm."""
        return self.local.average(state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """Solves the client's proximal problem inexactly on its mini-batch of this round."""
        x, r = message.x, message.r
        gammas = self.local.stepsizes(client.i, r)
        batches = repeated(self.minibatch(client, r), len(gammas))
        return Trained(descend(self.setting, client, x, batches, gammas, mu=self.mu))

    def minibatch(self, client: Client, r: int) -> NDArray[np.int64]:
        """(b,) B_{i,r}, ascending: all samples are then in FedProx's order too."""
        drawn = self.setting.streams(Purpose.BATCH, r=r, i=client.i).permutation(len(client.data))
        return np.sort(drawn[: self.local.batch or len(drawn)])

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, self.local.shares())

    @property
    def kernel(self) -> str:
        """What computes the local steps."""
        return self.local.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(rounds)
