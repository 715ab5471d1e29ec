"""SGD on the server's own data: the control that tells how much of ZO-HFL's robustness is the server's iid share.

ZO-HFL with lambda = 0 takes the same steps, to the bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting, Work
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.schedules import parse_decay, stepsize
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import State
from zofl_mpi.rounds.report import Report, Reporting
from zofl_mpi.rounds.start import Start, demand_samples, own_gradient, shares


@final
@dataclass(frozen=True)
class ServerSGD:
    """x <- x - gamma_r grad f_1(x; xi_r), f_1 the mean loss on the server's data; the clients are measured, never used.

    Attributes:
        setting: problem, data and random numbers.
        gamma: step size gamma of the server.
        schedule: of gamma_r over rounds: sqrt (gamma/sqrt(r+1)), constant, harmonic[:OFFSET] or power:P (1/2 < P <= 1).
        server_batch: samples of the gradient, drawn with replacement.
        first: the first model.
        reporting: what an evaluation tells.
    """

    needs: ClassVar[type] = Smooth
    setting: Setting[Smooth]
    gamma: float = 0.01
    schedule: str = "sqrt"
    server_batch: int = 256
    first: Start = part()
    reporting: Reporting = part()

    def __post_init__(self) -> None:
        demand(0 <= self.gamma < math.inf, "gamma", self.gamma, "a step size, at least 0")
        demand(self.server_batch >= 1, "server_batch", self.server_batch, "a whole number, at least 1")
        parse_decay(self.schedule, "--schedule")
        demand_samples(self.setting, "--method server_sgd")

    def start(self) -> State:
        """x_0."""
        return State(self.first.point(self.server_batch))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Takes one step; no client is asked."""
        gradient = own_gradient(self.setting, state.x, self.server_batch, r)
        with np.errstate(over="ignore", invalid="ignore"):  # told in a sentence of its own
            x = (state.x - stepsize(self.schedule, self.gamma, r) * gradient).astype(state.x.dtype)
        if not np.isfinite(x).all():
            raise UserError("x is not finite after the server's step; a smaller --gamma may help")
        return State(x)

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        return self.reporting.report(state.x, r, clients, shares(self.setting, "size"))

    @property
    def kernel(self) -> str:
        """What computes the gradient."""
        return self.setting.problem.kernel_name(self.server_batch)

    def work(self, rounds: int) -> Work:
        return Work(self.server_batch, 1, 0)  # no client takes a step

    def plan(self, rounds: int) -> dict[str, str | float]:
        return {
            "length of x, n": self.setting.problem.n,
            "kernel": self.kernel,
            "bytes down and up, all rounds": 0,
            "samples that the server looks at, all rounds": rounds * self.server_batch,
        }
