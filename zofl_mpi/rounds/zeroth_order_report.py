"""Reports and --dry-run of [B] Algorithms 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import Array, column, part
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.numerics import zo
from zofl_mpi.numerics.stationarity import gradient_squared
from zofl_mpi.problems import Lipschitz
from zofl_mpi.rounds.cost import Costed
from zofl_mpi.rounds.report import HeldOut, Model, all_scores
from zofl_mpi.rounds.start import Sampling, among
from zofl_mpi.rounds.zeroth_order import Local


@dataclass(frozen=True)
class Probe:
    """Client to server at an evaluation: the loss, and its differences along the directions of the report."""

    loss: float  # f_i on all of the client's samples
    differences: Array  # (N,) f_i(x + eta v_j) - f_i(x - eta v_j), all samples


@dataclass(frozen=True, kw_only=True)
class Report(HeldOut):
    """Columns of an evaluation; None where the problem or the method has no such thing."""

    objective: float = column("1", "f(x) = sum_i w_i f_i(x) on all of the clients' samples")
    set_distance: float = column("1", "largest distance of x to one of the sets X_i")
    gradient_squared: float = column(
        "1", "estimate of |grad f^eta(x) + sum_i w_i (x - P_{X_i}(x))/eta|^2, unbiased, so it may be below 0"
    )
    gradient_squared_error: float = column("1", "its standard error")
    test_smooth_loss: float | None = column(
        "nat", "test_loss of the smooth twin; test_loss itself is the nonsmooth one", None
    )
    test_worst_class_loss: float | None = column(
        "nat", "largest mean loss of x over the test samples of one class, in the problem's own unit", None
    )
    test_worst_class_accuracy: float | None = column(
        "1", "least share of the test samples of one class that x classifies correctly", None
    )
    objective_exact: float | None = column("1", "f(x, y(x)) with the exact y(x); nan without --exact", None)
    lower_error: float | None = column(
        "1", "|y - y(x)| of the call that an evaluation makes; nan without --exact", None
    )
    further: Mapping[str, float] = field(default_factory=dict)  # other scores of a problem of a user's own


COLUMNS = frozenset(f.name for f in fields(Report))


def directions(local: Local, r: int) -> Array:
    """(N, n) the directions of the report after round r."""
    setting, n = local.setting, local.setting.problem.n
    generator = setting.streams(Purpose.PROBE, r=r)
    drawn = [zo.direction(generator, n, setting.dtype) for _ in range(local.probe)]
    return np.stack(drawn) if drawn else np.empty((0, n), setting.dtype)


def report(local: Local, x: Array, r: int, differences: Array, scores: Mapping[str, float], **values: Any) -> Report:
    """The report on the iterate x (n,) after round r.

    Args:
        differences: (N,) central differences of f along `directions`.
        scores: of x, by column; all others than the report's own are its `further`.
        values: of the other columns.
    """
    shares = local.shares()
    pull = sum((shares[i] * local.pull(x, own) for i, own in enumerate(local.sets)), np.zeros(len(x)))
    g = (len(x) / (2 * local.eta) * differences)[:, None] * directions(local, r).astype(np.float64)
    squared = gradient_squared(g, pull)
    found: dict[str, Any] = {name: value for name, value in scores.items() if name in COLUMNS}
    return Report(
        set_distance=max(local.eta * float(np.linalg.norm(local.pull(x, own))) for own in local.sets),
        gradient_squared=squared.value,
        gradient_squared_error=squared.error,
        further={name: value for name, value in scores.items() if name not in COLUMNS},
        **found,
        **values,
    )


def schedule_lines(local: Local, theory: str, bounds: Mapping[str, float]) -> dict[str, str | float]:
    """The lines of --dry-run on the local steps: the schedule, and the bounds that the theory puts on gamma.

    Args:
        theory: "Proposition 1" or "Theorem 1".
        bounds: {formula: bound}, as far as the problem knows their constants.
    """
    H = local.steps()
    lines: dict[str, str | float] = {"local steps of a round, H": H, "step size of round 0, gamma": local.stepsize(0)}
    lines |= {f"{theory} asks for gamma at most {formula}": bound for formula, bound in bounds.items()}
    if local.K:
        lines["rounds that K takes"] = math.ceil(local.K / H)
    return lines


def proposition1(local: Local) -> dict[str, float]:
    """{formula: bound} on gamma of [B] Proposition 1; B_2 of its third says how the X_i differ (Assumption 1)."""
    L0, n, H = local.setting.problem.lipschitz, local.setting.problem.n, local.steps()
    bounds = {"1/(4H)": 1 / (4 * H)}
    if L0 is not None:
        bounds["eta/(4 L_0 n)"] = local.eta / (4 * L0 * n)
        third = local.eta / (12 * math.sqrt(3) * (L0 * n + 1) * H)
        bounds["eta/(12 sqrt(3) B_2 (L_0 n + 1) H), B_2 = 1"] = third
    return bounds


def theorem1(local: Local) -> dict[str, float]:
    """{formula: bound} on gamma of [B] Theorem 1; its first has a maximum of 2 and constants that nobody knows."""
    L0, n, H = local.setting.problem.lipschitz, local.setting.problem.n, local.steps()
    bounds = {"1/(8H)": 1 / (8 * H)}
    if L0 is not None:
        bounds["eta/(24 (L_0 n + 1))"] = local.eta / (24 * (L0 * n + 1))
    return bounds


@dataclass(frozen=True)
class LipschitzReports(Costed[Lipschitz]):
    """Base of Algorithm 1: its report and --dry-run.

    Attributes:
        local: the local steps.
        sampling: the participants; the paper's are all clients.
    """

    needs: ClassVar[type] = Lipschitz
    local: Local = part()
    sampling: Sampling = part()

    def evaluate(self, state: Any, r: int, clients: Clients) -> Report:
        """Reports on x, from all samples of the clients."""
        x = state.x
        replies = clients.ask(self.probe, Model(x, r), to=self.setting.eval_participants(r), counted=False)
        scores = all_scores(self.setting, x)  # while the clients compute
        probes = dict(replies)
        shares = among(self.local.shares(), probes)
        differences = sum((shares[i] * p.differences for i, p in probes.items()), np.zeros(self.local.probe))
        objective = math.fsum(shares[i] * p.loss for i, p in probes.items())
        return report(self.local, x, r, differences, scores, objective=objective, clients_asked=len(probes))

    def probe(self, client: Client, message: Model) -> Probe:
        """Measures f_i on all samples, at x and at both ends of each direction."""
        x, v = message.x, directions(self.local, message.r)
        step = x.dtype.type(self.local.eta) * v
        points = np.concatenate([x[None], x + step, x - step])
        F = self.problem.losses(client.i, points, client.data)
        return Probe(float(F[0]), np.asarray(F[1 : 1 + len(v)] - F[1 + len(v) :], np.float64))

    def plan(self, rounds: int) -> dict[str, str | float]:
        return super().plan(rounds) | schedule_lines(self.local, "Proposition 1", proposition1(self.local))
