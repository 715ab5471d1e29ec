"""Personal models: each client's own, made from the global one on its own data, and what they reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.numerics.schedules import demand_tau, local_steps, parse_decay, stepsizes
from zofl_mpi.problems import Smooth

Array = NDArray[Any]


MEANING = {
    "personal_accuracy": "mean over clients: accuracy of y_i on test samples weighted to the client's own classes",
    "personal_accuracy_global": "mean over clients: accuracy of y_i on the test samples",
    "validation_personal_accuracy": "personal_accuracy on the validation samples in place of test's",
}
"""The columns on personal models y_i; the last where there are validation samples."""


def accuracies(setting: Setting[Any], i: int, y: Array) -> dict[str, float]:
    """The accuracies of client i's personal model y (n,), by column; nan where no held-out sample counts."""
    own, of_all = _weighted(setting, i, y, setting.test)
    found = {"personal_accuracy": own, "personal_accuracy_global": of_all}
    if setting.validation is not None:
        found["validation_personal_accuracy"] = _weighted(setting, i, y, setting.validation)[0]
    return found


def means(replies: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each column over the clients that were asked; nothing where they have no personal models."""
    return {name: math.fsum(reply[name] for reply in replies) / len(replies) for name in replies[0]}


def _weighted(setting: Setting[Any], i: int, y: Array, held_out: Any) -> tuple[float, float]:
    """The accuracy of y (n,) on samples weighted to client i's own classes, and as they are."""
    problem, counts = setting.problem, setting.counts
    hits = problem.hits
    if hits is None or counts is None:
        mix = None if counts is None else counts[i] / counts[i].sum()
        of_mix, of_all = (problem.score(y, held_out, m).get("accuracy", math.nan) for m in (mix, None))
        return of_mix, of_all
    found, there = hits(y, held_out), held_out.counts()
    shares = np.where(there > 0, counts[i] / counts[i].sum(), 0.0)
    with np.errstate(invalid="ignore"):  # 0/0: the samples have none of the client's classes
        weighted = np.divide(shares @ (found / np.maximum(there, 1)), shares.sum())
    return float(weighted), float(found.sum() / there.sum())


@final
@dataclass(frozen=True)
class FineTuning:
    """Personal models of a method that trains none: at an evaluation each client takes Algorithm 2 of [A] from x.

    y <- y - gamma~_t (g_i(y) + mu (y - x)) from y = x on the client's own data; nothing of it travels or is kept. The
    defaults are ZO-HFL's, with which its own personal models are made.

    Attributes:
        setting: problem, data and random numbers.
        personal: whether an evaluation makes them, and reports their accuracy.
        personal_tau: local steps: H_r = ceil(tau sqrt(r+1)).
        personal_schedule_h: sqrt or constant (H = ceil(tau)).
        personal_gamma: step size.
        personal_schedule: over local steps t: harmonic (gamma/(t+1)), harmonic:OFFSET, sqrt, constant or power:P.
        personal_mu: weight of the proximal term (mu/2)|x - y|^2; 0 is plain fine-tuning.
        personal_batch: samples of a step, drawn with replacement.
    """

    setting: Setting[Smooth]
    personal: bool = False
    personal_tau: float = 20.0
    personal_schedule_h: Literal["sqrt", "constant"] = "sqrt"
    personal_gamma: float = at_least(0, 0.1, "a step size")
    personal_schedule: str = "harmonic"
    personal_mu: float = at_least(0, 1.0, "a weight")
    personal_batch: int = at_least(1, 64)

    def __post_init__(self) -> None:
        demand_tau("personal_tau", (self.personal_tau,))
        parse_decay(self.personal_schedule, "--personal-schedule")

    def model(self, client: Client, x: Array, r: int) -> Array:
        """(n,) y_i, the client's personal model after round r; leaves no trace in its memory."""
        H = local_steps(self.personal_schedule_h, self.personal_tau, r, "--personal-schedule-h")
        generator = self.setting.streams(Purpose.PERSONAL, r=r, i=client.i)
        batches = generator.integers(len(client.data), size=(H, self.personal_batch))
        gammas = stepsizes(self.personal_schedule, self.personal_gamma, H)
        return self.setting.problem.descend(client.data, x, batches, gammas, mu=self.personal_mu)
