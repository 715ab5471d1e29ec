"""DeComFL's rule on problems with gradients, for --method jobs.scalars:Scalars of zofl_mpi.zo_hfl.

A client sends the derivatives of F_i at x along K directions that all share: the limit mu -> 0 of the differences of
losses that --method decomfl sends (one local step), on the very models and data of FedAvg and SCAFFOLD, in the time of
one gradient in place of K + 1 forward passes. Directions are u_k / sqrt(K), u_k ~ N(0, I), so that the K derivatives
have in the mean the norm of the gradient, whatever K; the step is DeComFL's, along the mean of the K estimates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np

from zofl_mpi import Array, Client, Clients, Directions, Purpose, above, at_least, change, column, flag_group
from zofl_mpi.clients.privacy import Privacy
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.base import X0, ClientWeights, EstimatesCost, RoundCost, Sampling, shaped
from zofl_mpi.rounds.report import GlobalModel, Reporting, SmoothReport


@dataclass(frozen=True)
class Derivatives:
    """Client to server."""

    scalars: Array = change("a derivative is not finite; a smaller --step may help", scalar=True)  # (K,)


@dataclass(frozen=True)
class State:
    """State of the server between rounds."""

    x: Array = column("1", "the global model, flat", finite="x is not finite; a smaller --step may help")  # (n,)
    signal: float = column("1", "norm of the mean clipped reply over C, before noise: not published", math.nan)


@final
@dataclass(frozen=True)
class Scalars(EstimatesCost[Smooth]):
    """x <- x - step sum_k s_k v_k, s_k the participants' mean derivative along v_k ~ N(0, I/K), drawn anew each round.

    Attributes:
        n_p: K, directions of a round, the same for all clients.
        step: step size.
        x0: first model: zero, random or auto (zero; a network: random).
    """

    needs: ClassVar[type] = Smooth
    sampling: Sampling = flag_group()
    n_p: int = at_least(1, 1, "a whole number of directions")
    step: float = above(0, 0.1, "a step size")
    x0: X0 = "auto"
    reporting: Reporting = flag_group()
    _drawn: dict[int, Array] = field(init=False, repr=False, compare=False, default_factory=dict)

    def start(self) -> State:
        """x_0."""
        return State(self.setting.first_model(self.x0))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Adds up the participants' derivatives and steps along the directions."""
        nobody, message = Derivatives(np.zeros(self.n_p)), GlobalModel(state.x, r)
        s = clients.mean(self.derive, message, to=self.sampling(r), nobody=nobody).scalars
        x = state.x - self.step * (s @ self.directions_of(r))
        signals = (each.signal for each in self.setting.between if isinstance(each, Privacy))
        return State(x.astype(state.x.dtype), next(signals, math.nan))

    def derive(self, client: Client, message: GlobalModel) -> Derivatives:
        """Takes the derivatives of F_i at x along the round's directions, on all of the client's samples."""
        g = shaped(self.problem.gradient(message.x, client.data), message.x.shape, "gradient(x, data)")
        return Derivatives(self.directions_of(message.r) @ g.astype(np.float64))

    def directions_of(self, r: int) -> Array:
        """(K, n) v_k, the same at all ends."""
        if r not in self._drawn:
            self._drawn.clear()
            shape = (self.n_p, self.problem.n)
            self._drawn[r] = self.setting.streams(Purpose.DIRECTION, r=r).standard_normal(shape) / math.sqrt(self.n_p)
        return self._drawn[r]

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> SmoothReport:
        """x on held-out samples and on the clients'."""
        return self.reporting.report(state.x, r, clients, ClientWeights(self.setting, "uniform"))

    def directions(self, rounds: int) -> Directions:
        """K a round."""
        return Directions(rounds * self.n_p, self.problem.n)

    @property
    def round_cost(self) -> RoundCost:
        """One full gradient of each participant."""
        x: Any = np.zeros(self.problem.n, self.setting.dtype)
        up = Derivatives(np.zeros(self.n_p))
        return RoundCost(self.sampling, lambda i, r: 1, 0, GlobalModel(x, 0), up)
