"""HO-SFL: the server backpropagates to the cut; clients estimate the rest of the gradient by forward passes.

Chen, Wu, Wang, Chen, "HO-SFL: Hybrid-Order Split Federated Learning with Backprop-Free Clients and Dimension-Free
Aggregation", arXiv:2603.14773. Its code is not public.
"""

import math
from dataclasses import dataclass
from typing import final

from zofl_mpi import Clients
from zofl_mpi.rounds.split.client import CutLoss, Loss
from zofl_mpi.rounds.split.estimating import EstimatingMethod
from zofl_mpi.rounds.split.messages import SplitState
from zofl_mpi.rounds.split.method import LockstepMethod
from zofl_mpi.rounds.split.rules import GradientRule


@final
@dataclass(frozen=True)
class HOSFL(EstimatingMethod, LockstepMethod):
    """SFLV2 with perturbed forward passes in place of the clients' backward pass.

    A client sends the smashed samples s of a mini-batch up; the server takes its step and returns lambda = dL/ds of its
    loss L, taken before the step. The client's gradient is then that of

        <lambda, s(theta_c)> = sum_j <lambda_j, s_j(theta_c)>,   lambda held fixed,

    and the client steps along its zeroth-order estimate on the same mini-batch. No auxiliary head trains or travels.

    From the paper's abstract: first order above the cut and zeroth below it, lambda between them, models that come back
    as scalars and are replayed from shared seeds (--uplink seeds). Our reading: lambda is the gradient that SFLV2
    returns, one local step for each. One server part steps at once, for all clients in turn. Directions are each
    client's own, hence the model travels down each round. HOSL (Lnu et al., arXiv:2601.10940) is this without
    federation.

    Attributes:
        estimation: how a client estimates: along the gradient that the server returned, 1 + n_p forward passes of a
            step, or 1 + 2 n_p, one of them the upload's.
    """

    def make_loss_and_rule(self) -> tuple[Loss, GradientRule]:
        loss = CutLoss(self.problem)
        return loss, self.estimation.rule(self.training, loss)

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """Mini-batches go up and lambdas down, one by one; then the clients' parts are averaged."""
        main = self.server(state, r, clients.sharing)
        servers = dict.fromkeys(self.training.participants(r), main)
        ended, models = self.exchange(state, r, clients, servers)
        mean, replayed = self.average(state, r, ended, models)
        return main.state(mean, math.nan, replayed)
