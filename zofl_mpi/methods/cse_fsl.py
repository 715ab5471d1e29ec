"""Split learning with an auxiliary head, first order: CSE-FSL.

Mu, Shen, "Communication and Storage Efficient Federated Split Learning", ICC 2023.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, final

from zofl_mpi.engine.clients import Client, Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.costs import LocalStep, Traffic, costs_of, plan_of
from zofl_mpi.rounds.split.messages import Model, Smashed, State, Trained
from zofl_mpi.rounds.split.report import Report
from zofl_mpi.rounds.split.server import averaged_round
from zofl_mpi.rounds.split.training import Training


@final
@dataclass(frozen=True)
class CSEFSL:
    """Clients step along the gradient of their auxiliary loss; the server trains on what they upload.

    Attributes:
        setting: problem, data and random numbers.
        training: the round.
    """

    needs: ClassVar[type] = Split
    setting: Setting[Split]
    training: Training = part()

    def __post_init__(self) -> None:
        self.training.check_local()

    def start(self) -> State:
        """The parts as the problem makes them."""
        return self.training.start()

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1 of the paper."""
        return averaged_round(self.training, state, r, clients, self.train, self.training.mean)

    def train(self, client: Client, message: Model) -> Generator[Smashed, None, Trained]:
        """Takes the local steps, each with a backward pass through the auxiliary head and its own layers."""
        local = LocalSteps(self.training, client, message)
        for q, x, labels in local:
            smashed, g = local.gradient(x, labels)
            if local.uploads(q):
                yield Smashed(smashed, labels)
            local.step(g)
        return local.done()

    # --- reports

    def evaluate(self, state: State, r: int, clients: Clients) -> Report:
        """The test samples scored by all clients."""
        return self.training.evaluate(state, r, clients)

    @property
    def kernel(self) -> str:
        """What computes a step, for the record."""
        return self.training.kernel

    def plan(self, rounds: int) -> dict[str, str | float]:
        """The lines of --dry-run."""
        return plan_of(Traffic(self.training), rounds, LocalStep("auxiliary"))

    def costs(self) -> dict[str, str | float]:
        """What a client's step and the server's cost."""
        return costs_of(self.training, LocalStep("auxiliary"))
