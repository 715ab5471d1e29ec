"""Reports of evaluations: scores on held-out samples, losses of the global model, personal models."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, cast, final

import numpy as np

from zofl_mpi import Array, Client, Clients, Purpose, Setting, Step, at_least, column
from zofl_mpi.engine.fields import UsedWith, demand_known
from zofl_mpi.numerics.schedules import demand_tau, local_steps, parse_decay, stepsizes
from zofl_mpi.problems import Hierarchical, Lipschitz, Smooth
from zofl_mpi.rounds.base import descended, eval_data, has_samples, scaled_to_one


@dataclass(frozen=True)
class GlobalModel:
    """Server to client: the global model."""

    x: Array  # (n,) the global model
    r: int  # the round


@dataclass(frozen=True)
class Measured:
    """Client to server at an evaluation: the loss of the global model."""

    loss: float  # F_i(x); nan: the problem has no loss
    samples: int  # |D_i|
    nonsmooth: float = math.nan  # the same with the nonsmooth losses, if F_i is their smooth twin
    means: dict[str, float] = field(default_factory=dict)  # columns of the report, averaged over clients


NO_SCORE = {"loss": math.nan, "accuracy": math.nan}  # for a problem without


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Columns of every report: scores on held-out samples, and the number of clients asked."""

    test_accuracy: float = column("1", "share of test samples that x classifies correctly")
    test_loss: float = column("nat", "mean loss of x on the test samples, in the problem's own unit")
    clients_asked: int = column("1", "clients that this evaluation asked; means and sums over clients are over these")
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    further: Mapping[str, float] = field(default_factory=dict)  # {column: number} of the problem's other scores


