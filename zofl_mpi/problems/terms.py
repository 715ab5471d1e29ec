"""Proximal terms of [A] section IV, and the hierarchical problem of a loss with them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.arrays import Array, Vector, no_numpy_warnings
from zofl_mpi.data import Dataset
from zofl_mpi.engine.fields import injected
from zofl_mpi.errors import demand
from zofl_mpi.numerics.projections import ball
from zofl_mpi.problems.base import Batch, Problem
from zofl_mpi.problems.sums import class_weights


@final
@dataclass(frozen=True)
class ProximalTerms:
    """Parameters of the proximal terms that [A] section IV adds to a loss.

    Attributes:
        lam: lambda, weight of the dissimilarity f_2 = (lambda/2) sum_i rho_i |x - y_i|^2, where rho_i is client i's
            share of the clients' samples.
        mu: weight of the proximal term (mu/2)|x - y|^2 of a client's problem; one number, or one per client.
        radius: of the ball Y_i(x) around x that contains y_i; inf for none; one number, or one per client.
    """

    lam: float = 1.0
    mu: tuple[float, ...] = (1.0,)
    radius: tuple[float, ...] = (math.inf,)

    def __post_init__(self) -> None:
        for name, values in (("lam", (self.lam,)), ("mu", self.mu), ("radius", self.radius)):
            finite = name == "radius" or math.inf not in values
            demand(finite and all(value >= 0 for value in values), name, values, "a number, at least 0")

    def fit(self, m: int) -> None:
        """Raises UserError for a parameter with neither one value nor one per client."""
        for name, values in (("mu", self.mu), ("radius", self.radius)):
            demand(len(values) in (1, m), name, values, f"one number, or one for each of the {m} clients")

    def of_client(self, i: int) -> tuple[float, float]:
        """mu_i and radius_i."""
        return self.mu[i % len(self.mu)], self.radius[i % len(self.radius)]


class ProximalSteps(NamedTuple):
    """A client's steps y <- P(y - stepsizes[t] (gradient(y; batches[t]) + mu (y - x) + shift))."""

    data: Dataset  # the client's
    batches: Batch  # (H, B) positions in `data`, H >= 1, all valid
    stepsizes: Vector  # (H,)
    mu: float
    radius: float = math.inf  # P projects onto the ball of this radius around x
    shift: Array | None = None  # (n,); None for 0


@dataclass(frozen=True, kw_only=True)
class ProximalLoss(Problem, ABC):
    """A loss with proximal terms, as a `Hierarchical` and as a `Smooth` problem.

    f_1(x) = F(x; server's data)                                  F: the mean loss over some data
    h_i(x, y) = F(y; client i's data) + mu_i / 2 |x - y|^2        over Y_i(x) = R^n, or the ball |y - x| <= radius_i
    f_{2,i}(x, y) = m rho_i lam / 2 |x - y|^2

    [A] weights the clients' terms by rho_i AND by 1/m; the factor m in f_{2,i} makes both hold at once (a choice).
    """

    weights: Vector = injected()  # (m,) rho_i = N_i / N_tr
    terms: ProximalTerms = injected(ProximalTerms())  # lam, mu_i and radius_i
    dtype: DTypeLike = injected(np.float32)  # float32 or float64, of all vectors

    @property
    def m(self) -> int:
        return len(self.weights)

    @abstractmethod
    def evaluated(self, x: Array, data: Dataset) -> Iterable[tuple[NDArray[np.int64], Vector, NDArray[Any]]]:
        """Labels (b,), losses (b,) at x (n,) and hits (b,) (1 if correct), for all of `data`, block by block."""

    @abstractmethod
    def gradient(self, x: Array, data: Dataset, batch: Batch | None = None) -> Array:
        """Gradient (n,) of F at x over the samples at positions `batch` (B,); None: over all."""

    @abstractmethod
    def after_steps(self, x: Array, y: Array, steps: ProximalSteps) -> Array:
        """Takes the steps from the rows of y (k, n) with centres x (k, n); returns the end points (k, n)."""

    def score(self, x: Array, data: Dataset, mix: Vector | None = None) -> dict[str, float]:
        """Mean "loss" F(x), summed in float64, and "accuracy".

        Classes that `data` lacks have no weight in `mix`; both are NaN if no sample has weight.
        """
        return weighted_means(self.evaluated(x, data), class_weights(data, mix))

    def loss(self, x: Array, data: Dataset) -> float:
        return self.score(x, data)["loss"]

    def f1(self, x: Array, data: Dataset) -> float:
        return self.loss(x, data)

    def gradient_f1(self, x: Array, data: Dataset, batch: Batch) -> Array:
        return self.gradient(x, data, batch)

    @no_numpy_warnings
    def f2(self, i: int, x: Array, y: Array) -> float:
        difference = np.asarray(x, np.float64) - y
        return float(self.m * self.weights[i] * self.terms.lam / 2 * (difference @ difference))

    def solve_client(self, i: int, data: Dataset, x: Array, y: Array, batches: Batch, stepsizes: Vector) -> Array:
        """Runs [A] Algorithm 2, see `Hierarchical.solve_client` (IndexError: invalid position)."""
        if len(stepsizes) == 0:
            return y.copy()
        check_positions(data, batches, f"client {i}: ")
        return self.after_steps(x, y, ProximalSteps(data, batches, stepsizes, *self.terms.of_client(i)))

    def descend(
        self, data: Dataset, y: Array, batches: Batch, stepsizes: Vector, *, mu: float = 0.0, shift: Array | None = None
    ) -> Array:
        """See `Problem.descend`; ignores `terms` (IndexError: invalid position)."""
        if len(stepsizes) == 0:
            return y.copy()
        check_positions(data, batches)
        steps = ProximalSteps(data, batches, stepsizes, mu, shift=shift)
        return np.asarray(self.after_steps(y[None], y[None], steps)[0])

    def project(self, i: int, x: Array, y: Array | None = None) -> Array:
        """Projects the rows of y (k, n) onto the balls around the rows of x; y itself without a constraint.

        Without y (`Lipschitz.project`): x itself, since X_i = R^n.
        """
        if y is None:
            return x
        _, radius = self.terms.of_client(i)
        return ball(y, x, radius) if radius < math.inf else y

    def solution(self, i: int, data: Dataset, x: Array) -> None:
        return None


@no_numpy_warnings
def weighted_means(
    evaluated: Iterable[tuple[NDArray[np.int64], Vector, NDArray[Any]]], each: Vector
) -> dict[str, float]:
    """Means of losses ("loss") and hits ("accuracy") of `ProximalLoss.evaluated`, with weights `each` (C,)."""
    sums = np.zeros(3)  # of weights, losses, hits
    for labels, losses, hits in evaluated:
        sums += np.stack([np.ones_like(losses), losses, hits]) @ each[labels]
    return {"loss": float(sums[1] / sums[0]), "accuracy": float(sums[2] / sums[0])}


def check_positions(data: Dataset, batches: Batch, who: str = "") -> None:
    """Raises IndexError for positions outside the data."""
    if batches.size and (batches.min() < 0 or batches.max() >= len(data)):
        raise IndexError(f"{who}a batch has a position outside 0..{len(data) - 1}")
