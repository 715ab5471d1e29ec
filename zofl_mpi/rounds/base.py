"""Parts that all methods share: first model, participants, the server's own step, weights, expected costs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Loads, Method, Purpose, Setting, UserError, at_least, fraction
from zofl_mpi.arrays import Integers
from zofl_mpi.engine import messages
from zofl_mpi.engine.between import bytes_up, sent, vectors_between
from zofl_mpi.engine.fields import UsedWith
from zofl_mpi.engine.fleet import Needs, RoundWork
from zofl_mpi.engine.setting import P, Work, drawn
from zofl_mpi.numerics.schedules import parse_decay, stepsize
from zofl_mpi.problems import Batch, Smooth, Vector

X0 = Literal["auto", "zero", "random"]


def shaped(value: Any, shape: tuple[int, ...], what: str) -> Array:
    """A problem's value as an array; TypeError if it has another shape, which NumPy might broadcast."""
    found = np.asarray(value)
    if found.shape != shape:
        raise TypeError(f"the problem's {what} must have the shape {shape}; it has {found.shape}")
    return found


def descended(problem: Smooth, data: Any, y: Array, batches: Batch, stepsizes: Vector, **terms: Any) -> Array:
    """(n,) y after the local steps of `Problem.descend`; TypeError if its shape changed."""
    new = problem.descend(data, y, batches, stepsizes, **terms)
    return shaped(new, y.shape, "descend(data, y, batches, stepsizes)")


@final
@dataclass(frozen=True)
class Sampling:
    """S_r, the clients that take part in round r.

    Attributes:
        beta: participating fraction of the clients, 0 < beta <= 1; |S_r| = beta m rounded half up, at least 1.
    """

    setting: Setting
    beta: float = fraction(1.0, "a fraction of the clients")

    @property
    def each(self) -> bool:
        """True if each client is drawn independently."""
        return self.setting.any_between("poisson")

    @property
    def expected(self) -> float:
        """E |S_r|: round(beta m), halves up, at least 1; beta m for Poisson sampling."""
        count = Decimal(str(self.beta)) * self.setting.m  # 50 * 0.57 is 28.5
        return float(count) if self.each else max(1, int(count.to_integral_value(ROUND_HALF_UP)))

    def __call__(self, r: int) -> list[int]:
        """S_r: `expected` clients, uniformly without replacement, or each with probability beta; ascending."""
        if self.each:
            drawn = self.setting.streams(Purpose.PARTICIPANTS, r=r).random(self.setting.m)
            return np.flatnonzero(drawn < self.beta).tolist()
        return self.setting.participants(r, int(self.expected))

    def denominator(self, asked: int) -> float:
        """Divisor of a sum over a round's clients: `asked`, or under Poisson sampling its expectation."""
        return self.expected if self.each else asked

    def share(self, weights: Mapping[int, float], asked: Sequence[int]) -> float:
        """Sum of the weights of a round's clients, or its expectation under Poisson sampling."""
        return self.expected / self.setting.m if self.each else math.fsum(weights[i] for i in asked)

    def size(self, r: int) -> int:
        """|S_r|, without drawing the clients if possible."""
        return len(self(r)) if self.each else self.setting.participants_count(r, int(self.expected))


@final
@dataclass(frozen=True)
class ServerStep:
    """The server's step x <- x - gamma_r g, and the model that it starts from.

    Attributes:
        gamma: step size gamma of the server on its own data, in zo_hfl of its whole step, clients' term included; 0: it
            takes no step.
        schedule: schedule of gamma_r over rounds: sqrt (gamma/sqrt(r+1)), constant, harmonic[:OFFSET] or power:P (1/2 <
            P <= 1).
        server_batch: samples of the server's gradient, drawn with replacement.
        x0: first model: zero, random or auto (zero; a network: random).
    """

    USED_WITH: ClassVar[UsedWith] = {"schedule": {"gamma": ()}, "server_batch": {"gamma": ()}}
    setting: Setting
    gamma: float = at_least(0, 0.0, "a step size")
    schedule: str = "sqrt"
    server_batch: int = at_least(1, 256)
    x0: X0 = "auto"

    def __post_init__(self) -> None:
        parse_decay(self.schedule, "--schedule")

    def batch(self, r: int) -> NDArray[np.int64]:
        """(server_batch,) xi_r, positions in the server's data, drawn with replacement; the same for every method."""
        generator = self.setting.streams(Purpose.SERVER_BATCH, r=r)
        return generator.integers(len(self.setting.server), size=self.server_batch)

    def gradient(self, x: Array, r: int) -> NDArray[np.float64]:
        """(n,) the gradient at x of the mean loss on xi_r, for a `Smooth` problem."""
        g = self.setting.problem.gradient(x, self.setting.server, self.batch(r))
        return np.asarray(shaped(g, x.shape, "gradient(x, data, batch)"), np.float64)

    def step(self, x: Array, g: Array, r: int) -> Array:
        """(n,) x - gamma_r g, in the dtype of the run."""
        return np.asarray(x - stepsize(self.schedule, self.gamma, r) * g).astype(self.setting.dtype)


