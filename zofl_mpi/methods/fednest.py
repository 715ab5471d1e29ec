"""FedNest: federated bilevel and minimax optimisation by hypergradients.

Tarzanagh, Li, Thrampoulidis, Oymak, "FedNest: Federated Bilevel, Minimax, and Compositional Optimization", ICML 2022,
Algorithms 1 to 4. With w = (grad_yy h)^{-1} grad_y f at (x, y(x)) the implicit function has the gradient
grad_x f - grad_xy h w; w is made of a Neumann series, a product with the clients' second derivatives in each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.descent import descend
from zofl_mpi.problems import SecondOrder, optional
from zofl_mpi.rounds.report import Model, held_out
from zofl_mpi.rounds.start import among, step_samples

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Inner:
    """Server to client: a point of the lower level, and the mean gradient there once it is known."""

    y: Array  # (n_lower,)
    q: Array  # (n_lower,) empty where it is asked for
    t: int  # which inner round


@final
@dataclass(frozen=True)
class Vector:
    """Client to server, and back: (n_lower,) or (n,)."""

    v: Array


@final
@dataclass(frozen=True)
class Product:
    """Server to client: what the client's second derivatives are to be multiplied with."""

    y: Array  # (n_lower,) empty after the first one
    p: Array  # (n_lower,) empty for the first one: the gradient of f in y is asked for
    t: int  # which term


@final
@dataclass(frozen=True)
class Empty:
    """Client to server: an empty acknowledgement."""


@final
@dataclass(frozen=True)
class Pair:
    """Server to client at an evaluation: where f_i is wanted."""

    x: Array  # (k, n)
    y: Array  # (k, n_lower)


@final
@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    x: Array = column("1", "the iterate")  # (n,)
    y: Array = column("1", "the lower level's iterate")  # (n_lower,)
    hypergradient_norm: float = column("1", "norm of the mean of the clients' hypergradients in this round", math.nan)
    communications: int = column("1", "exchanges between server and clients in this round", 0)
    gradients: int = column(
        "1", "gradients and products with second derivatives of a mini-batch in this round, of each client", 0
    )


@final
@dataclass(frozen=True)
class Report:
    """What an evaluation tells; None where the problem has no such thing."""

    objective: float = column("1", "f(x, y) = (1/m) sum_i f_i at the iterates, on all of the clients' samples")
    test_loss: float = column("nat", "mean loss of (x, y) on the test samples, in the problem's own unit")
    test_accuracy: float = column("1", "share of test samples that is classified correctly")
    clients_asked: int = column("1", "clients that this evaluation asked; means over clients are over these")
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    objective_exact: float | None = column("1", "f(x, y(x)) with the exact y(x)", None)
    lower_error: float | None = column("1", "|y - y(x)|", None)


