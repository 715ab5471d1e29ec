"""What FedAvg, FedProx and SCAFFOLD share: local SGD steps and the server's averaging.

They minimise sum_i w_i F_i(x), F_i the mean loss over client i's data. Their first three flags mean what ZO-HFL's mean:
as many participants, and as many local steps as one call of its Algorithm 2 takes ([A] says "the same total number of
local steps" and makes two calls).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.setting import Loads, Setting, Work
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.schedules import demand_tau, local_steps, parse_decay, planned_steps, stepsize, stepsizes
from zofl_mpi.problems import Smooth
from zofl_mpi.rounds.report import Model
from zofl_mpi.rounds.start import Start, demand_samples, own_gradient, participants, shares, step_samples

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Trained:
    """Client to server: the local model."""

    y: Array  # (n,) the client's model after its local steps


@final
@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    x: Array = column("1", "the global model, flat")  # (n,)
    local_steps: int = column("1", "local steps that all participants took in this round", 0)


PROBE = 64
"""Samples that a plan counts the operations of where a batch is all of a client's, maybe too many to compute with."""


@final
@dataclass(frozen=True)
class LocalSGD:
    """Local steps y <- y - gamma~_t (g_i(y) + correction) from y = x, then x <- x + eta_g sum_i w_i (y_i - x).

    Attributes:
        setting: problem, data and random numbers.
        beta: participating fraction of the clients, 0 < beta <= 1; |S_r| = beta m rounded half up, at least 1.
        tau: local steps: H_{i,r} = ceil(tau sqrt(r+1)); one number, or one per client.
        schedule_h: sqrt or constant (H = ceil(tau)).
        gamma_local: step size of the local steps.
        schedule_local: over local steps t: harmonic (gamma_local/(t+1)), harmonic:OFFSET, sqrt, constant or power:P.
        batch: samples of a local step, drawn with replacement; 0 for all of the client's, in every step.
        weights: w_i of the objective and of the averaging: size (|D_i|) or uniform.
        eta_g: server step size on the averaged update; 1 is plain averaging.
        gamma: step size of one more step a round, on the gradient at x of the server's own data; 0 for none.
        schedule: of that step size over rounds: sqrt, constant, harmonic[:OFFSET] or power:P.
        server_batch: samples of that gradient, drawn with replacement.
        first: the first model.
    """

    setting: Setting[Smooth]
    beta: float = 1.0
    tau: tuple[float, ...] = (20.0,)
    schedule_h: Literal["sqrt", "constant"] = "sqrt"
    gamma_local: float = 0.1
    schedule_local: str = "harmonic"
    batch: int = 64
    weights: Literal["size", "uniform"] = "size"
    eta_g: float = 1.0
    gamma: float = 0.0
    schedule: str = "sqrt"
    server_batch: int = 256
    first: Start = part()

    def __post_init__(self) -> None:
        demand(0 < self.beta <= 1, "beta", self.beta, "a fraction of the clients, above 0 and at most 1")
        demand_tau("tau", self.tau)
        for flag in ("gamma", "gamma_local", "eta_g"):
            value = getattr(self, flag)
            demand(0 <= value < math.inf, flag, value, "a step size, at least 0")
        demand_batch(self.batch)
        demand(self.server_batch >= 1, "server_batch", self.server_batch, "a whole number, at least 1")
        parse_decay(self.schedule, "--schedule")
        parse_decay(self.schedule_local, "--schedule-local")
        m = self.setting.m
        demand(len(self.tau) in (1, m), "tau", self.tau, f"one number, or {m}, one for each client (--m)")
        if self.gamma:
            demand_samples(self.setting, "--gamma")

    # --- the server

    def start(self) -> State:
        """x_0."""
        return State(self.first.point(self.server_batch))

    def participants(self, r: int) -> list[int]:
        """S_r."""
        return participants(self.setting, self.beta, r)

    def shares(self) -> dict[int, float]:
        """{i: w_i} of all clients, summing to 1."""
        return shares(self.setting, self.weights)

    def average(self, x: Array, r: int, clients: Clients, train: Step) -> State:
        """Averages what the participants' step `train` makes of `Model`: their `Trained`."""
        to = self.participants(r)
        mean = clients.mean(train, Model(x, r), to=to, weights=self.shares())
        return self.step(x, mean.y, r, to)

    def step(self, x: Array, y: Array, r: int, to: list[int]) -> State:
        """x + eta_g (y - x), y the average of the participants' (`to`) models, and the step on the server's own data.

        Raises:
            UserError: the new x is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # told in a sentence of its own
            new = y if self.eta_g == 1 else x + self.eta_g * (y.astype(np.float64) - x)
            if self.gamma:
                gradient = own_gradient(self.setting, x, self.server_batch, r)
                new = new - stepsize(self.schedule, self.gamma, r) * gradient
            new = new.astype(x.dtype)
        if not np.isfinite(new).all():
            raise UserError(
                "x is not finite after the server's step; smaller --eta-g, --gamma or --gamma-local may help"
            )
        return State(new, sum(self.local_steps(i, r) for i in to))

    # --- a client

    def local_steps(self, i: int, r: int) -> int:
        """H_{i,r}."""
        return local_steps(self.schedule_h, self.tau[i % len(self.tau)], r, "--schedule-h")

    def stepsizes(self, i: int, r: int) -> NDArray[np.float64]:
        """(H,) of client i's steps in round r."""
        return stepsizes(self.schedule_local, self.gamma_local, self.local_steps(i, r))

    def descend(self, client: Client, x: Array, r: int, *, mu: float = 0.0, shift: Array | None = None) -> Array:
        """(n,) y after the client's local steps from x; the same mini-batches for every method.

        Raises:
            UserError: y is not finite.
        """
        gammas = self.stepsizes(client.i, r)
        batches = minibatches(self.setting, client, r, len(gammas), self.batch)
        return descend(self.setting, client, x, batches, gammas, mu=mu, shift=shift)

    # --- reports

    @property
    def kernel(self) -> str:
        """What computes the local steps: kernels agree to rounding only."""
        return kernel(self.setting, self.batch)

    def work(self, rounds: int) -> Work:
        """The local steps of all rounds: what the choice of a kernel depends on."""
        steps = planned_steps(self.schedule_h, self.tau, rounds, len(self.participants(0)))
        return Work(self.batch or max(len(data) for data in self.setting.data), 1, steps)

    def loads(self, full_pass: bool = False) -> Loads:
        """Samples that each client looks at in round 0; `full_pass`: and once at all of its own."""
        steps = enumerate(step_samples(self.setting, self.batch))
        return Loads([self.local_steps(i, 0) * samples + full_pass * len(self.setting.data[i]) for i, samples in steps])

    def plan(self, rounds: int, vectors: int = 1, full_pass: bool = False) -> dict[str, str | float]:
        """The cost of the run, where `vectors` of length n go down, and up, for each participant.

        Args:
            full_pass: whether each participant also takes a gradient on all of its data.
        """
        steps = ((i, self.local_steps(i, r)) for r in range(rounds) for i in self.participants(r))
        return cost(self.setting, steps, len(self.participants(0)), self.batch, vectors, full_pass)


