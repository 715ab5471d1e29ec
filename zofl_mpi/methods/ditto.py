"""Ditto: a global model by FedAvg, and beside it a personal model of each client that is drawn to it.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting, Work
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import demand
from zofl_mpi.numerics.schedules import stepsizes
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import LocalSGD, State, Trained, descend
from zofl_mpi.rounds.report import Measured, Model, Report, Reporting

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Ditto:
    """FedAvg's x, to the bit; besides v_i <- v_i - gamma~_t (g_i(v_i) + lam_p (v_i - x)) at each participant.

    v_i is the client's own: it stays there, begins at the first x that the client gets, takes as many steps as the
    local model of FedAvg, of the same sizes, on mini-batches of its own. At an evaluation y_i = v_i; a client that has
    not taken part yet has x. Nothing travels but what FedAvg sends.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps and the averaging.
        reporting: what an evaluation tells.
        lam_p: lambda of the paper, the pull towards x; 0: clients learn alone.
        gamma_personal: step size of v_i's steps; 0: gamma_local.
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    local: LocalSGD = part()
    reporting: Reporting = part()
    lam_p: float = 0.1
    gamma_personal: float = 0.0

    def __post_init__(self) -> None:
        demand(0 <= self.lam_p < math.inf, "lam_p", self.lam_p, "a weight, at least 0")
        demand(0 <= self.gamma_personal < math.inf, "gamma_personal", self.gamma_personal, "a step size, at least 0")

    def start(self) -> State:
        """x_0."""
        return self.local.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """A pass of the server's loop: lines 3, 4, 7 and 8."""
        return self.local.average(state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """Takes the local steps on x and those on v_i: lines 5 and 6."""
        x, r = message.x, message.r
        v = client.memory.get("v", x)
        gamma = self.gamma_personal or self.local.gamma_local
        gammas = stepsizes(self.local.schedule_local, gamma, self.local.local_steps(client.i, r))
        size = (len(gammas), self.local.batch or len(client.data))
        batches = self.setting.streams(Purpose.PERSONAL, r=r, i=client.i).integers(len(client.data), size=size)
        pull = (self.lam_p * (v.astype(np.float64) - x)).astype(x.dtype)  # with mu: lam_p (v - x) in every step
        client.memory["v"] = descend(self.setting, client, v, batches, gammas, mu=self.lam_p, shift=pull)
        return Trained(self.local.descend(client, x, r))

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, self.local.shares(), self.measure)

    def measure(self, client: Client, message: Model) -> Measured:
        """Measures x, and the client's v_i."""
        return self.reporting.measured(client, message.x, client.memory.get("v", message.x))

    @property
    def kernel(self) -> str:
        """What computes the local steps."""
        return self.local.kernel

    def work(self, rounds: int) -> Work:
        """Each participant takes the local steps of two models, one after the other."""
        work = self.local.work(rounds)
        return Work(work.batch, work.models, 2 * work.steps)

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(rounds)
