"""Split training in lockstep: each mini-batch goes up, and the gradient at the cut comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.messages import Model, Smashed, Trained
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.clients import Client, Clients, Step
from zofl_mpi.run.setting import Setting

Tensor = Any  # torch's
Work = dict[int, "Batches"]
"""{i: client i's round in progress}; of one process, and of one round."""


@final
@dataclass(frozen=True)
class Cut:
    """Server to client: the gradient at its smashed samples."""

    slope: Tensor  # (B, *smashed_shape)


@final
class Batches:
    """A client's round: forward to the cut, wait, backward from the cut, step."""

    def __init__(self, setting: Setting, training: Training, client: Client, message: Model) -> None:
        self.local = LocalSteps(setting, training, client, message, head=False)
        self.left: Iterator[tuple[int, Tensor, Tensor]] = iter(self.local)
        self.smashed: Tensor = None

    def forward(self) -> Smashed | None:
        """The next mini-batch, up to the cut; None after the last."""
        found = next(self.left, None)
        if found is None:
            return None
        _, x, labels = found
        with self.local.at(self.local.buffers):
            self.smashed = self.local.problem.smash(x)
        return Smashed(self.smashed.detach(), labels)

    def backward(self, slope: Tensor) -> None:
        """From the cut to the client's own parameters, and a step."""
        problem, local = self.local.problem, self.local
        with local.at(local.buffers):
            g = problem.local.gradient(self.smashed, problem.placed(slope))
        self.smashed = None
        local.step(g[local.part])


def begun(work: Work, setting: Setting, training: Training, client: Client, message: Model) -> Smashed | Trained:
    """The step of both methods that begins a client's round."""
    work[client.i] = Batches(setting, training, client, message)
    return _next(work, client)


def proceeded(work: Work, client: Client, message: Cut) -> Smashed | Trained:
    """The step of both methods that ends one mini-batch and begins the next."""
    work[client.i].backward(message.slope)
    return _next(work, client)


def _next(work: Work, client: Client) -> Smashed | Trained:
    batches = work[client.i]
    found = batches.forward()
    if found is None:
        del work[client.i]
        return batches.local.done()
    return found


def lockstep(
    clients: Clients,
    begin: Step,
    proceed: Step,
    message: Model,
    to: list[int],
    exchange: Mapping[int, Server],
) -> None:
    """Mini-batch after mini-batch: what comes up from each client, and what its server sends back."""
    replies = clients.ask(begin, message, to=to)
    while True:
        cuts = {i: Cut(exchange[i].exchange(item)) for i, item in replies if isinstance(item, Smashed)}
        if not cuts:
            return
        replies = clients.ask_each(proceed, cuts)
