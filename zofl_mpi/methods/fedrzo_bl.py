"""FedRZO_bl: zeroth-order local steps on a bilevel or minimax problem, with delayed inexact lower solutions.

[B] Qiu, Shanbhag, Yousefian, "Zeroth-Order Methods for Nondifferentiable, Nonconvex, and Hierarchical Federated
Optimization", NeurIPS 2023, Algorithms 2 and 3.

    min_x (1/m) sum_i f_i(x, y(x)),    y(x) = argmin_y (1/m) sum_i h_i(x, y);    minimax is h = -f
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from zofl_mpi import Array, Client, Clients, Directions, UserError, column, demand
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.bilevel_report import BilevelReports
from zofl_mpi.rounds.zeroth_order import FedRZOState, Stepped, finite_losses


@dataclass(frozen=True)
class LowerSolutions:
    """Server to client, Algorithm 2, line 7: the two inexact lower solutions; the client has x_r and v."""

    y0: Array  # (n_lower,) at x_r
    yv: Array  # (n_lower,) at x_r + eta v


@dataclass(frozen=True)
class Halfway(LowerSolutions):
    """Server to client, outside the algorithm: asks for an iterate from the middle of a round."""

    steps: int


@dataclass(frozen=True, kw_only=True)
class BilevelState(FedRZOState):
    """State of Algorithm 2's server between rounds."""

    y: Array = column("1", "the lower solution at x of the last round")  # (n_lower,)
    lower_rounds: int = column("1", "communication rounds of the lower level in this round, both calls", 0)
    lower_steps: int = column("1", "local steps of the lower level in this round, both calls, of each client", 0)


@final
@dataclass(frozen=True)
class FedRZOBL(BilevelReports):
    """[B] Algorithm 2: one direction a round, two calls of an inexact federated solver, delayed lower solutions."""

    def round(self, state: BilevelState, r: int, clients: Clients) -> BilevelState:
        """One round of Algorithm 2: sends x_r, calls the lower solver twice, and averages the clients' iterates."""
        x, xv, y, shares = state.x, self.shifted(state.x, r), self.lower_start(state), self.local.client_weights()
        self.send(clients, x, r)
        yv, calls = self.solver.solve(clients, self.lower, xv, y, r, shifted=True)
        y0, more = self.solver.solve(clients, self.lower, x, y, r)
        self.solver.watch_growth(self.first_schedule, max(calls, more, key=lambda call: call.T), r)
        new = clients.mean(self.step, LowerSolutions(y0, yv), weights=shares).x

        drawn, k = state.drawn, self.local.drawn_step(state.steps, r)
        if k is not None:
            drawn = clients.mean(self.partial, Halfway(y0, yv, k), weights=shares, counted=False).x
        return BilevelState(
            x=new,
            drawn=drawn,
            y=y0,
            steps=state.steps + self.local.steps(),
            step_distance=float(np.linalg.norm(new.astype(np.float64) - x)),
            lower_rounds=calls.rounds + more.rounds,
            lower_steps=calls.T + more.T,
        )

    def start(self) -> BilevelState:
        x = self.setting.first_model(self.local.x0)
        return BilevelState(x=x, drawn=x, y=self.first_lower())

    def step(self, client: Client, message: LowerSolutions) -> Stepped:
        """Take the H local steps with the delayed solutions, or the first few."""
        eta, x, r = self.local.eta, client.memory["x"], client.memory["r"]
        steps = message.steps if isinstance(message, Halfway) else self.local.steps()
        data, _ = self.parts(client)
        batches, v = self.local.batches(client, len(data), r), self.direction(r)
        step, y = x.dtype.type(eta) * v, np.stack([message.yv, message.y0])

        def estimate(x: Array, k: int) -> Array:
            F = finite_losses(self.problem.f(client.i, np.stack([x + step, x]), y, data, batches[k]), 2)
            return np.asarray(zo.estimate(float(F[0] - F[1]), v, eta))

        return Stepped(self.local.descend(x, r, client.i, estimate, steps))

    def partial(self, client: Client, message: Halfway) -> Stepped:
        """Repeat the first local steps, up to the iterate that is drawn; timed separately."""
        return self.step(client, message)

    def directions(self, rounds: int) -> Directions:
        """One direction a round, shared by all clients."""
        return Directions(rounds, self.problem.n)

    def __post_init__(self) -> None:
        allowed = "0 without --exact: directions need the exact lower solutions at both of their ends"
        demand(self.exact or self.local.probe == 0, "probe", self.local.probe, allowed)
        margin = self.problem.margin
        allowed = f"below {margin:g}: x + eta v could leave the points where the lower level has a solution"
        demand(self.local.eta < margin, "eta", self.local.eta, allowed)
        for flag, asked in (("--exact", self.exact), ("--lower exact", self.solver.lower == "exact")):
            if asked and self.problem.solution is None:
                raise UserError(f"{flag}: this problem does not know its lower solution; leave it out")
        self.solver.schedule(self.setting.first_model(self.local.x0), 0)  # refuses a step that the solver cannot take
