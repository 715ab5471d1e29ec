"""HERON-SFL: clients train by forward passes only, the server by backpropagation on what they upload.

[C] Kou, Chen, Yang, Shen, "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning".
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, final

from zofl_mpi import Clients, UserError
from zofl_mpi.rounds.split.client import HeadLoss, Loss
from zofl_mpi.rounds.split.estimating import EstimatingMethod
from zofl_mpi.rounds.split.messages import SplitState, mean_loss
from zofl_mpi.rounds.split.rules import GradientRule, backprop


@final
@dataclass(frozen=True)
class HERON(EstimatingMethod):
    """Clients train the first layers by forward passes only, the server the rest: [C] equations (2) and (6) to (8).

    Attributes:
        head_gradient: of the auxiliary head: estimated, [C]'s, or exact: for a linear head, in closed form, by the
            forward pass at the point itself. The head is then excluded from the perturbation, and uploaded densely
            under --uplink seeds. ElasticZO (arXiv:2501.04287) takes a network's last layers out of the estimate so.
        rule_by_device: clients whose device can hold a backward pass take CSE-FSL's steps, the others estimate; needs
            --devices and --uplink dense.
    """

    head_gradient: Literal["estimated", "exact"] = "estimated"
    rule_by_device: bool = False

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        self.training.check_local()
        loss = HeadLoss(self.problem)
        if self.rule_by_device and (self.setting.fleet is None or self.estimation.uplink != "dense"):
            raise UserError("--rule-by-device: needs --devices, and --uplink dense: no seeds give a backward pass")
        return loss, self.estimation.rule(self.training, loss, self.head_gradient == "exact")

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """Steps 1 to 4: the clients train and upload, the main server trains on that, the models are averaged."""
        main, ended = self.train_server(state, r, clients, models := self.models(r))  # (6) along (2), (7)
        mean, replayed = self.average(state, r, ended, models)  # (8)
        return replace(main.state(mean, mean_loss(each.loss for each in ended.values())), replayed=replayed)

    @cached_property
    def rules(self) -> tuple[GradientRule, ...]:
        """With --rule-by-device CSE-FSL's rule, where a client's device can hold its step."""
        return (backprop(self.training, self.loss), self.rule) if self.rule_by_device else (self.rule,)