# What a method without `LocalSGD`'s flags uses too


def demand_batch(batch: int) -> None:
    """Refuses a negative number of samples."""
    demand(batch >= 0, "batch", batch, "a whole number, at least 0 (0: all samples of the client, in every step)")


def minibatches(setting: Setting, client: Client, r: int, steps: int, batch: int) -> NDArray[np.int64]:
    """(steps, batch) positions in the client's data of its local steps in round r; batch = 0: all, in every step."""
    size = len(client.data)
    if batch == 0:
        return repeated(np.arange(size), steps)
    return setting.streams(Purpose.BATCH, r=r, i=client.i).integers(size, size=(steps, batch))


def repeated(positions: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """(steps, B) the same mini-batch (B,) for every step; no view, for which a compiled kernel would compile anew."""
    return np.tile(positions, (steps, 1))


def descend(
    setting: Setting[Smooth],
    client: Client,
    x: Array,
    batches: NDArray[np.int64],
    gammas: NDArray[np.float64],
    *,
    mu: float = 0.0,
    shift: Array | None = None,
) -> Array:
    """(n,) what `Smooth.descend` makes of x on the client's data.

    Raises:
        UserError: the result is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # told in a sentence of its own
        y = setting.problem.descend(client.data, x, batches, gammas, mu=mu, shift=shift)
    if not np.isfinite(y).all():
        raise UserError("the local model is not finite; smaller --gamma-local, or --pixels unit, may help")
    return y


def kernel(setting: Setting[Smooth], batch: int) -> str:
    """What computes a step on `batch` samples (0: all of a client's); kernels agree to rounding only."""
    return setting.problem.kernel_name(batch or max(len(data) for data in setting.data))


def cost(
    setting: Setting[Smooth],
    steps: Iterable[tuple[int, int]],
    participants: int,
    batch: int,
    vectors: int = 1,
    full_pass: bool = False,
) -> dict[str, str | float]:
    """The lines of --dry-run on the cost of a run in which `vectors` of length n go down, and up, for each participant.

    Args:
        steps: (i, local steps) of each participant of each round.
        participants: in a round.
        batch: samples of a step; 0: all of the client's.
        full_pass: whether each participant also takes a gradient on all of its data.
    """
    n, itemsize = setting.problem.n, np.dtype(setting.dtype).itemsize
    down, up = vectors * n * itemsize + 8, vectors * n * itemsize
    asked = list(steps)
    sizes = [len(data) for data in setting.data]
    samples = sum(H * (batch or sizes[i]) + full_pass * sizes[i] for i, H in asked)
    largest = batch or max(sizes)
    probe = batch or min(largest, PROBE)
    each = setting.problem.flops(probe) / probe  # of a sample; a network counts by computing: ask once
    return {
        "length of x, n": n,
        "clients, participants in a round": f"{setting.m}, {participants}",
        "kernel": kernel(setting, batch),
        "bytes down, for each participant and round": down,
        "bytes up, for each participant and round": up,
        "bytes down and up, all rounds": len(asked) * (down + up),
        "local steps of all clients, all rounds": sum(H for _, H in asked),
        "FLOPs of all clients, all rounds": f"{samples * each:.3g}",
    }
