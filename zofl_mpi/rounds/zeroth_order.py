"""Penalised zeroth-order local steps of [B] Algorithms 1 and 2, their reports and --dry-run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import (
    Array,
    Client,
    Clients,
    Purpose,
    Setting,
    UserError,
    above,
    at_least,
    change,
    column,
    demand,
    flag_group,
)
from zofl_mpi.engine.fields import UsedWith
from zofl_mpi.numerics import sets as convex_sets
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.schedules import parse_decay, stepsize
from zofl_mpi.problems import Bilevel, Lipschitz
from zofl_mpi.rounds.base import (
    X0,
    ClientWeights,
    EstimatesCost,
    RoundCost,
    Sampling,
    draw_batches,
    eval_data,
    scaled_to_one,
    shaped,
)
from zofl_mpi.rounds.report import GlobalModel, HeldOut, all_scores, by_column


@dataclass(frozen=True)
class Stepped:
    """Client to server: the local iterate."""

    # (n,) x_i after the local steps
    x: Array = change("x_i is not finite after the local steps; a smaller --gamma may help", of="x")


@dataclass(frozen=True)
class FedRZOState:
    """State of the server of [B] Algorithms 1 and 2 between rounds."""

    x: Array = column("1", "the iterate")  # (n,)
    drawn: Array = column(  # (n,)
        "1", "uniformly drawn from the mean iterates of all rounds and local steps, the output of the theorems"
    )
    steps: int = column("1", "local iterations so far (k of the paper), of each client", 0)
    step_distance: float = column("1", "|x_{r+1} - x_r|", math.nan)


@final
@dataclass(frozen=True)
class Local:
    """Local steps x_i <- x_i - gamma (g_i + (x_i - P_{X_i}(x_i))/eta), then the mean of the x_i.

    Attributes:
        H: local steps of a round.
        K: total number of local iterations; Theorem 1 then sets gamma = sqrt(m/K) and H = ceil((K/m^3)^(1/4)). 0: use
            --gamma and --H.
        gamma: step size.
        schedule: schedule of the step size over rounds: constant, sqrt, harmonic[:OFFSET] or power:P.
        eta: smoothing radius; also the weight 1/eta of the distance to X_i.
        batch: samples of a local step, drawn with replacement; 0 for all of the client's.
        x_set: client sets X_i: problem (the problem's own), all, box:LOW:HIGH, ball:RADIUS[:CENTRE]; one, or one per
            client. They must have a common point; otherwise `set_distance` stays above 0.
        weights: weights of the clients in f and in the mean: uniform (the paper's) or size (|D_i|); a lower level is
            uniform.
        x0: first iterate: zero, random or auto (random if the problem requests it).
        probe: random directions per evaluation to estimate the gradient of the smoothed objective; 0: none.
    """

    USED_WITH: ClassVar[UsedWith] = {"H": {"K": (0,)}, "gamma": {"K": (0,)}}
    setting: Setting[Lipschitz] | Setting[Bilevel]
    H: int = at_least(1, 10, "a whole number of local steps")
    K: int = at_least(0, 0, "a whole number of iterations", "(0: as --H and --gamma say)")
    gamma: float = at_least(0, 1e-2, "a step size", paper=1e-5)
    schedule: str = "constant"
    eta: float = above(0, 0.1, "a smoothing radius")
    batch: int = at_least(0, 64, remark="(0: all samples)")
    x_set: tuple[str, ...] = ("problem",)
    weights: Literal["uniform", "size"] = "uniform"
    x0: X0 = "auto"
    probe: int = 0
    sets: Sequence[Any] = field(init=False, repr=False, compare=False)  # X_0, ..., X_{m-1}, each with `project(x)`

    def __post_init__(self) -> None:
        demand(self.probe == 0 or self.probe >= 3, "probe", self.probe, "a number of directions, at least 3, or 0")
        parse_decay(self.schedule, "--schedule")
        memory = self.setting.problem.client_memory
        demand(memory == "none", "client_memory", memory, "none: these clients take no backward pass")
        object.__setattr__(self, "sets", self._sets())

    def steps(self) -> int:
        """H; Theorem 1's if K is given."""
        return theorem1(self.K, self.setting.m)[0] if self.K else self.H

    def stepsize(self, r: int) -> float:
        """gamma of round r; Theorem 1's if K is given."""
        return theorem1(self.K, self.setting.m)[1] if self.K else stepsize(self.schedule, self.gamma, r)

    def client_weights(self) -> Mapping[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return ClientWeights(self.setting, self.weights)

    def _sets(self) -> Sequence[Any]:
        """X_0, ..., X_{m-1}, each with `project(x)`; UserError if they have no common point."""
        setting, own = self.setting, tuple(self.x_set) == ("problem",)
        gamma, bounded = self.stepsize(0), not own or setting.problem.constrained
        if bounded and not gamma < 2 * self.eta:
            must = f"with sets it must be below 2 eta = {2 * self.eta:g}"
            why = "a step moves x by gamma/eta times its distance to X_i"
            raise UserError(f"--gamma {gamma:g}: {must}: {why}; a larger --eta or a smaller --gamma")
        if own:
            return [SimpleNamespace(project=partial(setting.problem.project, i)) for i in range(setting.m)]
        return convex_sets.parse_all(self.x_set, setting.problem.n, setting.m)

    def batches(self, client: Client, size: int, r: int) -> Any:
        """(H, B) positions of round r's local steps, or None for each step: all samples."""
        return draw_batches(self.setting.streams(Purpose.BATCH, r=r, i=client.i), size, self.steps(), self.batch)

    def pull(self, x: Array, convex: Any) -> NDArray[np.float64]:
        """(n,) (x - P(x))/eta, the gradient of dist^2(x)/(2 eta)."""
        projected = shaped(convex.project(x), x.shape, "project(i, x)")
        return np.asarray(np.subtract(x, projected, dtype=np.float64) / self.eta)

    def descend(self, x: Array, r: int, i: int, estimate: Callable[[Array, int], Array], steps: int) -> Array:
        """(n,) x_i after the first of client i's local steps from x, along estimate(x, k) in step k."""
        gamma, convex = self.stepsize(r), self.sets[i]
        for k in range(steps):
            x = (x - gamma * (estimate(x, k) + self.pull(x, convex))).astype(self.setting.dtype)
        return x

    def drawn_step(self, before: int, r: int) -> int | None:
        """Reservoir sampling: the local step, 0..H-1, with the newly drawn mean iterate; None: the earlier draw stays.

        A new one is drawn with probability H/(steps so far and now): all iterates so far have equal chances.
        """
        H = self.steps()
        place = int(self.setting.streams(Purpose.OUTPUT, r=r).integers(before + H))
        return place if place < H else None

    def round_cost(self, participants: Callable[[int], Sequence[int]], points: int) -> RoundCost:
        """Cost model of a round with loss evaluations at `points` points per local step."""
        x, H = np.zeros(self.setting.problem.n, self.setting.dtype), self.steps()
        return RoundCost(participants, lambda i, r: H, self.batch, GlobalModel(x, 0), Stepped(x), points=points)


def theorem1(K: int, m: int) -> tuple[int, float]:
    """H = ceil((K/m^3)^(1/4)) and gamma = sqrt(m/K), of [B] Theorem 1, for K local iterations of m clients."""
    return max(1, math.ceil((K / m**3) ** 0.25 - 1e-9)), math.sqrt(m / K)


def finite_losses(values: Array, k: int) -> NDArray[np.float64]:
    """(k,) the values of f_i at k points; UserError if one is not finite."""
    F = np.asarray(shaped(values, (k,), f"losses at {k} points"), np.float64)
    if not np.isfinite(F).all():
        raise UserError("f_i is not finite at the points of the estimate; a smaller --gamma may help")
    return F


@dataclass(frozen=True)
class Probe:
    """Client to server at an evaluation: the loss, and its differences along the report's directions."""

    loss: float  # f_i on all of the client's samples
    differences: Array  # (N,) f_i(x + eta v_j) - f_i(x - eta v_j), all samples


@dataclass(frozen=True, kw_only=True)
class FedRZOReport(HeldOut):
    """Columns of an evaluation; None if the problem or the method does not provide the value."""

    objective: float = column("1", "f(x) = sum_i w_i f_i(x) on all of the clients' samples")
    set_distance: float = column("1", "largest distance of x to one of the sets X_i")
    gradient_squared: float = column(
        "1", "estimate of |grad f^eta(x) + sum_i w_i (x - P_{X_i}(x))/eta|^2, unbiased, so it may be below 0"
    )
    gradient_squared_error: float = column("1", "its standard error")
    test_smooth_loss: float | None = column(
        "nat", "test_loss of the smooth twin; test_loss itself is the nonsmooth one", None
    )
    test_worst_class_loss: float | None = column(
        "nat", "largest mean loss of x over the test samples of one class, in the problem's own unit", None
    )
    test_worst_class_accuracy: float | None = column(
        "1", "least share of the test samples of one class that x classifies correctly", None
    )
    objective_exact: float | None = column("1", "f(x, y(x)) with the exact y(x); nan without --exact", None)
    lower_error: float | None = column(
        "1", "|y - y(x)| of the call that an evaluation makes; nan without --exact", None
    )
    lower_residual: float | None = column(
        "1", "|(1/m) sum_i grad_y h_i(x, y)| on all samples, y of that call; with Y(x), |y - P(y - grad)|", None
    )


def directions(local: Local, r: int) -> Array:
    """(N, n) the directions of the report after round r."""
    setting, n = local.setting, local.setting.problem.n
    generator = setting.streams(Purpose.PROBE, r=r)
    drawn = [zo.direction(generator, n, setting.dtype) for _ in range(local.probe)]
    return np.stack(drawn) if drawn else np.empty((0, n), setting.dtype)


def report(local: Local, x: Array, r: int, differences: Array, scores: Mapping[str, Any]) -> FedRZOReport:
    """The report on the iterate x (n,) after round r.

    From (N,) central differences of f along `directions`, and scores by column; `further`: columns of a subclass.
    """
    shares = local.client_weights()
    pull = sum((shares[i] * local.pull(x, own) for i, own in enumerate(local.sets)), np.zeros(len(x)))
    g = (len(x) / (2 * local.eta) * differences)[:, None] * directions(local, r).astype(np.float64)
    squared = zo.gradient_squared(g, pull)
    return FedRZOReport(
        set_distance=max(local.eta * float(np.linalg.norm(local.pull(x, own))) for own in local.sets),
        gradient_squared=squared.value,
        gradient_squared_error=squared.error,
        **by_column(FedRZOReport, scores),
    )


def schedule_lines(local: Local, theory: str) -> dict[str, str | float]:
    """Lines of --dry-run on the local steps: their schedule, and a theorem's bounds on gamma if L_0 is known.

    B_2 of Proposition 1 says how the X_i differ (Assumption 1); Theorem 1's first bound hides unknown constants.
    """
    problem, eta, H = local.setting.problem, local.eta, local.steps()
    L = math.nan if problem.lipschitz is None else problem.lipschitz * problem.n
    bounds = {
        "Proposition 1": {
            "1/(4H)": 1 / (4 * H),
            "eta/(4 L_0 n)": eta / (4 * L),
            "eta/(12 sqrt(3) B_2 (L_0 n + 1) H), B_2 = 1": eta / (12 * math.sqrt(3) * (L + 1) * H),
        },
        "Theorem 1": {"1/(8H)": 1 / (8 * H), "eta/(24 (L_0 n + 1))": eta / (24 * (L + 1))},
    }[theory]
    known = {formula: bound for formula, bound in bounds.items() if not math.isnan(bound)}
    return {
        "local steps of a round, H": H,
        "step size of round 0, gamma": local.stepsize(0),
        **{f"{theory} asks for gamma at most {formula}": bound for formula, bound in known.items()},
        **({"rounds that K takes": math.ceil(local.K / H)} if local.K else {}),
    }


@dataclass(frozen=True)
class LipschitzReports(EstimatesCost[Lipschitz]):
    """Base of Algorithm 1: its report and --dry-run. The paper's participants are all clients."""

    computes: ClassVar[str] = "values of its loss"
    travels: ClassVar[str] = "x down, a local model up"
    needs: ClassVar[type] = Lipschitz
    local: Local = flag_group()
    sampling: Sampling = flag_group()

    def evaluate(self, state: Any, r: int, clients: Clients) -> FedRZOReport:
        x = state.x
        replies = clients.ask(self.probe, GlobalModel(x, r), to=self.setting.eval_participants(r), counted=False)
        scores = all_scores(self.setting, x)  # while the clients compute
        probes = dict(replies)
        shares = scaled_to_one(self.local.client_weights(), probes)
        differences = sum((shares[i] * p.differences for i, p in probes.items()), np.zeros(self.local.probe))
        objective = math.fsum(shares[i] * p.loss for i, p in probes.items())
        return report(self.local, x, r, differences, scores | {"objective": objective, "clients_asked": len(probes)})

    def probe(self, client: Client, message: GlobalModel) -> Probe:
        """Measure f_i at x and at both ends of each direction."""
        x, v = message.x, directions(self.local, message.r)
        step = x.dtype.type(self.local.eta) * v
        points = np.concatenate([x[None], x + step, x - step])
        k, data = len(points), eval_data(self.setting, client.data, client.i)
        F = shaped(self.problem.losses(client.i, points, data), (k,), f"losses at {k} points")
        return Probe(float(F[0]), np.asarray(F[1 : 1 + len(v)] - F[1 + len(v) :], np.float64))

    def plan(self, rounds: int) -> dict[str, str | float]:
        return super().plan(rounds) | schedule_lines(self.local, "Proposition 1")
