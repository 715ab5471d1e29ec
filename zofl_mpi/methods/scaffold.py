"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.errors import demand
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import LocalSGD
from zofl_mpi.rounds.report import Report, Reporting

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Controlled:
    """Server to client: the model and the control variate."""

    x: Array  # (n,) the global model
    c: Array  # (n,) the server's control variate
    r: int  # the round


@final
@dataclass(frozen=True)
class Update:
    """Client to server: what the local steps changed."""

    dy: Array  # (n,) y - x
    dc: Array  # (n,) c_i+ - c_i


@final
@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    x: Array = column("1", "the global model, flat")  # (n,)
    c: Array = column("1", "the server's control variate, flat as x")  # sum_i w_i c_i once all clients have taken part
    local_steps: int = column("1", "local steps that all participants took in this round", 0)


@final
@dataclass(frozen=True)
class Scaffold:
    """Local steps y <- y - gamma~_t (g_i(y) - c_i + c), then the averages of what they changed.

    x <- x + eta_g sum_S w_i dy_i / sum_S w_i and c <- c + sum_S w_i dc_i, where the w_i of all clients sum to 1; c and
    all c_i begin at 0. With --weights uniform that is the paper's Algorithm 1 (w_i = 1/m). With sizes c is weighted as
    x is: else the fixed point would be that of the uniform objective.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps and the averaging.
        reporting: what an evaluation tells.
        option: of c_i+: I (the gradient of F_i at x on all data of the client) or II (the mean of the gradients used).
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    local: LocalSGD = part()
    reporting: Reporting = part()
    option: Literal["I", "II"] = "II"

    def __post_init__(self) -> None:
        allowed = "above 0: SCAFFOLD's c_i is the mean of the gradients used"
        demand(all(tau > 0 for tau in self.local.tau), "tau", self.local.tau, allowed)
        demand(self.local.gamma_local > 0, "gamma_local", self.local.gamma_local, allowed)

    def start(self) -> State:
        """x_0, and c = 0."""
        x = self.local.start().x
        return State(x, np.zeros_like(x))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Samples clients and adds up their changes: Algorithm 1, lines 3, 4, 15 to 17."""
        to, shares = self.local.participants(r), self.local.shares()
        mean = clients.mean(self.train, Controlled(state.x, state.c, r), to=to, weights=shares)
        moved = self.local.step(state.x, state.x + mean.dy, r, to)
        c = state.c + math.fsum(shares[i] for i in to) * mean.dc.astype(np.float64)
        return State(moved.x, c.astype(state.c.dtype), moved.local_steps)

    def train(self, client: Client, message: Controlled) -> Update:
        """Takes the local steps and renews c_i: Algorithm 1, lines 7 to 13."""
        x, c, i = message.x, message.c, client.i
        c_i = client.memory.get("c_i", np.zeros_like(c))
        y = self.local.descend(client, x, message.r, shift=c - c_i)
        if self.option == "I":
            new = self.setting.problem.gradient(x, client.data)
        else:
            new = (c_i - c + (x - y) / self.local.stepsizes(i, message.r).sum()).astype(c.dtype)
        client.memory["c_i"] = new
        return Update(y - x, new - c_i)

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, self.local.shares())

    @property
    def kernel(self) -> str:
        """What computes the local steps."""
        return self.local.kernel

    def loads(self) -> Loads:
        """The local steps, and option I's gradient."""
        return self.local.loads(full_pass=self.option == "I")

    def plan(self, rounds: int) -> dict[str, str | float]:
        return self.local.plan(rounds, vectors=2, full_pass=self.option == "I")
