"""Scaffnew, ProxSkip for the consensus of clients.

Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!", ICML 2022.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from zofl_mpi import Array, Client, Clients, Purpose, UserError, above, at_least, column, flag_group, fraction
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds import local_sgd
from zofl_mpi.rounds.base import X0, ClientWeights, EstimatesCost, RoundCost, descended
from zofl_mpi.rounds.local_sgd import LocalModel, minibatches
from zofl_mpi.rounds.report import GlobalModel, Reporting, SmoothReport


@dataclass(frozen=True)
class ScaffnewState(local_sgd.LocalSGDState):
    """State of the server between rounds."""

    iterations: int = column("1", "local steps of each client since the start", 0)  # t of the paper


@final
@dataclass(frozen=True)
class Scaffnew(EstimatesCost[Smooth]):
    """Steps xt_i <- xt_i - gamma (g_i(xt_i) - h_i); after each step, with probability p, the mean of all xt_i.

    A round lies between two means. All clients share one coin: the number of steps is drawn at once, geometric. When x
    arrives, at the start of the next round, a client takes h_i <- h_i + (p/gamma) (x - xt_i): no control variate
    travels. The h_i begin at 0 and their sum stays 0. All clients take part in all rounds.

    With --weights size f_i := m w_i F_i stands for F_i (theory: gamma_local <= 1/L, L the largest of the f_i); the mean
    over clients stays uniform.

    Attributes:
        p: probability of a mean after a step; theory: sqrt(mu/L), the root of the reciprocal condition number.
        gamma_local: step size gamma of the local steps, constant.
        batch: samples of a local step, drawn with replacement; 0 for all of the client's, in every step.
        weights: w_i of the objective: uniform (the paper's) or size (|D_i|).
        x0: first model: zero, random or auto (zero; a network: random).
    """

    computes: ClassVar[str] = "gradients of its loss"
    travels: ClassVar[str] = "x down, a local model up"
    needs: ClassVar[type] = Smooth
    p: float = fraction(0.1, "a probability")
    gamma_local: float = above(0, 0.1, "a step size")
    batch: int = at_least(0, 64, remark="(0: all samples of the client, in every step)")
    weights: Literal["size", "uniform"] = "uniform"
    x0: X0 = "auto"
    reporting: Reporting = flag_group()

    def start(self) -> ScaffnewState:
        return ScaffnewState(self.setting.first_model(self.x0))

    def round(self, state: ScaffnewState, r: int, clients: Clients) -> ScaffnewState:
        """Algorithm 2 of the paper, from one communication to the next: local steps, then the mean of the models."""
        mean = clients.mean(self.train, GlobalModel(state.x, r))
        steps = self.steps(r)
        return ScaffnewState(mean.y, self.setting.m * steps, state.iterations + steps)

    def steps(self, r: int) -> int:
        """Number of local steps in round r, until the shared coin says to communicate."""
        return int(self.setting.streams(Purpose.COIN, r=r).geometric(self.p))

    def train(self, client: Client, message: GlobalModel) -> LocalModel:
        """Correct h_i by the last mean, then take the steps to the next one."""
        x, r, memory = message.x, message.r, client.memory
        h = self.corrected(memory["h"], x, memory["xt"]) if memory else np.zeros_like(x)
        scale, steps = self.scale(client.i), self.steps(r)
        # y - gamma (scale g - h) = y - (gamma scale) (g - h / scale)
        gammas = np.full(steps, self.gamma_local * scale)
        batches = minibatches(self.setting, client, r, steps, self.batch)
        xt = descended(self.problem, client.data, x, batches, gammas, shift=(-h / scale).astype(h.dtype))
        client.memory.update(h=h, xt=xt)
        return LocalModel(xt)

    def corrected(self, h: Array, x: Array, xt: Array) -> Array:
        """(n,) h_i + (p/gamma) (x - xt_i), x the mean of the xt_i; UserError if it is not finite."""
        new: Array = (h + self.p / self.gamma_local * (x.astype(np.float64) - xt)).astype(h.dtype)
        if not np.isfinite(new).all():
            raise UserError("h_i is not finite; --gamma-local is too small to divide by, or too large")
        return new

    def scale(self, i: int) -> float:
        """m w_i; exactly 1 with --weights uniform."""
        if self.weights == "uniform":
            return 1.0
        sizes = [len(data) for data in self.setting.data]
        return self.setting.m * sizes[i] / sum(sizes)

    def evaluate(self, state: ScaffnewState, r: int, clients: Clients) -> SmoothReport:
        return self.reporting.report(state.x, r, clients, ClientWeights(self.setting, self.weights))

    @property
    def round_cost(self) -> RoundCost:
        m, x = self.setting.m, np.zeros(self.problem.n, self.setting.dtype)
        down, up = GlobalModel(x, 0), LocalModel(x)
        # vectors: h and h / scale
        return RoundCost(lambda r: range(m), lambda i, r: self.steps(r), self.batch, down, up, vectors=2)
