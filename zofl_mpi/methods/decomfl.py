"""DeComFL and HiSo: clients train the entire network by forward passes and send only scalars.

Li, Ying, Liu, Dong, Yang, "Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization",
ICLR 2025. With one client and h = 1 it is MeZO: Malladi et al., "Fine-Tuning Language Models with Just Forward Passes",
NeurIPS 2023. HiSo: Li, Ying, Liu, Dong, Yang, "Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order
Optimization", ICLR 2026, arXiv:2506.02370.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Client, Clients, Directions, at_least, column, fraction
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.numerics.optimisers import copied
from zofl_mpi.rounds.split.client import Key
from zofl_mpi.rounds.split.costs import Traffic
from zofl_mpi.rounds.split.messages import SplitState
from zofl_mpi.rounds.split.pieces import PieceEstimates, Piecewise
from zofl_mpi.rounds.split.rules import Lines
from zofl_mpi.rounds.split.unsplit import ModelBroadcast, UnsplitMethod, Uploaded

K = "second_moment"
"""Key of K among the moments, which the server and all clients hold."""


@dataclass(frozen=True)
class DeComFL(UnsplitMethod):
    """The whole network by forward passes at clients; scalars travel: Algorithms 3, 4 (1, 2 with n_p directions).

    All clients draw the same directions for local step q of round r from the seed. The means of their loss differences
    hence determine the round's step, at the server and at each client. A participant of a federation receives the means
    of all rounds since its last one and rebuilds the server's model exactly; these bytes are booked. Here the server
    keeps no means and each rank receives the model. A client's local steps are discarded.

    With an optimiser other than the paper's SGD the moments are those of the means, as in the paper's code: local steps
    start from them and do not change them. The step size changes with r h + q.

    Attributes:
        n_p: directions of a local step, whose estimates are averaged.
    """

    n_p: int = at_least(1, 16, "a whole number of directions", paper=1)

    def round(self, state: SplitState, r: int, clients: Clients) -> SplitState:
        """Ask the participants for their scalars and step by the means."""
        message, latest = self.broadcast(state, r), self.training.latest(r)
        missed = {i: r - latest.get(i, 0) for i in self.training.participants(r)}
        booked = {i: message.booked(self.scalar_bytes * rounds) for i, rounds in missed.items()}
        average, loss = self.averaged(clients, message, booked, np.zeros((self.training.h, self.n_p)))
        x, moments = message.x.clone(), copied(state.optimiser)
        self.replay(x, moments, r, average.differences)
        return self.next_state(SplitState, x, average.buffers, optimiser=moments, local_loss=loss)

    def start(self) -> SplitState:
        first = super().start()
        return replace(first, optimiser=self.first_moments(torch.cat([first.theta, first.theta_s])))

    @property
    def steps_alike(self) -> int:
        return self.training.h

    @property
    def scalar_bytes(self) -> int:
        """Bytes of a round's mean scalars."""
        return 8 * self.training.h * self.n_p

    def replay(self, x: Tensor, moments: MutableMapping[str, Any], r: int, differences: NDArray[np.float64]) -> None:
        """Move x (d,) and the optimiser's moments by round r, from its mean differences (h, n_p)."""
        estimator = self.estimator(moments)
        for q, row in enumerate(differences.tolist()):
            self.step(x, moments, r, q, estimator.estimate(self.pieces(x, self.key(r, q), estimator), row))

    def step(self, x: Tensor, moments: MutableMapping[str, Any], r: int, q: int, estimate: PieceEstimates) -> None:
        """Move x (d,) by the optimiser's step along minus the estimate, for local step q of round r."""
        training = self.training
        lr = training.pace.client(training.lr_client, r * training.h + q)
        training.optimiser.step_by_parts(x, estimate, moments, lr)

    def key(self, r: int, q: int) -> Key:
        """Random numbers of local step q in round r, the same for all clients."""
        return Key(self.setting.streams, r, t=q)

    def train(self, client: Client, message: ModelBroadcast) -> Uploaded:
        """Takes local steps on a copy of the model."""
        r, (_, moments) = message.r, self.received(message)
        estimator = self.estimator(moments)
        moments = copied(moments) if self.training.h > 1 else moments

        def move(x: Tensor, q: int, estimate: PieceEstimates) -> None:
            self.step(x, moments, r, q, estimate)

        return self.reply(client, message, estimator, lambda q: self.key(r, q), move)

    @cached_property
    def traffic(self) -> Traffic:
        """Scalars: up those of a client's steps, down the means of all rounds since its last."""
        losses = self.rule.needs_point and not self.setting.any_between("private")
        return Traffic(self.training, scalars=self.n_p, unsplit=True, losses=losses)

    def plan(self, rounds: int) -> Lines:
        further = {"further bytes down, a client, for each round since its last": self.scalar_bytes}
        return super().plan(rounds) | further

    def directions(self, rounds: int) -> Directions:
        """The directions of one client's local steps: all clients share them."""
        return Directions(rounds * self.training.h * self.n_p, self.loss.flat.n)


@final
@dataclass(frozen=True)
class HiSo(DeComFL):
    """DeComFL along z = u / sqrt(K), entry by entry, with DeComFL's directions u; K (d,) starts at 1.

    After a round K <- nu K + (1 - nu) G^2, with G = (1/P) sum_p g_p z_p the estimate of its last local step and g_p the
    participants' mean scalars. A client that was away replays the missed steps and updates of K in order, which gives
    it the server's x and K exactly. nu = 1 is DeComFL. As in the paper's code K has no lower bound: an entry without
    gradient tends to 0, and its directions grow.

    Attributes:
        nu: weight of the old K; the code of the paper has 0.95.
    """

    nu: float = fraction(0.95)

    def start(self) -> HiSoState:
        return HiSoState(**vars(super().start()))

    def round(self, state: SplitState, r: int, clients: Clients) -> HiSoState:
        """DeComFL's round; also records the smallest entry of the new K."""
        new = super().round(state, r, clients)
        return HiSoState(**vars(new), least_second_moment=float(new.optimiser[K].min()))

    def step(self, x: Tensor, moments: MutableMapping[str, Any], r: int, q: int, estimate: PieceEstimates) -> None:
        """DeComFL's step; the last step of a round also updates K, piece by piece."""
        moments[K] = moments[K].to(x.device)
        super().step(x, moments, r, q, self._renewing(moments[K], estimate) if q == self.training.h - 1 else estimate)

    def _renewing(self, K: Tensor, estimate: PieceEstimates) -> PieceEstimates:
        for where, G in estimate:
            K[where].mul_(self.nu).addcmul_(G, G, value=1 - self.nu)
            yield where, G

    def first_moments(self, x: Tensor) -> dict[str, Any]:
        """The optimiser's moments, and K = 1."""
        return {**super().first_moments(x), K: x.new_ones(x.shape)}

    def estimator(self, moments: MutableMapping[str, Any]) -> Piecewise:
        """The two-point estimate along u / sqrt(K)."""
        return replace(super().estimator(moments), K=moments[K])


@final
@dataclass(frozen=True, kw_only=True)
class HiSoState(SplitState):
    """The server's state after a round."""

    least_second_moment: float = column("1", "smallest entry of K, by whose root directions are divided", 1.0)
