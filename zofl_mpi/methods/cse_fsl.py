"""Split learning with an auxiliary head, first order: CSE-FSL.

Mu, Shen, "Communication and Storage Efficient Federated Split Learning", ICC 2023.
"""

from dataclasses import dataclass
from typing import final

from zofl_mpi import Clients
from zofl_mpi.rounds.split.client import HeadLoss, Loss
from zofl_mpi.rounds.split.messages import SplitState, mean_loss
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.rounds.split.rules import GradientRule, backprop


@final
@dataclass(frozen=True)
class CSEFSL(SplitMethod):
    """Clients step along the gradient of their auxiliary loss; the server trains on their uploads."""

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        """The auxiliary head's loss, with a backward pass through the head and the client's layers."""
        self.training.check_local()
        loss = HeadLoss(self.problem)
        return loss, backprop(self.training, loss)

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """Algorithm 1 of the paper."""
        main, ended, models = self.train_server(state, r, clients)
        return main.state(self.mean(state, models), mean_loss(each.loss for each in ended.values()))