def has_samples(setting: Setting) -> bool:
    """True if the server holds samples; with --server-fraction 0 it holds none."""
    return setting.server is not None and len(setting.server) > 0


def demand_samples(setting: Setting, flags: str) -> None:
    """Refuse `flags` that need samples at the server if it has none."""
    if not has_samples(setting):
        raise UserError(f"--server-fraction 0: the server has no samples for {flags}")


def step_samples(setting: Setting[Any], batch: int) -> list[int]:
    """(m,) samples of a local step of each client; batch = 0: all of the client's."""
    return [batch] * setting.m if batch else [len(data) for data in setting.data]


def draw_batches(generator: np.random.Generator, size: int, steps: int, batch: int) -> Any:
    """(steps, batch) positions below `size`, drawn with replacement; batch = 0: None per step, for all samples."""
    return generator.integers(size, size=(steps, batch)) if batch else [None] * steps


@final
@dataclass(frozen=True, eq=False)
class ClientWeights(Mapping[int, float]):
    """{i: w_i} of all clients, summing to 1; computed on access, since a round needs those of S_r only."""

    setting: Setting[Any]
    weights: str  # size or uniform

    def __getitem__(self, i: int) -> float:
        if not 0 <= i < len(self):
            raise KeyError(i)
        if self.weights == "uniform":
            return 1 / len(self)
        return len(self.setting.data[i]) / self.setting.samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self.setting.m


def scaled_to_one(weights: Mapping[int, float], asked: Collection[int]) -> Mapping[int, float]:
    """The weights {i: w_i} of the clients asked, scaled to sum to 1; unchanged if all were asked."""
    if len(asked) == len(weights):
        return weights
    total = math.fsum(weights[i] for i in asked)
    return {i: weights[i] / total for i in asked}


def eval_data(setting: Setting[Any], data: Any, i: int | None = None) -> Any:
    """Fixed evaluation subset of client i's data (None: of the server's); all of it if it is no `data.Dataset`."""
    return drawn(data, setting.eval_samples, setting.streams(Purpose.EVALUATION, i=setting.m if i is None else i))


# --- expected costs

GRADIENT = 3  # cost of a gradient in forward passes: one forward and one backward pass (two forward ones)
PLANNED_SAMPLES = 64  # samples in a plan's count of operations if a batch is all of a client's samples


@dataclass(frozen=True)
class RoundCost:
    """Cost model of a round: participants, local steps, samples, messages."""

    participants: Callable[[int], Sequence[int]]  # (r) -> S_r
    steps: Callable[[Integers, int], Integers | int]  # (clients (k,), r) -> (k,) local steps in round r, or one number
    batch: int  # samples of a local step; 0: all of the client's
    down: Any  # an example of the message to a participant; None: none
    up: Any  # an example of its reply
    gradients: int = 1  # mini-batch gradients of a local step
    points: int = 0  # loss evaluations of a local step, in place of gradients
    full_pass: bool = False  # True if a participant also takes one gradient on all of its samples
    server_batch: int = 0  # samples of the server's own step in a round; 0: no step
    vectors: int = 0  # vectors (n,) that a participant holds in a step, beside the problem's own (`client_bytes`)
    holds_x: bool = False  # True if the received model is one of them

    def samples(self, H: Integers, size: Integers) -> Integers:
        """(k,) samples of the gradients of H (k,) local steps, by participants that have `size` (k,) samples."""
        return H * self.gradients * (self.batch or size) + self.full_pass * size


@dataclass(frozen=True)
class OnProblem(Method[Any], Generic[P]):
    """Base of a method on problems of one role."""

    setting: Setting[P]

    @property
    def problem(self) -> P:
        """The problem that the method minimises."""
        return self.setting.problem


