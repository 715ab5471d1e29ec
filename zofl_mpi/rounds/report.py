"""Reports of evaluations: scores on held-out samples, and the losses of the global model on a `Smooth` problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast, final

from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems import Lipschitz, Smooth
from zofl_mpi.problems.base import score_of
from zofl_mpi.rounds import personal
from zofl_mpi.rounds.personal import FineTuning
from zofl_mpi.rounds.start import among, has_samples

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class Model:
    """Server to client: the global model."""

    x: Array  # (n,) the global model
    r: int  # the round


@final
@dataclass(frozen=True)
class Measured:
    """Client to server at an evaluation: the loss of the global model."""

    loss: float  # F_i(x)
    samples: int  # |D_i|
    nonsmooth: float = math.nan  # the same with the losses that F_i is a smooth twin of
    personal: dict[str, float] = field(default_factory=dict)  # accuracies of the client's personal model, by column


LOSS = "mean loss of x on the test samples: cross-entropy; the value of a toy problem"
TRAIN_LOSS = "the same on all training samples, the server's and the clients'"
NO_SCORE = {"loss": math.nan, "accuracy": math.nan}
"""The scores of a problem that has none."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Columns of every report: the model on samples held out from all, and the number of clients asked."""

    test_accuracy: float = column("1", "share of test samples that x classifies correctly")
    test_loss: float = column("nat", "mean loss of x on the test samples, in the problem's own unit")
    clients_asked: int = column("1", "clients that this evaluation asked; means and sums over clients are over these")
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)


HELD_OUT = frozenset(f.name for f in fields(HeldOut))


def held_out(setting: Setting[Any], *point: Array) -> dict[str, float]:
    """{column of `HeldOut`: score} of a model; see `all_scores`."""
    return {name: value for name, value in all_scores(setting, *point).items() if name in HELD_OUT}


def all_scores(setting: Setting[Any], *point: Array) -> dict[str, float]:
    """{column: score} of a model on the test samples, and its accuracy and loss on validation samples if there are any.

    Args:
        point: x (n,), and y (n_lower,) of a bilevel problem.
    """
    score = {**NO_SCORE, **score_of(setting.problem, *point, setting.test)}
    found = {f"test_{name}": value for name, value in score.items()}
    if setting.validation is not None:
        score = {**NO_SCORE, **score_of(setting.problem, *point, setting.validation)}
        found |= {f"validation_{name}": score[name] for name in NO_SCORE}
    return found


def share_weighted(losses: Iterable[tuple[int, float]]) -> float:
    """The mean of losses, each weighted by its number of samples, (samples, loss)."""
    pairs = list(losses)
    return math.fsum(samples * loss for samples, loss in pairs) / sum(samples for samples, _ in pairs)


@final
@dataclass(frozen=True, kw_only=True)
class Report(HeldOut):
    """Columns of an evaluation; some only where the F_i are smooth twins of nonsmooth losses, or with --personal."""

    test_loss: float = column("nat", LOSS)
    train_loss: float = column("nat", TRAIN_LOSS)
    f1: float = column("1", "mean loss of x on the server's data; nan if it has none")
    objective: float = column("1", "sum_i w_i F_i(x), what the clients minimise together")
    objective_nonsmooth: float | None = column(
        "1", "objective with the nonsmooth losses whose smooth twin the F_i are", None
    )
    test_smooth_loss: float | None = column(
        "nat", "test_loss of the smooth twin; test_loss itself is the nonsmooth one", None
    )
    personal_accuracy: float | None = column("1", personal.MEANING["personal_accuracy"], None)
    personal_accuracy_global: float | None = column("1", personal.MEANING["personal_accuracy_global"], None)
    validation_personal_accuracy: float | None = column("1", personal.MEANING["validation_personal_accuracy"], None)


@final
@dataclass(frozen=True)
class Reporting:
    """The report of a method, and the step that the clients are asked for.

    Attributes:
        setting: problem, data and random numbers.
        tuned: personal models, of a method that trains none.
    """

    setting: Setting[Smooth]
    tuned: FineTuning = part()

    def report(
        self, x: Array, r: int, clients: Clients, weights: Mapping[int, float], measure: Step | None = None
    ) -> Report:
        """The report on the model x (n,) after round r.

        Args:
            weights: {i: w_i} of the objective.
            measure: what clients are asked for, with `Model`: their `Measured`; `self.measure` unless given.
        """
        setting = self.setting
        asked = clients.ask(measure or self.measure, Model(x, r), to=setting.eval_participants(r), counted=False)
        scores = all_scores(setting, x)  # while the clients compute
        f1 = setting.problem.loss(x, setting.server) if has_samples(setting) else math.nan
        replies = dict(asked)
        shares = among(weights, replies)
        own = [(len(setting.server), f1)] if has_samples(setting) else []
        twin = setting.problem.smooth_twin
        smooth = {"test_smooth_loss": scores.pop("test_smooth_loss", math.nan)} if twin else {}
        return Report(
            train_loss=share_weighted([*own, *((p.samples, p.loss) for p in replies.values())]),
            f1=f1,
            objective=math.fsum(shares[i] * p.loss for i, p in replies.items()),
            objective_nonsmooth=math.fsum(shares[i] * p.nonsmooth for i, p in replies.items()) if twin else None,
            clients_asked=len(replies),
            **smooth,
            **{name: scores[name] for name in scores if name in HELD_OUT},
            **personal.means([p.personal for p in replies.values()]),
        )

    def measure(self, client: Client, message: Model) -> Measured:
        """Measures a client's loss of the model on all of its samples, and its personal model with --personal."""
        return self.measured(client, message.x, self.fine_tuned(client, message.x, message.r))

    def fine_tuned(self, client: Client, x: Array, r: int) -> Array | None:
        """(n,) the client's personal model after round r with --personal, else None."""
        return self.tuned.model(client, x, r) if self.tuned.personal else None

    def measured(self, client: Client, x: Array, y: Array | None = None) -> Measured:
        """A client's measurements of the global model x (n,) and of its personal one, y (n,)."""
        problem, data = self.setting.problem, client.data
        found = {} if y is None else personal.accuracies(self.setting, client.i, y)
        loss = problem.loss(x, data)
        if not problem.smooth_twin:
            return Measured(loss, len(data), personal=found)
        losses = cast(Lipschitz, problem).losses(client.i, x[None], data)
        return Measured(loss, len(data), float(losses[0]), found)
