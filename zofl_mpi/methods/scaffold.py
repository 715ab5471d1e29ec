"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np

from zofl_mpi import Array, Client, Clients, change, column, demand, flag_group
from zofl_mpi.numerics.optimisers import ServerRule
from zofl_mpi.rounds import local_sgd
from zofl_mpi.rounds.base import RoundCost
from zofl_mpi.rounds.local_sgd import FirstOrder


@dataclass(frozen=True)
class Controlled:
    """Server to client: the model and the control variate."""

    x: Array  # (n,) the global model
    c: Array  # (n,) the server's control variate
    r: int  # the round


@dataclass(frozen=True)
class ControlUpdate:
    """Client to server: changes of the local model and of the client's control variate."""

    # (n,) y - x
    dy: Array = change("the local model is not finite; smaller --gamma-local, or --pixels unit, may help")
    # (n,) c_i+ - c_i
    dc: Array = change("c_i is not finite; a larger --gamma-local, by which it is divided, may help", memory="c_i")


@dataclass(frozen=True, kw_only=True)
class SCAFFOLDState(local_sgd.LocalSGDState):
    """State of the server between rounds."""

    c: Array = column("1", "the server's control variate, flat as x")  # sum_i w_i c_i once all clients have taken part


@final
@dataclass(frozen=True)
class Scaffold(FirstOrder):
    """Local steps y <- y - gamma~_t (g_i(y) - c_i + c), then the averages of the changes.

    x <- x + eta_g sum_S w_i dy_i / sum_S w_i and c <- c + sum_S w_i dc_i, where the w_i of all clients sum to 1; c and
    all c_i begin at 0. The paper's Algorithm 1 is --weights uniform. With size, c is weighted as x is; otherwise the
    fixed point would be that of the uniform objective.

    Attributes:
        option: update of c_i: I (the gradient of F_i at x on all data of the client) or II (the mean of the gradients
            used).
    """

    travels: ClassVar[str] = "x and c down, changes of both up"
    option: Literal["I", "II"] = "II"
    server_rule: ServerRule = flag_group()

    def __post_init__(self) -> None:
        allowed, steps = "above 0: SCAFFOLD's c_i is the mean of the gradients used", self.local.steps
        demand(all(tau > 0 for tau in steps.tau), "tau", steps.tau, allowed)
        demand(steps.gamma_local > 0, "gamma_local", steps.gamma_local, allowed)

    def start(self) -> SCAFFOLDState:
        x = self.setting.first_model(self.local.server.x0)
        return SCAFFOLDState(x=x, c=np.zeros_like(x))

    def round(self, state: SCAFFOLDState, r: int, clients: Clients) -> SCAFFOLDState:
        """Sample clients and add up their changes: Algorithm 1, lines 3, 4, 15 to 17."""
        S, shares = self.local.sampling(r), self.local.client_weights()
        message, zero = Controlled(state.x, state.c, r), np.zeros_like(state.x)
        mean = clients.mean(self.train, message, to=S, weights=shares, nobody=ControlUpdate(zero, zero))
        new = self.local.step(state, state.x + mean.dy, r, S, self.server_rule)
        share = self.local.sampling.share(shares, S)
        return SCAFFOLDState(**vars(new), c=(state.c + share * mean.dc.astype(np.float64)).astype(state.c.dtype))

    def train(self, client: Client, message: Controlled) -> ControlUpdate:
        """Take the local steps and update c_i: Algorithm 1, lines 7 to 13."""
        x, c, r = message.x, message.c, message.r
        c_i = client.memory.get("c_i", np.zeros_like(c))
        y = self.local.descend(client, x, r, shift=c - c_i)
        if self.option == "I":
            new = self.problem.gradient(x, client.data)
        else:
            new = (c_i - c + (x - y) / self.local.steps.sizes(client.i, r).sum()).astype(c.dtype)
        client.memory["c_i"] = new
        return ControlUpdate(y - x, new - c_i)

    @property
    def round_cost(self) -> RoundCost:
        x = np.zeros(self.problem.n, self.setting.dtype)
        own = replace(super().round_cost, vectors=4, holds_x=True)  # x, c, c_i and c - c_i
        return replace(own, down=Controlled(x, x, 0), up=ControlUpdate(x, x), full_pass=self.option == "I")
