"""FedRZO_bl: zeroth-order local steps on a bilevel or minimax problem, with delayed inexact lower solutions.

[B] Qiu, Shanbhag, Yousefian, "Zeroth-Order Methods for Nondifferentiable, Nonconvex, and Hierarchical Federated
Optimization", NeurIPS 2023, Algorithms 2 and 3.

    min_x (1/m) sum_i f_i(x, y(x)),    y(x) = argmin_y (1/m) sum_i h_i(x, y);    minimax is h = -f
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics import zo
from zofl_mpi.problems import Bilevel, optional
from zofl_mpi.rounds.lower import Iterate, Lower, Moved, Schedule
from zofl_mpi.rounds.report import all_scores
from zofl_mpi.rounds.start import among, step_samples
from zofl_mpi.rounds.zeroth_order import Local, Model, Report, Stepped, finite

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Solutions:
    """Server to client, Algorithm 2, line 7: the two inexact lower solutions; x_r and v the client has."""

    y0: Array  # (n_lower,) at x_r
    yv: Array  # (n_lower,) at x_r + eta v


@final
@dataclass(frozen=True)
class Nothing:
    """Client to server: an empty acknowledgement."""


@final
@dataclass(frozen=True)
class Halfway:
    """Server to client, outside the algorithm: the iterate in the middle of a round is asked for."""

    y0: Array  # (n_lower,)
    yv: Array  # (n_lower,)
    steps: int


@final
@dataclass(frozen=True)
class Points:
    """Server to client at an evaluation: where f_i is wanted."""

    x: Array  # (k, n)
    y: Array  # (k, n_lower) a lower solution at each of them


@final
@dataclass(frozen=True)
class Values:
    """Client to server at an evaluation: f_i there."""

    f: Array  # (k,) f_i on all samples


@final
@dataclass(frozen=True)
class Slope:
    """Client to server, outside the algorithm: the lower level's gradient on all of its samples."""

    g: Array  # (n_lower,)


@final
@dataclass(frozen=True)
class At:
    """Server to client, outside the algorithm: where the lower level's gradient is wanted."""

    y: Array  # (n_lower,)
    shifted: int  # 1: at x + eta v; 0: at x


@final
@dataclass(frozen=True)
class BilevelState:
    """What Algorithm 2's server carries from round to round."""

    x: Array = column("1", "the iterate")  # (n,)
    drawn: Array = column(  # (n,)
        "1", "uniformly drawn from the mean iterates of all rounds and local steps, the output of the theorems"
    )
    y: Array = column("1", "the lower solution at x of the last round")  # (n_lower,)
    steps: int = column("1", "local iterations so far (k of the paper), of each client", 0)
    step_distance: float = column("1", "|x_{r+1} - x_r|", math.nan)
    lower_rounds: int = column("1", "communication rounds of the lower level in this round, both calls", 0)
    lower_steps: int = column("1", "local steps of the lower level in this round, both calls, of each client", 0)
    lower_residual: float = column(
        "1",
        "|(1/m) sum_i grad_y h_i(x, y)| on all samples, y returned by the call at x; with Y(x), |y - P(y - grad)|",
        math.nan,
    )
    lower_residual_shifted: float = column("1", "the same for the call at x + eta v", math.nan)


