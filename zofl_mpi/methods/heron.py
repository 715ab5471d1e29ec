"""HERON-SFL: clients train by forward passes only, the server by backpropagation on what they upload.

[C] Kou, Chen, Yang, Shen, "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning".
"""

from dataclasses import dataclass
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
    """Clients train the first layers by forward passes only, the server trains the rest: [C] equations (2), (6) to (8).

    Attributes:
        head_gradient: gradient of the auxiliary head: estimated ([C]), or exact: in closed form, by the forward pass at
            the point itself, for a linear head only. An exact head is not perturbed, and travels densely under --uplink
            seeds. ElasticZO (arXiv:2501.04287) likewise excludes a network's last layers.
        rule_by_device: clients with enough device memory for a backward pass take CSE-FSL's steps, the others estimate;
            needs --devices and --uplink dense.
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
        """Steps 1 to 4: clients train and upload, the main server trains on the uploads, models are averaged."""
        main, ended, models = self.train_server(state, r, clients)  # (6) along (2), (7)
        mean, replayed = self.average(state, r, ended, models)  # (8)
        return main.state(mean, mean_loss(each.loss for each in ended.values()), replayed)

    @cached_property
    def rules(self) -> tuple[GradientRule, ...]:
        """With --rule-by-device CSE-FSL's rule, for clients with a device that can hold its step."""
        return (backprop(self.training, self.loss), self.rule) if self.rule_by_device else (self.rule,)
