"""Bases of the bilevel methods: points and lower-level calls of [B] Algorithm 2, reports, --dry-run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from zofl_mpi import Array, Client, Clients, Loads, Purpose, UserError, at_least, column, flag_group
from zofl_mpi.engine import messages
from zofl_mpi.engine.fleet import Needs, RoundWork
from zofl_mpi.numerics import zo
from zofl_mpi.problems import Bilevel, SecondOrder
from zofl_mpi.rounds import base
from zofl_mpi.rounds.base import GRADIENT, EstimatesCost, OnProblem, RoundCost, eval_data, scaled_to_one, shaped
from zofl_mpi.rounds.lower import Iterate, LowerSchedule, LowerSolver, Moved
from zofl_mpi.rounds.report import GlobalModel, HeldOut, all_scores, by_column
from zofl_mpi.rounds.zeroth_order import FedRZOReport, Local, Stepped, directions, report, schedule_lines

B = TypeVar("B", bound=Bilevel)


@dataclass(frozen=True)
class Placed:
    """Client to server: an empty acknowledgement."""


@dataclass(frozen=True)
class EvalPoints:
    """Server to client at an evaluation: asks for f_i."""

    x: Array  # (k, n)
    y: Array  # (k, n_lower) a lower solution at each of them


@dataclass(frozen=True)
class Evaluated:
    """Client to server, outside the algorithm, from all of its samples."""

    values: Array  # (k,) f_i at the points, or (n_lower,) the lower level's gradient


@dataclass(frozen=True)
class TwoLevels(OnProblem[B]):
    """Base of the bilevel methods, on min_x (1/m) sum_i f_i(x, y(x))."""

    def flops(self) -> float:
        """FLOPs of a pass, estimated as a product with each entry of x and y."""
        return 2.0 * (self.problem.n + self.problem.n_lower)

    def held(self, batch: int, upper: bool, x: int = 0, y: int = 0) -> float:
        """Bytes of a pass of f_i if `upper`, else of a step of y, plus `x` vectors (n,) and `y` (n_lower,); 0: unknown.

        `batch` are the samples, 0 for all of the level's own.
        """
        size = batch or max(len(self.problem.parts(data)[not upper]) for data in self.setting.data)
        own = self.problem.client_bytes(size, not upper)
        beside = (x * self.problem.n + y * self.problem.n_lower) * np.dtype(self.setting.dtype).itemsize
        return own and own + beside

    def work_of(self, samples: Sequence[float], sizes: Sequence[tuple[int, int]], clients: Any) -> RoundWork:
        """All clients' work in a round: samples (m,) of each, and the bytes down and up of each exchange."""
        ids = list(range(self.setting.m) if clients is None else clients)
        down, up = (np.full(len(ids), float(sum(ways))) for ways in zip(*sizes, strict=True))
        return RoundWork(ids, np.array(samples, float)[ids], down, up, np.full(len(ids), 2.0 * len(sizes)))

    def parts(self, client: Client) -> tuple[Any, Any]:
        """The samples of f_i and of h_i."""
        return self.problem.parts(client.data)

    def first_lower(self) -> Array:
        """(n_lower,) start of the first lower solve."""
        y = shaped(self.problem.initial_lower(), (self.problem.n_lower,), "initial_lower()")
        return np.asarray(y, self.setting.dtype)

    def send(self, clients: Clients, x: Array, r: int, counted: bool = True) -> None:
        """Send x_r (n,) to all clients, which keep it for the rest of the round."""
        for _ in clients.ask(self.place, GlobalModel(x, r), counted=counted):
            pass

    def place(self, client: Client, message: GlobalModel) -> Placed:
        """Keep x_r for the rest of the round."""
        client.memory["x"], client.memory["r"] = message.x, message.r
        client.scratch["calls"] = {}
        return Placed()

    def objective(self, clients: Clients, x: Array, y: Array, weights: Mapping[int, float], r: int) -> Array:
        """(k,) sum_i w_i f_i at the rows of x and y, over the clients of an evaluation."""
        asked = self.setting.eval_participants(r)
        shares = scaled_to_one(weights, asked)
        replies = clients.ask(self.measure, EvalPoints(x, y), to=asked, counted=False)
        return np.asarray(sum(shares[i] * reply.values for i, reply in replies))

    def measure(self, client: Client, message: EvalPoints) -> Evaluated:
        """f_i on the client's samples."""
        data = eval_data(self.setting, self.parts(client)[0], client.i)
        k = len(message.x)
        f = shaped(self.problem.f(client.i, message.x, message.y, data), (k,), f"f at {k} points")
        return Evaluated(np.asarray(f, np.float64))


