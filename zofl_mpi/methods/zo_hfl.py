"""ZO-HFL: the server descends a two-point zeroth-order estimate of the clients' implicit function.

[A] Qiu, Kim, Yousefian, "A Randomized Zeroth-Order Hierarchical Framework for Heterogeneous Federated Learning".

    min_x  f_1(x) + (1/m) sum_i f_{2,i}(x, y_i(x)),    y_i(x) = argmin over y in Y_i(x) of h_i(x, y)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import column
from zofl_mpi.engine.setting import Loads, Setting, Work
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.schedules import demand_tau, local_steps, parse_decay, planned_steps, stepsize, stepsizes
from zofl_mpi.problems import Hierarchical
from zofl_mpi.rounds import personal
from zofl_mpi.rounds.report import validated
from zofl_mpi.rounds.start import X0, Start, demand_samples, own_batch, participants

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Model:
    """Server to client. The direction v_{i,r} does not travel: both ends draw it from (DIRECTION, r, i)."""

    x: Array  # (n,) x_r
    r: int  # the round


@final
@dataclass(frozen=True)
class Values:
    """Client to server, --exchange scalars: all that the estimate needs of the two solutions."""

    plus: float  # f_{2,i}(x + eta v, y+)
    minus: float  # f_{2,i}(x - eta v, y-)


@final
@dataclass(frozen=True)
class Solutions:
    """Client to server, --exchange solutions, as the paper sends them."""

    plus: Array  # (n,) y+, the inexact solution at x + eta v
    minus: Array  # (n,) y-, that at x - eta v


@final
@dataclass(frozen=True)
class Personal:
    """Client to server at an evaluation: the personal model y_i = LOCAL(x), measured."""

    f2: float  # f_{2,i}(x, y_i)
    loss: float  # of x on the client's data; nan where the problem has no such thing
    samples: int  # |D_i|
    accuracies: dict[str, float]  # of y_i, by column
    distance: float  # |x - y_i|
    error: float  # |y_i - y_i(x)|; nan where there is no closed form


@final
@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    x: Array = column("1", "the global model, W (C, p) row by row")  # (n,)
    gradient_f1_norm: float = column("1", "norm of the stochastic gradient of f_1 in this round", math.nan)
    gradient_f2_norm: float = column("1", "norm of the zeroth-order part of the direction in this round", math.nan)
    local_steps: int = column(
        "1", "steps of Algorithm 2 that all participants took in this round, both solves counted", 0
    )


@final
@dataclass(frozen=True)
class Report:
    """What an evaluation tells."""

    test_accuracy: float = column("1", "share of test samples that x classifies correctly")
    test_loss: float = column("nat", "mean loss of x on the test samples: cross-entropy; the value of a toy problem")
    train_loss: float = column("nat", "the same on all training samples, the server's and the clients'")
    f1: float = column("1", "f_1(x) on all of the server's data")
    f2: float = column("1", "(1/m) sum_i f_{2,i}(x, y_i), y_i from Algorithm 2 at x itself")
    objective: float = column("1", "f_1(x) + f_2(x)")
    clients_asked: int = column("1", "clients that this evaluation asked; means and sums over clients are over these")
    personal_accuracy: float = column("1", personal.MEANING["personal_accuracy"])
    personal_accuracy_global: float = column("1", personal.MEANING["personal_accuracy_global"])
    local_distance: float = column("1", "mean over clients of |x - y_i|")
    local_error: float = column(
        "1", "mean over clients of |y_i - y_i(x)|, the inexactness of Algorithm 2; nan without closed form"
    )
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    validation_personal_accuracy: float | None = column("1", personal.MEANING["validation_personal_accuracy"], None)


@final
@dataclass(frozen=True)
class ZOHFL:
    """[A] Algorithm 1 (`round`) and Algorithm 2 (`solve`).

    Attributes:
        setting: problem, data and random numbers.
        beta: participating fraction of the clients, 0 < beta <= 1; |S_r| = beta m rounded half up, at least 1.
        tau: local steps: H_{i,r} = ceil(tau sqrt(r+1)); one number, or one per client.
        schedule_h: sqrt (the paper's H) or constant (H = ceil(tau)).
        gamma: step size gamma of the server.
        schedule: of gamma_r over rounds: sqrt (gamma/sqrt(r+1)), constant, harmonic[:OFFSET] or power:P (1/2 < P <= 1).
        gamma_local: step size of the local solves.
        schedule_local: over local steps t: harmonic (gamma_local/(t+1)), harmonic:OFFSET, sqrt, constant or power:P.
        eta: smoothing radius, the distance from x at which the implicit function is evaluated.
        batch: samples of a local step, drawn with replacement.
        server_batch: samples of the server's gradient of f_1, drawn with replacement.
        x0: first model: zero, random, pretrained (SGD on the server's data) or auto (zero; a network: random).
        pretrain_steps: steps of that SGD, with server_batch samples each.
        pretrain_gamma: its constant step size.
        y0: start of the local solves: x (the point they are asked at) or last (the middle of the client's last pair).
        samples: shared or separate mini-batches of the two solves; separate multiplies their noise by n/(2 eta).
        divide: the sum of estimates is divided by m (non-participants count as 0) or by participants (|S_r|).
        exchange: scalars (f_2's two values go up) or solutions (y+ and y-, the paper's); the same x, bit for bit.
    """

    needs: ClassVar[type] = Hierarchical
    setting: Setting[Hierarchical]
    beta: float = 1.0
    tau: tuple[float, ...] = (20.0,)
    schedule_h: Literal["sqrt", "constant"] = "sqrt"
    gamma: float = 0.01
    schedule: str = "sqrt"
    gamma_local: float = 0.1
    schedule_local: str = "harmonic"
    eta: float = 0.1
    batch: int = 64
    server_batch: int = 256
    x0: X0 = "auto"
    pretrain_steps: int = 500
    pretrain_gamma: float = 0.1
    y0: Literal["x", "last"] = "x"
    samples: Literal["shared", "separate"] = "shared"
    divide: Literal["m", "participants"] = "m"
    exchange: Literal["scalars", "solutions"] = "scalars"

    def __post_init__(self) -> None:
        m = self.setting.m
        demand(0 < self.beta <= 1, "beta", self.beta, "a fraction of the clients, above 0 and at most 1")
        demand(len(self.tau) in (1, m), "tau", self.tau, f"one number, or {m}, one for each client (--m)")
        demand_tau("tau", self.tau)
        for flag in ("gamma", "gamma_local"):
            value = getattr(self, flag)
            demand(0 <= value < math.inf, flag, value, "a step size, at least 0")
        demand(0 < self.eta < math.inf, "eta", self.eta, "a smoothing radius above 0")
        for flag in ("batch", "server_batch"):
            value = getattr(self, flag)
            demand(value >= 1, flag, value, "a whole number, at least 1")
        parse_decay(self.schedule, "--schedule")
        parse_decay(self.schedule_local, "--schedule-local")
        self.first()  # checks its flags
        demand_samples(self.setting, "--method zo_hfl: f_1 is their loss")

    @property
    def problem(self) -> Hierarchical:
        """What is minimised."""
        return self.setting.problem

    # --- the server: Algorithm 1

    def first(self) -> Start:
        """How x_0 is made."""
        return Start(self.setting, self.x0, self.pretrain_steps, self.pretrain_gamma)

    def start(self) -> State:
        """x_0."""
        return State(self.first().point(self.server_batch))

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Asks the participants for their values and descends: Algorithm 1, lines 3 to 9."""
        x, participants = state.x, self.participants(r)
        replies = clients.ask(self.solve, Model(x, r), to=participants)
        gradient_f1 = self.gradient_f1(x, r)  # while the clients compute

        gradient_f2 = np.zeros(len(x), np.float64)
        for i, reply in replies:
            v = self.direction(i, r)
            gradient_f2 += zo.estimate(self.difference(i, x, v, reply), v, 2 * self.eta)
        gradient_f2 /= self.setting.m if self.divide == "m" else len(participants)

        gamma_r = stepsize(self.schedule, self.gamma, r)
        with np.errstate(over="ignore", invalid="ignore"):  # told in a sentence of its own
            x = (x - gamma_r * (gradient_f1 + gradient_f2)).astype(x.dtype)
        if not np.isfinite(x).all():
            raise UserError("x is not finite after the server's step; smaller --gamma, --lam or --gamma-local may help")
        steps = 2 * sum(self.local_steps(i, r) for i in participants)
        return State(x, float(np.linalg.norm(gradient_f1)), float(np.linalg.norm(gradient_f2)), steps)

    def participants(self, r: int) -> list[int]:
        """S_r: round(beta m) clients, at least one, uniformly without replacement."""
        return participants(self.setting, self.beta, r)

    def direction(self, i: int, r: int) -> Array:
        """v_{i,r}, uniform on the unit sphere, as in Algorithm 1; the text's eta S would make n/(2 eta) wrong."""
        return zo.direction(self.setting.streams(Purpose.DIRECTION, r=r, i=i), self.problem.n, self.setting.dtype)

    def gradient_f1(self, x: Array, r: int) -> Array:
        """The gradient of f_1 on the server's mini-batch xi_r."""
        batch = own_batch(self.setting, self.server_batch, r)
        return self.problem.gradient_f1(x, self.setting.server, batch)

    def difference(self, i: int, x: Array, v: Array, reply: Values | Solutions) -> float:
        """f_{2,i}(x + eta v, y+) - f_{2,i}(x - eta v, y-), formed in float64."""
        if isinstance(reply, Solutions):
            reply = self._values(i, self.pair(x, v), np.stack([reply.plus, reply.minus]))
        difference = reply.plus - reply.minus
        if not math.isfinite(difference):
            raise UserError(f"client {i}: f_2 is not finite; smaller --gamma, --lam, --gamma-local or --mu may help")
        return difference

    # --- a client: Algorithm 2

    def solve(self, client: Client, message: Model) -> Values | Solutions:
        """Solves h_i inexactly at x + eta v and at x - eta v: Algorithm 1, line 4."""
        x = self.pair(message.x, self.direction(client.i, message.r))
        y = self.lower(client, x, message.r)
        if not np.isfinite(y).all():
            raise UserError(
                "the local solution is not finite; smaller --gamma-local or --mu, or --pixels unit, may help"
            )
        if self.y0 == "last":
            client.memory["y"] = y.mean(axis=0, dtype=np.float64).astype(y.dtype)
        return Solutions(y[0], y[1]) if self.exchange == "solutions" else self._values(client.i, x, y)

    def pair(self, x: Array, v: Array) -> Array:
        """(2, n) x + eta v and x - eta v."""
        step = x.dtype.type(self.eta) * v
        zo.demand_move(x, step, self.eta)
        return np.stack([x + step, x - step])

    def lower(self, client: Client, x: Array, r: int, purpose: Purpose = Purpose.BATCH) -> Array:
        """LOCAL(x) for each row of x (k, n): H_{i,r} projected stochastic gradient steps on h_i.

        By default both solves of a round see the same samples, and with --y0 last they start at one point: else their
        noise and the difference of their starts would be multiplied by n/(2 eta).
        """
        start = np.broadcast_to(client.memory["y"], x.shape) if self.y0 == "last" and "y" in client.memory else x
        if self.samples == "shared" or len(x) == 1:
            return self._descended(client, x, start, r, purpose)
        purposes = (purpose, Purpose.BATCH_MINUS)
        return np.concatenate(
            [self._descended(client, x[k : k + 1], start[k : k + 1], r, p) for k, p in enumerate(purposes)]
        )

    def local_steps(self, i: int, r: int) -> int:
        """H_{i,r}."""
        return local_steps(self.schedule_h, self.tau[i % len(self.tau)], r, "--schedule-h")

    def personal(self, client: Client, message: Model) -> Personal:
        """Measures, for a report, the personal model at x itself. Leaves no trace in the client's memory."""
        problem, x = self.problem, message.x
        y = self.lower(client, x[None], message.r, Purpose.PERSONAL)[0]
        exact = problem.solution(client.i, client.data, x)
        return Personal(
            f2=problem.f2(client.i, x, y),
            loss=problem.score(x, client.data).get("loss", math.nan),
            samples=len(client.data),
            accuracies=personal.accuracies(self.setting, client.i, y),
            distance=float(np.linalg.norm(x - y)),
            error=math.nan if exact is None else float(np.linalg.norm(y - exact)),
        )

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        replies = clients.ask(self.personal, Model(state.x, r), to=self.setting.eval_participants(r), counted=False)
        test = self.problem.score(state.x, self.setting.test)  # while the clients compute
        own = self.problem.score(state.x, self.setting.server)
        f1 = self.problem.f1(state.x, self.setting.server)
        replied = [reply for _, reply in replies]

        def mean(field: str) -> float:
            return math.fsum(getattr(p, field) for p in replied) / len(replied)

        sizes = [len(self.setting.server), *(p.samples for p in replied)]
        losses = [own.get("loss", math.nan), *(p.loss for p in replied)]
        return Report(
            test_accuracy=test.get("accuracy", math.nan),
            test_loss=test.get("loss", math.nan),
            train_loss=math.fsum(s * loss for s, loss in zip(sizes, losses, strict=True)) / sum(sizes),
            f1=f1,
            f2=mean("f2"),
            objective=f1 + mean("f2"),
            clients_asked=len(replied),
            local_distance=mean("distance"),
            local_error=mean("error"),
            **validated(self.setting, state.x),
            **personal.means([p.accuracies for p in replied]),
        )

    @property
    def kernel(self) -> str:
        """What computes the local solves: kernels agree to rounding only."""
        return self.problem.kernel_name(self.batch)

    def work(self, rounds: int) -> Work:
        steps = planned_steps(self.schedule_h, self.tau, rounds, len(self.participants(0)))
        together = 2 if self.samples == "shared" else 1
        return Work(self.batch, together, steps * 2 // together)

    def loads(self) -> Loads:
        """The local steps of round 0."""
        return Loads([self.local_steps(i, 0) for i in range(self.setting.m)])

    def plan(self, rounds: int) -> dict[str, str | float]:
        n, itemsize = self.problem.n, np.dtype(self.setting.dtype).itemsize
        down, up = n * itemsize + 8, 16 if self.exchange == "scalars" else 2 * n * itemsize
        asked = [(i, r) for r in range(rounds) for i in self.participants(r)]
        steps = 2 * sum(self.local_steps(i, r) for i, r in asked)
        return {
            "length of x, n": n,
            "clients, participants in a round": f"{self.setting.m}, {len(self.participants(0))}",
            "kernel": self.kernel,
            "bytes down, for each participant and round": down,
            "bytes up, for each participant and round": up,
            "bytes down and up, all rounds": len(asked) * (down + up),
            "local steps of all clients, all rounds": steps,
            "FLOPs of all clients, all rounds": f"{steps * self.problem.flops(self.batch):.3g}",
        }

    # --- details

    def _values(self, i: int, x: Array, y: Array) -> Values:
        return Values(self.problem.f2(i, x[0], y[0]), self.problem.f2(i, x[1], y[1]))

    def _descended(self, client: Client, x: Array, y: Array, r: int, purpose: Purpose) -> Array:
        H = self.local_steps(client.i, r)
        batches = self.setting.streams(purpose, r=r, i=client.i).integers(len(client.data), size=(H, self.batch))
        gammas = stepsizes(self.schedule_local, self.gamma_local, H)
        with np.errstate(over="ignore", invalid="ignore"):  # `solve` tells it in a sentence
            return self.problem.lower(client.i, client.data, x, y, batches, gammas)
