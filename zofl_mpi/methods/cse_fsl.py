"""Split learning with an auxiliary head, first order: CSE-FSL.

Mu, Shen, "Communication and Storage Efficient Federated Split Learning", ICC 2023.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.client import LocalSteps, kept
from zofl_mpi.rounds.split.costs import measured_of, plan_of
from zofl_mpi.rounds.split.messages import Ask, Model, Scored, Smashed, State, Trained, Update, Whole
from zofl_mpi.rounds.split.report import COLUMNS, report, scored
from zofl_mpi.rounds.split.server import averaged_round
from zofl_mpi.rounds.split.training import Training, first_state
from zofl_mpi.run.clients import Client, Clients
from zofl_mpi.run.setting import Setting


@final
@dataclass(frozen=True)
class CSEFSL:
    """Clients step along the gradient of their auxiliary loss; the server trains on what they upload.

    Attributes:
        setting: problem, data and random numbers.
        training: the round.
    """

    needs: ClassVar[type] = Split
    setting: Setting
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        self.training.fit(self.setting)
        self.training.fit_local(self.setting)

    def start(self) -> State:
        """The parts as the problem makes them."""
        return first_state(self.setting, self.training)

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1 of the paper."""

        def average(to: list[int], weights: Mapping[int, float]) -> Update:
            return clients.mean(self.update, Ask(), to=to, weights=weights)  # type: ignore[no-any-return]

        return averaged_round(self.setting, self.training, state, r, clients, self.train, average)

    def train(self, client: Client, message: Model) -> Generator[Smashed, None, Trained]:
        """A client's local steps, each with a backward pass through the auxiliary head and its own layers."""
        local = LocalSteps(self.setting, self.training, client, message)
        for q, x, labels in local:
            smashed, g = local.gradient(x, labels)
            if local.uploads(q):
                yield Smashed(smashed, labels)
            local.step(g)
        return local.done()

    def update(self, client: Client, message: Ask) -> Update:
        """The local model."""
        return kept(self.training, client)

    def evaluate(self, state: State, r: int, clients: Clients) -> dict[str, float]:
        return report(state, clients, self.score)

    def score(self, client: Client, message: Whole) -> Scored:
        """Step of an evaluation."""
        return scored(self.setting, client, message)

    def columns(self) -> Mapping[str, tuple[str, str]]:
        return COLUMNS

    def measured(self) -> dict[str, str | float]:
        """What --dry-run measures."""
        return measured_of(self.setting, self.training, "auxiliary")

    def plan(self, rounds: int) -> dict[str, str | float]:
        return plan_of(self.setting, self.training, rounds, forwards=1, backwards=True)
