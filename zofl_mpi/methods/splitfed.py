"""SplitFed: split learning in which the server returns the gradient of every mini-batch. SFLV1 and SFLV2.

Thapa, Arachchige, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from zofl_mpi.engine.clients import Clients
from zofl_mpi.rounds.split.lockstep import LockstepMethod
from zofl_mpi.rounds.split.messages import State
from zofl_mpi.rounds.split.server import Server


@final
@dataclass(frozen=True)
class SFLV2(LockstepMethod):
    """One server part, stepped after every mini-batch of every client; only the clients' parts are averaged."""

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 2 of the paper, with one server part (its section on SFLV2)."""
        return self.one_server(state, r, clients)


@final
@dataclass(frozen=True)
class SFLV1(LockstepMethod):
    """A replica of the server's part for each client; at the end of a round both parts are averaged.

    With any cut it is FedAvg on the whole network: the same mini-batches, the same optimiser state policy.
    """

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Algorithm 1 of the paper."""
        training, replicas = self.training, dict[int, Server]()
        for i in training.participants(r):
            moments, before = self._moments(state, i), training.uploads_before(r, [i])
            replicas[i] = Server(training, state.theta_s, state.buffers_s, moments, before)
        mean = self.exchanged(state, r, clients, replicas)
        main = Server.mean_of(replicas, training.shares())
        main.moments = {**state.optimiser, **main.moments}  # those of the clients that rest stay
        return main.state(mean, math.nan)

    def _moments(self, state: State, i: int) -> dict[str, Any]:
        """Optimiser state of client i's replica before a round."""
        kept: dict[str, Any] = state.optimiser.get(str(i), {})
        return {"keep": kept, "reset": {}, "average": state.optimiser}[self.training.state]
