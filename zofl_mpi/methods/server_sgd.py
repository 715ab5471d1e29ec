"""SGD on the server's own data: the control that tells how much of ZO-HFL's robustness is the server's iid share.

ZO-HFL with lambda = 0 takes the same steps, to the bit (ALGORITHMS, section 1, test b, and 19.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.schedules import parse_decay, stepsize
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.local_sgd import Measured, Model, State, columns, measured, report
from zofl_mpi.rounds.start import Start, demand_samples, own_gradient
from zofl_mpi.run.clients import Client, Clients
from zofl_mpi.run.setting import Setting


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
    """

    needs: ClassVar[type] = Smooth
    setting: Setting
    gamma: float = 0.01
    schedule: str = "sqrt"
    server_batch: int = 256
    first: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        demand(0 <= self.gamma < math.inf, "gamma", self.gamma, "a step size, at least 0")
        demand(self.server_batch >= 1, "server_batch", self.server_batch, "a whole number, at least 1")
        parse_decay(self.schedule, "--schedule")
        demand_samples(self.setting, "--method server_sgd")

    def start(self) -> State:
        """x_0."""
        return State(self.first.point(self.setting, self.server_batch))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """One step; no client is asked."""
        gradient = own_gradient(self.setting, state.x, self.server_batch, r)
        with np.errstate(over="ignore", invalid="ignore"):  # told in a sentence of its own
            x = (state.x - stepsize(self.schedule, self.gamma, r) * gradient).astype(state.x.dtype)
        if not np.isfinite(x).all():
            raise UserError("x is not finite after the server's step; a smaller --gamma may help")
        return State(x)

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        sizes = [len(data) for data in self.setting.data]
        weights = {i: size / sum(sizes) for i, size in enumerate(sizes)}
        return report(self.setting, state.x, r, clients, self.measure, weights)

    def measure(self, client: Client, message: Model) -> Measured:
        """Step of an evaluation."""
        return measured(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return columns(self.setting)

    def plan(self, rounds: int) -> dict[str, str | float]:
        return {
            "length of x, n": self.setting.problem.n,
            "kernel": self.setting.problem.kernel_name(self.server_batch),
            "bytes down and up, all rounds": 0,
            "samples that the server looks at, all rounds": rounds * self.server_batch,
        }
