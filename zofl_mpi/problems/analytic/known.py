"""Base classes of problems with known solutions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.roles import overridable
from zofl_mpi.numerics.descent import descend
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.base import BilevelProblem, NumPyProblem

P = TypeVar("P")
D = TypeVar("D")
Random = tuple[P, D, tuple[D, ...]]
"""A random problem with unequal clients, the server's own data, and each client's data."""


class KnownHierarchical(NumPyProblem, Protocol):
    """Base of hierarchical problems; `solve_client` is Algorithm 2 as printed, by the gradient of h_i."""

    def gradient_h(self, i: int, data: Any, x: Array, y: Array, batch: Batch) -> Array:
        """Gradients (k, n) of h_i(x, .) at the rows of y on one mini-batch."""

    def project(self, i: int, x: Array, y: Array) -> Array:
        """See `Hierarchical.project`."""

    def flops(self, batch_size: int) -> float:
        return 2.0 * self.n

    def solve_client(self, i: int, data: Any, x: Array, y: Array, batches: Batch, stepsizes: Vector) -> Array:
        return descend(
            y.copy(),
            lambda z, t: self.gradient_h(i, data, x, z, batches[t]),
            steps=len(stepsizes),
            stepsize=lambda t: float(stepsizes[t]),
            project=lambda z: self.project(i, x, z),
        )


@dataclass(frozen=True)
class Solved:
    """A problem that stores its solution."""

    minimiser: Vector  # (n,) x*
    value: float  # objective at x*

    @property
    def n(self) -> int:
        return len(self.minimiser)

    def truth(self) -> tuple[Vector, float]:
        """Solution x* and the objective at x*."""
        return self.minimiser, self.value


class KnownLipschitz(NumPyProblem, Protocol):
    """Base of `Lipschitz` problems: f_i is a method of client i's data; all X_i are R^n."""

    def losses(self, i: int, x: Array, data: Any, batch: Batch | None = None) -> Vector:
        return np.asarray(data.values(x, batch))

    def project(self, i: int, x: Array) -> Array:
        return x

    def score(self, x: Array, data: Any, mix: Vector | None = None) -> dict[str, float]:
        """f(x) if `data` are all clients', f_i(x) if one client's; `mix` is ignored."""
        return {"loss": mean_over(data, lambda one: one.value(x))}


class KnownBilevel(NumPyProblem, BilevelProblem, Protocol):
    """Base of bilevel problems: x unconstrained, y as long as x, the score is the objective."""

    @overridable
    def n_lower(self) -> int:
        return self.n

    def f(self, i: int, x: Array, y: Array, data: Any, batch: Batch | None = None) -> Vector:
        """See `Bilevel.f`."""

    def score(self, x: Array, y: Array, data: Any, mix: Vector | None = None) -> dict[str, float]:
        """f(x, y) if `data` are all clients', f_i(x, y) if one client's; `mix` is ignored."""
        return {"loss": mean_over(data, lambda one: float(self.f(0, x[None], y[None], self.parts(one)[0])[0]))}


class Noisy:
    """Data of a client: N samples that differ in their noise."""

    noise: Vector
    """(N, n)."""

    def __len__(self) -> int:
        return len(self.noise)

    def mean_noise(self, batch: Batch | None = None) -> Vector:
        """Mean noise (n,) over the samples at positions `batch`; None: over all."""
        return self._mean_of_all if batch is None else np.asarray(self.noise[batch].mean(axis=0))

    @cached_property
    def _mean_of_all(self) -> Vector:
        return np.asarray(self.noise.mean(axis=0))


def mean_over(data: Any, value: Callable[[Any], float]) -> float:
    """`value` of one client's data, or its mean over a sequence of clients' data."""
    return float(np.mean([value(one) for one in (data if isinstance(data, Sequence) else (data,))]))
