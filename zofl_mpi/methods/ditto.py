"""Ditto: a global model by FedAvg, and one personal model per client, pulled towards it.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from zofl_mpi import Array, Client, Purpose, UserError, at_least
from zofl_mpi.rounds.base import RoundCost, descended
from zofl_mpi.rounds.local_sgd import FirstOrder, LocalModel
from zofl_mpi.rounds.report import GlobalModel


@final
@dataclass(frozen=True)
class Ditto(FirstOrder):
    """FedAvg's x, bit for bit, and v_i <- v_i - gamma~_t (g_i(v_i) + lam_p (v_i - x)) at each participant.

    v_i stays at the client, starts at the first x it receives, and takes as many steps as FedAvg's local model, of the
    same sizes, on mini-batches of its own. y_i is v_i, or x before the client takes part. The messages and the round
    (lines 3, 4, 7 and 8) are FedAvg's.

    Attributes:
        lam_p: lambda of the paper, the pull towards x; 0: clients learn alone.
    """

    lam_p: float = at_least(0, 0.1, "a weight")

    def train(self, client: Client, message: GlobalModel) -> LocalModel:
        """Takes FedAvg's local steps from x and as many on v_i: lines 5 and 6."""
        x, r = message.x, message.r
        client.memory["v"] = self.personal_steps(x, client.memory.get("v", x), client, r)
        return LocalModel(self.local.descend(client, x, r))

    def personal_steps(self, x: Array, v: Array, client: Client, r: int) -> Array:
        """(n,) v_i after v <- v - gamma~_t (g_i(v) + lam_p (v - x)); UserError if it is not finite."""
        gammas = self.local.steps.sizes(client.i, r)
        size = (len(gammas), self.local.batch or len(client.data))
        batches = self.setting.streams(Purpose.PERSONAL, r=r, i=client.i).integers(len(client.data), size=size)
        pull = (self.lam_p * (v.astype(np.float64) - x)).astype(x.dtype)  # with mu: lam_p (v - x) in every step
        v = descended(self.problem, client.data, v, batches, gammas, mu=self.lam_p, shift=pull)
        if not np.isfinite(v).all():
            raise UserError("the personal model is not finite; a smaller --gamma-local or --lam-p may help")
        return v

    def personal(self, client: Client, x: Array, r: int) -> Array:
        """(n,) v_i."""
        return np.asarray(client.memory.get("v", x))

    @property
    def round_cost(self) -> RoundCost:
        # vectors: in v's steps x, the first v and the pull
        return replace(super().round_cost, gradients=2, vectors=3, holds_x=True)
