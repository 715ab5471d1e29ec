"""FedNest: federated bilevel and minimax optimisation by hypergradients.

Tarzanagh, Li, Thrampoulidis, Oymak, "FedNest: Federated Bilevel, Minimax, and Compositional Optimization", ICML 2022,
Algorithms 1 to 4. With w = (grad_yy h)^{-1} grad_y f at (x, y(x)) the implicit function has the gradient
grad_x f - grad_xy h w; w comes from a Neumann series, one product with the clients' second derivatives per term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from zofl_mpi import Array, Client, Clients, Purpose, UserError, at_least, column, finite
from zofl_mpi.numerics.descent import descend
from zofl_mpi.rounds.base import shaped
from zofl_mpi.rounds.bilevel_report import Exchange, Placed, SecondOrderReports
from zofl_mpi.rounds.report import GlobalModel

ROUNDING = 64
"""Tolerance, in units in the last place, by which a projected point may miss its set."""
DIVERGED = "x or y is not finite after the round; smaller --gamma or --gamma-lower may help"


@dataclass(frozen=True)
class FedNestState:
    """State of the server between rounds."""

    x: Array = column("1", "the iterate", finite=DIVERGED)  # (n,)
    y: Array = column("1", "the lower level's iterate", finite=DIVERGED)  # (n_lower,)
    hypergradient_norm: float = column("1", "norm of the mean of the clients' hypergradients in this round", math.nan)
    communications: int = column("1", "exchanges between server and clients in this round", 0)
    gradients: int = column(
        "1", "gradients and products with second derivatives of a mini-batch in this round, of each client", 0
    )


@final
@dataclass(frozen=True)
class FedNest(SecondOrderReports):
    """A round has T inner rounds (FedInn), a Neumann series (FedIHGP) and an outer round (FedOut).

    Local steps are corrected as in SVRG, q_i(y') - q_i(y) + mean of the q_j(y); likewise in FedOut, where the indirect
    part of the hypergradient stays that at x (the paper's FedOut). Ours: the mean is projected onto all X_i.

    Attributes:
        gamma: alpha of the paper, outer step size; each of H local steps is gamma/H.
        H: local steps of an outer round.
        gamma_lower: beta of the paper, inner step size; 0 for 1/L_h.
        H_lower: local steps of an inner round, of gamma_lower/H_lower each.
        T: inner rounds.
        N: terms of the Neumann series.
        series: Neumann series: sum (all N terms), or random (the paper's random number of products, below N, times
            N/L_h).
    """

    gamma: float = at_least(0, 0.01, "a step size")
    H: int = at_least(1, 1)
    gamma_lower: float = at_least(0, 0.0, "a step size")
    H_lower: int = at_least(1, 1)
    T: int = at_least(1, 5)
    N: int = at_least(1, 5)
    series: Literal["sum", "random"] = "sum"

    def round(self, state: FedNestState, r: int, clients: Clients) -> FedNestState:
        """Algorithm 1: T calls of FedInn, then FedOut with the product of FedIHGP."""
        x, y = state.x, state.y
        self.send(clients, x, r)
        for t in range(self.T):
            q = clients.mean(self.inner_slope, LowerPoint(y, t)).v
            y = clients.mean(self.inner, Correction(y, t, q)).v
        p, terms = self.inverse_product(clients, x, y, r)
        h = clients.mean(self.hypergradient, Term(p, terms)).v
        new = clients.mean(self.outer, SentVector(h)).v
        new = self.projected(new)
        exchanges = self.exchanges(r)
        derivatives = sum(exchange.upper + exchange.lower for exchange in exchanges)
        return FedNestState(new, y, float(np.linalg.norm(h)), len(exchanges), derivatives)

    def projected(self, x: Array) -> Array:
        """(n,) the point of all X_i nearest to x; UserError if it lies on the edges of several different sets.

        Candidate: among the nearest points of each X_i the one farthest from x, since the intersection is no nearer.
        """
        nearest = [self.nearest(i, x) for i in range(self.setting.m)]
        distances = [float(np.linalg.norm(np.subtract(p, x, dtype=np.float64))) for p in nearest]
        if not math.isfinite(sum(distances)):
            return x  # ends the run
        k = int(np.argmax(distances))
        new = nearest[k]
        rounding = ROUNDING * float(np.finfo(x.dtype).eps) * (float(np.linalg.norm(new)) + distances[k])
        for i in range(self.setting.m) if distances[k] else ():
            away = float(np.linalg.norm(np.subtract(self.nearest(i, new), new, dtype=np.float64)))
            if away > rounding:
                raise UserError(
                    f"FedNest needs the nearest point of all X_i; that of client {k}'s is {away:.3g} away from client "
                    f"{i}'s: give all clients one X_i, their intersection, or take --method fedrzo_bl"
                )
        return new

    def nearest(self, i: int, x: Array) -> Array:
        """(n,) the point of X_i nearest to x."""
        return np.asarray(shaped(self.problem.project(i, x), x.shape, "project(i, x)"), x.dtype)

    def inverse_product(self, clients: Clients, x: Array, y: Array, r: int) -> tuple[Array, int]:
        """(n_lower,) approximate (grad_yy h)^{-1} grad_y f at x, y, and the number of products: Algorithm 4."""
        L = self.smoothness(x)
        p = clients.mean(self.upper_slope, SentVector(y)).v.astype(np.float64) / L
        terms, total = self.products(r), p
        for t in range(terms):
            p = clients.mean(self.product, Term(p.astype(y.dtype), t)).v.astype(np.float64)
            total = total + p
        return (total if self.series == "sum" else self.N * p).astype(y.dtype), terms

    def products(self, r: int | None) -> int:
        """Number of products in round r: N - 1, or drawn from 0, ..., N - 1; for r = None: N - 1."""
        if self.series == "sum" or r is None:
            return self.N - 1
        return int(self.setting.streams(Purpose.NEUMANN, r=r).integers(self.N))

    def start(self) -> FedNestState:
        return FedNestState(self.setting.first_model("random"), self.first_lower())

    # --- a client

    def inner_slope(self, client: Client, message: LowerPoint) -> SentVector:
        """The gradient of h_i in y, line 3 of FedInn, on the mini-batch of the first local step."""
        return SentVector(self.slope(client, message.y, self.lower_batches(client, message.t, 1)[0]))

    def inner(self, client: Client, message: Correction) -> SentVector:
        """Takes the corrected local steps of FedInn."""
        batches = self.lower_batches(client, message.t, self.H_lower)
        L = self.smoothness(client.memory["x"])

        def corrected(y: Array, k: int) -> Array:
            here, there = self.slope(client, y, batches[k]), self.slope(client, message.y, batches[k])
            return np.asarray(here - there + message.q)

        size = (self.gamma_lower or 1 / L) / self.H_lower
        y = descend(message.y, corrected, steps=self.H_lower, stepsize=lambda k: size)
        return SentVector(np.asarray(y, message.y.dtype))

    def upper_slope(self, client: Client, message: SentVector) -> SentVector:
        """The gradient of f_i in y, the first term of the series; keeps y for the rest of the round."""
        client.memory["y"] = message.v
        return SentVector(self.gradients(client, client.memory["x"], self.upper_batches(client, 1)[0])[1])

    def product(self, client: Client, message: Term) -> SentVector:
        """(I - grad_yy h_i / L_h) p, line 5 of FedIHGP."""
        Hp = self.derivative_times(client, message, self.problem.hessian_h)
        Hp = shaped(Hp, message.p.shape, "hessian_h(i, x, y, u, data, batch)")
        return SentVector(np.asarray(message.p - Hp / self.smoothness(client.memory["x"])))

    def hypergradient(self, client: Client, message: Term) -> SentVector:
        """grad_x f_i - grad_xy h_i p, line 3 of FedOut."""
        direct, _ = self.gradients(client, client.memory["x"], self.upper_batches(client, 1)[0])
        indirect = self.derivative_times(client, message, self.problem.cross_h)
        return SentVector(np.asarray(direct - shaped(indirect, direct.shape, "cross_h(i, x, y, u, data, batch)")))

    def derivative_times(self, client: Client, message: Term, derivative: Callable[..., Array]) -> Array:
        """A second derivative of h_i, `hessian_h` or `cross_h`, times p."""
        behind = self.T  # the series' mini-batches are numbered after those of the inner rounds 0, ..., T - 1
        batch = self.lower_batches(client, behind + message.t, 1)[0]
        return derivative(client.i, client.memory["x"], client.memory["y"], message.p, self.parts(client)[1], batch)

    def outer(self, client: Client, message: SentVector) -> SentVector:
        """Takes the corrected local steps of FedOut."""
        first, batches = client.memory["x"], self.upper_batches(client, self.H)

        def corrected(x: Array, k: int) -> Array:
            here, there = (self.gradients(client, point, batches[k])[0] for point in (x, first))
            return np.asarray(here - there + message.v)

        x = descend(first, corrected, steps=self.H, stepsize=lambda k: self.gamma / self.H)
        return SentVector(np.asarray(x, first.dtype))

    def slope(self, client: Client, y: Array, batch: Any) -> Array:
        """(n_lower,) the gradient of h_i in y on a mini-batch."""
        data = self.parts(client)[1]
        g = self.problem.gradient_h(client.i, client.memory["x"], y, data, batch)
        return shaped(g, y.shape, "gradient_h(i, x, y, data, batch)")

    def gradients(self, client: Client, x: Array, batch: Any) -> tuple[Array, Array]:
        """(n,) and (n_lower,) the gradients of f_i in x and in y on a mini-batch."""
        y, member = client.memory["y"], "gradients_f(i, x, y, data, batch)"
        in_x, in_y = self.problem.gradients_f(client.i, x, y, self.parts(client)[0], batch)
        return shaped(in_x, x.shape, f"{member}[0]"), shaped(in_y, y.shape, f"{member}[1]")

    def smoothness(self, x: Array) -> float:
        """L_h at x."""
        return float(shaped(self.problem.curvature(x), (2,), "curvature(x)")[1])

    # --- costs

    def exchanges(self, r: int | None) -> list[Exchange]:
        x, y = np.zeros(self.problem.n, self.setting.dtype), np.zeros(self.problem.n_lower, self.setting.dtype)
        return [
            Exchange(GlobalModel(x, 0), Placed()),
            *self.T
            * [
                Exchange(LowerPoint(y, 0), SentVector(y), lower=1),
                Exchange(Correction(y, 0, y), SentVector(y), lower=2 * self.H_lower),
            ],
            Exchange(SentVector(y), SentVector(y), upper=1),
            *self.products(r) * [Exchange(Term(y, 0), SentVector(y), lower=1)],
            Exchange(Term(y, 0), SentVector(x), upper=1, lower=1),
            Exchange(SentVector(x), SentVector(x), upper=2 * self.H),
        ]


@dataclass(frozen=True)
class LowerPoint:
    """Server to client: asks for the gradient of h_i in y in inner round t."""

    y: Array  # (n_lower,)
    t: int


@dataclass(frozen=True)
class Correction(LowerPoint):
    """Server to client: asks for the local steps of inner round t, corrected by the mean gradient q at y."""

    q: Array  # (n_lower,)


@dataclass(frozen=True)
class Term:
    """Server to client: asks for a product of p with second derivatives, in term t of the series."""

    p: Array  # (n_lower,)
    t: int


@dataclass(frozen=True)
class SentVector:
    """Client to server, and back: (n_lower,) or (n,)."""

    v: Array = finite("a derivative or a local iterate is not finite; smaller --gamma or --gamma-lower may help")