def by_column(report: type[Any], scores: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a report: scores with a column of that name, and all others as `further`."""
    columns = {f.name for f in fields(report)}
    known = {name: value for name, value in scores.items() if name in columns}
    return {**known, "further": {name: value for name, value in scores.items() if name not in columns}}


def all_scores(setting: Setting[Any], *point: Array) -> dict[str, float]:
    """{column: score} of x (n,) and y (n_lower,), on test and validation samples.

    Scores are accuracy, loss and the user's metrics.
    """

    def score(data: Any, of: str) -> dict[str, float]:
        found = setting.problem.score(*point, data) if data else {}
        demand_known(found.get("loss", 0.0), f"the loss of the model on the {of} samples")
        return {**NO_SCORE, **found}

    scores = {f"test_{name}": value for name, value in score(setting.test, "test").items()}
    if setting.validation is not None:
        own = score(setting.validation, "validation")
        kept = {*NO_SCORE, *setting.problem.metric_names}
        scores |= {f"validation_{name}": value for name, value in own.items() if name in kept}
    return scores


def share_weighted(losses: Iterable[tuple[int, float]]) -> float:
    """Mean of losses weighted by their numbers of samples, from pairs (samples, loss)."""
    pairs = list(losses)
    return math.fsum(samples * loss for samples, loss in pairs) / sum(samples for samples, _ in pairs)


@dataclass(frozen=True, kw_only=True)
class SmoothReport(HeldOut):
    """Columns of an evaluation; some need smooth twins of nonsmooth losses, or --personal."""

    test_loss: float = column("nat", "mean loss of x on the test samples: cross-entropy; the value of a toy problem")
    train_loss: float = column("nat", "the same on all training samples, the server's and the clients'")
    f1: float = column("1", "mean loss of x on the server's data; nan if it has none")
    objective: float = column("1", "sum_i w_i F_i(x), what the clients minimise together")
    objective_nonsmooth: float | None = column(
        "1", "objective with the nonsmooth losses whose smooth twin the F_i are", None
    )
    test_smooth_loss: float | None = column(
        "nat", "test_loss of the smooth twin; test_loss itself is the nonsmooth one", None
    )
    personal_accuracy: float | None = column(
        "1", "mean over clients: accuracy of y_i on test samples weighted to the client's own classes", None
    )
    personal_accuracy_global: float | None = column("1", "mean over clients: accuracy of y_i on the test samples", None)
    validation_personal_accuracy: float | None = column(
        "1", "personal_accuracy on the validation samples in place of test's", None
    )


# --- personal models


def accuracies(setting: Setting[Any], i: int, y: Array) -> dict[str, float]:
    """Accuracies of client i's personal model y (n,) and the user's metrics, by column.

    Accuracies are nan if no held-out sample counts.
    """
    columns = {f"personal_{name}": value for name, value in _of_personal(setting, i, y, setting.test).items()}
    if setting.validation is not None:
        found = _of_personal(setting, i, y, setting.validation)
        del found["accuracy_global"]
        columns |= {f"validation_personal_{name}": value for name, value in found.items()}
    return columns


def column_means(replies: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each column over the clients asked; empty without personal models."""
    return {name: math.fsum(reply[name] for reply in replies) / len(replies) for name in replies[0]}


def _of_personal(setting: Setting[Any], i: int, y: Array, held_out: Any) -> dict[str, float]:
    """Accuracy of y (n,) on samples weighted by client i's classes, accuracy unweighted, and the user's metrics."""
    problem, counts, names = setting.problem, setting.counts, setting.problem.metric_names
    hits = None if counts is None else problem.hits
    scores = problem.score(y, held_out) if names or hits is None else {}
    metrics = {name: scores[name] for name in names if name in scores}
    if counts is None or hits is None:
        of_mix = of_all = scores.get("accuracy", math.nan)
        if counts is not None and counts.shape[1] > 1:
            of_mix = problem.score(y, held_out, counts[i] / counts[i].sum()).get("accuracy", math.nan)
        return {"accuracy": of_mix, "accuracy_global": of_all, **metrics}
    right, there = hits(y, held_out), held_out.counts()  # (classes,)
    shares = np.where(there > 0, counts[i] / counts[i].sum(), 0.0)
    total = shares.sum()  # 0: the samples contain none of the client's classes
    weighted = float(shares @ (right / np.maximum(there, 1)) / total) if total else math.nan
    return {"accuracy": weighted, "accuracy_global": float(right.sum() / there.sum()), **metrics}


PERSONAL = ("tau", "schedule_h", "gamma", "schedule", "mu", "batch")
"""Flags of the personal models that an evaluation creates."""


@final
@dataclass(frozen=True)
class Reporting:
    """The report of a method, and the step that clients are asked for.

    With --personal, if the method trains no personal models, each client creates one at an evaluation by Algorithm 2 of
    [A] from y = x: y <- y - gamma~_t (g_i(y) + mu (y - x)) on its own data. It is neither sent nor kept. The defaults
    are those of ZO-HFL's personal models.

    Attributes:
        personal: create personal models at evaluations and report their accuracy.
        personal_tau: local steps: H_r = ceil(tau sqrt(r+1)).
        personal_schedule_h: growth of the number of local steps: sqrt, or constant (H = ceil(tau)).
        personal_gamma: step size.
        personal_schedule: schedule of the step size over local steps t: harmonic (gamma/(t+1)), harmonic:OFFSET, sqrt,
            constant or power:P.
        personal_mu: weight of the proximal term (mu/2)|x - y|^2; 0 is plain fine-tuning.
        personal_batch: samples of a step, drawn with replacement.
    """

    USED_WITH: ClassVar[UsedWith] = {f"personal_{name}": {"personal": ()} for name in PERSONAL}
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

    def report(
        self, x: Array, r: int, clients: Clients, weights: Mapping[int, float], measure: Step | None = None
    ) -> SmoothReport:
        """The report on x (n,) after round r, from the objective's {i: w_i} and the replies to `measure`."""
        setting = self.setting
        asked = clients.ask(measure or self.measure, GlobalModel(x, r), to=setting.eval_participants(r), counted=False)
        scores = all_scores(setting, x)  # while the clients compute
        f1 = setting.problem.loss(x, eval_data(setting, setting.server)) if has_samples(setting) else math.nan
        replies = dict(asked)
        shares = scaled_to_one(weights, replies)
        own = [(len(setting.server), f1)] if has_samples(setting) else []
        twin = setting.problem.smooth_twin
        return SmoothReport(
            train_loss=share_weighted([*own, *((p.samples, p.loss) for p in replies.values())]),
            f1=f1,
            objective=math.fsum(shares[i] * p.loss for i, p in replies.items()),
            objective_nonsmooth=math.fsum(shares[i] * p.nonsmooth for i, p in replies.items()) if twin else None,
            clients_asked=len(replies),
            **by_column(SmoothReport, scores | column_means([p.means for p in replies.values()])),
        )

    def measure(self, client: Client, message: GlobalModel) -> Measured:
        """Measure a client's loss of the model on its samples, and with --personal its personal model."""
        return self.measured(client, message.x, self.fine_tuned(client, message.x, message.r))

    def fine_tuned(self, client: Client, x: Array, r: int) -> Array | None:
        """(n,) y_i, the client's personal model after round r (None without --personal); its memory stays unchanged."""
        if not self.personal:
            return None
        H = local_steps(self.personal_schedule_h, self.personal_tau, r)
        generator = self.setting.streams(Purpose.PERSONAL, r=r, i=client.i)
        batches = generator.integers(len(client.data), size=(H, self.personal_batch))
        gammas = stepsizes(self.personal_schedule, self.personal_gamma, H)
        return descended(self.setting.problem, client.data, x, batches, gammas, mu=self.personal_mu)

    def measured(self, client: Client, x: Array, y: Array | None = None) -> Measured:
        """A client's measurements of the global model x (n,) and of its personal model y (n,)."""
        problem, data = self.setting.problem, eval_data(self.setting, client.data, client.i)
        means = {} if y is None else accuracies(self.setting, client.i, y)
        loss = problem.loss(x, data)
        if not problem.smooth_twin:
            return Measured(loss, len(client.data), means=means)
        losses = cast(Lipschitz, problem).losses(client.i, x[None], data)
        return Measured(loss, len(client.data), float(losses[0]), means)


@dataclass(frozen=True, kw_only=True)
class HierarchicalReport(SmoothReport):
    """Columns of an evaluation of ZO-HFL."""

    f1: float = column("1", "f_1(x) on all of the server's data")
    f2: float = column("1", "(1/m) sum_i f_{2,i}(x, y_i), y_i from Algorithm 2 at x itself")
    objective: float = column("1", "f_1(x) + f_2(x)")
    local_distance: float = column("1", "mean over clients of |x - y_i|")
    local_error: float = column(
        "1", "mean over clients of |y_i - y_i(x)|, the inexactness of Algorithm 2; nan without closed form"
    )


def measure_personal(setting: Setting[Hierarchical], client: Client, x: Array, y: Array) -> Measured:
    """A client's measurements of x (n,) and of its personal model y (n,), LOCAL(x)."""
    problem = setting.problem
    exact = problem.solution(client.i, client.data, x)
    means = {
        "f2": problem.f2(client.i, x, y),
        "local_distance": float(np.linalg.norm(x - y)),
        "local_error": math.nan if exact is None else float(np.linalg.norm(y - exact)),
    }
    loss = problem.score(x, eval_data(setting, client.data, client.i)).get("loss", math.nan)
    return Measured(loss, len(client.data), means=means | accuracies(setting, client.i, y))


def hierarchical_report(
    setting: Setting[Hierarchical], x: Array, r: int, clients: Clients, step: Step
) -> HierarchicalReport:
    """The report on x (n,) after round r, from the clients' replies to `step`."""
    asked = clients.ask(step, GlobalModel(x, r), to=setting.eval_participants(r), counted=False)
    scores = all_scores(setting, x)  # while the clients compute
    server = eval_data(setting, setting.server)
    own = setting.problem.score(x, server).get("loss", math.nan)
    f1 = setting.problem.f1(x, server)
    replies = [reply for _, reply in asked]
    means = column_means([p.means for p in replies])
    return HierarchicalReport(
        train_loss=share_weighted([(len(setting.server), own), *((p.samples, p.loss) for p in replies)]),
        f1=f1,
        objective=f1 + means["f2"],
        clients_asked=len(replies),
        **by_column(HierarchicalReport, scores | means),
    )
