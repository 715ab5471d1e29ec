"""Softmax regression, [A] section IV: F(x) is the mean cross-entropy, with the terms of `ProximalLoss`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import no_numpy_warnings
from zofl_mpi.data import Dataset
from zofl_mpi.engine.fields import injected
from zofl_mpi.engine.roles import KernelChoice
from zofl_mpi.engine.setting import Work
from zofl_mpi.problems import Array, Batch, Vector
from zofl_mpi.problems.kernels.softmax import KERNELS, Minibatches, choose, numba_installed
from zofl_mpi.problems.sums import all_scaled, log_softmax, positions_of, scaled
from zofl_mpi.problems.terms import ProximalLoss, ProximalSteps

Labels = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Softmax(ProximalLoss):
    """Softmax regression without bias, as a `Hierarchical` and as a `Smooth` problem.

    A model x (n,) is the matrix W (C, p) row by row, as in torch's nn.Linear.

    Attributes:
        features: p, the length of one input.
        classes: C.
        kernel: code of the local steps: numpy, numba (compiled) or auto. auto is numba if it is installed, n is at
            least 4,096 and an input has at most 2,048 numbers; smaller models do not repay its loading.
    """

    features: int = injected()
    classes: int = injected()
    kernel: Literal["auto", "numpy", "numba"] = "auto"

    def __post_init__(self) -> None:
        self.terms.fit(self.m)
        choose(self.kernel, self.classes, self.features)

    @property
    def n(self) -> int:
        return self.classes * self.features

    def kernel_name(self, batch_size: int) -> str:
        return self._chosen[0]

    @property
    def _chosen(self) -> tuple[str, str]:
        """Kernel and reason."""
        return choose(self.kernel, self.classes, self.features)

    def kernel_for(self, work: Work, data: Dataset, before: str = "") -> KernelChoice:
        """Chooses a run's kernel; "auto": the resumed run's kernel `before`, else by sizes."""
        if self.kernel == "auto" and (before == "numpy" or (before == "numba" and numba_installed())):
            return KernelChoice(before, f"{before}, as the run began")
        return KernelChoice(*self._chosen)

    def with_kernel(self, name: str, work: Work) -> Softmax:
        return replace(self, kernel=cast(Any, name))

    def prepare(self, kernel: str, data: Dataset) -> None:
        """Compiles a compiled kernel (seconds), or loads it from disk."""
        if kernel == "numba":
            own = replace(self, kernel="numba")
            own.descend(data, np.zeros(self.n, self.dtype), np.zeros((1, 1), np.int64), np.zeros(1))

    def flops(self, batch_size: int) -> float:
        """FLOPs of two products with the batch: logits and gradient."""
        return 4.0 * batch_size * self.n

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes of the model, a mini-batch, its logits and residuals; with `gradient` also gradient and step."""
        numbers = (3 if gradient else 1) * self.n + batch_size * (self.n // self.classes + 2 * self.classes)
        return float(numbers * np.dtype(self.dtype).itemsize)

    @no_numpy_warnings
    def gradient(self, x: Array, data: Dataset, batch: Batch | None = None) -> Array:
        positions, W = positions_of(data, batch), x.reshape(self.classes, -1)
        total = np.zeros(W.shape)
        for inputs, labels in scaled(data, positions, self.dtype):
            residual = np.exp(log_softmax((inputs @ W.T).astype(np.float64)))
            residual[np.arange(len(labels)), labels] -= 1
            total += residual.astype(self.dtype).T @ inputs
        return (total / len(positions)).reshape(-1).astype(self.dtype)

    @no_numpy_warnings
    def after_steps(self, x: Array, y: Array, steps: ProximalSteps) -> Array:
        """See `ProximalLoss.after_steps`.

        A constant input scale s is applied once to the models, not to every sample: W' = s W has the same logits on the
        stored inputs, and a step gamma of W is a step gamma s^2 of W'.
        """
        factor = _common_factor(steps.data)
        s = factor or 1.0
        minibatches = Minibatches(
            steps.data,
            steps.data.rows_of(steps.batches),
            pull=steps.stepsizes * s**2 / steps.batches.shape[1],
            keep=1 - steps.stepsizes * steps.mu,
            push=steps.stepsizes * s,
            rescale=factor is None,
            dtype=np.dtype(self.dtype),
        )
        x = np.asarray(x, self.dtype)
        shape = (len(x), self.classes, -1)
        d = np.ascontiguousarray((y - x) * s, self.dtype).reshape(shape)
        centre = np.ascontiguousarray(x * s).reshape(shape)
        shift = None if steps.shift is None else np.ascontiguousarray(steps.shift, self.dtype).reshape(shape)
        KERNELS[self._chosen[0]](centre, d, minibatches, steps.radius * s, shift)
        return x + d.reshape(x.shape) / s

    def evaluated(self, x: Array, data: Dataset) -> Iterator[tuple[Labels, Vector, NDArray[np.bool]]]:
        """Logits in `dtype`, losses in float64; see `ProximalLoss.evaluated`."""
        for inputs, labels in scaled(data, np.arange(len(data)), self.dtype):
            logits = (inputs @ x.reshape(self.classes, -1).T).astype(np.float64)
            losses = -log_softmax(logits)[np.arange(len(labels)), labels]
            yield labels, losses, logits.argmax(axis=1) == labels

    @no_numpy_warnings
    def hits(self, x: Array, data: Dataset) -> Labels:
        hits = np.zeros(self.classes, np.int64)
        for inputs, labels in all_scaled(data, self.dtype):
            logits = inputs @ x.reshape(self.classes, -1).T
            hits += np.bincount(labels[logits.argmax(axis=1) == labels], minlength=self.classes)
        return hits


def _common_factor(data: Dataset) -> float | None:
    """Factor s > 0 by which all stored inputs are multiplied; None if there is no common one, or a shift."""
    if not isinstance(data.scale, int | float) or not isinstance(data.shift, int | float):
        return None
    return float(data.scale) if data.scale > 0 and data.shift == 0 else None
