"""[A] section IV: multinomial logistic regression, the server's loss and the clients' proximal problems.

f_1(x) = CE(x; server's data)                       mean cross-entropy
h_i(x, y) = CE(y; client i's data) + mu_i / 2 |x - y|^2      over Y_i(x) = R^n, or the ball |y - x| <= radius_i
f_{2,i}(x, y) = m rho_i lam / 2 |x - y|^2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.kernels.softmax import KERNELS, Minibatches, choose
from zofl_mpi.problems.terms import PerClient, check, dissimilarity, into_ball, of

QUIET = np.errstate(all="ignore")  # values that are not finite are the caller's to find
BLOCK = 512  # samples that are looked at together when all data are


@final
@dataclass(frozen=True)
class Softmax:
    """Softmax regression as a `Hierarchical` and as a `Smooth` problem.

    A model x (n,) is the matrix W (C, p) row by row, as in torch's nn.Linear; with a bias W is (C, p + 1), b last.
    [A] weights the clients' terms by rho_i AND by 1/m; the factor m in f_{2,i} makes both hold at once (a choice).

    Attributes:
        features: p, the length of one input.
        classes: C.
        weights: (m,) rho_i = N_i / N_tr.
        lam: weight of the dissimilarity term f_2, >= 0.
        mu: proximal parameter, >= 0; a number, or one per client.
        radius: of the ball Y_i(x), >= 0; infinite for no constraint; a number, or one per client.
        bias: whether the model has one; [A]'s formula has none.
        dtype: float32 or float64, of all vectors.
        kernel: "numpy", "numba" or "auto" (softmax_kernels.choose).
    """

    features: int
    classes: int
    weights: NDArray[np.float64]
    lam: float = 1.0
    mu: PerClient = 1.0
    radius: PerClient = np.inf
    bias: bool = False
    dtype: DTypeLike = np.float32
    kernel: str = "auto"

    def __post_init__(self) -> None:
        if np.dtype(self.dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise UserError(f"dtype {self.dtype!r}: softmax regression runs in float32 or float64")
        if self.kernel != "auto" and self.kernel not in KERNELS:
            raise UserError(f"kernel {self.kernel!r}: allowed are auto, {', '.join(KERNELS)}")
        for name, value in (("lam", self.lam), ("mu", self.mu), ("radius", self.radius)):
            check(name, value, self.m)
        choose(self.kernel)

    @property
    def n(self) -> int:
        """Length of x."""
        return self.classes * (self.features + self.bias)

    @property
    def m(self) -> int:
        """Number of clients."""
        return len(self.weights)

    def kernel_name(self, batch_size: int) -> str:
        """Which kernel `lower` uses, whatever the batch, for the record: kernels agree to rounding only."""
        return choose(self.kernel)

    def prepare(self, kernel: str, data: Dataset) -> None:
        """Makes a kernel ready: a compiled one is compiled the first time (seconds), and kept on the disk."""
        if kernel == "numba":
            own = replace(self, kernel=kernel)
            own.descend(data, np.zeros(self.n, self.dtype), np.zeros((1, 1), np.int64), np.zeros(1))

    def flops(self, batch_size: int) -> float:
        """Of the two products with the batch: logits and gradient."""
        return 4.0 * batch_size * self.n

    def initial(self, generator: np.random.Generator) -> Array:
        """(n,) standard normal entries times 0.01."""
        return np.asarray(0.01 * generator.standard_normal(self.n), self.dtype)

    def loss(self, x: Array, data: Dataset) -> float:
        """Mean cross-entropy of x (n,) over all of `data`, summed in float64."""
        return self.score(x, data)["loss"]

    def gradient(self, x: Array, data: Dataset, batch: Batch | None = None) -> Array:
        """(n,) the gradient of the mean cross-entropy at x over the samples at positions `batch` (B,), or over all."""
        positions = np.arange(len(data)) if batch is None else batch
        return np.asarray(self._gradient(x[None], data, positions)[0])

    def f1(self, x: Array, data: Dataset) -> float:
        """f_1(x), the mean cross-entropy of x (n,) over the server's data."""
        return self.loss(x, data)

    def gradient_f1(self, x: Array, data: Dataset, batch: Batch) -> Array:
        """(n,) the gradient at x of f_1 on the samples at positions `batch` (B,)."""
        return self.gradient(x, data, batch)

    @QUIET
    def f2(self, i: int, x: Array, y: Array) -> float:
        """m rho_i lam / 2 |x - y|^2."""
        return dissimilarity(self.weights, self.lam, i, x, y)

    def gradient_h(self, i: int, data: Dataset, x: Array, y: Array, batch: Batch) -> Array:
        """(k, n) the gradients of h_i(x, .) at the rows of y on one mini-batch: plain, for tests of `lower`."""
        return np.asarray(self._gradient(y, data, batch) + of(self.mu, i) * (y - x), self.dtype)

    @QUIET
    def lower(self, i: int, data: Dataset, x: Array, y: Array, batches: Batch, stepsizes: NDArray[np.float64]) -> Array:
        """[A] Algorithm 2 from y (k, n), k points at once; see `Hierarchical.lower`.

        A constant factor s of the inputs is not applied to every sample but once to the models: W' = s W has the same
        logits on the stored inputs, and a step gamma of W is a step gamma s^2 of W'.

        Raises:
            IndexError: a position is not in 0..len(data) - 1.
        """
        return self._moved(data, x, y, batches, stepsizes, of(self.mu, i), of(self.radius, i), f"client {i}: ")

    @QUIET
    def descend(
        self,
        data: Dataset,
        y: Array,
        batches: Batch,
        stepsizes: NDArray[np.float64],
        *,
        mu: float = 0.0,
        shift: Array | None = None,
    ) -> Array:
        """See `Smooth.descend`; neither `self.mu` nor `self.radius` plays a part in it.

        Raises:
            IndexError: a position is not in 0..len(data) - 1.
        """
        against = None if shift is None else shift[None]
        return np.asarray(self._moved(data, y[None], y[None], batches, stepsizes, mu, np.inf, shift=against)[0])

    def _moved(
        self,
        data: Dataset,
        x: Array,
        y: Array,
        batches: Batch,
        stepsizes: NDArray[np.float64],
        mu: float,
        radius: float,
        who: str = "",
        shift: Array | None = None,
    ) -> Array:
        """The steps from the rows of y, with proximal terms and balls around the rows of x."""
        if len(stepsizes) == 0:
            return y.copy()
        if batches.min() < 0 or batches.max() >= len(data):
            raise IndexError(f"{who}a batch has a position outside 0..{len(data) - 1}")
        factor = _common_factor(data, self.bias)
        minibatches = self._minibatches(data, batches, stepsizes, mu, factor)
        s = factor or 1.0
        x = np.asarray(x, self.dtype)
        shape = (len(x), self.classes, -1)
        d = np.ascontiguousarray((y - x) * s, self.dtype).reshape(shape)
        centre = np.ascontiguousarray(x * s).reshape(shape)
        against = None if shift is None else np.ascontiguousarray(shift, self.dtype).reshape(shape)
        KERNELS[choose(self.kernel)](centre, d, minibatches, radius * s, against)
        return x + d.reshape(x.shape) / s

    def project(self, i: int, x: Array, y: Array) -> Array:
        """(k, n) the rows of y projected onto the balls around the rows of x; y itself where there is no constraint."""
        return into_ball(self.radius, i, x, y)

    def solution(self, i: int, data: Dataset, x: Array) -> None:
        """There is no closed form."""

    @QUIET
    def score(self, x: Array, data: Dataset, mix: NDArray[np.float64] | None = None) -> dict[str, float]:
        """Mean cross-entropy ("loss") and fraction classified correctly ("accuracy") of x (n,) on all of `data`.

        Args:
            mix: (C,) weights of the classes, in place of their shares in `data`; one that `data` lacks counts nothing.

        Returns:
            Not-a-number for both where no sample counts.
        """
        each = np.ones(self.classes) if mix is None else mix / np.maximum(data.counts(), 1)
        sums = np.zeros(3)  # of the weights, the losses, the hits
        for inputs, labels in self._blocks(data, np.arange(len(data))):
            logits = (inputs @ x.reshape(self.classes, -1).T).astype(np.float64)
            loss = -_log_softmax(logits)[np.arange(len(labels)), labels]
            hit = logits.argmax(axis=1) == labels
            sums += np.stack([np.ones_like(loss), loss, hit]) @ each[labels]
        return {"loss": float(sums[1] / sums[0]), "accuracy": float(sums[2] / sums[0])}

    @QUIET
    def _gradient(self, y: Array, data: Dataset, batch: Batch) -> Array:
        """(k, n) mean gradients of the cross-entropy, summed over blocks of samples in float64."""
        total = np.zeros((len(y), self.classes, self.n // self.classes))
        for inputs, labels in self._blocks(data, batch):
            logits = inputs @ y.reshape(len(y), self.classes, -1).transpose(0, 2, 1)
            residual = np.exp(_log_softmax(logits.astype(np.float64)))
            residual[:, np.arange(len(labels)), labels] -= 1
            total += residual.astype(self.dtype).transpose(0, 2, 1) @ inputs
        return (total / len(batch)).reshape(y.shape).astype(self.dtype)

    def _blocks(self, data: Dataset, positions: Batch) -> Iterator[tuple[Array, NDArray[np.int64]]]:
        """Inputs (b, p), extended by 1 if there is a bias, and labels (b,) of the samples at `positions`, in turn."""
        for start in range(0, len(positions), BLOCK):
            inputs, labels = data.take(positions[start : start + BLOCK], self.dtype)
            yield (np.pad(inputs, ((0, 0), (0, 1)), constant_values=1) if self.bias else inputs), labels

    def _minibatches(
        self, data: Dataset, batches: Batch, stepsizes: NDArray[np.float64], mu: float, factor: float | None
    ) -> Minibatches:
        s = factor or 1.0
        rows = batches if data.rows is None else data.rows[batches]
        labels = data.labels[rows].astype(np.int64)
        return Minibatches(
            data,
            rows,
            labels,
            pull=stepsizes * s**2 / batches.shape[1],
            keep=1 - stepsizes * mu,
            push=stepsizes * s,
            rescale=factor is None,
            bias=self.bias,
            dtype=np.dtype(self.dtype),
        )


def _common_factor(data: Dataset, bias: bool) -> float | None:
    """s > 0 if every input of the model is s times the stored one, else None."""
    if not isinstance(data.scale, int | float) or not isinstance(data.shift, int | float):
        return None
    s = float(data.scale)
    if s <= 0 or data.shift != 0:
        return None
    return s if s == 1 or not bias else None


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of the class probabilities along the last axis."""
    z = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))
