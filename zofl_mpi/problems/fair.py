"""Fair classification, [B] section 5.3: min over x, max over y of a weighted sum of the classes' losses.

f_i(x, y) = sum_c y_c L_{i,c}(x) - lam / 2 |y|^2       L_{i,c}(x) = m / N_c sum over l in D_{i,c} of loss_l(x)
h_i = -f_i                                             over Y, all of R^C or the simplex

D_{i,c} are client i's samples of class c, N_c the number of all m clients' samples of class c, y (C,) the class
weights. L = (1/m) sum_i L_i are the classes' mean losses over all clients' samples; a class that a client lacks adds
nothing to its L_i. On R^C the maximiser is y(x) = L(x)/lam, and x minimises |L(x)|^2/(2 lam). On the simplex y(x) is
the projection of L(x)/lam: for lam -> 0 all weight is on the worst class, for lam -> infinity all weights are equal.

Choices: the printed objective has no y in its loss; we use that of Nouiehed et al., presumably meant. It sums over
D_{i,c}; we divide by N_c. It lacks 5.1's factor 1/2 (on R^C equivalent to another lam) and 5.1's ridge; we keep the
factor and omit the ridge. Classes are the labels; 5.1's targets are their parities. lam is not given.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.arrays import no_numpy_warnings
from zofl_mpi.data import Dataset
from zofl_mpi.engine.fields import above, at_least, injected
from zofl_mpi.numerics.projections import simplex
from zofl_mpi.problems import Array, Batch, Vector
from zofl_mpi.problems.base import BilevelProblem, NumPyProblem
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.problems.sums import TARGETS, log_softmax, positions_of, scaled

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ClassWeights(NumPyProblem, BilevelProblem, ABC):
    """`Bilevel` problem of a model with class weights y, n_lower = C.

    Mini-batches estimate the sums over a class. If a large client holds most samples of a rare class, a single sample
    weighs much.

    Attributes:
        features: p, the length of one input.
        counts: (m, C) number of samples of each class at each client.
        lam: weight of |y|^2/2, which keeps the class weights y close to each other.
        y_set: set of the class weights: free (R^C, the paper's) or simplex.
        dtype: float32 or float64, of all vectors.
    """

    features: int = injected()
    counts: NDArray[np.int64] = injected()
    lam: float = above(0, 0.1)
    y_set: Literal["free", "simplex"] = "free"
    dtype: DTypeLike = injected(np.float32)

    # --- the model

    @property
    @abstractmethod
    def n(self) -> int:
        """Length of x."""

    @abstractmethod
    def outputs(self, x: Array, data: Dataset, positions: Batch) -> Iterator[tuple[Vector, Labels]]:
        """Yields outputs (k, b, ...) of the rows of x (k, n), and labels (b,), for blocks of the samples."""

    @abstractmethod
    def sample_losses(self, outputs: Vector, labels: Labels) -> Vector:
        """Loss of each sample (k, b)."""

    @abstractmethod
    def hits(self, outputs: Vector, labels: Labels) -> NDArray[np.bool]:
        """True for each sample (k, b) that is classified correctly."""

    @property
    @abstractmethod
    def sample_numbers(self) -> int:
        """Numbers that a pass stores for a sample, besides its input."""

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes of x and y, a mini-batch and its outputs; with `gradient` also the gradient in y and the step."""
        numbers = self.n + (3 if gradient else 1) * self.n_lower + batch_size * (self.features + self.sample_numbers)
        return float(numbers * np.dtype(self.dtype).itemsize)

    # --- the classes

    @property
    def classes(self) -> int:
        """C."""
        return int(self.counts.shape[1])

    @property
    def n_lower(self) -> int:
        return self.classes

    @property
    def homogeneous(self) -> bool:
        """True on R^C: all h_i have the Hessian lam I, so y(x) is the mean of their minimisers."""
        return self.y_set == "free"

    @cached_property
    def sample_weights(self) -> Vector:
        """Weight m / N_c (C,) of a sample of class c in f_i."""
        return np.asarray(len(self.counts) / np.maximum(self.counts.sum(axis=0), 1))

    def initial_lower(self) -> Array:
        """Start (n_lower,) in Y: 0, or equal weights."""
        return np.full(self.classes, 0.0 if self.y_set == "free" else 1 / self.classes, self.dtype)

    @no_numpy_warnings
    def f(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        weights = y.astype(np.float64)
        return np.asarray(np.vecdot(weights, self.class_losses(x, data, batch) - self.lam / 2 * weights))

    @no_numpy_warnings
    def gradient_h(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> Array:
        return np.asarray(self.lam * y - self.class_losses(x[None], data, batch)[0], self.dtype)

    @no_numpy_warnings
    def class_losses(self, x: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        """L_i (k, C) at the rows of x (k, n): m/N_c times the sum over client i's samples of class c, `data`.

        A mini-batch's sums are multiplied by N_i / B, N_i the length of `data`: unbiased for positions drawn uniformly
        with replacement.
        """
        positions = positions_of(data, batch)
        losses = np.zeros((len(x), self.classes))
        for outputs, labels in self.outputs(x, data, positions):
            losses += self.sample_losses(outputs, labels) @ self._one_hot(labels)
        return np.asarray(losses * (len(data) / len(positions)) * self.sample_weights)

    def curvature(self, x: Array) -> tuple[float, float]:
        return self.lam, self.lam

    def project_lower(self, x: Array, y: Array) -> Array:
        """Nearest point (n_lower,) of Y to y (n_lower,); Y does not depend on x."""
        return simplex(y) if self.y_set == "simplex" else y

    def solution(self, x: Array, data: Sequence[Dataset]) -> Vector:
        """y(x) (n_lower,) on the clients' data: L(x)/lam, or its projection on the simplex."""
        mean = np.mean([self.class_losses(x[None], part)[0] for part in data], axis=0)
        return np.asarray(self.project_lower(x, mean / self.lam))

    @no_numpy_warnings
    def score(self, x: Array, y: Array, data: Dataset) -> dict[str, float]:
        """Mean "loss" and "accuracy" of the model x (n,) on `data`; y is ignored.

        "worst_class_loss" and "worst_class_accuracy" are the worst of the classes' means, without classes that `data`
        lacks.
        """
        sums = np.zeros((2, self.classes))
        for outputs, labels in self.outputs(x[None], data, np.arange(len(data))):
            rows = np.concatenate([self.sample_losses(outputs, labels), self.hits(outputs, labels)])
            sums += rows @ self._one_hot(labels)
        counts = data.counts()
        loss, accuracy = (sums.sum(axis=1) / len(data)).tolist()
        means = sums[:, counts > 0] / counts[counts > 0]
        return {
            "loss": loss,
            "accuracy": accuracy,
            "worst_class_loss": float(means[0].max()),
            "worst_class_accuracy": float(means[1].min()),
        }

    def _one_hot(self, labels: Labels) -> Vector:
        """One-hot labels (b, C); a product with them sums over each class."""
        return np.asarray(labels[:, None] == np.arange(self.classes), np.float64)


@final
@dataclass(frozen=True)
class Fair(ClassWeights):
    """Fair classification with [B] 5.1's network: a sample's loss is 1/2 (v - sum_q w_q max(0, Z_q . U))^2.

    x = (Z, w) as in `ReLUNet`; v is +1 for even labels and -1 for odd ones. f is neither smooth nor convex in x, and
    strongly concave in y.

    Attributes:
        hidden: N_1, hidden units.
    """

    x0: ClassVar[str] = ReLUNet.x0
    hidden: int = at_least(1, 4)

    @cached_property
    def network(self) -> ReLUNet:
        """The network of [B] 5.1 without its ridge."""
        return ReLUNet(self.features, self.hidden, lam=0.0, dtype=self.dtype)

    @property
    def n(self) -> int:
        return self.network.n

    @property
    def sample_numbers(self) -> int:
        return self.hidden + 1

    def initial(self, generator: np.random.Generator) -> Array:
        return self.network.initial(generator)

    def outputs(self, x: Array, data: Dataset, positions: Batch) -> Iterator[tuple[Vector, Labels]]:
        return self.network.outputs(x, data, positions)

    def sample_losses(self, outputs: Vector, labels: Labels) -> Vector:
        """Half the squared error of each sample (k, b)."""
        return np.asarray((outputs - TARGETS[labels % 2]) ** 2 / 2)

    def hits(self, outputs: Vector, labels: Labels) -> NDArray[np.bool]:
        """True for each output (k, b) with the sign of v; 0 has none."""
        return np.asarray(outputs * TARGETS[labels % 2] > 0)


@final
@dataclass(frozen=True)
class FairSoftmax(ClassWeights):
    """Fair classification with softmax regression (no bias): |L(x)|^2/(2 lam) is smooth and convex.

    A model x (n,), n = C p, is the matrix W (C, p) row by row, as in torch's nn.Linear. Logits are computed in `dtype`,
    losses in float64.
    """

    @property
    def n(self) -> int:
        return self.classes * self.features

    @property
    def sample_numbers(self) -> int:
        return 2 * self.classes  # logits and their logarithms

    def outputs(self, x: Array, data: Dataset, positions: Batch) -> Iterator[tuple[Vector, Labels]]:
        models = np.asarray(x, self.dtype).reshape(-1, self.features)
        for inputs, labels in scaled(data, positions, self.dtype):
            logits = (inputs @ models.T).astype(np.float64).reshape(len(labels), len(x), self.classes)
            yield logits.swapaxes(0, 1), labels

    def sample_losses(self, outputs: Vector, labels: Labels) -> Vector:
        return np.asarray(-log_softmax(outputs)[:, np.arange(len(labels)), labels])

    def hits(self, outputs: Vector, labels: Labels) -> NDArray[np.bool]:
        return np.asarray(outputs.argmax(axis=-1) == labels)
