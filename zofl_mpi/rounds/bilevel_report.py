"""Report, columns on the lower level and --dry-run of [B] Algorithm 2."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.problems import Bilevel
from zofl_mpi.rounds.lower import Iterate, Lower, Moved, Schedule
from zofl_mpi.rounds.report import Model, all_scores
from zofl_mpi.rounds.start import among, step_samples
from zofl_mpi.rounds.zeroth_order import Local, Stepped
from zofl_mpi.rounds.zeroth_order_report import Report, directions, report, schedule_lines, theorem1

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class EvalPoints:
    """Server to client at an evaluation: asks for f_i."""

    x: Array  # (k, n)
    y: Array  # (k, n_lower) a lower solution at each of them


@final
@dataclass(frozen=True)
class EvalValues:
    """Client to server at an evaluation."""

    f: Array  # (k,) f_i on all samples


@final
@dataclass(frozen=True)
class LowerPoint:
    """Server to client, outside the algorithm: asks for the lower level's gradient."""

    y: Array  # (n_lower,)
    shifted: int  # 1: at x + eta v; 0: at x


@final
@dataclass(frozen=True)
class LowerGradient:
    """Client to server, outside the algorithm: the lower level's gradient on all of its samples."""

    g: Array  # (n_lower,)


@dataclass(frozen=True)
class BilevelReports(ABC):
    """Base of Algorithm 2: its report, the residual of the lower level and --dry-run.

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

    @property
    def problem(self) -> Bilevel:
        """The functions f_i and h_i."""
        return self.setting.problem

    def parts(self, client: Client) -> tuple[Any, Any]:
        """The samples that f_i and h_i see."""
        return self.problem.parts(client.data)

    @abstractmethod
    def place(self, client: Client, message: Model) -> Any:
        """Keeps x_r for the rest of the round."""

    @abstractmethod
    def point(self, client: Client, shifted: int) -> Array:
        """(n,) x_r + eta v if `shifted`, else x_r, at a client."""

    @abstractmethod
    def lower_start(self, state: Any) -> Array:
        """(n_lower,) where the lower solves of the next round start."""

    @abstractmethod
    def solved(
        self, clients: Clients, x: Array, y: Array, r: int, *, shifted: bool = False, counted: bool = True
    ) -> tuple[Array, Schedule]:
        """Calls the lower solver; returns the solution and the schedule of the call."""

    def residual(self, clients: Clients, x: Array, y: Array, *, shifted: bool) -> float:
        """|y - P(y - g)|, g the mean of grad_y h_i on all samples by the solver's weights, P the projection onto Y(x).

        nan where the lower level gives its solution alone.

        Args:
            x: (n,) the point of the call: x + eta v if `shifted`.
        """
        if self.problem.solution_only:
            return math.nan
        asked = LowerPoint(y, int(shifted))
        g = clients.mean(self.slope, asked, weights=self.solver.weights(), counted=False).g
        project = self.problem.project_lower
        if project is not None:
            g = y - project(x, y - g)
        return float(np.linalg.norm(g))

    def slope(self, client: Client, message: LowerPoint) -> LowerGradient:
        """The gradient of h_i on all of the client's samples."""
        _, data = self.parts(client)
        g = self.problem.gradient_h(client.i, self.point(client, message.shifted), message.y, data)
        return LowerGradient(np.asarray(g, np.float64))

    def evaluate(self, state: Any, r: int, clients: Clients) -> Report:
        """Reports on x and the lower solution there, from all samples of the clients."""
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
        replies = clients.ask(self.measure, EvalPoints(points, np.stack([y, *exact])), to=asked, counted=False)
        F = np.asarray(sum(shares[i] * values.f for i, values in replies))
        return report(
            self.local,
            x,
            r,
            F[2::2] - F[3::2],
            all_scores(self.setting, x, y),
            objective=float(F[0]),
            clients_asked=len(asked),
            objective_exact=float(F[1]) if exact else math.nan,
            lower_error=float(np.linalg.norm(y.astype(np.float64) - exact[0])) if exact else math.nan,
        )

    def measure(self, client: Client, message: EvalPoints) -> EvalValues:
        """f_i on all samples."""
        data, _ = self.parts(client)
        return EvalValues(np.asarray(self.problem.f(client.i, message.x, message.y, data), np.float64))

    def _ends(self, x: Array, r: int) -> Iterator[Array]:
        """Both ends of each direction of the report, one after the other."""
        for v in directions(self.local, r):
            step = x.dtype.type(self.local.eta) * v
            yield np.asarray(x + step)
            yield np.asarray(x - step)

    def first_schedule(self) -> Schedule:
        """The schedule of a lower-level call at x_0."""
        return Schedule(0, 1, 0.0) if self.solver.lower == "exact" else self.solver.schedule(self.local.start(), 0)

    def loads(self) -> Loads:
        """Samples of each client's steps in a round whose lower level is solved as at x_0."""
        T = self.first_schedule().T
        upper = step_samples(self.setting, self.local.batch)
        lower = step_samples(self.setting, self.solver.batch_lower)
        return Loads([self.local.steps() * f + 2 * T * h for f, h in zip(upper, lower, strict=True)])

    @property
    def kernel(self) -> str:
        """Name of the code that computes the losses."""
        return self.local.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        problem, first = self.problem, self.first_schedule()
        x, y = np.zeros(problem.n, self.setting.dtype), np.zeros(problem.n_lower, self.setting.dtype)
        w = np.stack([y] * self.solver.sequences)
        return {
            "length of x, n": problem.n,
            "length of y": problem.n_lower,
            "clients, all of which take part": self.setting.m,
            **schedule_lines(self.local, "Theorem 1", theorem1(self.local)),
            "upper level, bytes down, for each client and round": messages.size(Model(x, 0)) + 2 * y.nbytes,
            "upper level, bytes up, for each client and round": messages.size(Stepped(x)),
            "lower level, calls in a round": 2,
            "lower level, communication rounds of a call at x_0": first.rounds,
            "lower level, local steps of a call at x_0": first.T,
            "lower level, step size of a call at x_0": first.gamma,
            "lower level, bytes down, for each client and communication round": messages.size(Iterate(w, 0, 0)),
            "lower level, bytes up, for each client and communication round": messages.size(Moved(w)),
        }
