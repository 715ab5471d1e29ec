"""ReLU network with one hidden layer, fitted to targets +1 and -1 by least squares, [B] section 5.1.

f_i(x) = mean over D_i of 1/2 (v - sum_q w_q max(0, Z_q . U))^2 + lam / 2 (|Z|^2 + |w|^2)

U (p,) is an input, v its target; x = (Z, w), Z (N_1, p) row by row. Locally Lipschitz, neither smooth nor convex. The
methods of [B] use it unchanged; first-order methods use its smooth twin, with log(1 + exp(s t)) / s in place of
max(0, t), larger by at most log(2) / s.

Choices, which [B] leaves open: even labels have the target +1, odd ones -1; the initialisation is `initial`; the sets
X_i are the whole space.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import DTypeLike

from zofl_mpi.arrays import no_numpy_warnings
from zofl_mpi.data import Dataset
from zofl_mpi.engine.fields import above, at_least, injected
from zofl_mpi.problems import Array, Batch, Vector
from zofl_mpi.problems.base import NumPyProblem
from zofl_mpi.problems.sums import TARGETS, class_weights, positions_of, unscaled

Rectifier = Callable[[Array], Vector]


@final
@dataclass(frozen=True)
class ReLUNet(NumPyProblem):
    """The network as a `Lipschitz` problem; its smooth twin as a `Smooth` one.

    Products with the inputs are computed in `dtype`, everything after them (a few numbers per sample) in float64. In
    float32 a difference of two losses then has an error of 1e-8 (MNIST, batches of 64). At [B]'s smallest eta, 0.001,
    that is 2e-4 of the difference at x_0 and 7e-4 of it after training.

    The ridge counts once, whatever the number of samples. With the sum over samples, a mini-batch of B is weighted by
    |D_i| / B, an unbiased estimate. At sharpness 10 the smooth twin's rectifier bends within about 0.1 of its kink.

    Attributes:
        features: p, the length of one input.
        hidden: N_1, hidden units.
        lam: weight of the ridge (lam/2) |x|^2; the paper's 0.01.
        rectifier: sharpness of the smooth twin's rectifier log(1 + exp(rectifier t))/rectifier.
        loss_scale: mean over samples, or sum, as in the paper (its gamma = 1e-5 then diverges).
        dtype: float32 or float64, of all vectors.
    """

    x0: ClassVar[str] = "random"  # 0 is stationary: the output is of second order in x
    smooth_twin: ClassVar[bool] = True
    features: int = injected()
    hidden: int = at_least(1, 4)
    lam: float = at_least(0, 0.01)
    rectifier: float = above(0, 10.0)
    loss_scale: Literal["mean", "sum"] = "mean"
    dtype: DTypeLike = injected(np.float32)

    @property
    def n(self) -> int:
        return self.hidden * (self.features + 1)

    def flops(self, batch_size: int) -> float:
        """FLOPs of a gradient step: two products with the batch."""
        return 2 * self.flops_evaluation(batch_size)

    def flops_evaluation(self, batch_size: int) -> float:
        return 2.0 * batch_size * self.hidden * self.features

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes of model, mini-batch, hidden units, outputs; with `gradient` also gradient, step, and units' slopes."""
        models, units = (3, 2) if gradient else (1, 1)
        numbers = models * self.n + batch_size * (self.features + units * self.hidden + 1)
        return float(numbers * np.dtype(self.dtype).itemsize)

    def initial(self, generator: np.random.Generator) -> Array:
        """Random start (n,): Z ~ 0.05 N(0, 1), w ~ 0.5 N(0, 1), independent entries."""
        x = generator.standard_normal(self.n)
        x[: -self.hidden] *= 0.05
        x[-self.hidden :] *= 0.5
        return x.astype(self.dtype)

    def losses(self, i: int, x: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        return self._objective(x, data, batch, _relu)

    def project(self, i: int, x: Array) -> Array:
        return x

    def loss(self, x: Array, data: Dataset) -> float:
        """The smooth twin's objective at x (n,) on all of `data`."""
        return float(self._objective(x[None], data, None, self._softplus)[0])

    @no_numpy_warnings
    def gradient(self, x: Array, data: Dataset, batch: Batch | None = None) -> Array:
        """The smooth twin's gradient (n,) at x over the samples at positions `batch` (B,); None: over all.

        With r = output - v, a_q = softplus(Z_q . U) and s_q the logistic function of `rectifier` Z_q . U, a sample's
        gradient is r a_q in w_q and r w_q s_q U in Z_q.
        """
        positions = positions_of(data, batch)
        factor = data.factor
        Z, w = self._split(x[None], factor)
        by_Z, by_w = np.zeros(Z.shape), np.zeros(self.hidden)
        for inputs, labels in unscaled(data, positions, self.dtype):
            t = (Z @ inputs.T).astype(np.float64)
            a = self._softplus(t)
            r = w[0] @ a - TARGETS[labels % 2]
            s = 0.5 + 0.5 * np.tanh(self.rectifier / 2 * t)
            by_w += a @ r
            by_Z += (w[0, :, None] * s * r).astype(self.dtype) @ inputs
        total = np.concatenate([(by_Z * factor).ravel(), by_w])
        return np.asarray(self._weight(data, positions) * total + self.lam * x, self.dtype)

    @no_numpy_warnings
    def score(self, x: Array, data: Dataset, mix: Vector | None = None) -> dict[str, float]:
        """Quality of x (n,) on all of `data`, see `Hierarchical.score`; NaN if no sample has weight.

        "loss" and "accuracy" (share of outputs with the sign of v; 0 has none) use ReLU, "smooth_loss" the smooth twin.
        Losses are means plus the ridge, whatever `loss_scale` is.
        """
        each = class_weights(data, mix)
        sums = np.zeros(4)  # of weights, losses, smooth losses, hits
        Z, w = self._split(x[None], data.factor)
        for inputs, labels in unscaled(data, np.arange(len(data)), self.dtype):
            t, targets = Z @ inputs.T, TARGETS[labels % 2]
            sharp, smooth = w[0] @ _relu(t), w[0] @ self._softplus(t)
            rows = (np.ones(len(labels)), (targets - sharp) ** 2 / 2, (targets - smooth) ** 2 / 2, sharp * targets > 0)
            sums += np.stack(rows) @ each[labels]
        loss, smooth_loss, accuracy = (sums[1:] / sums[0]).tolist()
        ridge = float(self._ridge(x[None])[0])
        return {"loss": loss + ridge, "smooth_loss": smooth_loss + ridge, "accuracy": accuracy}

    def outputs(
        self, x: Array, data: Dataset, positions: Batch, rectify: Rectifier | None = None
    ) -> Iterator[tuple[Vector, Array]]:
        """Yields outputs (k, b) at the rows of x (k, n), by ReLU or `rectify`, and labels (b,), block by block."""
        Z, w = self._split(x, data.factor)
        for inputs, labels in unscaled(data, positions, self.dtype):
            units = (rectify or _relu)(Z @ inputs.T).reshape(len(x), self.hidden, -1)  # (k, N_1, b)
            yield (w[:, None] @ units)[:, 0], labels

    @no_numpy_warnings
    def _objective(self, x: Array, data: Dataset, batch: Batch | None, rectify: Rectifier) -> Vector:
        positions = positions_of(data, batch)
        total = np.zeros(len(x))
        for outputs, labels in self.outputs(x, data, positions, rectify):
            residuals = outputs - TARGETS[labels % 2]
            total += np.vecdot(residuals, residuals)
        return self._weight(data, positions) / 2 * total + self._ridge(x)

    def _weight(self, data: Dataset, positions: Batch) -> np.float64:
        """Weight of a sample's loss: 1/B, or |D_i|/B for the sum."""
        return np.float64(1 if self.loss_scale == "mean" else len(data)) / len(positions)

    def _ridge(self, x: Array) -> Vector:
        """Ridge lam/2 |x|^2 (k,) of the rows of x, in float64."""
        rows = x.astype(np.float64, copy=False)
        return np.asarray(self.lam / 2 * np.vecdot(rows, rows))

    def _split(self, x: Array, factor: float | Vector) -> tuple[Array, Vector]:
        """Hidden units of all points times `factor`, (k N_1, p) in `dtype`, and weights w (k, N_1) in float64."""
        Z = x[:, : -self.hidden].reshape(len(x), self.hidden, self.features)
        scaled = np.multiply(Z, np.asarray(factor, self.dtype), dtype=self.dtype)
        return scaled.reshape(-1, self.features), x[:, -self.hidden :].astype(np.float64)

    def _softplus(self, t: Array) -> Vector:
        """log(1 + exp(s t)) / s in float64 without overflow, s the `rectifier`."""
        return np.asarray(np.logaddexp(0, self.rectifier * t.astype(np.float64)) / self.rectifier)


def _relu(t: Array) -> Vector:
    return np.maximum(t, 0).astype(np.float64)
