"""Algorithm 2 of [A] at a client, and the report of an evaluation of ZO-HFL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import Array, at_least, column, part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.problems import Hierarchical
from zofl_mpi.rounds.local_sgd import LocalSteps
from zofl_mpi.rounds.report import Model, accuracies, accuracy_means, held_out, share_weighted
from zofl_mpi.rounds.report import Report as SmoothReport


@final
@dataclass(frozen=True)
class LocalSolve:
    """LOCAL, the inexact solution of min over y in Y_i(x) of h_i(x, y): [A] Algorithm 2.

    Attributes:
        steps: numbers and sizes of the steps.
        batch: samples of a local step, drawn with replacement.
        y0: start of the local solves: x (the point they are asked at) or last (the middle of the client's last pair).
        samples: shared or separate mini-batches of the two solves; separate multiplies their noise by n/(2 eta).
    """

    setting: Setting[Hierarchical]
    steps: LocalSteps = part()
    batch: int = at_least(1, 64)
    y0: Literal["x", "last"] = "x"
    samples: Literal["shared", "separate"] = "shared"

    def solve(self, client: Client, x: Array, r: int, purpose: Purpose = Purpose.BATCH) -> Array:
        """(k, n) LOCAL(x) for each row of x (k, n): H_{i,r} projected stochastic gradient steps on h_i.

        By default both solves of a round see the same samples, and with --y0 last they start at one point: else their
        noise and the difference of their starts would be multiplied by n/(2 eta).
        """
        y0 = np.broadcast_to(client.memory["y"], x.shape) if self.y0 == "last" and "y" in client.memory else x
        if self.samples == "shared" or len(x) == 1:
            return self._descended(client, x, y0, r, purpose)
        plus = self._descended(client, x[:1], y0[:1], r, purpose)
        return np.concatenate([plus, self._descended(client, x[1:], y0[1:], r, Purpose.BATCH_MINUS)])

    def keep(self, client: Client, y: Array) -> None:
        """Remembers the middle of the pair y (2, n), where the next solves start with --y0 last."""
        if self.y0 == "last":
            client.memory["y"] = y.mean(axis=0, dtype=np.float64).astype(y.dtype)

    def _descended(self, client: Client, x: Array, y: Array, r: int, purpose: Purpose) -> Array:
        gammas = self.steps.sizes(client.i, r)
        size = (len(gammas), self.batch)
        batches = self.setting.streams(purpose, r=r, i=client.i).integers(len(client.data), size=size)
        return self.setting.problem.lower(client.i, client.data, x, y, batches, gammas)


@dataclass(frozen=True)
class Personal:
    """Client to server at an evaluation: the personal model y_i = LOCAL(x), measured."""

    f2: float  # f_{2,i}(x, y_i)
    loss: float  # of x on the client's data; nan where the problem has no such thing
    samples: int  # |D_i|
    accuracies: dict[str, float]  # of y_i, by column
    distance: float  # |x - y_i|
    error: float  # |y_i - y_i(x)|; nan where there is no closed form


@dataclass(frozen=True, kw_only=True)
class Report(SmoothReport):
    """Columns of an evaluation."""

    f1: float = column("1", "f_1(x) on all of the server's data")
    f2: float = column("1", "(1/m) sum_i f_{2,i}(x, y_i), y_i from Algorithm 2 at x itself")
    objective: float = column("1", "f_1(x) + f_2(x)")
    local_distance: float = column("1", "mean over clients of |x - y_i|")
    local_error: float = column(
        "1", "mean over clients of |y_i - y_i(x)|, the inexactness of Algorithm 2; nan without closed form"
    )


def measured(setting: Setting[Hierarchical], client: Client, x: Array, y: Array) -> Personal:
    """A client's measurements of its personal model y (n,) at x (n,)."""
    exact = setting.problem.solution(client.i, client.data, x)
    return Personal(
        f2=setting.problem.f2(client.i, x, y),
        loss=setting.problem.score(x, client.data).get("loss", math.nan),
        samples=len(client.data),
        accuracies=accuracies(setting, client.i, y),
        distance=float(np.linalg.norm(x - y)),
        error=math.nan if exact is None else float(np.linalg.norm(y - exact)),
    )


def report(setting: Setting[Hierarchical], x: Array, r: int, clients: Clients, step: Step) -> Report:
    """The report on x (n,) after round r, from the clients' `Personal`, their replies to `step`."""
    asked = clients.ask(step, Model(x, r), to=setting.eval_participants(r), counted=False)
    scores = held_out(setting, x)  # while the clients compute
    own = setting.problem.score(x, setting.server).get("loss", math.nan)
    f1 = setting.problem.f1(x, setting.server)
    replies = [reply for _, reply in asked]
    f2, distance, error = (
        math.fsum(values) / len(replies) for values in zip(*((p.f2, p.distance, p.error) for p in replies), strict=True)
    )
    return Report(
        train_loss=share_weighted([(len(setting.server), own), *((p.samples, p.loss) for p in replies)]),
        f1=f1,
        f2=f2,
        objective=f1 + f2,
        clients_asked=len(replies),
        local_distance=distance,
        local_error=error,
        **scores,
        **accuracy_means([p.accuracies for p in replies]),
    )
