"""Initial model, client sampling and the server's own step, shared by several methods."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.fields import Array, at_least, fraction
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.schedules import parse_decay, stepsize

X0 = Literal["auto", "zero", "random"]


def first_point(setting: Setting, x0: X0) -> Array:
    """(n,) x_0."""
    if (setting.problem.x0 if x0 == "auto" else x0) == "random":
        return np.asarray(setting.problem.initial(setting.streams(Purpose.START)), setting.dtype)
    return np.zeros(setting.problem.n, setting.dtype)


@final
@dataclass(frozen=True)
class Sampling:
    """S_r, the clients that take part in round r.

    Attributes:
        beta: participating fraction of the clients, 0 < beta <= 1; |S_r| = beta m rounded half up, at least 1.
    """

    setting: Setting
    beta: float = fraction(1.0, "a fraction of the clients")

    def __call__(self, r: int) -> list[int]:
        """S_r, ascending."""
        return participants(self.setting, self.beta, r)


@final
@dataclass(frozen=True)
class ServerStep:
    """The server's step x <- x - gamma_r g, and the model that it starts from.

    Attributes:
        gamma: step size gamma of the server on its own data; 0: no such step.
        schedule: of gamma_r over rounds: sqrt (gamma/sqrt(r+1)), constant, harmonic[:OFFSET] or power:P (1/2 < P <= 1).
        server_batch: samples of the server's gradient, drawn with replacement.
        x0: first model: zero, random or auto (zero; a network: random).
    """

    setting: Setting
    gamma: float = at_least(0, 0.0, "a step size")
    schedule: str = "sqrt"
    server_batch: int = at_least(1, 256)
    x0: X0 = "auto"

    def __post_init__(self) -> None:
        parse_decay(self.schedule, "--schedule")

    def start(self) -> Array:
        """(n,) x_0."""
        return first_point(self.setting, self.x0)

    def batch(self, r: int) -> NDArray[np.int64]:
        """(server_batch,) xi_r, positions in the server's data, drawn with replacement; the same for every method."""
        return self.setting.streams(Purpose.SERVER_BATCH, r=r).integers(
            len(self.setting.server), size=self.server_batch
        )

    def gradient(self, x: Array, r: int) -> NDArray[np.float64]:
        """(n,) the gradient at x of the mean loss on xi_r, for a `Smooth` problem."""
        return np.asarray(self.setting.problem.gradient(x, self.setting.server, self.batch(r)), np.float64)

    def step(self, x: Array, g: Array, r: int) -> Array:
        """(n,) x - gamma_r g, in the dtype of the run."""
        return np.asarray(x - stepsize(self.schedule, self.gamma, r) * g).astype(self.setting.dtype)


def has_samples(setting: Setting) -> bool:
    """Whether the server holds any; with --server-fraction 0 it does not."""
    return setting.server is not None and len(setting.server) > 0


def demand_samples(setting: Setting, flags: str) -> None:
    """Refuses `flags` that need samples at the server where it has none."""
    if not has_samples(setting):
        raise UserError(f"--server-fraction 0: the server has no samples of its own, needed for {flags}")


def participants(setting: Setting, beta: float, r: int) -> list[int]:
    """S_r: round(beta m) clients, halves up, at least one, uniformly without replacement; ascending."""
    count = max(1, int((Decimal(str(beta)) * setting.m).to_integral_value(ROUND_HALF_UP)))  # 50 * 0.57 is 28.5
    return sorted(setting.streams(Purpose.PARTICIPANTS, r=r).permutation(setting.m)[:count].tolist())


def step_samples(setting: Setting[Any], batch: int) -> list[int]:
    """(m,) samples of a local step of each client; batch = 0: all of the client's."""
    return [batch] * setting.m if batch else [len(data) for data in setting.data]


def shares(setting: Setting, weights: str) -> dict[int, float]:
    """{i: w_i} of all clients, summing to 1; `weights`: size or uniform."""
    sizes = [1 if weights == "uniform" else len(data) for data in setting.data]
    total = sum(sizes)  # once: for 10,000 clients a sum for each would take half a second a round
    return {i: size / total for i, size in enumerate(sizes)}


def among(weights: Mapping[int, float], asked: Collection[int]) -> Mapping[int, float]:
    """{i: w_i} of the clients that were asked, summing to 1; as they are where all were."""
    if len(asked) == len(weights):
        return weights
    total = math.fsum(weights[i] for i in asked)
    return {i: weights[i] / total for i in asked}
