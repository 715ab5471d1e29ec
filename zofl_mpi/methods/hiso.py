"""HiSo: DeComFL whose directions are scaled by a second moment that every client rebuilds from the same scalars.

Li, Ying, Liu, Dong, Yang, "Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization",
ICLR 2026, arXiv:2506.02370.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.fields import at_least, column, fraction
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.methods.decomfl import DeComFL, ScalarState
from zofl_mpi.rounds.split.estimates import TwoPoint

K = "second_moment"
"""Name of K among the moments, which the server and every client hold."""


@final
@dataclass(frozen=True, kw_only=True)
class HiSoState(ScalarState):
    """The server's state after a round."""

    least_second_moment: float = column("1", "smallest entry of K, by whose root directions are divided", 1.0)


@final
@dataclass(frozen=True)
class HiSo(DeComFL):
    """DeComFL along z = u / sqrt(K), entry by entry, u the directions of DeComFL; K (d,) begins at 1.

    After a round K <- nu K + (1 - nu) G^2, at least --floor, with G = (1/P) sum_p g_p z_p the step of its last local
    step, g_p the mean scalars of the participants. A client that was away takes the steps and the updates of K of the
    rounds that it missed, in order, and so has the server's x and K to the bit. nu = 1 is DeComFL.

    Attributes:
        nu: weight of the old K; the code of the paper has 0.95.
        floor: least entry of K. 0, as in the code of the paper: an entry that nothing moves goes to 0, and its
            directions grow.
    """

    nu: float = fraction(0.95)
    floor: float = at_least(0, 0.0)

    def round(self, state: ScalarState, r: int, clients: Clients) -> HiSoState:
        """The round of DeComFL, and the smallest entry of the new K."""
        new = super().round(state, r, clients)
        return HiSoState(**{**vars(new), "least_second_moment": float(new.optimiser[K].min())})

    def replay(self, x: Tensor, moments: MutableMapping[str, Any], r: int, differences: NDArray[np.float64]) -> Tensor:
        """Moves x, the optimiser's moments and K by round r; returns G."""
        G = super().replay(x, moments, r, differences)
        moments[K] = moments[K].to(G.device).mul_(self.nu).addcmul_(G, G, value=1 - self.nu).clamp_(min=self.floor)
        return G

    def first_moments(self, x: Tensor) -> dict[str, Any]:
        """The optimiser's moments, and K = 1."""
        return {**self.training.rule.memory(x), K: x.new_ones(x.shape)}

    def estimate_with(self, moments: MutableMapping[str, Any]) -> TwoPoint:
        """The estimate along u / sqrt(K)."""
        return replace(super().estimate_with(moments), scale=moments[K].rsqrt())
