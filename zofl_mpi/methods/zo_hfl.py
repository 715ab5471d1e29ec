"""ZO-HFL: the server descends a two-point zeroth-order estimate of the clients' implicit function.

[A] Qiu, Kim, Yousefian, "A Randomized Zeroth-Order Hierarchical Framework for Heterogeneous Federated Learning".

    min_x  f_1(x) + (1/m) sum_i f_{2,i}(x, y_i(x)),    y_i(x) = argmin over y in Y_i(x) of h_i(x, y)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Client, Clients, Directions, Purpose, above, change, column, finite, flag_group
from zofl_mpi.engine.mean import SUM_ON_RANKS_FROM
from zofl_mpi.numerics import zo
from zofl_mpi.problems import Hierarchical
from zofl_mpi.rounds.base import EstimatesCost, RoundCost, Sampling, ServerStep, demand_samples, shaped
from zofl_mpi.rounds.local_sgd import LocalSolve
from zofl_mpi.rounds.report import GlobalModel, HierarchicalReport, Measured, hierarchical_report, measure_personal

X = "x is not finite after the server's step; smaller --gamma, --lam or --gamma-local may help"


@dataclass(frozen=True)
class ZOHFLState:
    """State of the server between rounds."""

    x: Array = column("1", "the global model, W (C, p) row by row", finite=X)  # (n,)
    gradient_f1_norm: float = column("1", "norm of the stochastic gradient of f_1 in this round", math.nan)
    gradient_f2_norm: float = column("1", "norm of the zeroth-order part of the direction in this round", math.nan)
    local_steps: int = column(
        "1", "steps of Algorithm 2 that all participants took in this round, both solves counted", 0
    )


@final
@dataclass(frozen=True)
class ZOHFL(EstimatesCost[Hierarchical]):
    """The server descends two-point estimates of the clients' losses at their personal solutions: [A] Algorithms 1, 2.

    Attributes:
        eta: smoothing radius, the distance from x at which the implicit function is evaluated.
        divide: divisor of the sum of estimates: m (non-participants count as 0) or participants (|S_r|).
        exchange: uploads: scalars (two values of f_2) or solutions (y+ and y-, as in the paper); x is bit-identical.
    """

    computes: ClassVar[str] = "gradients of its personal loss h_i, and values of f_2"
    travels: ClassVar[str] = "x down, two values up"
    needs: ClassVar[type] = Hierarchical
    sampling: Sampling = flag_group()
    server: ServerStep = flag_group(gamma=1.0, paper={"gamma": 0.01})
    local: LocalSolve = flag_group()
    eta: float = above(0, 0.1, "a smoothing radius")
    divide: Literal["m", "participants"] = "m"
    exchange: Literal["scalars", "solutions"] = "scalars"

    def round(self, state: ZOHFLState, r: int, clients: Clients) -> ZOHFLState:
        """Algorithm 1, lines 3 to 9: the server descends its own gradient and the clients' estimates."""
        x, S = state.x, self.sampling(r)
        message, unit = GlobalModel(x, r), len(x) / (2 * self.eta)  # of an estimate along a v of norm 1
        estimates = clients.sum(self.solve, message, self.estimate, to=S, stretch=unit, nobody=np.zeros(len(x)))
        g1 = self.gradient_f1(x, r)  # while the clients compute
        g2 = estimates() / (self.setting.m if self.divide == "m" else self.sampling.denominator(len(S)))

        steps = int(np.broadcast_to(self.steps(np.array(S, np.int64), r), len(S)).sum())
        return ZOHFLState(self.server.step(x, g1 + g2, r), float(np.linalg.norm(g1)), float(np.linalg.norm(g2)), steps)

    def solve(self, client: Client, message: GlobalModel) -> Values | LocalSolutions:
        """Algorithm 1, line 4: Algorithm 2 at x + eta v and at x - eta v."""
        v = self.direction(client.i, message.r)
        x = self.pair(message.x, v)
        y = self.local.solve(client, x, message.r)
        self.local.keep(client, y)
        solutions = LocalSolutions(y[0], y[1])
        if self.exchange == "solutions":
            return solutions
        return self.values(client.i, x, solutions)

    def estimate(self, i: int, message: GlobalModel, reply: Values | LocalSolutions) -> Array:
        """Algorithm 1, line 5: (n,) client i's estimate n/(2 eta) (f+ - f-) v in float64."""
        v = self.direction(i, message.r)
        f = reply if isinstance(reply, Values) else self.values(i, self.pair(message.x, v), reply)
        return np.asarray(zo.estimate(f.plus - f.minus, v, 2 * self.eta))

    def direction(self, i: int, r: int) -> Array:
        """v_{i,r}, uniform on the unit sphere (the text's eta S contradicts n/(2 eta)); both ends draw it."""
        setting, n = self.setting, self.problem.n
        draw_once = setting.context.draw_once_for_both_ends
        return draw_once(setting.streams, Purpose.DIRECTION, zo.direction, n, setting.dtype, r=r, i=i)

    def pair(self, x: Array, v: Array) -> Array:
        """(2, n) x + eta v and x - eta v."""
        step = x.dtype.type(self.eta) * v
        zo.demand_move(x, step, self.eta)
        return np.stack([x + step, x - step])

    def values(self, i: int, x: Array, y: LocalSolutions) -> Values:
        """f_{2,i}(x + eta v, y+) and f_{2,i}(x - eta v, y-), formed in float64."""
        plus, minus = self.problem.f2(i, x[0], y.plus), self.problem.f2(i, x[1], y.minus)
        return Values(*(float(shaped(f, (), "f2(i, x, y)")) for f in (plus, minus)))

    def gradient_f1(self, x: Array, r: int) -> Array:
        """(n,) the stochastic gradient of f_1 on the server's mini-batch."""
        g = self.problem.gradient_f1(x, self.setting.server, self.server.batch(r))
        return shaped(g, x.shape, "gradient_f1(x, data, batch)")

    def steps(self, clients: NDArray[np.int64], r: int) -> NDArray[np.int64] | int:
        """(k,) 2 H_{i,r} of clients (k,), the steps of both solves."""
        return 2 * self.local.steps.counts(clients, r)

    # --- start, evaluation and costs

    def __post_init__(self) -> None:
        demand_samples(self.setting, "--method zo_hfl: f_1 is their loss")

    def start(self) -> ZOHFLState:
        return ZOHFLState(self.setting.first_model(self.server.x0))

    def directions(self, rounds: int) -> Directions:
        """One direction for each participant and round."""
        return Directions(round(rounds * self.sampling.expected), self.problem.n)

    def evaluate(self, state: ZOHFLState, r: int, clients: Clients) -> HierarchicalReport:
        return hierarchical_report(self.setting, state.x, r, clients, self.personal)

    def personal(self, client: Client, message: GlobalModel) -> Measured:
        """Measure the personal model y_i = LOCAL(x) without a trace in the client's memory."""
        y = self.local.solve(client, message.x[None], message.r, Purpose.PERSONAL)[0]
        return measure_personal(self.setting, client, message.x, y)

    def plan(self, rounds: int) -> dict[str, str | float]:
        size = 8 * self.problem.n
        ranks = f"the client ranks, since {SUM_ON_RANKS_FROM} or more: {size:,} bytes up from each, or some times that"
        by_ranks = self.sampling.size(0) >= SUM_ON_RANKS_FROM and not self.setting.any_between("reads_each")
        return super().plan(rounds) | {"estimates are added up by": ranks if by_ranks else "the server"}

    @property
    def round_cost(self) -> RoundCost:
        x = np.zeros(self.problem.n, self.setting.dtype)
        return RoundCost(
            participants=self.sampling,
            steps=self.steps,
            batch=self.local.batch,
            down=GlobalModel(x, 0),
            up=Values(0.0, 0.0) if self.exchange == "scalars" else LocalSolutions(x, x),
            server_batch=self.server.server_batch,
            vectors=3 + (self.local.y0 == "last"),  # x + eta v, x - eta v, the other of both y; the last y
        )


# Messages to the server, which itself sends `GlobalModel`: x_r and r

F2 = "f_2 is not finite; smaller --gamma, --lam, --gamma-local or --mu, or --pixels unit, may help"
NOT_FINITE_SOLUTION = "the local solution is not finite; smaller --gamma-local or --mu, or --pixels unit, may help"


@dataclass(frozen=True)
class Values:
    """Client to server, --exchange scalars: the two values that the estimate needs."""

    plus: float = change(F2, of="minus", scalar=True)  # f_{2,i}(x + eta v, y+)
    minus: float = finite(F2)  # f_{2,i}(x - eta v, y-)


@dataclass(frozen=True)
class LocalSolutions:
    """Client to server, --exchange solutions, as the paper sends them."""

    plus: Array = finite(NOT_FINITE_SOLUTION)  # (n,) y+, the inexact solution at x + eta v
    minus: Array = finite(NOT_FINITE_SOLUTION)  # (n,) y-, that at x - eta v