@dataclass(frozen=True)
class BilevelReports(EstimatesCost[Bilevel], TwoLevels[Bilevel]):
    """Base of Algorithm 2: its points, lower-level calls, their residual, report and --dry-run.

    Attributes:
        exact: at each evaluation also solve the lower level exactly, if the problem can: shows the effect of inexact
            solutions, and serves the gradient estimate (--probe).
    """

    computes: ClassVar[str] = "values of f_i, and gradients of h_i in y"
    travels: ClassVar[str] = "x, and y for two points x down, a local model, and y for two points x up"
    needs: ClassVar[type] = Bilevel
    local: Local = flag_group(gamma=1e-5, paper={"gamma": 1e-5})
    solver: LowerSolver = flag_group(T_lower="100", paper={"T_lower": "auto"})
    exact: bool = False

    # --- points and lower-level calls

    def direction(self, r: int) -> Array:
        """(n,) v of round r, one for all clients and local steps, of norm 1."""
        return zo.direction(self.setting.streams(Purpose.DIRECTION, r=r), self.problem.n, self.setting.dtype)

    def shifted(self, x: Array, r: int) -> Array:
        """(n,) x + eta v."""
        step = x.dtype.type(self.local.eta) * self.direction(r)
        zo.demand_move(x, step, self.local.eta)
        return np.asarray(x + step)

    def point(self, client: Client, shifted: int) -> Array:
        """(n,) x_r + eta v if `shifted`, else x_r, at a client."""
        x: Array = client.memory["x"]
        return self.shifted(x, client.memory["r"]) if shifted else x

    def lower_start(self, state: Any) -> Array:
        """(n_lower,) start of the next round's lower solves."""
        return state.y if self.solver.y0 == "last" else self.first_lower()

    def lower(self, client: Client, message: Iterate) -> Moved:
        """Takes a client's part of one communication round of Algorithm 3."""
        _, data = self.parts(client)
        r, calls = client.memory["r"], client.scratch.setdefault("calls", {})
        if message.shifted not in calls:  # the same in all communication rounds of a call, which are many
            x = self.point(client, message.shifted)
            calls[message.shifted] = x, self.solver.schedule(x, r)
        x, schedule = calls[message.shifted]
        return self.solver.local(client, data, x, r, schedule, message)

    def residual(self, clients: Clients, x: Array, y: Array) -> float:
        """|y - P(y - g)| at x, which the clients hold, g the mean of grad_y h_i on all samples, P onto Y(x).

        Reads all samples; nan if the lower level only provides its solution.
        """
        if self.problem.solution_only:
            return math.nan
        g = clients.mean(self.slope, Iterate(y[None], 0, 0), counted=False).values
        project = self.problem.project_lower
        if project is not None:
            g = y - project(x, y - g)
        return float(np.linalg.norm(g))

    def slope(self, client: Client, message: Iterate) -> Evaluated:
        """The gradient of h_i on all of the client's samples."""
        _, data = self.parts(client)
        g = self.problem.gradient_h(client.i, client.memory["x"], message.w[0], data)
        return Evaluated(np.asarray(shaped(g, message.w[0].shape, "gradient_h(i, x, y, data)"), np.float64))

    # --- evaluation

    def evaluate(self, state: Any, r: int, clients: Clients) -> FedRZOReport:
        x = state.x
        self.send(clients, x, r + 1, counted=False)
        y, _ = self.solver.solve(clients, self.lower, x, self.lower_start(state), r + 1, counted=False)
        points = [x, *self._ends(x, r)] if self.exact else []
        exact = [self.solver.exact(point) for point in points]
        F = self.objective(clients, np.stack([x, *points]), np.stack([y, *exact]), self.local.client_weights(), r)
        scores = all_scores(self.setting, x, y) | {
            "objective": float(F[0]),
            "clients_asked": len(self.setting.eval_participants(r)),
            "objective_exact": float(F[1]) if exact else math.nan,
            "lower_error": float(np.linalg.norm(y.astype(np.float64) - exact[0])) if exact else math.nan,
            "lower_residual": self.residual(clients, x, y),
        }
        return report(self.local, x, r, F[2::2] - F[3::2], scores)

    def _ends(self, x: Array, r: int) -> Iterator[Array]:
        """Yield both ends of each direction of the report."""
        for v in directions(self.local, r):
            step = x.dtype.type(self.local.eta) * v
            yield from (np.asarray(x + step), np.asarray(x - step))

    # --- costs

    @property
    def round_cost(self) -> RoundCost:
        return self.local.round_cost(lambda r: range(self.setting.m), 2)

    def device_needs(self) -> Sequence[Needs]:
        """MACs of a sample's two passes, bytes of a step; UserError if the number of steps depends on x."""
        if self.solver.lower != "exact" and not self.solver.T_lower.isdecimal():
            how = f"--T-lower {self.solver.T_lower} takes as many local steps as L_h/mu_h at x asks for"
            raise UserError(f"--devices: {how}, which is unknown before the round; give --T-lower a whole number")
        upper = self.held(self.local.batch, True, x=3, y=1)  # x_i, the estimate, v; the other of both y
        further = 2 * (self.solver.sequences - 1)  # FedAC's w_ag and the point of its gradient
        lower = self.held(self.solver.batch_lower, False, x=2, y=further)  # x_r and v, for x + eta v
        return [Needs(self.flops(), bytes=upper if self.solver.lower == "exact" else max(upper, lower))]

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        x, y = np.zeros(self.problem.n, self.setting.dtype), np.zeros(self.problem.n_lower, self.setting.dtype)
        w, own = np.stack([y] * self.solver.sequences), self.round_cost
        calls = 2 * self.first_schedule.rounds * [(messages.size(Iterate(w, 0, 0)), messages.size(Moved(w)))]
        ends = [(messages.size(own.down), messages.size(Placed())), (2 * y.nbytes, messages.size(Stepped(x)))]
        return self.work_of(self.loads().work, [*ends, *calls], clients)

    @cached_property
    def first_schedule(self) -> LowerSchedule:
        """The schedule of a lower-level call at x_0."""
        return self.solver.schedule(self.setting.first_model(self.local.x0), 0)

    def loads(self) -> Loads:
        """Samples of each client's steps in a round with the lower level solved as at x_0."""
        T = self.first_schedule.T
        lower = base.step_samples(self.setting, self.solver.batch_lower)
        return Loads([f + 2 * T * h for f, h in zip(super().loads().work, lower, strict=True)])

    def plan(self, rounds: int) -> dict[str, str | float]:
        problem, first = self.problem, self.first_schedule
        x, y = np.zeros(problem.n, self.setting.dtype), np.zeros(problem.n_lower, self.setting.dtype)
        w = np.stack([y] * self.solver.sequences)
        return {
            "length of x, n": problem.n,
            "length of y": problem.n_lower,
            "clients, all of which take part": self.setting.m,
            "kernel": self.kernel,
            **schedule_lines(self.local, "Theorem 1"),
            "upper level, bytes down, for each client and round": messages.size(GlobalModel(x, 0)) + 2 * y.nbytes,
            "upper level, bytes up, for each client and round": messages.size(Stepped(x)),
            "lower level, calls in a round": 2,
            "lower level, communication rounds of a call at x_0": first.rounds,
            "lower level, local steps of a call at x_0": first.T,
            "lower level, step size of a call at x_0": first.gamma,
            "lower level, bytes down, for each client and communication round": messages.size(Iterate(w, 0, 0)),
            "lower level, bytes up, for each client and communication round": messages.size(Moved(w)),
        }


