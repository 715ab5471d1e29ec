"""pFedMe: the server descends the clients' Moreau envelopes; their proximal points are the personal models.

Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.
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
from zofl_mpi.errors import demand
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import LocalSGD, State, Trained, descend, minibatches, repeated
from zofl_mpi.rounds.report import Measured, Model, Report, Reporting

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class PFedMe:
    """min_x sum_i w_i min_y F_i(y) + (lam_p/2) |y - x|^2, the lower level that ZO-HFL solves too, by first order.

    Local step t of client i: y nearly minimises the loss on one mini-batch plus (lam_p/2) |y - w|^2, by K gradient
    steps of size gamma~_t from y = w (the published code goes on from the last y); then w <- w - alpha lam_p (w - y).
    The server averages the w: x <- x + eta_g (mean - x), eta_g the paper's beta. At an evaluation y_i is the client's
    last y; a client that has not taken part yet has x.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps (tau is the paper's R; gamma_local the step size of the inner steps) and the averaging.
        reporting: what an evaluation tells.
        lam_p: lambda of the paper, weight of the proximal term; the paper's experiments have 15.
        K: steps of an inner solve.
        alpha_p: the paper's eta, step size of w.
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    local: LocalSGD = part()
    reporting: Reporting = part()
    lam_p: float = 15.0
    K: int = 5
    alpha_p: float = 0.01

    def __post_init__(self) -> None:
        demand(0 < self.lam_p < math.inf, "lam_p", self.lam_p, "a weight above 0")
        demand(self.K >= 1, "K", self.K, "a whole number of inner steps, at least 1")
        demand(0 <= self.alpha_p < math.inf, "alpha_p", self.alpha_p, "a step size, at least 0")

    def start(self) -> State:
        """x_0."""
        return self.local.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """A pass of the server's loop: lines 2, 3, 10 and 11, with the participants alone taking local steps."""
        return self.local.average(state.x, r, clients, self.train)

    def train(self, client: Client, message: Model) -> Trained:
        """Takes the local steps: lines 4 to 9."""
        setting, gammas = self.setting, self.local.stepsizes(client.i, message.r)
        w = y = message.x
        for gamma, batch in zip(
            gammas, minibatches(setting, client, message.r, len(gammas), self.local.batch), strict=True
        ):
            steps = np.full(self.K, gamma)
            y = descend(setting, client, w, repeated(batch, self.K), steps, mu=self.lam_p)
            w = (w - self.alpha_p * self.lam_p * (w.astype(np.float64) - y)).astype(w.dtype)
        client.memory["y"] = y
        return Trained(w)

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, self.local.shares(), self.measure)

    def measure(self, client: Client, message: Model) -> Measured:
        """Measures x, and the client's y_i."""
        return self.reporting.measured(client, message.x, client.memory.get("y", message.x))

    @property
    def kernel(self) -> str:
        """What computes the inner steps."""
        return self.local.kernel

    def work(self, rounds: int) -> Work:
        """Each local step takes K inner steps."""
        work = self.local.work(rounds)
        return Work(work.batch, work.models, self.K * work.steps)

    def plan(self, rounds: int) -> dict[str, str | float]:
        return {"inner steps of a local step": self.K, **self.local.plan(rounds)}