@final
@dataclass(frozen=True)
class FedRZOBL:
    """[B] Algorithm 2: one direction a round, two calls of an inexact federated solver, delayed lower solutions.

    Attributes:
        setting: problem, data and random numbers.
        local: the local steps on the upper level.
        solver: the lower level.
        exact: at each evaluation also solve the lower level exactly, where the problem can: to see what inexactness
            does, and for the estimate of the gradient (--probe).
    """

    needs: ClassVar[type] = Bilevel
    setting: Setting[Bilevel]
    local: Local = part()
    solver: Lower = part()
    exact: bool = False

    def __post_init__(self) -> None:
        allowed = "0 without --exact: directions need the exact lower solutions at both of their ends"
        demand(self.exact or self.local.probe == 0, "probe", self.local.probe, allowed)
        for flag, asked in (("--exact", self.exact), ("--lower exact", self.solver.lower == "exact")):
            if asked and optional.solution(self.problem) is None:
                raise UserError(f"{flag}: this problem does not know its lower solution; leave it out")
        unequal = len({len(data) for data in self.setting.data}) > 1
        if self.exact and unequal and self.solver.weights() is not None:
            raise UserError("--exact: the exact solution counts all h_i alike, --sampling size by their samples")
        if self.solver.lower != "exact":
            self.solver.schedule(self.local.start(), 0)  # refuses a step that the solver cannot take

    @property
    def problem(self) -> Bilevel:
        """What is minimised."""
        return self.setting.problem

    # --- the server: Algorithm 2

    def start(self) -> BilevelState:
        """x_0, and the first point of the lower level."""
        x = self.local.start()
        return BilevelState(x, x, self.first_lower())

    def first_lower(self) -> Array:
        """(n_lower,) where the first lower solve starts."""
        return np.asarray(optional.initial_lower(self.problem), self.setting.dtype)

    def lower_start(self, state: BilevelState) -> Array:
        """(n_lower,) where the lower solves of the next round start."""
        return state.y if self.solver.y0 == "last" else self.first_lower()

    def round(self, state: BilevelState, r: int, clients: Clients) -> BilevelState:
        """Places x_r, calls the lower solver twice, and averages the local steps: Algorithm 2."""
        x = state.x
        for _ in clients.ask(self.place, Model(x, r)):
            pass
        y = self.lower_start(state)
        yv, calls = self.solved(clients, self.shifted(x, r), y, r, shifted=True)
        y0, more = self.solved(clients, x, y, r)
        shares = self.local.shares()
        new = clients.mean(self.step, Solutions(y0, yv), weights=shares).x

        drawn, kept = state.drawn, self.local.keeps(state.steps, r)
        if kept is not None:
            drawn = clients.mean(self.partial, Halfway(y0, yv, kept), weights=shares, counted=False).x
        return BilevelState(
            new,
            drawn,
            y0,
            state.steps + self.local.steps(),
            float(np.linalg.norm(new.astype(np.float64) - x)),
            calls.rounds + more.rounds,
            calls.T + more.T,
            self.residual(clients, x, y0, shifted=False),
            self.residual(clients, self.shifted(x, r), yv, shifted=True),
        )

    def direction(self, r: int) -> Array:
        """(n,) v of round r, one for all clients and local steps, of norm 1."""
        return zo.direction(self.setting.streams(Purpose.DIRECTION, r=r), self.problem.n, self.setting.dtype)

    def shifted(self, x: Array, r: int) -> Array:
        """(n,) x + eta v."""
        return np.asarray(x + x.dtype.type(self.local.eta) * self.direction(r))

    def solved(
        self, clients: Clients, x: Array, y: Array, r: int, *, shifted: bool = False, counted: bool = True
    ) -> tuple[Array, Schedule]:
        """Calls the lower solver, from y, at x or (`shifted`) at x + eta v; returns the solution and what it took."""
        return self.solver.solve(clients, self.lower, x, y, r, shifted=shifted, counted=counted)

    def residual(self, clients: Clients, x: Array, y: Array, *, shifted: bool) -> float:
        """|y - P(y - g)|, g the mean of grad_y h_i on all samples by the solver's weights, P the projection onto Y(x).

        nan where the lower level gives its solution alone.

        Args:
            x: (n,) the point of the call: x + eta v if `shifted`.
        """
        if optional.solution_only(self.problem):
            return math.nan
        g = clients.mean(self.slope, At(y, int(shifted)), weights=self.solver.weights(), counted=False).g
        project = optional.project_lower(self.problem)
        if project is not None:
            g = y - project(x, y - g)
        return float(np.linalg.norm(g))

    # --- a client

    def place(self, client: Client, message: Model) -> Nothing:
        """Keeps x_r for the rest of the round."""
        client.memory["x"], client.memory["r"] = message.x, message.r
        return Nothing()

    def lower(self, client: Client, message: Iterate) -> Moved:
        """Takes a client's part of one communication round of Algorithm 3."""
        _, data = self.parts(client)
        x = self._point(client, message.shifted)
        return self.solver.local(client, data, x, client.memory["r"], message)

    def slope(self, client: Client, message: At) -> Slope:
        """The gradient of h_i on all of the client's samples, for the record."""
        _, data = self.parts(client)
        g = self.problem.gradient_h(client.i, self._point(client, message.shifted), message.y, data)
        return Slope(np.asarray(g, np.float64))

    def step(self, client: Client, message: Solutions) -> Stepped:
        """Takes the H local steps of Algorithm 2."""
        return Stepped(self._stepped(client, message.y0, message.yv))

    def partial(self, client: Client, message: Halfway) -> Stepped:
        """Takes the first of the local steps once more, up to the iterate that is drawn."""
        return Stepped(self._stepped(client, message.y0, message.yv, message.steps))

    def _stepped(self, client: Client, y0: Array, yv: Array, steps: int | None = None) -> Array:
        eta = self.local.eta
        x, r = client.memory["x"], client.memory["r"]
        data, _ = self.parts(client)
        batches, v = self.local.batches(client, len(data), r), self.direction(r)
        step, y = x.dtype.type(eta) * v, np.stack([yv, y0])

        def estimate(x: Array, k: int) -> Array:
            F = np.asarray(self.problem.f(client.i, np.stack([x + step, x]), y, data, batches[k]), np.float64)
            finite(F, 2)
            return np.asarray(zo.estimate(float(F[0] - F[1]), v, eta))

        return self.local.descend(x, r, client.i, estimate, steps)

    def parts(self, client: Client) -> tuple[Any, Any]:
        """The samples that f_i and h_i see."""
        return optional.parts(self.problem, client.data)

    def _point(self, client: Client, shifted: int) -> Array:
        x = client.memory["x"]
        return self.shifted(x, client.memory["r"]) if shifted else x

    # --- reports

    def evaluate(self, state: BilevelState, r: int, clients: Clients) -> Report:
        x = state.x
        for _ in clients.ask(self.place, Model(x, r + 1), counted=False):
            pass
        y, _ = self.solved(clients, x, self.lower_start(state), r + 1, counted=False)
        points = np.stack([x, *(self._ends(x, r) if self.exact else ())])
        exact = [self.solver.exact(point) for point in points if self.exact]
        if exact:
            points = np.concatenate([x[None], points])
        asked = self.setting.eval_participants(r)
        shares = among(self.local.shares(), asked)
        replies = clients.ask(self.measure, Points(points, np.stack([y, *exact])), to=asked, counted=False)
        F = np.asarray(sum(shares[i] * values.f for i, values in replies))
        return self.local.report(
            x,
            r,
            float(F[0]),
            F[2::2] - F[3::2],
            all_scores(self.setting, x, y),
            len(asked),
            objective_exact=float(F[1]) if exact else math.nan,
            lower_error=float(np.linalg.norm(y.astype(np.float64) - exact[0])) if exact else math.nan,
        )

    def _ends(self, x: Array, r: int) -> Iterator[Array]:
        """Both ends of each direction of the report, one after the other."""
        for v in self.local.directions(r):
            step = x.dtype.type(self.local.eta) * v
            yield np.asarray(x + step)
            yield np.asarray(x - step)

    def measure(self, client: Client, message: Points) -> Values:
        """Measures, for a report, f_i on all samples."""
        data, _ = self.parts(client)
        with np.errstate(over="ignore", invalid="ignore"):
            return Values(np.asarray(self.problem.f(client.i, message.x, message.y, data), np.float64))

    def loads(self) -> Loads:
        """Samples that each client looks at in a round whose lower level is solved as at x_0."""
        T = 0 if self.solver.lower == "exact" else self.solver.schedule(self.local.start(), 0).T
        upper = step_samples(self.setting, self.local.batch)
        lower = step_samples(self.setting, self.solver.batch_lower)
        return Loads([self.local.steps() * f + 2 * T * h for f, h in zip(upper, lower, strict=True)])

    @property
    def kernel(self) -> str:
        """What computes the losses."""
        return self.local.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        setting, problem = self.setting, self.problem
        itemsize, lower = np.dtype(setting.dtype).itemsize, problem.n_lower * np.dtype(setting.dtype).itemsize
        first = Schedule(0, 1, 0.0)
        if self.solver.lower != "exact":
            first = self.solver.schedule(self.local.start(), 0)
        vectors = self.solver.sequences * lower
        return {
            "length of x, n": problem.n,
            "length of y": problem.n_lower,
            "clients, all of which take part": setting.m,
            **self.local.plan("Theorem 1", self.local.theorem1()),
            "upper level, bytes down, for each client and round": problem.n * itemsize + 8 + 2 * lower,
            "upper level, bytes up, for each client and round": problem.n * itemsize,
            "lower level, calls in a round": 2,
            "lower level, communication rounds of a call at x_0": first.rounds,
            "lower level, local steps of a call at x_0": first.T,
            "lower level, step size of a call at x_0": first.gamma,
            "lower level, bytes down, for each client and communication round": vectors + 16,
            "lower level, bytes up, for each client and communication round": vectors,
        }