@dataclass(frozen=True, kw_only=True)
class HypergradientReport(HeldOut):
    """Columns of an evaluation; None if the problem does not provide the value."""

    test_loss: float = column("nat", "mean loss of (x, y) on the test samples, in the problem's own unit")
    objective: float = column("1", "f(x, y) = (1/m) sum_i f_i at the iterates, on all of the clients' samples")
    objective_exact: float | None = column("1", "f(x, y(x)) with the exact y(x)", None)
    lower_error: float | None = column("1", "|y - y(x)|", None)


class Exchange(NamedTuple):
    """Example of an exchange with a client, and the derivatives that its step takes.

    Attributes:
        upper, lower: number of derivatives of f_i and of h_i, each on a mini-batch.
    """

    message: Any
    reply: Any
    upper: int = 0
    lower: int = 0


@dataclass(frozen=True)
class SecondOrderReports(TwoLevels[SecondOrder], ABC):
    """Base of a method with derivatives of both levels: mini-batches, report and --dry-run.

    Attributes:
        batch: samples of a gradient of f_i, drawn with replacement; 0 for all.
        batch_lower: samples of a derivative of h_i, drawn with replacement; 0 for all.
        exact: at each evaluation also solve the lower level exactly, if the problem can.
    """

    computes: ClassVar[str] = "gradients of f_i and h_i, and second derivatives of h_i"
    travels: ClassVar[str] = "x, y and vectors down, gradients and local models up"
    needs: ClassVar[type] = SecondOrder
    batch: int = at_least(0, 64, remark="(0: all samples)")
    batch_lower: int = at_least(0, 64, remark="(0: all samples)")
    exact: bool = False

    def __post_init__(self) -> None:
        if self.exact and self.problem.solution is None:
            raise UserError("--exact: this problem does not know its lower solution; leave it out")

    @abstractmethod
    def exchanges(self, r: int | None) -> Sequence[Exchange]:
        """Exchanges with a client in round r; None: in a round with all terms of the series."""

    def lower_batches(self, client: Client, t: int, steps: int) -> Any:
        """(steps, B) positions for h_i's derivatives in inner round t, or after these in a term of the series."""
        generator = self.setting.streams(Purpose.LOWER_BATCH, r=client.memory["r"], i=client.i, t=t)
        return base.draw_batches(generator, len(self.parts(client)[1]), steps, self.batch_lower)

    def upper_batches(self, client: Client, steps: int) -> Any:
        """(steps, B) positions for f_i's gradients; the first is the hypergradient's."""
        generator = self.setting.streams(Purpose.BATCH, r=client.memory["r"], i=client.i)
        return base.draw_batches(generator, len(self.parts(client)[0]), steps, self.batch)

    def evaluate(self, state: Any, r: int, clients: Clients) -> HypergradientReport:
        solve, m = self.problem.solution, self.setting.m
        exact = solve(state.x, self.setting.data) if self.exact and solve else None
        lower = [state.y] if exact is None else [state.y, np.asarray(exact, state.y.dtype)]
        uniform = dict.fromkeys(range(m), 1 / m)
        f = self.objective(clients, np.stack([state.x] * len(lower)), np.stack(lower), uniform, r)
        return HypergradientReport(
            objective=float(f[0]),
            clients_asked=len(self.setting.eval_participants(r)),
            objective_exact=None if exact is None else float(f[1]),
            lower_error=None if exact is None else float(np.linalg.norm(state.y.astype(np.float64) - exact)),
            **by_column(HypergradientReport, all_scores(self.setting, state.x, state.y)),
        )

    def loads(self) -> Loads:
        """Samples of each client's derivatives in a round with all terms of the series."""
        return Loads(self._samples(self.exchanges(None)))

    def _samples(self, exchanges: Sequence[Exchange]) -> list[int]:
        """(m,) samples of each client's derivatives."""
        upper, lower = base.step_samples(self.setting, self.batch), base.step_samples(self.setting, self.batch_lower)
        outer, inner = (sum(numbers) for numbers in zip(*((e.upper, e.lower) for e in exchanges), strict=True))
        return [outer * f + inner * h for f, h in zip(upper, lower, strict=True)]

    def device_needs(self) -> Sequence[Needs]:
        """MACs of a sample's derivative; bytes of the step that holds most."""
        inner = self.held(self.batch_lower, False, y=3)  # y, its gradient, the mean gradient
        product = self.held(self.batch_lower, False, x=2)  # both parts of a hypergradient
        # x: both gradients, x_r, their mean, the step; y: one gradient
        outer = self.held(self.batch, True, x=5, y=1)
        return [Needs(GRADIENT * self.flops() / 2, bytes=max(inner, product, outer))]

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        exchanges = self.exchanges(r)
        sizes = [(messages.size(each.message), messages.size(each.reply)) for each in exchanges]
        return self.work_of(self._samples(exchanges), sizes, clients)

    @property
    def kernel(self) -> str:
        return self.problem.kernel_name(self.batch)

    def plan(self, rounds: int) -> dict[str, str | float]:
        exchanged = [exchange for r in range(rounds) for exchange in self.exchanges(r)]
        return {
            "length of x, n": self.problem.n,
            "length of y": self.problem.n_lower,
            "clients, all of which take part": self.setting.m,
            "exchanges with each client, all rounds": len(exchanged),
            "bytes down, for each client, all rounds": sum(messages.size(each.message) for each in exchanged),
            "bytes up, for each client, all rounds": sum(messages.size(each.reply) for each in exchanged),
        }