@final
@dataclass(frozen=True)
class FedNest:
    """Each round T inner rounds (FedInn), a Neumann series (FedIHGP), and an outer one (FedOut).

    The local steps are corrected as in SVRG: q_i(y') - q_i(y) + mean of the q_j(y), and likewise outside, where the
    indirect part of the hypergradient is kept as it was at x (the paper's FedOut). Constraints on x are ours: the mean
    is projected where the problem has sets X_i that are all alike.

    Attributes:
        setting: problem, data and random numbers.
        gamma: alpha of the paper, outer step size; each of H local steps is gamma/H.
        H: local steps of an outer round.
        gamma_lower: beta of the paper, inner step size; 0 for 1/L_h.
        H_lower: local steps of an inner round, of gamma_lower/H_lower each.
        T: inner rounds.
        N: terms of the Neumann series.
        series: all N terms (sum), or the paper's random number of products, below N, times N/L_h (random).
        batch: samples of a gradient of f_i, drawn with replacement; 0 for all.
        batch_lower: samples of a derivative of h_i, drawn with replacement; 0 for all.
        exact: at each evaluation also solve the lower level exactly, where the problem can.
    """

    needs: ClassVar[type] = SecondOrder
    setting: Setting[SecondOrder]
    gamma: float = 0.01
    H: int = 1
    gamma_lower: float = 0.0
    H_lower: int = 1
    T: int = 5
    N: int = 5
    series: Literal["sum", "random"] = "sum"
    batch: int = 64
    batch_lower: int = 64
    exact: bool = False

    def __post_init__(self) -> None:
        for flag in ("gamma", "gamma_lower"):
            value = getattr(self, flag)
            demand(0 <= value < math.inf, flag, value, "a step size, at least 0")
        for flag in ("H", "H_lower", "T", "N"):
            demand(getattr(self, flag) >= 1, flag, getattr(self, flag), "a whole number, at least 1")
        for flag in ("batch", "batch_lower"):
            demand(getattr(self, flag) >= 0, flag, getattr(self, flag), "a whole number, at least 0 (0: all samples)")
        if self.exact and optional.solution(self.problem) is None:
            raise UserError("--exact: this problem does not know its lower solution; leave it out")

    @property
    def problem(self) -> SecondOrder:
        """What is minimised."""
        return self.setting.problem

    # --- the server

    def start(self) -> State:
        """x_0, and the first point of the lower level."""
        dtype = self.setting.dtype
        x = np.asarray(optional.initial(self.problem, self.setting.streams(Purpose.START)), dtype)
        return State(x, np.asarray(optional.initial_lower(self.problem), dtype))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1: T calls of FedInn, then FedOut with what FedIHGP returns."""
        x, y, none = state.x, state.y, state.y[:0]
        for _ in clients.ask(self.place, Model(x, r)):
            pass
        for t in range(self.T):
            q = clients.mean(self.inner_slope, Inner(y, none, t)).v
            y = clients.mean(self.inner, Inner(y, q, t)).v
        p, terms = self.inverse_product(clients, x, y, r)
        h = clients.mean(self.hypergradient, Product(none, p, terms)).v
        new = clients.mean(self.outer, Vector(h)).v
        if optional.constrained(self.problem):
            new = np.asarray(self.problem.project(0, new), new.dtype)
        if not (np.isfinite(new).all() and np.isfinite(y).all()):
            raise UserError("x or y is not finite after the round; smaller --gamma or --gamma-lower may help")
        gradients = self.T * (1 + 2 * self.H_lower) + 1 + terms + 2 + 2 * self.H
        return State(new, y, float(np.linalg.norm(h)), 2 * self.T + terms + 4, gradients)

    def inverse_product(self, clients: Clients, x: Array, y: Array, r: int) -> tuple[Array, int]:
        """(n_lower,) about (grad_yy h)^{-1} grad_y f at x, y, and how many products it took: Algorithm 4."""
        L = float(self.problem.curvature(x)[1])
        p = clients.mean(self.upper_slope, Product(y, y[:0], 0)).v.astype(np.float64) / L
        terms, total = self.products(r), p
        for t in range(terms):
            p = clients.mean(self.product, Product(y[:0], p.astype(y.dtype), t)).v.astype(np.float64)
            total = total + p
        return (total if self.series == "sum" else self.N * p).astype(y.dtype), terms

    def products(self, r: int) -> int:
        """Products of round r: N - 1, or a number drawn from 0, ..., N - 1."""
        if self.series == "sum":
            return self.N - 1
        return int(self.setting.streams(Purpose.NEUMANN, r=r).integers(self.N))

    # --- a client

    def place(self, client: Client, message: Model) -> Empty:
        """Keeps x_r for the rest of the round."""
        client.memory["x"], client.memory["r"] = message.x, message.r
        return Empty()

    def inner_slope(self, client: Client, message: Inner) -> Vector:
        """The gradient of h_i in y, line 3 of FedInn, on the mini-batch of the first local step."""
        return Vector(self._slope(client, message.y, self._lower_batches(client, message.t, 1)[0]))

    def inner(self, client: Client, message: Inner) -> Vector:
        """Takes the corrected local steps of FedInn."""
        batches, step = self._lower_batches(client, message.t, self.H_lower), self._inner_step(client)

        def corrected(y: Array, k: int) -> Array:
            here, there = self._slope(client, y, batches[k]), self._slope(client, message.y, batches[k])
            return np.asarray(here - there + message.q)

        y = descend(message.y, corrected, steps=self.H_lower, stepsize=lambda k: step)
        return Vector(np.asarray(y, message.y.dtype))

    def upper_slope(self, client: Client, message: Product) -> Vector:
        """The gradient of f_i in y, from which the series begins; keeps y for the rest of the round."""
        client.memory["y"] = message.y
        return Vector(self._gradients(client, client.memory["x"], self._upper_batches(client, 1)[0])[1])

    def product(self, client: Client, message: Product) -> Vector:
        """(I - grad_yy h_i / L_h) p, line 5 of FedIHGP."""
        x, y, data = client.memory["x"], client.memory["y"], self._parts(client)[1]
        batch = self._lower_batches(client, self.T + message.t, 1)[0]
        L = float(self.problem.curvature(x)[1])
        return Vector(np.asarray(message.p - self.problem.hessian_h(client.i, x, y, message.p, data, batch) / L))

    def hypergradient(self, client: Client, message: Product) -> Vector:
        """grad_x f_i - grad_xy h_i p, line 3 of FedOut."""
        x, y, data = client.memory["x"], client.memory["y"], self._parts(client)[1]
        batch = self._lower_batches(client, self.T + message.t, 1)[0]
        indirect = self.problem.cross_h(client.i, x, y, message.p, data, batch)
        return Vector(np.asarray(self._gradients(client, x, self._upper_batches(client, 1)[0])[0] - indirect))

    def outer(self, client: Client, message: Vector) -> Vector:
        """Takes the corrected local steps of FedOut."""
        first, batches = client.memory["x"], self._upper_batches(client, self.H)

        def corrected(x: Array, k: int) -> Array:
            here, there = (self._gradients(client, point, batches[k])[0] for point in (x, first))
            return np.asarray(here - there + message.v)

        x = descend(first, corrected, steps=self.H, stepsize=lambda k: self.gamma / self.H)
        return Vector(np.asarray(x, first.dtype))

    def measure(self, client: Client, message: Pair) -> Vector:
        """f_i on all samples, for a report."""
        data, _ = self._parts(client)
        with np.errstate(over="ignore", invalid="ignore"):
            return Vector(np.asarray(self.problem.f(client.i, message.x, message.y, data), np.float64))

    def _parts(self, client: Client) -> tuple[Any, Any]:
        return optional.parts(self.problem, client.data)

    def _slope(self, client: Client, y: Array, batch: Any) -> Array:
        data = self._parts(client)[1]
        return np.asarray(self.problem.gradient_h(client.i, client.memory["x"], y, data, batch))

    def _gradients(self, client: Client, x: Array, batch: Any) -> tuple[Array, Array]:
        return self.problem.gradients_f(client.i, x, client.memory["y"], self._parts(client)[0], batch)

    def _inner_step(self, client: Client) -> float:
        L = float(self.problem.curvature(client.memory["x"])[1])
        return (self.gamma_lower or 1 / L) / self.H_lower

    def _lower_batches(self, client: Client, t: int, steps: int) -> Any:
        """(steps, B) positions of h_i's derivatives in inner round t, or a term of the series behind these."""
        return self._batches(client, 1, Purpose.LOWER_BATCH, t, steps, self.batch_lower)

    def _upper_batches(self, client: Client, steps: int) -> Any:
        """(steps, B) positions of f_i's gradients; the first is that of the hypergradient."""
        return self._batches(client, 0, Purpose.BATCH, 0, steps, self.batch)

    def _batches(self, client: Client, part: int, purpose: Purpose, t: int, steps: int, batch: int) -> Any:
        if batch == 0:
            return [None] * steps
        generator = self.setting.streams(purpose, r=client.memory["r"], i=client.i, t=t)
        return generator.integers(len(self._parts(client)[part]), size=(steps, batch))

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        solve, asked = optional.solution(self.problem), self.setting.eval_participants(r)
        exact = solve(state.x, self.setting.data) if self.exact and solve else None
        lower = [state.y] if exact is None else [state.y, np.asarray(exact, state.y.dtype)]
        pair = Pair(np.stack([state.x] * len(lower)), np.stack(lower))
        shares = among(dict.fromkeys(range(self.setting.m), 1 / self.setting.m), asked)
        replies = clients.ask(self.measure, pair, to=asked, counted=False)
        f = np.asarray(sum(shares[i] * reply.v for i, reply in replies))
        return Report(
            objective=float(f[0]),
            clients_asked=len(asked),
            objective_exact=None if exact is None else float(f[1]),
            lower_error=None if exact is None else float(np.linalg.norm(state.y.astype(np.float64) - exact)),
            **held_out(self.setting, state.x, state.y),
        )

    def loads(self) -> Loads:
        """Samples of the derivatives that each client takes in a round with all terms of the series."""
        upper, lower = step_samples(self.setting, self.batch), step_samples(self.setting, self.batch_lower)
        outer, inner = 2 + 2 * self.H, self.T * (1 + 2 * self.H_lower) + self.N
        return Loads([outer * f + inner * h for f, h in zip(upper, lower, strict=True)])

    @property
    def kernel(self) -> str:
        """What computes the derivatives."""
        return optional.kernel_name(self.problem, self.batch)

    def plan(self, rounds: int) -> dict[str, str | float]:
        problem, itemsize = self.problem, np.dtype(self.setting.dtype).itemsize
        n, lower, terms = problem.n * itemsize, problem.n_lower * itemsize, [self.products(r) for r in range(rounds)]
        down = n + 8 + self.T * 3 * lower + 16 * self.T + lower + 8 + lower + 8 + n
        up = self.T * 2 * lower + lower + 2 * n
        return {
            "length of x, n": problem.n,
            "length of y": problem.n_lower,
            "clients, all of which take part": self.setting.m,
            "products with second derivatives, all rounds": sum(terms),
            "bytes down, for each client, all rounds": rounds * down + sum(terms) * (lower + 8),
            "bytes up, for each client, all rounds": rounds * up + sum(terms) * lower,
        }
