"""Federated solvers of [B]'s lower level: y(x) = argmin_y (1/m) sum_i h_i(x, y) at a fixed x.

Local SGD (FedAvg): [B] Algorithm 3. FedAC: Yuan, Ma, "Federated Accelerated Stochastic Gradient Descent", NeurIPS 2020.
LFD, local descent with decreasing steps: Haddadpour, Mahdavi, "On the Convergence of Local Descent Methods in Federated
Learning", 2019. With several local steps between averagings the first two are exact for equal h_i only: else they end
at the mean of the clients' own minimisers, which is not y(x).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np

from zofl_mpi import Array, Client, Clients, Purpose, Setting, Step, UserError, at_least, demand, finite
from zofl_mpi.engine.fields import UsedWith
from zofl_mpi.errors import warn
from zofl_mpi.numerics.descent import Gradient, Projection, descend
from zofl_mpi.problems import Bilevel
from zofl_mpi.rounds.base import draw_batches, shaped

GROWTH = 4  # a run warns beyond this multiple of the local steps that x_0's curvature needs
_warned: list[bool] = []


@dataclass(frozen=True)
class Iterate:
    """Server to client, once a communication round of the lower level, and to measure its residual."""

    w: Array  # (s, n_lower) s = 1: y; s = 2 (FedAC): w and its aggregate w_ag
    shifted: int  # 1: the call at x + eta v; 0: that at x
    t: int  # the communication round within the call


@dataclass(frozen=True)
class Moved:
    """Client to server: the iterate after the client's local steps."""

    # (s, n_lower)
    w: Array = finite("the lower level's iterate is not finite; a smaller --gamma-lower or --gamma may help")