@dataclass(frozen=True)
class EstimatesCost(OnProblem[P], ABC):
    """Base of a method that states its `round_cost`, which determines kernel, planned work, loads and --dry-run."""

    @property
    @abstractmethod
    def round_cost(self) -> RoundCost:
        """Cost model of a round."""

    @property
    def kernel(self) -> str:
        return str(cast(Any, self.problem).kernel_name(self._largest()))

    @property
    def example_reply(self) -> Any:
        return self.round_cost.up

    def work(self) -> Work:
        """The sizes of the local steps, for --kernel auto."""
        return Work(self._largest())

    def loads(self) -> Loads:
        """Samples of each client's gradients in round 0."""
        _, _, samples = self._steps(self.round_cost, 0, range(self.setting.m))
        return Loads(samples.tolist())

    def plan(self, rounds: int) -> dict[str, str | float]:
        cost, problem = self.round_cost, cast(Any, self.problem)
        asked, steps, samples = map(sum, zip(*(self._totals(cost, r) for r in range(rounds)), strict=True))
        down, up = self._bytes(cost)
        each = (cost.points or 1) * self._flops()
        lines: dict[str, str | float] = {
            "length of x, n": problem.n,
            "clients, participants in a round": f"{self.setting.m}, {len(cost.participants(0))}",
            "kernel": self.kernel,
            "bytes down, for each participant and round": down,
            "bytes up, for each participant and round": up,
            "bytes down and up, all rounds": asked * (down + up),
            "local steps of all clients, all rounds": steps,
            "FLOPs of all clients, all rounds": f"{samples * each:.3g}",
        }
        if cost.points:
            lines["evaluations of a mini-batch's loss, all rounds"] = steps * cost.points
        if cost.server_batch:
            lines["samples of the server's own steps, all rounds"] = rounds * cost.server_batch
        return lines

    def device_needs(self) -> Sequence[Needs]:
        """MACs of a sample in a step (half of its FLOPs), of its gradient at the server, and bytes of a step."""
        cost, problem = self.round_cost, cast(Any, self.problem)
        size = cost.server_batch
        server = problem.flops(min(size, PLANNED_SAMPLES)) / min(size, PLANNED_SAMPLES) / 2 if size else 0.0
        held = problem.client_bytes(self._largest(), not cost.points) if cost.batch or cost.up is not None else 0
        vectors = cost.vectors + vectors_between(self, cost.holds_x)
        held += bool(held) * vectors * problem.n * np.dtype(self.setting.dtype).itemsize
        return [Needs((cost.points or 1) * self._flops() / 2, server, held)]

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        cost = self.round_cost
        asked, _, samples = self._steps(cost, r, clients)
        down, up, two = (np.full(len(samples), float(size)) for size in (*self._bytes(cost), 2))
        return RoundWork(asked.tolist(), samples.astype(float), down, up, two, server_samples=cost.server_batch)

    def _steps(
        self, cost: RoundCost, r: int, clients: Sequence[int] | None = None
    ) -> tuple[Integers, Integers, Integers]:
        """(k,) each: clients (None: the participants of round r), their local steps, the samples of these."""
        ids = np.array(cost.participants(r) if clients is None else clients, np.int64)
        steps = np.broadcast_to(cost.steps(ids, r), ids.shape)
        return ids, steps, np.broadcast_to(cost.samples(steps, self._sizes[ids]), ids.shape)

    def _totals(self, cost: RoundCost, r: int) -> tuple[int, int, int]:
        """Totals of round r: participants, their local steps, and the samples of these."""
        H = cost.steps(np.zeros(0, np.int64), r)
        alike = (cost.batch and not cost.full_pass) or self._sizes.min() == self._sizes.max()
        if isinstance(cost.participants, Sampling) and isinstance(H, int) and alike:
            count = cost.participants.size(r)
            return count, count * H, count * int(cost.samples(np.array([H]), self._sizes[:1])[0])
        S, H, samples = self._steps(cost, r)
        return len(S), int(H.sum()), int(samples.sum())

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """(m,) samples of each client."""
        return np.array(step_samples(self.setting, 0))

    def _bytes(self, cost: RoundCost) -> tuple[int, int]:
        """Bytes of a participant's message and of its reply, as it sends it."""
        down, up = (0 if message is None else messages.size(message) for message in (cost.down, cost.up))
        if cost.up is not None:
            up = bytes_up(self, sent(self, cost.up))
        return down, up

    def _flops(self) -> float:
        """FLOPs of a sample's loss if a step evaluates losses, else of its gradient; for a network, those of a step."""
        problem, probe = cast(Any, self.problem), self.round_cost.batch or min(self._largest(), PLANNED_SAMPLES)
        return float((problem.flops_evaluation(probe) if self.round_cost.points else problem.flops(probe)) / probe)

    def _largest(self) -> int:
        """Samples of a client's largest mini-batch."""
        return self.round_cost.batch or max(step_samples(self.setting, 0))
