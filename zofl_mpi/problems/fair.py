"""[B] section 5.3: fair classification, min over x of the max over y of a weighted sum of the classes' losses.

f_i(x, y) = sum_c y_c L_{i,c}(x) - lam / 2 |y|^2            L_{i,c}(x): mean cross-entropy on client i's class-c samples
h_i = -f_i                                                  over Y, all of R^C or the simplex

x (C p,) is a softmax regression without bias, y (C,) the weights of the classes. The objective as it is printed has no
y in its loss; we take that of Nouiehed et al., which must be meant (a choice, as are the class means and lam).
With L = (1/m) sum_i L_i the maximiser is y(x) = L(x)/lam on R^C, so that |L(x)|^2/(2 lam) is minimised, and the
projection of L(x)/lam on the simplex: for lam -> 0 all weight is on the worst class, for lam -> infinity all are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.data import Dataset
from zofl_mpi.errors import demand
from zofl_mpi.numerics.projections import simplex
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.sums import BLOCK, QUIET, blocks, demand_floats, positions_of
from zofl_mpi.run.fields import given

Vector = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Fair:
    """Fair classification as a `Bilevel` problem; n = C p, n_lower = C.

    A model x (n,) is the matrix W (C, p) row by row, as in torch's nn.Linear. Logits are computed in `dtype`, all that
    follows in float64. f_i and h_i see the same samples. A mini-batch estimates class means: where a client has very
    few samples of a class, one of them weighs much.

    Attributes:
        features: p, the length of one input.
        classes: C.
        lam: weight of |y|^2/2, which keeps the class weights y near each other.
        y_set: of the class weights: free (R^C, the paper's) or simplex.
        dtype: float32 or float64, of all vectors.
    """

    features: int = given()
    classes: int = given()
    lam: float = 0.1
    y_set: Literal["free", "simplex"] = "free"
    dtype: DTypeLike = given(np.float32)

    def __post_init__(self) -> None:
        demand_floats(self.dtype, "softmax regression runs")
        demand(self.features >= 1, "features", self.features, "a whole number, at least 1")
        demand(self.classes >= 1, "classes", self.classes, "a whole number, at least 1")
        demand(0 < self.lam < math.inf, "lam", self.lam, "a number above 0")
        demand(self.y_set in ("free", "simplex"), "y_set", self.y_set, "free or simplex")

    @property
    def n(self) -> int:
        """Length of x: C p."""
        return self.classes * self.features

    @property
    def n_lower(self) -> int:
        """Length of y: C."""
        return self.classes

    @property
    def homogeneous(self) -> bool:
        """True on R^C, where all h_i have the Hessian lam I and the mean of their minimisers is y(x)."""
        return self.y_set == "free"

    def kernel_name(self, batch_size: int) -> str:
        """The name of what computes, for the record."""
        return "numpy"

    def flops_evaluation(self, batch_size: int) -> float:
        """FLOPs of f or `gradient_h` at one point: a product with the batch."""
        return 2.0 * batch_size * self.n

    def initial(self, generator: np.random.Generator) -> Array:
        """(n,) standard normal entries times 0.01."""
        return np.asarray(0.01 * generator.standard_normal(self.n), self.dtype)

    def initial_lower(self) -> Array:
        """(n_lower,) a point of Y: 0, or equal weights."""
        return np.full(self.classes, 0.0 if self.y_set == "free" else 1 / self.classes, self.dtype)

    @QUIET
    def f(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        """(k,) f_i at the pairs of rows of x (k, n) and y (k, n_lower); see `Bilevel.f` and `class_losses`."""
        weights = y.astype(np.float64)
        return np.asarray(np.vecdot(weights, self.class_losses(x, data, batch) - self.lam / 2 * weights))

    @QUIET
    def gradient_h(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> Array:
        """(n_lower,) lam y - L_i(x), the gradient in y of h_i at x (n,), y (n_lower,); see `class_losses`."""
        return np.asarray(self.lam * y - self.class_losses(x[None], data, batch)[0], self.dtype)

    @QUIET
    def class_losses(self, x: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        """(k, C) L_i at the rows of x (k, n); 0 for a class that the client lacks.

        On a mini-batch it is (N_i / (B N_{i,c})) times the sum over its samples of class c, N_{i,c} counted in all of
        `data`: unbiased for positions drawn uniformly with replacement. The batch's own means would not be, because a
        batch may lack a class.

        Raises:
            IndexError: a position lies beyond the data.
        """
        positions = positions_of(data, batch)
        losses = np.zeros((self.classes, len(x)))
        for logits, labels in self._blocks(x, data, positions):
            losses += _one_hot(labels, self.classes) @ _cross_entropy(logits, labels)
        return np.asarray(losses.T * (len(data) / len(positions)) / np.maximum(data.counts(), 1))

    def curvature(self, x: Array) -> tuple[float, float]:
        """mu_h = L_h = lam."""
        return self.lam, self.lam

    def project(self, i: int, x: Array) -> Array:
        """x itself: X_i is the whole space."""
        return x

    def project_lower(self, x: Array, y: Array) -> Array:
        """(n_lower,) the nearest point of Y to y (n_lower,); Y is the same for all x."""
        return simplex(y) if self.y_set == "simplex" else y

    def solution(self, x: Array, data: Sequence[Dataset]) -> Vector:
        """(n_lower,) y(x) of x (n,): L(x)/lam, or its projection on the simplex.

        Args:
            data: of the clients, D_0, ..., D_{m-1}.
        """
        return np.asarray(self.project_lower(x, self._mean_losses(x, data) / self.lam))

    def implicit(self, x: Array, data: Sequence[Dataset]) -> float:
        """(1/m) sum_i f_i(x, y(x)), the objective of x (n,) alone: |L(x)|^2/(2 lam) on R^C.

        Args:
            data: of the clients, D_0, ..., D_{m-1}.
        """
        losses = self._mean_losses(x, data)
        y = np.asarray(self.project_lower(x, losses / self.lam))
        return float(y @ (losses - self.lam / 2 * y))

    @QUIET
    def score(self, x: Array, y: Array, data: Dataset) -> dict[str, float]:
        """Quality of the model x (n,) on all of `data`, whatever y is.

        Returns:
            "loss" and "accuracy" over the samples, mean cross-entropy and the share classified correctly;
            "worst_class_loss" and "worst_class_accuracy", the largest and the least of their means over the samples of
            one class. A class that `data` lacks does not count.
        """
        sums = np.zeros((self.classes, 2))
        for logits, labels in self._blocks(x[None], data, np.arange(len(data))):
            hits = logits[:, 0].argmax(axis=-1) == labels
            sums += _one_hot(labels, self.classes) @ np.stack([_cross_entropy(logits, labels)[:, 0], hits], axis=1)
        counts = data.counts()
        loss, accuracy = (sums.sum(axis=0) / len(data)).tolist()
        means = sums[counts > 0] / counts[counts > 0, None]
        return {
            "loss": loss,
            "accuracy": accuracy,
            "worst_class_loss": float(means[:, 0].max()),
            "worst_class_accuracy": float(means[:, 1].min()),
        }

    def _mean_losses(self, x: Array, data: Sequence[Dataset]) -> Vector:
        """(C,) L(x) = (1/m) sum_i L_i(x)."""
        return np.asarray(np.mean([self.class_losses(x[None], part)[0] for part in data], axis=0))

    def _blocks(self, x: Array, data: Dataset, positions: Batch) -> Iterator[tuple[Vector, NDArray[np.int64]]]:
        """Logits (b, k, C) of the rows of x (k, n) and labels (b,) of the samples at `positions`, in turn."""
        models = np.asarray(x, self.dtype).reshape(-1, self.features)
        for block in blocks(positions, BLOCK):
            inputs, labels = data.take(block, self.dtype)
            logits = (inputs @ models.T).astype(np.float64)
            yield logits.reshape(len(labels), len(x), self.classes), labels


def _cross_entropy(logits: Vector, labels: NDArray[np.int64]) -> Vector:
    """(b, k) the cross-entropy of logits (b, k, C)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(axis=-1)) - shifted[np.arange(len(labels)), :, labels])


def _one_hot(labels: NDArray[np.int64], classes: int) -> Vector:
    """(C, b): summing over the samples of a class is a product with it."""
    return np.asarray(labels == np.arange(classes)[:, None], np.float64)
