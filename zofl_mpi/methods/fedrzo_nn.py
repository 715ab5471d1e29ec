"""FedRZO_nn: zeroth-order local steps on nonsmooth nonconvex losses over an intersection of convex sets.

[B] Qiu, Shanbhag, Yousefian, "Zeroth-Order Methods for Nondifferentiable, Nonconvex, and Hierarchical Federated
Optimization", NeurIPS 2023, Algorithm 1.

    min_x (1/m) sum_i f_i(x) over the intersection of the X_i, f_i locally Lipschitz
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import demand
from zofl_mpi.numerics import zo
from zofl_mpi.problems import Lipschitz
from zofl_mpi.rounds.report import all_scores
from zofl_mpi.rounds.start import among, participants
from zofl_mpi.rounds.zeroth_order import Local, Model, Report, Stepped, finite

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Partial:
    """Server to client, outside the algorithm: the iterate in the middle of a round is asked for."""

    x: Array  # (n,) x_r
    r: int
    steps: int  # how many local steps to take


@final
@dataclass(frozen=True)
class Probe:
    """Client to server at an evaluation: the loss, and its differences along the directions of the report."""

    loss: float  # f_i on all of the client's samples
    differences: Array  # (N,) f_i(x + eta v_j) - f_i(x - eta v_j), all samples


@final
@dataclass(frozen=True)
class State:
    """What Algorithm 1's server carries from round to round."""

    x: Array = column("1", "the iterate")  # (n,)
    drawn: Array = column(  # (n,)
        "1", "uniformly drawn from the mean iterates of all rounds and local steps, the output of the theorems"
    )
    steps: int = column("1", "local iterations so far (k of the paper), of each client", 0)
    step_distance: float = column("1", "|x_{r+1} - x_r|", math.nan)


@final
@dataclass(frozen=True)
class FedRZONN:
    """[B] Algorithm 1: zeroth-order local steps on Lipschitz losses over an intersection of convex sets.

    With n_p directions and a participating fraction, and without sets, it is FedZO (Fang et al. 2022).

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps.
        n_p: directions of a local step, whose estimates are averaged.
        estimate: one-sided (the paper's: F(x + eta v) - F(x)) or central (F(x + eta v) - F(x - eta v)).
        beta: participating fraction of the clients, 0 < beta <= 1; the paper's is 1.
    """

    needs: ClassVar[type] = Lipschitz
    grows_with: ClassVar[tuple[str, ...]] = ("n_p", "probe")
    setting: Setting[Lipschitz]
    local: Local = part()
    n_p: int = 1
    estimate: Literal["one-sided", "central"] = "one-sided"
    beta: float = 1.0

    def __post_init__(self) -> None:
        demand(self.n_p >= 1, "n_p", self.n_p, "a whole number of directions, at least 1")
        demand(0 < self.beta <= 1, "beta", self.beta, "a fraction of the clients, above 0 and at most 1")

    @property
    def problem(self) -> Lipschitz:
        """What is minimised."""
        return self.setting.problem

    # --- the server

    def start(self) -> State:
        """x_0."""
        x = self.local.start()
        return State(x, x)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Goes from one synchronisation of Algorithm 1 to the next."""
        to = participants(self.setting, self.beta, r)
        shares = self.local.shares()
        x = clients.mean(self.step, Model(state.x, r), to=to, weights=shares).x

        drawn, kept = state.drawn, self.local.keeps(state.steps, r)
        if kept is not None:
            asked = Partial(state.x, r, kept)
            drawn = clients.mean(self.partial, asked, to=to, weights=shares, counted=False).x
        steps = state.steps + self.local.steps()
        return State(x, drawn, steps, float(np.linalg.norm(x.astype(np.float64) - state.x)))

    # --- a client

    def step(self, client: Client, message: Model) -> Stepped:
        """Takes the H local steps."""
        return Stepped(self._stepped(client, message.x, message.r))

    def partial(self, client: Client, message: Partial) -> Stepped:
        """Takes the first of the local steps once more, up to the iterate that is drawn."""
        return Stepped(self._stepped(client, message.x, message.r, message.steps))

    def _stepped(self, client: Client, x: Array, r: int, steps: int | None = None) -> Array:
        setting, eta = self.setting, self.local.eta
        generator = setting.streams(Purpose.DIRECTION, r=r, i=client.i)
        batches = self.local.batches(client, len(client.data), r)
        central = self.estimate == "central"

        def estimate(x: Array, k: int) -> Array:
            v = np.stack([zo.direction(generator, len(x), setting.dtype) for _ in range(self.n_p)])
            step = x.dtype.type(eta) * v
            F = self.losses(client, np.concatenate([x + step, x - step if central else x[None]]), batches[k])
            base = F[self.n_p :] if central else F[-1]
            scale = len(x) / ((2 if central else 1) * eta * self.n_p)
            return np.asarray((scale * (F[: self.n_p] - base)) @ v.astype(np.float64))

        return self.local.descend(x, r, client.i, estimate, steps)

    def losses(self, client: Client, x: Array, batch: Any) -> NDArray[np.float64]:
        """(k,) f_i at the rows of x.

        Raises:
            UserError: not all are finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            F = np.asarray(self.problem.losses(client.i, x, client.data, batch), np.float64)
        return finite(F, len(x))

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        replies = clients.ask(self.probe, Model(state.x, r), to=self.setting.eval_participants(r), counted=False)
        scores = all_scores(self.setting, state.x)  # while the clients compute
        probes = dict(replies)
        shares = among(self.local.shares(), probes)
        differences = sum((shares[i] * p.differences for i, p in probes.items()), np.zeros(self.local.probe))
        objective = math.fsum(shares[i] * p.loss for i, p in probes.items())
        return self.local.report(state.x, r, objective, differences, scores, len(probes))

    def probe(self, client: Client, message: Model) -> Probe:
        """Measures, for a report, f_i on all samples, at x and at both ends of each direction."""
        x, v = message.x, self.local.directions(message.r)
        step = x.dtype.type(self.local.eta) * v
        with np.errstate(over="ignore", invalid="ignore"):
            F = self.problem.losses(client.i, np.concatenate([x[None], x + step, x - step]), client.data)
        return Probe(float(F[0]), np.asarray(F[1 : 1 + len(v)] - F[1 + len(v) :], np.float64))

    @property
    def kernel(self) -> str:
        """What computes the losses."""
        return self.local.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        setting, local = self.setting, self.local
        n, itemsize = self.problem.n, np.dtype(setting.dtype).itemsize
        asked = sum(len(participants(setting, self.beta, r)) for r in range(rounds))
        steps = asked * local.steps()
        points = self.n_p * (2 if self.estimate == "central" else 1) + (self.estimate == "one-sided")
        return {
            "length of x, n": n,
            "clients, participants in a round": f"{setting.m}, {len(participants(setting, self.beta, 0))}",
            **local.plan("Proposition 1", local.proposition1()),
            "bytes down, for each participant and round": n * itemsize + 8,
            "bytes up, for each participant and round": n * itemsize,
            "bytes down and up, all rounds": asked * (2 * n * itemsize + 8),
            "local steps of all clients, all rounds": steps,
            "evaluations of a mini-batch's loss, all rounds": steps * points,
            "FLOPs of all clients, all rounds": f"{steps * points * local.flops():.3g}",
        }
