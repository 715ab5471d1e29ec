"""SplitFed, SFLV1 and SFLV2: the server returns the gradient of every mini-batch. SplitLoRA: SFLV2 on adapters.

Thapa, Arachchige, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022.

Lin, Hu, Zhang, Chen, Fang, Chen, Li, Vepakomma, Gao, "SplitLoRA: A Split Parameter-Efficient Fine-Tuning Framework for
Large Language Models", arXiv:2407.00952.
"""

import math
from dataclasses import dataclass
from typing import final

from zofl_mpi import Clients, demand, flag_group
from zofl_mpi.rounds.split.messages import SplitState
from zofl_mpi.rounds.split.method import LockstepMethod
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training


@dataclass(frozen=True)
class SFLV2(LockstepMethod):
    """One server part, stepped after every mini-batch of every client; only the clients' parts are averaged."""

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """Algorithm 2 of the paper, with one server part (its section on SFLV2)."""
        main = self.server(state, r, clients.sharing)
        _, models = self.exchange(state, r, clients, dict.fromkeys(self.training.participants(r), main))
        return main.state(self.mean(state, models), math.nan)


@final
@dataclass(frozen=True)
class SFLV1(LockstepMethod):
    """A replica of the server's part for each client; both parts are averaged: FedAvg of the network."""

    def __post_init__(self) -> None:
        merge = self.training.merge
        demand(merge == 1, "merge", merge, "1: each client's replica steps on its uploads alone")
        super().__post_init__()

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """Algorithm 1 of the paper."""
        training, replicas = self.training, dict[int, Server]()
        for i in training.participants(r):
            own = state.optimiser.get(str(i), {})
            moments = {"keep": own, "reset": {}, "average": state.optimiser}[training.state]
            before = training.uploads_before(r, i)
            replicas[i] = Server(training, self.server_pass, state.theta_s, state.buffers_s, moments, before)
        _, models = self.exchange(state, r, clients, replicas)
        mean, main = self.mean(state, models), Server.mean_of(replicas, training.client_weights())
        main.moments = {**state.optimiser, **main.moments}  # clients that rest keep theirs
        return main.state(mean, math.nan)

    @property
    def server_uploads(self) -> int:
        """0: nothing to share among ranks, since a replica steps on its own client's uploads."""
        return 0


@final
@dataclass(frozen=True)
class SplitLoRA(SFLV2):
    """SFLV2 with the defaults of SplitLoRA's code; the problem decides which entries train and travel.

    With adapters, W x + (alpha/r) B A x, theta_c and theta_s are the entries of A and B alone. As in the code, the
    clients' A and B are averaged separately, not the products B A.

    The code averages every 100 steps, uniformly, a snapshot from before the step; here h local steps end first.
    Its step sizes fall linearly after the warm-up; here use --schedule linear --decay-steps N. Optimiser moments are
    kept on both sides. The order of the clients is drawn each round.
    """

    training: Training = flag_group(
        batch=32,
        h=10,
        lr_client=2e-4,
        lr_server=2e-4,
        optimiser="adamw_transformers",
        weight_decay=0.01,
        warmup=500,
        weights="uniform",
        paper={"batch": 8, "h": 100},
    )
