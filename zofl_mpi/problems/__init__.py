"""What is minimised. Each protocol is what one family of methods asks of a problem; a user's class needs no base class.

Vectors are flat. On the CPU they are NumPy arrays. A problem holds parameters, never data, state or random numbers:
data come with each call, and a batch is an array of positions in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Batch = NDArray[np.int64]


class Hierarchical(Protocol):
    """[A]: min_x f_1(x) + (1/m) sum_i f_{2,i}(x, y_i(x)) with y_i(x) = argmin over Y_i(x) of h_i(x, y).

    `data` is what the server (f_1) or client i (h_i) holds: a `Dataset` for most problems.
    k points are handled at once as the rows of (k, n) arrays: Algorithm 2 is run for x + eta v and x - eta v together.
    """

    @property
    def n(self) -> int:
        """Length of x and of every y_i."""

    def f1(self, x: Array, data: Any) -> float:
        """f_1(x) on all of the server's data."""

    def gradient_f1(self, x: Array, data: Any, batch: Batch) -> Array:
        """(n,) stochastic gradient of f_1 at x on the mini-batch at positions `batch` (B,)."""

    def f2(self, i: int, x: Array, y: Array) -> float:
        """f_{2,i}(x, y), formed in float64, for one x (n,) and one y (n,)."""

    def lower(self, i: int, data: Any, x: Array, y: Array, batches: Batch, stepsizes: NDArray[np.float64]) -> Array:
        """Algorithm 2 on k points at once: from y (k, n) take the steps
        y <- project(i, x, y - stepsizes[t] * grad_y h_i(x, y; batches[t])), t = 0..H-1; returns a new (k, n).

        Args:
            x: (k, n) the points at which the lower level is solved.
            batches: (H, B) positions in `data`, the same for all k points.
            stepsizes: (H,).
        """

    def kernel_name(self, batch_size: int) -> str:
        """What computes `lower` on batches of this size, for the record: kernels agree to rounding only."""

    def flops(self, batch_size: int) -> float:
        """Floating-point operations of a step of `lower` at one point; a multiplication and an addition count two."""

    def project(self, i: int, x: Array, y: Array) -> Array:
        """(k, n) the projection of the rows of y onto Y_i(x), the rows of x."""

    def solution(self, i: int, data: Any, x: Array) -> Array | None:
        """(n,) the exact y_i(x) where there is a closed form, else None."""

    def score(self, x: Array, data: Any, mix: NDArray[np.float64] | None = None) -> Mapping[str, float]:
        """Quality of the model x on all of `data`: {"loss": ..., "accuracy": ...}, or fewer where they have no meaning.

        Args:
            mix: (C,) class proportions; each class then counts by its share in `mix` in place of its share in `data`.
        """


class Smooth(Protocol):
    """min_x sum_i w_i F_i(x), F_i the mean loss over client i's data: what FedAvg and its kin ask of a problem."""

    @property
    def n(self) -> int:
        """Length of x."""

    def initial(self, generator: np.random.Generator) -> Array:
        """(n,) a random start: what --x0 random stands for."""

    def loss(self, x: Array, data: Any) -> float:
        """F(x): the mean loss over all of `data`."""

    def gradient(self, x: Array, data: Any, batch: Batch | None = None) -> Array:
        """(n,) the gradient at x of the mean loss over the samples at positions `batch` (B,); None: over all data."""

    def descend(
        self,
        data: Any,
        y: Array,
        batches: Batch,
        stepsizes: NDArray[np.float64],
        *,
        mu: float = 0.0,
        shift: Array | None = None,
    ) -> Array:
        """From y_0 = y (n,) take the steps y <- y - stepsizes[t] (gradient(y; batches[t]) + mu (y - y_0) + shift).

        A client's whole round in one call, so that a fast kernel can run it. mu = 0 and shift = None are plain SGD,
        mu > 0 is FedProx's proximal term, shift (n,) the correction of SCAFFOLD and Scaffnew.

        Args:
            batches: (H, B) positions in `data`.
            stepsizes: (H,).

        Returns:
            A new (n,).
        """

    def kernel_name(self, batch_size: int) -> str:
        """What computes `descend` on batches of this size, for the record: kernels agree to rounding only."""

    def flops(self, batch_size: int) -> float:
        """Floating-point operations of a step; a multiplication and an addition count two."""

    def score(self, x: Array, data: Any, mix: NDArray[np.float64] | None = None) -> Mapping[str, float]:
        """As `Hierarchical.score`."""
