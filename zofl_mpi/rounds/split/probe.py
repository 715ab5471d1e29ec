"""--probe-gradient: how far a client's estimates point along the gradient, outside the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from zofl_mpi.engine.clients import Client
from zofl_mpi.errors import UserError
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.estimate import Estimate
from zofl_mpi.rounds.split.messages import Model, State, Whole
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from zofl_mpi.problems.signs import SignedLayers


@final
@dataclass(frozen=True)
class Compared:
    """Client to server at an evaluation."""

    cosine: float  # of the step's direction with the gradient, in what trains of theta_c
    head: float  # |g_a| / |g_c|; nan without a head


def check_probe(probe_gradient: bool, estimate: str) -> None:
    """Refuses to compare an estimate that is the gradient with the gradient.

    Raises:
        UserError: it is so.
    """
    if probe_gradient and estimate == "exact":
        raise UserError("--probe-gradient: --estimate exact has the gradient itself; leave one of them out")


def compare(
    training: Training,
    client: Client,
    message: Whole,
    estimate: Estimate | None,
    layers: SignedLayers | None = None,
    exact: slice | None = None,
    slope: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Compared:
    """One step's direction beside the gradient, at the first mini-batch of the client's round; moves nothing.

    Args:
        training: of the problem whose local loss is estimated.
        estimate: None where nothing is estimated.
        layers: those that take signs, where each sample has a direction.
        exact: what of theta_l steps along its gradient.
        slope: (inputs, labels) to the gradient at the cut, which then stands for the labels; None with a head.
    """
    model, n = Model(message.theta, message.buffers, message.r), training.problem.n_client
    local = LocalSteps(training, Client(client.i, client.data), model, head=slope is None, exact=exact)
    q, x, labels = next(iter(local))
    if slope is not None:
        labels = slope(x, labels)
    with local.at(local.scratch):
        g = local.problem.local.gradient(local.problem.local_loss(local.problem.smash(x), labels))
    found = g.new_zeros(g.shape)
    if exact is not None:
        found[exact] = g[exact]
    if estimate is not None:
        smashed, base = local.forward(x, labels)
        directions = estimate.directions(local, q)
        if layers is None:
            found[local.part] = estimate.of(local, directions, x, labels, base)[0]
        else:
            each = local.each(smashed, labels)
            found[local.part] = estimate.of_each(
                local, directions, layers, local.signs(q, estimate.draw), x, labels, each
            )
    own = slice(training.trainable(slope is None).start, n)
    size = float(g[own].norm())
    cosine = float(found[own] @ g[own]) / (float(found[own].norm()) * size or math.nan)
    return Compared(cosine, float(g[n:].norm()) / (size or math.nan) if slope is None else math.nan)


def compared(report: Report, state: State, r: int, ask: Callable[[Whole], Iterable[tuple[int, Compared]]]) -> Report:
    """The report with the means over the clients that are asked to compare.

    Args:
        ask: puts the whole model to them; their replies.
    """
    told = [reply for _, reply in ask(Whole(state.theta, state.buffers, state.theta_s, state.buffers_s, r))]
    cosine, head = (math.fsum(values) / len(told) for values in ([c.cosine for c in told], [c.head for c in told]))
    return replace(report, estimate_cosine=cosine, head_over_client=None if math.isnan(head) else head)


def slope_at_cut(training: Training, message: Whole) -> Callable[[Tensor, Tensor], Tensor]:
    """(inputs, labels) to the gradient of the server's loss at the smashed samples, as the server would return it."""
    import torch

    problem = training.problem
    theta, buffers, theta_s, buffers_s = (
        problem.placed(t).clone() for t in (message.theta, message.buffers, message.theta_s, message.buffers_s)
    )

    def slope(x: Tensor, labels: Tensor) -> Tensor:
        with problem.local.at(theta, buffers, training.running), torch.no_grad():
            smashed = problem.smash(x)
        smashed = smashed.detach().requires_grad_()
        with problem.top.at(theta_s, buffers_s, training.running):
            (found,) = torch.autograd.grad(problem.server_loss(smashed, labels), [smashed])
        return found

    return slope
