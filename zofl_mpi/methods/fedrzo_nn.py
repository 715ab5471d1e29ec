"""FedRZO_nn: zeroth-order local steps on nonsmooth nonconvex losses over an intersection of convex sets.

[B] Qiu, Shanbhag, Yousefian, "Zeroth-Order Methods for Nondifferentiable, Nonconvex, and Hierarchical Federated
Optimization", NeurIPS 2023, Algorithm 1.

    min_x (1/m) sum_i f_i(x) over the intersection of the X_i, f_i locally Lipschitz
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np

from zofl_mpi import Array, Client, Clients, Directions, Purpose, at_least
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.base import RoundCost
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.rounds.zeroth_order import FedRZOState, LipschitzReports, Stepped, finite_losses


@dataclass(frozen=True)
class Partial(GlobalModel):
    """Server to client, outside the algorithm: asks for an iterate from the middle of a round."""

    steps: int  # number of local steps to take


@final
@dataclass(frozen=True)
class FedRZONN(LipschitzReports):
    """[B] Algorithm 1: x_i <- x_i - gamma (g_i + (x_i - P_{X_i}(x_i))/eta), H times, then the mean of the x_i.

    g_i is a zeroth-order estimate on one mini-batch. With n_p directions and a participating fraction, and without
    sets, it is FedZO (Fang et al. 2022).

    Attributes:
        n_p: directions of a local step; their estimates are averaged.
        estimate: finite difference: one-sided (the paper's F(x + eta v) - F(x)) or central (F(x + eta v) - F(x - eta
            v)).
    """

    grows_with: ClassVar[tuple[str, ...]] = ("n_p", "probe")
    n_p: int = at_least(1, 1, "a whole number of directions")
    estimate: Literal["one-sided", "central"] = "one-sided"

    def start(self) -> FedRZOState:
        x = self.setting.first_model(self.local.x0)
        return FedRZOState(x, x)

    def round(self, state: FedRZOState, r: int, clients: Clients) -> FedRZOState:
        """One round of Algorithm 1: the participants' H local steps, then the mean of their iterates."""
        S, shares = self.sampling(r), self.local.client_weights()
        mean = clients.mean(self.step, GlobalModel(state.x, r), to=S, weights=shares, nobody=Stepped(state.x))
        x = np.asarray(mean.x, state.x.dtype)

        drawn, k = state.drawn, self.local.drawn_step(state.steps, r)
        if k is not None and self.setting.any_between("private"):
            drawn = x  # the iterate in the middle of a round costs one more question
        elif k is not None:
            drawn = clients.mean(self.partial, Partial(state.x, r, k), to=S, weights=shares, counted=False).x
        steps = state.steps + self.local.steps()
        return FedRZOState(x, drawn, steps, float(np.linalg.norm(x.astype(np.float64) - state.x)))

    def step(self, client: Client, message: GlobalModel) -> Stepped:
        """Take the H local steps from x, or the first few."""
        setting, eta, r = self.setting, self.local.eta, message.r
        steps = message.steps if isinstance(message, Partial) else self.local.steps()
        generator = setting.streams(Purpose.DIRECTION, r=r, i=client.i)
        batches = self.local.batches(client, len(client.data), r)
        central = self.estimate == "central"

        def estimate(x: Array, k: int) -> Array:
            v = np.stack([zo.direction(generator, len(x), setting.dtype) for _ in range(self.n_p)])
            step = x.dtype.type(eta) * v
            if k == 0:
                zo.demand_move(x, step, eta)
            points = np.concatenate([x + step, x - step if central else x[None]])
            F = finite_losses(self.problem.losses(client.i, points, client.data, batches[k]), len(points))
            base = F[self.n_p :] if central else F[-1]
            scale = len(x) / ((2 if central else 1) * eta * self.n_p)
            return np.asarray((scale * (F[: self.n_p] - base)) @ v.astype(np.float64))

        return Stepped(self.local.descend(message.x, r, client.i, estimate, steps))

    def partial(self, client: Client, message: Partial) -> Stepped:
        """Repeat the first local steps, up to the iterate that is drawn; timed separately."""
        return self.step(client, message)

    def directions(self, rounds: int) -> Directions:
        """n_p directions for each participant and local step."""
        return Directions(round(rounds * self.sampling.expected) * self.local.steps() * self.n_p, self.problem.n)

    @property
    def round_cost(self) -> RoundCost:
        own = self.local.round_cost(self.sampling, 2 * self.n_p if self.estimate == "central" else self.n_p + 1)
        return replace(own, vectors=2 + self.n_p)  # x_i, the estimate, v