@final
@dataclass(frozen=True)
class LowerSchedule:
    """Step schedule of one call, a function of x and r and hence known to every rank."""

    T: int  # total local steps
    H: int  # local steps between two averagings; the last group may be shorter
    gamma: float  # step size (LFD: c of c / (t + offset))
    offset: float = 0.0  # LFD's
    acceleration: tuple[float, float, float] | None = None  # FedAC's (alpha, beta, gamma_l)
    condition: float = 1.0  # L_h/mu_h at the call's x

    @property
    def rounds(self) -> int:
        """Communication rounds."""
        return -(-self.T // self.H) if self.T else 0

    def steps(self, t: int) -> int:
        """Local steps of communication round t."""
        return min(self.H, self.T - t * self.H)

    def stepsize(self, k: int) -> float:
        """Step size of step k = 0, ..., T - 1 of the call."""
        return self.gamma / (k + self.offset) if self.offset else self.gamma


@final
@dataclass(frozen=True)
class LowerSolver:
    """Solver of the lower level, an approximation of y(x).

    Attributes:
        lower: solver: local_sgd ([B] Algorithm 3), fedac1, fedac2 (FedAC-I, II), lfd, or exact (the problem's own
            solution).
        T_lower: local steps of a solver call: a whole number; alg3 ([B] Algorithm 3: 2 a ln a with
            a = max(m, 4 L_h/mu_h, r) + 1 in round r, for h_i of curvature between mu_h and L_h); thm1
            (L_h/mu_h (r+1)^(2/3) ln(r+2)/m, of the order of [B] Theorem 1); or auto (alg3; for fedac1 and fedac2 as
            many as reach its accuracy).
        H_lower: local steps between averagings: a whole number; paper ([B]: T/m, for fedac1 and fedac2 T/m^(1/3), for
            lfd T^(2/3)/m^(1/3)); or auto (paper if all clients have the same h_i, else 1).
        gamma_lower: step size of the lower level; 0: from the solver's theory, by mu_h and L_h. Local SGD then has
            Algorithm 3's 1/(mu_h a), or min(1/L_h, 2 ln(T + 1)/(mu_h T)) if --T-lower is a number.
        batch_lower: samples of a local step, drawn with replacement, the same for both calls; 0 for all of them.
        y0: start of both calls: last (y of the round before, at its x) or fixed (the problem's first y).
    """

    USED_WITH: ClassVar[UsedWith] = {
        name: {"lower": ("local_sgd", "fedac1", "fedac2", "lfd")}
        for name in ("T_lower", "H_lower", "gamma_lower", "y0")
    }
    setting: Setting[Bilevel]
    lower: Literal["local_sgd", "fedac1", "fedac2", "lfd", "exact"] = "local_sgd"
    T_lower: str = "auto"
    H_lower: str = "auto"
    gamma_lower: float = at_least(0, 0.0, "a step size")
    batch_lower: int = at_least(0, 64, remark="(0: all samples)")
    y0: Literal["last", "fixed"] = "last"

    def __post_init__(self) -> None:
        T, H = ("T_lower", self.T_lower, ("auto", "alg3", "thm1"), 0), ("H_lower", self.H_lower, ("auto", "paper"), 1)
        for flag, text, words, least in (T, H):
            is_number = text.isdecimal() and int(text) >= least
            demand(text in words or is_number, flag, text, f"{', '.join(words)} or a whole number")

    @property
    def sequences(self) -> int:
        """Number of vectors in each message, s."""
        return 2 if self.lower.startswith("fedac") else 1

    def schedule(self, x: Array, r: int) -> LowerSchedule:
        """Schedule of a solve at x (n,) in round r; UserError if h is not strongly convex there."""
        if self.lower == "exact":
            return LowerSchedule(0, 1, 0.0)
        mu, L = map(float, shaped(self.setting.problem.curvature(x), (2,), "curvature(x)"))
        if not 0 < mu <= L < math.inf:
            found = f"the lower level has mu_h = {mu:g}, L_h = {L:g}"
            raise UserError(f"{found}; the solvers need 0 < mu_h <= L_h: move x or regularise the lower level")
        kappa = L / mu
        T = self._local_steps(kappa, r)
        H = self._interval(T)
        if self.lower == "lfd":
            return LowerSchedule(T, H, self.gamma_lower or 4 / mu, offset=max(H + 4, 4 * kappa), condition=kappa)
        if self.sequences == 2:
            gamma = self.gamma_lower or 1 / L
            return LowerSchedule(T, H, gamma, acceleration=acceleration(self.lower, gamma, mu, L, H), condition=kappa)
        if self.T_lower in ("auto", "alg3"):
            return LowerSchedule(T, H, self.gamma_lower or 1 / (mu * self._a(kappa, r)), condition=kappa)
        gamma = self.gamma_lower or min(1 / L, 2 * math.log(T + 1) / (mu * max(T, 1)))
        return LowerSchedule(T, H, gamma, condition=kappa)

    def _a(self, kappa: float, r: int) -> float:
        """Algorithm 3's a = max(m, 4 L_h/mu_h, r) + 1."""
        return max(self.setting.m, 4 * kappa, r) + 1

    def _local_steps(self, kappa: float, r: int) -> int:
        """T. FedAC's auto contracts by about a^-2, as Algorithm 3 does; a step by 1 - 1/min(kappa, sqrt(kappa H))."""
        a = self._a(kappa, r)
        if self.T_lower.isdecimal():
            return int(self.T_lower)
        if self.T_lower == "thm1":  # the theorem has the order, up to logarithms; the constant is our choice
            return math.ceil(kappa * float((r + 1) ** (2 / 3)) * math.log(r + 2) / self.setting.m)
        if self.T_lower == "auto" and self.sequences == 2:
            T, enough = 0, math.ceil(2 * math.sqrt(kappa) * math.log(a))
            while enough > T:  # H grows with T
                T, H = enough, self._interval(enough)
                enough = math.ceil(2 * math.log(a) * min(kappa, math.sqrt(kappa * H)))
            return T
        return math.ceil(2 * a * math.log(a))

    def _interval(self, T: int) -> int:
        """H, by [B] T/m for Local SGD, T/m^(1/3) for FedAC, T^(2/3)/m^(1/3) for LFD; 1 for unequal h_i by default."""
        if self.H_lower.isdecimal():
            return int(self.H_lower)
        if self.H_lower == "auto" and not self.setting.problem.homogeneous:
            return 1
        m = self.setting.m
        cube = float(m ** (1 / 3))
        paper = {"local_sgd": T / m, "lfd": float(T ** (2 / 3)) / cube}.get(self.lower, T / cube)
        return max(1, math.ceil(paper - 1e-9))  # 27 / 27^(1/3) must be 9 although 27^(1/3) is not quite 3

    # --- the server

    def watch_growth(self, first: LowerSchedule, now: LowerSchedule, r: int) -> None:
        """Warn, once per process, if a worse L_h/mu_h than at x_0 (not round r + 1 alone) increases T.

        `first` and `now` are the schedules of a call at x_0 and of one in this round.
        """
        usual = self._local_steps(first.condition, r)
        if GROWTH * usual >= now.T or _warned:
            return
        _warned.append(True)
        warn(
            f"at x of round {r + 1} the lower level has L_h/mu_h = {now.condition:.3g}, at x_0 {first.condition:.3g}: "
            f"--T-lower {self.T_lower} takes {now.T} local steps a call now, not {usual}, and more if x goes on that "
            "way; a whole number there limits them"
        )

    def solve(
        self, clients: Clients, step: Step, x: Array, y: Array, r: int, *, shifted: bool = False, counted: bool = True
    ) -> tuple[Array, LowerSchedule]:
        """(n_lower,) approximate y(x) from y, and the call's schedule; `step` calls `local` on each client."""
        schedule = self.schedule(x, r)
        if self.lower == "exact":
            return self.exact(x), schedule
        w = np.repeat(y[None], self.sequences, axis=0)
        for t in range(schedule.rounds):
            w = clients.mean(step, Iterate(w, int(shifted), t), counted=counted).w
        return w[-1], schedule

    def exact(self, x: Array) -> Array:
        """(n_lower,) the problem's exact y(x), from all clients' data at once; UserError if it provides none."""
        solve = self.setting.problem.solution
        solution = None if solve is None else solve(x, self.setting.data)
        if solution is None:
            unknown = "this problem does not know its lower solution"
            raise UserError(f"--lower exact: {unknown}; take local_sgd, fedac1 or lfd")
        return np.asarray(shaped(solution, (self.setting.problem.n_lower,), "solution(x, data)"), self.setting.dtype)

    # --- a client

    def local(self, client: Client, data: Any, x: Array, r: int, schedule: LowerSchedule, message: Iterate) -> Moved:
        """A client's local steps between two averagings of a call at x (n,), on `data`, its lower-level samples."""
        problem = self.setting.problem
        steps, first = schedule.steps(message.t), message.t * schedule.H
        # the call is no part of the key: both calls see the same samples
        generator = self.setting.streams(Purpose.LOWER_BATCH, r=r, i=client.i, t=message.t)
        batches = draw_batches(generator, len(data), steps, self.batch_lower)
        project = problem.project_lower or (lambda x, y: y)
        dtype = message.w.dtype

        def gradient(y: Array, k: int) -> Array:
            g = problem.gradient_h(client.i, x, y, data, batches[k])
            return np.asarray(shaped(g, y.shape, "gradient_h(i, x, y, data, batch)"), dtype)

        def settle(y: Array) -> Array:
            return np.asarray(shaped(project(x, y), y.shape, "project_lower(x, y)"), dtype)

        if schedule.acceleration is not None:
            return Moved(_accelerated(message.w, gradient, settle, steps, (schedule.gamma, *schedule.acceleration)))
        sizes = [schedule.stepsize(first + k) for k in range(steps)]
        return Moved(descend(message.w[0], gradient, steps=steps, stepsize=sizes.__getitem__, project=settle)[None])


def acceleration(which: str, gamma: float, mu: float, L: float, H: int) -> tuple[float, float, float]:
    """FedAC's (alpha, beta, gamma_l) for its step size eta_l = gamma and H local steps between averagings.

    beta of FedAC-II is the paper's, (2 alpha^2 - 1)/(alpha - 1); the authors' code has 2 alpha^2 / (alpha - 1).
    """
    if not gamma <= 1 / L * (1 + 1e-12):
        raise UserError(f"--gamma-lower {gamma:g}: FedAC needs at most 1/L_h = {1 / L:g}")
    gamma_l = max(math.sqrt(gamma / (mu * H)), gamma)
    product = min(gamma_l * mu, 1.0)  # at most 1, as gamma <= 1/L; rounding aside
    if which == "fedac1":
        alpha = 1 / product
        return alpha, alpha + 1, gamma_l
    alpha = 3 / (2 * product) - 1 / 2
    if not alpha > 1 + 1e-12:
        must = f"gamma_l mu_h = {product:g}, it must be below 1 (alpha = {alpha:g} must exceed 1)"
        raise UserError(f"--lower fedac2: {must}: take --lower fedac1 or a smaller --gamma-lower")
    return alpha, (2 * alpha**2 - 1) / (alpha - 1), gamma_l


def _accelerated(w: Array, gradient: Gradient, project: Projection, steps: int, sizes: tuple[float, ...]) -> Array:
    """(2, n_lower) FedAC's w and w_ag after the steps. If Y(x) is a set, both are projected: our addition."""
    (y, aggregate), (gamma, alpha, beta, gamma_l) = w, sizes
    for k in range(steps):
        middle = y / beta + (1 - 1 / beta) * aggregate
        g = gradient(middle, k)
        aggregate = project(middle - gamma * g)
        y = project((1 - 1 / alpha) * y + middle / alpha - gamma_l * g)
    return np.stack([y, aggregate])
