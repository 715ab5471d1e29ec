"""Reports of split training: the test samples, scored by all clients together, and the cosines of their directions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zofl_mpi import Client, Setting, column
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.messages import Network, Scored

BLOCK = 256
"""Test samples that are scored at once; a multiple of every problem's `report_batch`."""


@dataclass(frozen=True)
class Report:
    """Quality of the network on the test samples, and on the validation samples where there are any, by
    `problems.Split.quality`; None where a problem does not have it.
    """

    test_accuracy: float | None = column(
        "1", "share of test samples, of texts: of their tokens, that server(client(x)) predicts correctly", None
    )
    test_loss: float | None = column(
        "nat", "its mean cross-entropy on the test samples, of texts: on their tokens", None
    )
    test_perplexity: float | None = column("1", "exp(test_loss)", None)
    test_perplexity_batches: float | None = column(
        "1", "exp of the mean over batches of test samples of each one's mean cross-entropy of a token", None
    )
    validation_accuracy: float | None = column("1", "test_accuracy on the validation samples in place of test's", None)
    validation_loss: float | None = column("nat", "test_loss on the validation samples in place of test's", None)
    validation_perplexity: float | None = column("1", "exp(validation_loss)", None)
    validation_perplexity_batches: float | None = column(
        "1", "test_perplexity_batches on the validation samples in place of test's", None
    )
    estimate_cosine: float | None = column(
        "1",
        "cosine of a client's step direction with its gradient in theta_c, mean over clients; --probe-gradient",
        None,
    )
    head_over_client: float | None = column(
        "1", "norm of a local gradient in theta_a over that in theta_c, mean over clients; --probe-gradient", None
    )


def scored(setting: Setting[Split], client: Client, message: Network) -> Scored:
    """Sums over a client's share of the test samples, and of the validation samples."""
    problem = setting.problem
    theta, buffers, theta_s, buffers_s = (
        problem.placed(t).clone() for t in (message.theta, message.buffers, message.theta_s, message.buffers_s)
    )
    asked = setting.eval_participants(message.r)
    with problem.evaluating(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
        test, validation = (
            _sums(problem, data, asked.index(client.i), len(asked)) for data in (setting.test, setting.validation)
        )
    return Scored(test, validation)


def _sums(problem: Split, data: Any, first: int, step: int) -> dict[str, float]:
    """Sums over every step-th batch of consecutive samples; batches do not depend on the number of clients."""
    sums: dict[str, Any] = {}
    rows = np.arange(0 if data is None else len(data))
    positions = rows[rows // problem.report_batch % step == first]
    for start in range(0, len(positions), BLOCK):
        score = problem.score(*problem.samples(data, positions[start : start + BLOCK]))
        sums = {name: sums.get(name, 0.0) + value for name, value in score.items()}
    return {name: float(value) for name, value in sums.items()}


def report_of(problem: Split, replies: Sequence[Scored]) -> Report:
    """The report from the sums of the clients that were asked."""
    test = _quality(problem, [reply.sums for reply in replies], "test")
    return Report(**test, **_quality(problem, [reply.validation for reply in replies], "validation"))


def _quality(problem: Split, parts: Sequence[Mapping[str, float]], name: str) -> dict[str, float]:
    """{name_...: quality}; nothing where there are no samples."""
    kinds = {kind for sums in parts for kind in sums}
    sums = {kind: math.fsum(part.get(kind, 0.0) for part in parts) for kind in kinds}
    return {f"{name}_{kind}": value for kind, value in problem.quality(sums).items()} if sums else {}


# --- cosines


@dataclass(frozen=True)
class Compared:
    """Client to server at an evaluation, with --probe-gradient."""

    cosine: float  # of the step's direction with the gradient, in what trains of theta_c
    head: float  # |g_a| / |g_c|; nan without a head


def with_cosines(report: Report, replies: Iterable[tuple[int, Compared]]) -> Report:
    """The report with the means over the clients that compared."""
    each = [reply for _, reply in replies]
    cosine, head = (math.fsum(values) / len(each) for values in ([c.cosine for c in each], [c.head for c in each]))
    return replace(report, estimate_cosine=cosine, head_over_client=None if math.isnan(head) else head)
