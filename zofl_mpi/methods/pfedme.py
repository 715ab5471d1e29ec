"""pFedMe: the server descends the clients' Moreau envelopes, with their proximal points as personal models.

Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from zofl_mpi import Array, Client, above, at_least
from zofl_mpi.rounds.base import RoundCost, descended
from zofl_mpi.rounds.local_sgd import FirstOrder, LocalModel, repeated
from zofl_mpi.rounds.report import GlobalModel


@final
@dataclass(frozen=True)
class PFedMe(FirstOrder):
    """min_x sum_i w_i min_y F_i(y) + (lam_p/2) |y - x|^2, by first order; ZO-HFL solves the same lower level.

    Local step t of client i: K gradient steps of size gamma~_t from y = w (the published code goes on from the last y)
    on one mini-batch's loss plus (lam_p/2) |y - w|^2; then w <- w - alpha lam_p (w - y). In the paper --tau is R,
    --eta-g its beta, --gamma-local the size of the inner steps. y_i is the client's last y, or x before it takes part.
    The round averages the participants' w (lines 2, 3, 10 and 11); they alone take local steps.

    Attributes:
        lam_p: lambda of the paper, weight of the proximal term; the paper's experiments have 15.
        K: steps of an inner solve.
        alpha_p: the paper's eta, step size of w.
    """

    lam_p: float = above(0, 15.0, "a weight")
    K: int = at_least(1, 5, "a whole number of inner steps")
    alpha_p: float = at_least(0, 0.01, "a step size")

    def train(self, client: Client, message: GlobalModel) -> LocalModel:
        """Takes the local steps: lines 4 to 9."""
        w = y = message.x
        gammas = self.local.steps.sizes(client.i, message.r)
        for gamma, batch in zip(gammas, self.local.batches(client, message.r), strict=True):
            y = descended(self.problem, client.data, w, repeated(batch, self.K), np.full(self.K, gamma), mu=self.lam_p)
            w = (w - self.alpha_p * self.lam_p * (w.astype(np.float64) - y)).astype(w.dtype)
        client.memory["y"] = y
        return LocalModel(w)

    def personal(self, client: Client, x: Array, r: int) -> Array:
        """(n,) the client's last y."""
        return np.asarray(client.memory.get("y", x))

    @property
    def round_cost(self) -> RoundCost:
        return replace(super().round_cost, gradients=self.K, vectors=2)  # w, and the previous personal model
