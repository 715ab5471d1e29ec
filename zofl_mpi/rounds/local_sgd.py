"""Local SGD steps, the uploads and the server's average of their results, shared by the first-order methods.

They minimise sum_i w_i F_i(x), F_i the mean loss over client i's data. Participants, local steps and step sizes are
those of ZO-HFL. One call of its Algorithm 2 fixes the number of local steps; [A] says "the same total number of local
steps" and makes two calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Client, Clients, Purpose, Setting, Step, at_least, change, column, demand, flag_group
from zofl_mpi.numerics.optimisers import ServerRule
from zofl_mpi.numerics.schedules import demand_tau, local_steps, parse_decay, stepsizes
from zofl_mpi.problems import Hierarchical, Smooth
from zofl_mpi.rounds.base import (
    ClientWeights,
    EstimatesCost,
    RoundCost,
    Sampling,
    ServerStep,
    demand_samples,
    descended,
    shaped,
)
from zofl_mpi.rounds.report import GlobalModel, Measured, Reporting, SmoothReport


@dataclass(frozen=True)
class LocalModel:
    """Client to server: the local model."""

    # (n,) the client's model after its local steps
    y: Array = change("the local model is not finite; smaller --gamma-local, or --pixels unit, may help", of="x")


@dataclass(frozen=True)
class LocalSGDState:
    """State of the server between rounds."""

    x: Array = column(  # (n,)
        "1",
        "the global model, flat",
        finite="x is not finite after the server's step; smaller --eta-g, --gamma or --gamma-local may help",
    )
    local_steps: int = column("1", "local steps that all participants took in this round", 0)
    moments: dict[str, Any] = field(default_factory=dict, kw_only=True)  # (n,) each, moments of the server's rule


SGD = ServerRule()


@final
@dataclass(frozen=True)
class StepSchedule:
    """Numbers and sizes of the local steps.

    Attributes:
        tau: number of local steps: H_{i,r} = ceil(tau sqrt(r+1)); one value, or one per client.
        schedule_h: growth of the number of local steps: sqrt (the paper's) or constant (H = ceil(tau)).
        gamma_local: step size of the local steps.
        schedule_local: schedule of the step size over local steps t: harmonic (gamma_local/(t+1)), harmonic:OFFSET,
            sqrt, constant or power:P.
    """

    setting: Setting
    tau: tuple[float, ...] = (20.0,)
    schedule_h: Literal["sqrt", "constant"] = "sqrt"
    gamma_local: float = at_least(0, 0.1, "a step size")
    schedule_local: str = "harmonic"

    def __post_init__(self) -> None:
        demand_tau("tau", self.tau)
        parse_decay(self.schedule_local, "--schedule-local")
        m = self.setting.m
        demand(len(self.tau) in (1, m), "tau", self.tau, f"one number, or {m}, one for each client (--m)")

    def count(self, i: int, r: int) -> int:
        """H_{i,r}."""
        return local_steps(self.schedule_h, self.tau[i % len(self.tau)], r)

    def counts(self, clients: NDArray[np.int64], r: int) -> NDArray[np.int64] | int:
        """(k,) H_{i,r} of clients (k,); one number if it is equal for all."""
        if len(self.tau) == 1:
            return self.count(0, r)
        taus = [self.tau[i] for i in clients.tolist()]
        each = {tau: local_steps(self.schedule_h, tau, r) for tau in set(taus)}
        return np.array([each[tau] for tau in taus], np.int64)

    def sizes(self, i: int, r: int) -> NDArray[np.float64]:
        """(H,) step sizes gamma~_t of client i in round r."""
        return stepsizes(self.schedule_local, self.gamma_local, self.count(i, r))


@final
@dataclass(frozen=True)
class LocalSolve:
    """LOCAL, the inexact solution of min over y in Y_i(x) of h_i(x, y): [A] Algorithm 2.

    Attributes:
        batch: samples of a local step, drawn with replacement.
        y0: start of the local solves: x (the point at which they are evaluated) or last (the middle of the client's
            last pair).
        samples: mini-batches of the two solves: shared or separate; separate multiplies their noise by n/(2 eta).
    """

    setting: Setting[Hierarchical]
    steps: StepSchedule = flag_group()
    batch: int = at_least(1, 64)
    y0: Literal["x", "last"] = "x"
    samples: Literal["shared", "separate"] = "shared"

    def solve(self, client: Client, x: Array, r: int, purpose: Purpose = Purpose.BATCH) -> Array:
        """(k, n) LOCAL(x) for each row of x (k, n): H_{i,r} projected stochastic gradient steps on h_i."""
        y0 = np.broadcast_to(client.memory["y"], x.shape) if self.y0 == "last" and "y" in client.memory else x
        if self.samples == "shared" or len(x) == 1:
            return self._descended(client, x, y0, r, purpose)
        plus = self._descended(client, x[:1], y0[:1], r, purpose)
        return np.concatenate([plus, self._descended(client, x[1:], y0[1:], r, Purpose.BATCH_MINUS)])

    def keep(self, client: Client, y: Array) -> None:
        """Store the middle of the pair y (2, n), the next start with --y0 last."""
        if self.y0 == "last":
            client.memory["y"] = y.mean(axis=0, dtype=np.float64).astype(y.dtype)

    def _descended(self, client: Client, x: Array, y: Array, r: int, purpose: Purpose) -> Array:
        gammas = self.steps.sizes(client.i, r)
        size = (len(gammas), self.batch)
        batches = self.setting.streams(purpose, r=r, i=client.i).integers(len(client.data), size=size)
        y = self.setting.problem.solve_client(client.i, client.data, x, y, batches, gammas)
        return shaped(y, x.shape, "solve_client(i, data, x, y, batches, stepsizes)")


@final
@dataclass(frozen=True)
class LocalSGD:
    """Participants, mini-batches and the average x <- x + eta_g sum_i w_i (y_i - x) of the local models y_i.

    Attributes:
        batch: samples of a local step, drawn with replacement; 0 for all of the client's, in every step.
        weights: w_i of the objective and of the averaging: size (|D_i|) or uniform.
        eta_g: server step size on the averaged update; with the rule sgd 1 is plain averaging.
        server: one more step a round, on the server's own data.
    """

    setting: Setting[Smooth]
    sampling: Sampling = flag_group()
    steps: StepSchedule = flag_group()
    batch: int = at_least(0, 64, remark="(0: all samples of the client, in every step)")
    weights: Literal["size", "uniform"] = "size"
    eta_g: float = at_least(0, 1.0, "a step size")
    server: ServerStep = flag_group()

    def __post_init__(self) -> None:
        if self.server.gamma:
            demand_samples(self.setting, "--gamma")

    def client_weights(self) -> Mapping[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return ClientWeights(self.setting, self.weights)

    def batches(self, client: Client, r: int) -> NDArray[np.int64]:
        """(H, batch) the client's mini-batches of round r, the same for every method."""
        return minibatches(self.setting, client, r, self.steps.count(client.i, r), self.batch)

    def descend(self, client: Client, x: Array, r: int, **terms: Any) -> Array:
        """(n,) y after the client's local steps from x in round r, with these terms of `Problem.descend`."""
        batches, gammas = self.batches(client, r), self.steps.sizes(client.i, r)
        return descended(self.setting.problem, client.data, x, batches, gammas, **terms)

    def average(
        self, clients: Clients, train: Step, state: LocalSGDState, r: int, rule: ServerRule = SGD
    ) -> LocalSGDState:
        """Next state, by `step` towards the sum over S_r of w_i y_i; the y_i are the replies to `train`."""
        S, message = self.sampling(r), GlobalModel(state.x, r)
        mean = clients.mean(train, message, to=S, weights=self.client_weights(), nobody=LocalModel(state.x))
        return self.step(state, mean.y, r, S, rule)

    def step(self, state: LocalSGDState, y: Array, r: int, to: list[int], rule: ServerRule = SGD) -> LocalSGDState:
        """The rule's step from x along y - x, y the average of the models of `to`; then the server's own step."""
        x = state.x
        y = shaped(y, x.shape, "descend(data, y, batches, stepsizes)")  # a user's method may use it unchecked
        new, moments = rule.step(x, y, self.eta_g, state.moments)
        if self.server.gamma:
            new = self.server.step(new, self.server.gradient(x, r), r)
        steps = int(np.broadcast_to(self.steps.counts(np.array(to, np.int64), r), len(to)).sum())
        return LocalSGDState(new.astype(x.dtype), steps, moments=moments)


@dataclass(frozen=True)
class FirstOrder(EstimatesCost[Smooth]):
    """Base of the methods that average local models: they add the clients' step `train`, or a round of their own."""

    uploads: ClassVar[str] = "local models"
    computes: ClassVar[str] = "gradients of its loss"
    travels: ClassVar[str] = "x down, a local model up"
    needs: ClassVar[type] = Smooth
    local: LocalSGD = flag_group()
    reporting: Reporting = flag_group()

    def start(self) -> Any:
        return LocalSGDState(self.setting.first_model(self.local.server.x0))

    def round(self, state: Any, r: int, clients: Clients) -> Any:
        """Average the participants' local models, the replies to `train`."""
        return self.local.average(clients, self.train, state, r)

    def train(self, client: Client, message: Any) -> Any:
        """The client's local steps: its reply is a `LocalModel`."""
        raise NotImplementedError

    def evaluate(self, state: Any, r: int, clients: Clients) -> SmoothReport:
        return self.reporting.report(state.x, r, clients, self.local.client_weights(), self.measure)

    def measure(self, client: Client, message: GlobalModel) -> Measured:
        """Measures x on a client's samples, and the client's personal model."""
        return self.reporting.measured(client, message.x, self.personal(client, message.x, message.r))

    def personal(self, client: Client, x: Array, r: int) -> Array | None:
        """(n,) y_i, the client's personal model; None: it has none."""
        return self.reporting.fine_tuned(client, x, r)

    @property
    def sampling(self) -> Sampling:
        return self.local.sampling

    @property
    def round_cost(self) -> RoundCost:
        local, x = self.local, np.zeros(self.setting.problem.n, self.setting.dtype)
        own = local.server.server_batch if local.server.gamma else 0
        down, up = GlobalModel(x, 0), LocalModel(x)
        return RoundCost(local.sampling, local.steps.counts, local.batch, down, up, server_batch=own)


def minibatches(setting: Setting, client: Client, r: int, steps: int, batch: int) -> NDArray[np.int64]:
    """(steps, batch) positions for the client's local steps in round r; batch = 0: all samples in every step."""
    size = len(client.data)
    if batch == 0:
        return repeated(np.arange(size), steps)
    return setting.streams(Purpose.BATCH, r=r, i=client.i).integers(size, size=(steps, batch))


def repeated(positions: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """(steps, B) the same mini-batch (B,) for every step; a copy, because a view would recompile a kernel."""
    return np.tile(positions, (steps, 1))
