"""What the methods on a `Smooth` problem report: losses and accuracy of the global model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import column, part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems import Lipschitz, Smooth, optional
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


@final
@dataclass(frozen=True)
class Report:
    """What an evaluation tells; some only where the F_i are smooth twins of nonsmooth losses, or with --validation."""

    test_accuracy: float = column("1", "share of test samples that x classifies correctly")
    test_loss: float = column("nat", "mean loss of x on the test samples: cross-entropy; the value of a toy problem")
    train_loss: float = column("nat", "the same on all training samples, the server's and the clients'")
    f1: float = column("1", "mean loss of x on the server's data; nan if it has none")
    objective: float = column("1", "sum_i w_i F_i(x), what the clients minimise together")
    clients_asked: int = column("1", "clients that this evaluation asked; means and sums over clients are over these")
    objective_nonsmooth: float | None = column(
        "1", "objective with the nonsmooth losses whose smooth twin the F_i are", None
    )
    test_smooth_loss: float | None = column(
        "nat", "test_loss of the smooth twin; test_loss itself is the nonsmooth one", None
    )
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    personal_accuracy: float | None = column("1", personal.MEANING["personal_accuracy"], None)
    personal_accuracy_global: float | None = column("1", personal.MEANING["personal_accuracy_global"], None)
    validation_personal_accuracy: float | None = column("1", personal.MEANING["validation_personal_accuracy"], None)


def validated(setting: Setting[Any], *point: Array) -> dict[str, float]:
    """What a model has on the validation samples, by the names of a report's fields; nothing without them.

    Args:
        point: x (n,), and y (n_lower,) of a bilevel problem.
    """
    if setting.validation is None:
        return {}
    score = optional.score(setting.problem, *point, setting.validation)
    return {f"validation_{name}": score.get(name, math.nan) for name in ("accuracy", "loss")}


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
        problem, setting = self.setting.problem, self.setting
        replies = clients.ask(measure or self.measure, Model(x, r), to=setting.eval_participants(r), counted=False)
        test = problem.score(x, setting.test)  # while the clients compute
        own = []
        if has_samples(setting):
            own = [Measured(problem.loss(x, setting.server), len(setting.server))]
        measured = dict(replies)
        every = [*own, *measured.values()]
        shares = among(weights, measured)
        twin = {}
        if optional.smooth_twin(problem):
            twin["objective_nonsmooth"] = math.fsum(shares[i] * p.nonsmooth for i, p in measured.items())
            twin["test_smooth_loss"] = test.get("smooth_loss", math.nan)
        return Report(
            test_accuracy=test.get("accuracy", math.nan),
            test_loss=test.get("loss", math.nan),
            train_loss=math.fsum(p.samples * p.loss for p in every) / sum(p.samples for p in every),
            f1=own[0].loss if own else math.nan,
            objective=math.fsum(shares[i] * p.loss for i, p in measured.items()),
            clients_asked=len(measured),
            **twin,
            **validated(setting, x),
            **personal.means([p.personal for p in measured.values()]),
        )

    def measure(self, client: Client, message: Model) -> Measured:
        """Measures a client's loss of the model on all of its samples, and its personal model with --personal."""
        y = self.tuned.model(client, message.x, message.r) if self.tuned.personal else None
        return self.measured(client, message.x, y)

    def measured(self, client: Client, x: Array, y: Array | None = None) -> Measured:
        """What a client sends at an evaluation on the global model x (n,) and its personal one, y (n,)."""
        problem, data = self.setting.problem, client.data
        found = {} if y is None else personal.accuracies(self.setting, client.i, y)
        loss = problem.loss(x, data)
        if not optional.smooth_twin(problem):
            return Measured(loss, len(data), personal=found)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = cast(Lipschitz, problem).losses(client.i, x[None], data)
        return Measured(loss, len(data), float(losses[0]), found)
