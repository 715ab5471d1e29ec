"""What [B] Algorithms 1 and 2 share: penalised zeroth-order local steps, their theory's schedules, reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.fields import column
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics import sets as convex_sets
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.descent import descend
from zofl_mpi.numerics.schedules import parse_decay, stepsize
from zofl_mpi.numerics.stationarity import gradient_squared
from zofl_mpi.problems import Bilevel, Lipschitz, optional
from zofl_mpi.rounds.start import Start, shares, step_samples

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Model:
    """Server to client. No direction travels: all ends draw them from (DIRECTION, r, i)."""

    x: Array  # (n,) x_r
    r: int  # the round


@final
@dataclass(frozen=True)
class Stepped:
    """Client to server: the local iterate."""

    x: Array  # (n,) x_i after the local steps


@final
@dataclass(frozen=True)
class Report:
    """What an evaluation tells; None where the problem or the method has no such thing."""

    objective: float = column("1", "f(x) = sum_i w_i f_i(x) on all of the clients' samples")
    test_loss: float = column("nat", "mean loss of x on the test samples, in the problem's own unit")
    test_accuracy: float = column("1", "share of test samples that x classifies correctly")
    clients_asked: int = column("1", "clients that this evaluation asked; means and sums over clients are over these")
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
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    objective_exact: float | None = column("1", "f(x, y(x)) with the exact y(x); nan without --exact", None)
    lower_error: float | None = column(
        "1", "|y - y(x)| of the call that an evaluation makes; nan without --exact", None
    )
    further: Mapping[str, float] = field(default_factory=dict)  # other scores of a problem of a user's own


@final
@dataclass(frozen=True)
class Local:
    """Local steps x_i <- x_i - gamma (g_i + (x_i - P_{X_i}(x_i))/eta), then the mean of the x_i.

    Attributes:
        setting: problem, data and random numbers.
        H: local steps of a round.
        K: local iterations in all, of which Theorem 1 makes gamma = sqrt(m/K) and H = ceil((K/m^3)^(1/4)); 0: as given.
        gamma: step size.
        schedule: of the step size over rounds: constant, sqrt, harmonic[:OFFSET] or power:P.
        eta: smoothing radius; also the weight 1/eta of the distance to X_i.
        batch: samples of a local step, drawn with replacement; 0 for all of the client's.
        x_set: X_i: problem (the problem's own), all, box:LOW:HIGH, ball:RADIUS[:CENTRE], half-space:OFFSET[:NORMAL],
            simplex[:TOTAL]; one, or one per client.
        weights: of the clients in f and in the mean: uniform (the paper's) or size (|D_i|); a lower level is uniform.
        x0: first iterate: zero, random or auto (random where the problem says so).
        probe: random directions at each evaluation for the estimate of the gradient of the smoothed objective; 0: none.
    """

    setting: Setting[Lipschitz] | Setting[Bilevel]
    H: int = 10
    K: int = 0
    gamma: float = 1e-5
    schedule: str = "constant"
    eta: float = 0.1
    batch: int = 64
    x_set: tuple[str, ...] = ("problem",)
    weights: Literal["uniform", "size"] = "uniform"
    x0: Literal["auto", "zero", "random"] = "auto"
    probe: int = 0
    sets: Sequence[Any] = field(init=False, repr=False, compare=False)  # X_0, ..., X_{m-1}, each with `project(x)`

    def __post_init__(self) -> None:
        demand(self.H >= 1, "H", self.H, "a whole number of local steps, at least 1")
        demand(self.K >= 0, "K", self.K, "a whole number of iterations, at least 1, or 0")
        demand(0 <= self.gamma < math.inf, "gamma", self.gamma, "a step size, at least 0")
        demand(0 < self.eta < math.inf, "eta", self.eta, "a smoothing radius above 0")
        demand(self.batch >= 0, "batch", self.batch, "a whole number, at least 0 (0: all samples)")
        demand(self.probe == 0 or self.probe >= 3, "probe", self.probe, "a number of directions, at least 3, or 0")
        parse_decay(self.schedule, "--schedule")
        object.__setattr__(self, "sets", self._sets())

    def steps(self) -> int:
        """H; Theorem 1's where K is given."""
        return theorem1(self.K, self.setting.m)[0] if self.K else self.H

    def stepsize(self, r: int) -> float:
        """gamma of round r; Theorem 1's where K is given."""
        return theorem1(self.K, self.setting.m)[1] if self.K else stepsize(self.schedule, self.gamma, r)

    def start(self) -> Array:
        """(n,) x_0."""
        return Start(self.setting, self.x0).point(1)

    def loads(self) -> Loads:
        """Samples that each client looks at in the local steps."""
        return Loads([self.steps() * samples for samples in step_samples(self.setting, self.batch)])

    def shares(self) -> dict[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return shares(self.setting, self.weights)

    def _sets(self) -> Sequence[Any]:
        """X_0, ..., X_{m-1}, each with `project(x)`.

        Raises:
            UserError: a description of no convex set, or sets without a common point.
        """
        setting, own = self.setting, tuple(self.x_set) == ("problem",)
        gamma, bounded = self.stepsize(0), not own or optional.constrained(setting.problem)
        if bounded and not gamma < 2 * self.eta:
            raise UserError(
                f"--gamma {gamma:g}: with sets it must be below 2 eta = {2 * self.eta:g}: a step moves x by gamma/eta "
                "times its distance to X_i; a larger --eta or a smaller --gamma"
            )
        if own:
            return [_Own(setting.problem, i) for i in range(setting.m)]
        found = convex_sets.parse_all(self.x_set, setting.problem.n, setting.m, "--x-set")
        convex_sets.common_point(found, setting.problem.n)
        return found

    def batches(self, client: Client, size: int, r: int) -> Any:
        """(H, B) positions of round r's local steps, or None for each: all samples."""
        H = self.steps()
        if self.batch == 0:
            return [None] * H
        return self.setting.streams(Purpose.BATCH, r=r, i=client.i).integers(size, size=(H, self.batch))

    def pull(self, x: Array, convex: Any) -> NDArray[np.float64]:
        """(n,) (x - P(x))/eta, the gradient of dist^2(x)/(2 eta)."""
        return np.asarray(np.subtract(x, convex.project(x), dtype=np.float64) / self.eta)

    def descend(
        self, x: Array, r: int, i: int, estimate: Callable[[Array, int], Array], steps: int | None = None
    ) -> Array:
        """(n,) x_i after client i's local steps (`steps` of them, else all) from x.

        Args:
            estimate: (x, k) -> (n,) the zeroth-order estimate at x in step k.

        Raises:
            UserError: it is not finite.
        """
        gamma, convex = self.stepsize(r), self.sets[i]
        with np.errstate(over="ignore", invalid="ignore"):  # told in a sentence of its own
            y = descend(
                x,
                lambda x, k: estimate(x, k) + self.pull(x, convex),
                steps=self.steps() if steps is None else steps,
                stepsize=lambda k: gamma,
                project=lambda x: x.astype(self.setting.dtype),
            )
        if not np.isfinite(y).all():
            raise UserError("x_i is not finite after the local steps; a smaller --gamma may help")
        return y

    def keeps(self, before: int, r: int) -> int | None:
        """Reservoir sampling: the iterate of this round, 0..H-1, that replaces the kept one; None: that stays.

        It is replaced with probability H/(steps so far and now), so each iterate of the run so far is the one with the
        same probability, whenever the run ends.
        """
        H = self.steps()
        place = int(self.setting.streams(Purpose.OUTPUT, r=r).integers(before + H))
        return place if place < H else None

    def directions(self, r: int) -> Array:
        """(N, n) the directions of the report after round r."""
        setting, n = self.setting, self.setting.problem.n
        generator = setting.streams(Purpose.PROBE, r=r)
        directions = [zo.direction(generator, n, setting.dtype) for _ in range(self.probe)]
        return np.stack(directions) if directions else np.empty((0, n), setting.dtype)

    def report(
        self,
        x: Array,
        r: int,
        objective: float,
        differences: Array,
        scores: dict[str, float],
        asked: int,
        **further: float,
    ) -> Report:
        """The report on the iterate x (n,) after round r.

        Args:
            differences: (N,) central differences of f along `directions`.
            scores: of x, by column; all others than the report's own are its `further`.
            asked: clients that the objective and the differences are means of.
            further: columns on the lower level.
        """
        shares = self.shares()
        pull = sum((shares[i] * self.pull(x, own) for i, own in enumerate(self.sets)), np.zeros(len(x)))
        g = (len(x) / (2 * self.eta) * differences)[:, None] * self.directions(r).astype(np.float64)
        squared = gradient_squared(g, pull)
        known = {name: scores.pop(name) for name in list(scores) if name in Report.__dataclass_fields__}
        return Report(
            objective=objective,
            clients_asked=asked,
            set_distance=max(self.eta * float(np.linalg.norm(self.pull(x, own))) for own in self.sets),
            gradient_squared=squared.value,
            gradient_squared_error=squared.error,
            further=scores,
            **known,
            **further,
        )

    def plan(self, theory: str, bounds: Mapping[str, float]) -> dict[str, str | float]:
        """The lines of --dry-run on the local steps: the schedule, and the bounds that the theory puts on gamma.

        Args:
            theory: "Proposition 1" or "Theorem 1".
            bounds: {formula: bound}, as far as the problem knows their constants.
        """
        H = self.steps()
        lines: dict[str, str | float] = {
            "kernel": self.kernel,
            "local steps of a round, H": H,
            "step size of round 0, gamma": self.stepsize(0),
        }
        lines |= {f"{theory} asks for gamma at most {formula}": bound for formula, bound in bounds.items()}
        if self.K:
            lines["rounds that K takes"] = math.ceil(self.K / H)
        return lines

    def proposition1(self) -> dict[str, float]:
        """{formula: bound} on gamma of [B] Proposition 1; B_2 of its third says how the X_i differ (Assumption 1)."""
        L0, n, H = optional.lipschitz(self.setting.problem), self.setting.problem.n, self.steps()
        bounds = {"1/(4H)": 1 / (4 * H)}
        if L0 is not None:
            bounds["eta/(4 L_0 n)"] = self.eta / (4 * L0 * n)
            third = self.eta / (12 * math.sqrt(3) * (L0 * n + 1) * H)
            bounds["eta/(12 sqrt(3) B_2 (L_0 n + 1) H), B_2 = 1"] = third
        return bounds

    def theorem1(self) -> dict[str, float]:
        """{formula: bound} on gamma of [B] Theorem 1; its first has a maximum of 2 and constants that nobody knows."""
        L0, n, H = optional.lipschitz(self.setting.problem), self.setting.problem.n, self.steps()
        bounds = {"1/(8H)": 1 / (8 * H)}
        if L0 is not None:
            bounds["eta/(24 (L_0 n + 1))"] = self.eta / (24 * (L0 * n + 1))
        return bounds

    @property
    def kernel(self) -> str:
        """What computes the losses; "own" where the problem does not say."""
        return optional.kernel_name(self.setting.problem, self.size())

    def flops(self) -> float:
        """FLOPs of a mini-batch's loss at one point; nan where the problem does not say."""
        return optional.flops_evaluation(self.setting.problem, self.size())

    def size(self) -> int:
        """Samples of a local step."""
        return self.batch or max(len(data) for data in self.setting.data)


@final
@dataclass(frozen=True)
class _Own:
    """X_i as the problem has it."""

    problem: Any
    i: int

    def project(self, x: Array) -> Array:
        return cast(Array, self.problem.project(self.i, x))


def theorem1(K: int, m: int) -> tuple[int, float]:
    """H = ceil((K/m^3)^(1/4)) and gamma = sqrt(m/K), of [B] Theorem 1, for K local iterations of m clients."""
    return max(1, math.ceil((K / m**3) ** 0.25 - 1e-9)), math.sqrt(m / K)


def finite(F: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(k,) the values of f_i at k points, if that is what they are.

    Raises:
        TypeError: another shape.
        UserError: not all are finite.
    """
    if F.shape != (k,):
        raise TypeError(f"the problem's losses at {k} points have the shape {F.shape}; it must be ({k},)")
    if not np.isfinite(F).all():
        raise UserError("f_i is not finite at the points of the estimate; a smaller --gamma may help")
    return F
