"""Hyper-parameter choice, [B] section 5.2: one ridge parameter per client, tuned on held-out samples.

f_i(x, y) = mean over client i's held-out samples of log(1 + exp(-v U.y))
h_i(x, y) = mean over its training samples of the same + x_i / 2 |y|^2            over all y
X_i = {x >= mu}

U (p,) is an input, v = +1 or -1 its target, y (p,) one linear classifier for all, x (m,) one regulariser per client.

Choices: [B] prints sums over samples; we take means. [B] does not specify targets (we: even labels +1, odd ones -1), mu
(0.01), or the held-out samples (every fifth). (1/m) sum_i h_i depends only on the mean of x, and f_i only on y: all
components of the implicit gradient are equal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
from numpy.typing import DTypeLike

from zofl_mpi.arrays import no_numpy_warnings
from zofl_mpi.data import Dataset
from zofl_mpi.engine.fields import above, check_ranges, injected
from zofl_mpi.errors import UserError, demand
from zofl_mpi.problems import Array, Batch, Vector
from zofl_mpi.problems.base import BilevelProblem, NumPyProblem
from zofl_mpi.problems.sums import TARGETS, positions_of, unscaled

HESSIAN_BLOCK = 2048  # samples per product; larger is faster, 13 MB for MNIST
TOLERANCE = 1e-12  # gradient norm of an exact solution, for inputs in [0, 1]
NEWTON_STEPS = 200
MATRIX_PRODUCTS = 1000  # most power iterations; pixels in [0, 1] take about 10


@final
@dataclass(frozen=True)
class Hyperparameter(NumPyProblem, BilevelProblem):
    """Choice of regularisers as a `Bilevel` problem, n_lower = p; created by `of`.

    Products with the inputs are computed in `dtype`, everything after them (one number per sample) in float64.

    For x in X_i, eta < mu keeps x + v positive and each h_i strongly convex; a larger eta raises UserError. Iterates
    may leave X_i, which [B] only penalises; a mean of x that is not positive raises UserError.

    Attributes:
        features: p, the length of one input.
        n: length of x, the number of clients.
        smoothness: bound on a quarter of the largest eigenvalue of U'U/|D_i| over the clients' training samples.
        mu: smallest regulariser, X_i = {x >= mu}.
        held_out: share of a client's samples for the upper level.
        x_start: initial value of all regularisers.
        dtype: float32 or float64, of all vectors.
    """

    x0: ClassVar[str] = "random"  # 0 is outside X_i, where the lower level may lack a solution
    constrained: ClassVar[bool] = True
    features: int = injected()
    n: int = injected()
    smoothness: float = injected()
    mu: float = above(0, 0.01)
    held_out: float = 0.2
    x_start: float = 0.1
    dtype: DTypeLike = injected(np.float32)

    def __post_init__(self) -> None:
        check_ranges(Hyperparameter, vars(self))
        demand(0 < self.held_out < 1, "held_out", self.held_out, "between 0 and 1, both excluded")
        demand(self.mu <= self.x_start < math.inf, "x_start", self.x_start, f"a number, at least --mu {self.mu}")

    @classmethod
    def of(cls, clients: Sequence[Dataset], **flags: Any) -> Self:
        """Creates the problem of the clients D_0, ..., D_{m-1}; `flags` are the fields `mu` to `dtype`.

        Reads all inputs about ten times (MNIST: 0.3 s).

        Raises:
            UserError: a client has no held-out or no training samples.
        """
        problem = cls(clients[0].features, len(clients), 0.0, **flags)
        for i, data in enumerate(clients):
            upper, lower = map(len, problem.parts(data))
            if upper == 0 or lower == 0:
                raise UserError(
                    f"--held-out {problem.held_out}: of client {i}'s {len(data)} samples {upper} are held out and "
                    f"{lower} are left for training, both must be at least 1; change the share or raise --min-samples"
                )
        largest = max(_largest_eigenvalue(problem.parts(data)[1]) for data in clients)
        return replace(problem, smoothness=float(f"{1.01 * largest / 4:.3g}"))  # power iteration underestimates

    @property
    def n_lower(self) -> int:
        return self.features

    @property
    def margin(self) -> float:
        return self.mu

    def client_bytes(self, batch_size: int, gradient: bool) -> float:
        """Bytes of x and y, a mini-batch, its margins and residuals; with `gradient` also gradient and step in y."""
        numbers = self.n + (3 if gradient else 1) * self.n_lower + batch_size * (self.features + 2)
        return float(numbers * np.dtype(self.dtype).itemsize)

    def initial(self, generator: np.random.Generator) -> Array:
        """Start (n,): all entries `x_start`, nothing random."""
        return np.full(self.n, self.x_start, self.dtype)

    def parts(self, data: Dataset) -> tuple[Dataset, Dataset]:
        """Held-out and training samples of a client.

        Position j is held out if floor((j + 1) held_out) > floor(j held_out): every fifth for 0.2. Not random: a
        problem holds no random numbers.
        """
        upper, lower = _positions(len(data), self.held_out)
        return data.subset(upper), data.subset(lower)

    @no_numpy_warnings
    def f(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> Vector:
        positions = positions_of(data, batch)
        models = np.multiply(y, np.asarray(data.factor, self.dtype), dtype=self.dtype)
        total = np.zeros(len(y))
        for inputs, labels in unscaled(data, positions, self.dtype):
            total += np.logaddexp(0, -TARGETS[labels % 2] * (models @ inputs.T)).sum(axis=1)
        return total / len(positions)

    @no_numpy_warnings
    def gradient_h(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> Array:
        positions = positions_of(data, batch)
        return np.asarray(_slope(y, data, positions, self.dtype) + float(x[i]) * y, self.dtype)

    @no_numpy_warnings
    def gradients_f(self, i: int, x: Array, y: Array, data: Dataset, batch: Batch | None = None) -> tuple[Array, Array]:
        slope = _slope(y, data, positions_of(data, batch), self.dtype)
        return np.zeros(self.n, self.dtype), np.asarray(slope, self.dtype)

    @no_numpy_warnings
    def hessian_h(self, i: int, x: Array, y: Array, u: Array, data: Dataset, batch: Batch | None = None) -> Array:
        positions, factor = positions_of(data, batch), np.asarray(data.factor, self.dtype)
        models = np.stack([y, u]).astype(self.dtype) * factor
        total = np.zeros(len(y))
        for inputs, _ in unscaled(data, positions, self.dtype):
            margins, along = (models @ inputs.T).astype(np.float64)
            total += (along * (0.5 / np.cosh(margins / 2)) ** 2).astype(self.dtype) @ inputs
        return np.asarray(total * factor / len(positions) + float(x[i]) * u, self.dtype)

    def cross_h(self, i: int, x: Array, y: Array, u: Array, data: Dataset, batch: Batch | None = None) -> Array:
        """Gradient (n,): y.u at i, else 0, since x_i weighs |y|^2/2 in h_i only."""
        product = np.zeros(self.n, self.dtype)
        product[i] = y.astype(np.float64) @ u.astype(np.float64)
        return product

    def curvature(self, x: Array) -> tuple[float, float]:
        """mu_h = mean(x) and L_h = `smoothness` + max(x), which bounds each h_i too (UserError: mean(x) <= 0)."""
        mean = float(np.mean(x, dtype=np.float64))
        if not mean > 0:
            raise UserError(
                f"the mean of the regularisers x came to {mean:.3g}, where the lower level need not have a solution: "
                "choose a smaller --eta or --gamma, or a larger --mu, to keep it above 0"
            )
        return mean, self.smoothness + float(np.max(x))

    def project(self, i: int, x: Array) -> Array:
        return np.asarray(np.maximum(x, np.asarray(self.mu, x.dtype)))

    @no_numpy_warnings
    def solution(self, x: Array, data: Sequence[Dataset]) -> Vector:
        """y(x) (n_lower,) in float64 by Newton's method, to a gradient norm of 1e-12.

        For inputs beyond [0, 1] the tolerance grows by sqrt(`smoothness`), as rounding does. MNIST's 35,280 training
        samples take 3 s of one core at mean(x) = 0.01.

        Raises:
            UserError: mean(x) <= 0, or no convergence.
        """
        ridge, _ = self.curvature(x)
        lower = _Average([self.parts(part)[1] for part in data], ridge)
        tolerance = TOLERANCE * max(1.0, math.sqrt(self.smoothness))
        return lower.minimiser(np.zeros(self.features), tolerance)

    @no_numpy_warnings
    def score(self, x: Array, y: Array, data: Dataset) -> dict[str, float]:
        """Mean logistic "loss" of the classifier y on `data`, and share of samples with v U.y > 0 ("accuracy")."""
        loss, hits = 0.0, 0
        model = np.multiply(y, np.asarray(data.factor, self.dtype), dtype=self.dtype)
        for inputs, labels in unscaled(data, np.arange(len(data)), self.dtype):
            margins = TARGETS[labels % 2] * (inputs @ model)
            loss += float(np.logaddexp(0, -margins).sum())
            hits += int(np.count_nonzero(margins > 0))
        return {"loss": loss / len(data), "accuracy": hits / len(data)}


class _Average(NamedTuple):
    """(1/m) sum_i h_i as a function of y (p,), in float64; `ridge` > 0 is the mean of x."""

    parts: Sequence[Dataset]
    ridge: float

    def minimiser(self, y: Vector, tolerance: float) -> Vector:
        """Minimiser (p,) by Newton's method from y, to a gradient norm of `tolerance`.

        Inverting the Hessian costs ten gradients: the inverse is reused while each step shrinks the gradient tenfold.
        Steps are halved until they shrink the gradient, which small ones along Newton's direction always do.
        """
        gradient, inverse = self.gradient(y), None
        for _ in range(NEWTON_STEPS):
            length = np.linalg.norm(gradient)
            if length <= tolerance:
                return y
            fresh = inverse is None
            if inverse is None:
                inverse = np.linalg.inv(self.hessian(y))
            direction, t = inverse @ gradient, 1.0
            there = self.gradient(y - direction)
            while fresh and t > 1e-6 and not np.linalg.norm(there) <= (1 - t / 4) * length:
                t /= 2
                there = self.gradient(y - t * direction)
            now = np.linalg.norm(there)
            if fresh and not now < length:
                break
            if not now <= 0.1 * length:
                inverse = None
            if now < length:
                y, gradient = y - t * direction, there
        raise UserError(
            f"the lower level was solved to a gradient of {np.linalg.norm(gradient):.1e} only, not to {tolerance:.1e}: "
            "choose a larger --mu, smaller inputs (--pixels unit), or another --lower than exact"
        )

    def gradient(self, y: Vector) -> Vector:
        slopes = [_slope(y, data, np.arange(len(data)), np.float64) for data in self.parts]
        return np.asarray(np.mean(slopes, axis=0) + self.ridge * y)

    def hessian(self, y: Vector) -> Vector:
        total = np.zeros((len(y), len(y)))
        for data in self.parts:
            factor, own = np.asarray(data.factor), np.zeros_like(total)
            for inputs, _ in unscaled(data, np.arange(len(data)), np.float64, HESSIAN_BLOCK):
                # sigma'(t) = sigma(t) sigma(-t), even in t: the targets cancel
                inputs *= 0.5 / np.cosh(inputs @ (factor * y) / 2)[:, None]
                own += inputs.T @ inputs
            total += factor * own * (factor if factor.ndim == 0 else factor[:, None]) / len(data)
        return np.asarray(total / len(self.parts) + self.ridge * np.eye(len(y)))


def _slope(y: Array, data: Dataset, positions: Batch, dtype: DTypeLike) -> Vector:
    """Gradient (p,) at y (p,) of the mean of log(1 + exp(-v U.y)) over the samples at `positions`."""
    factor = data.factor
    model = np.multiply(y, np.asarray(factor, dtype), dtype=dtype)
    total = np.zeros(len(y))
    for inputs, labels in unscaled(data, positions, dtype):
        # -v sigma(-v t) = (tanh(t / 2) - v) / 2
        residuals = 0.5 * (np.tanh((inputs @ model).astype(np.float64) / 2) - TARGETS[labels % 2])
        total += residuals.astype(dtype) @ inputs
    return np.asarray(total * factor / len(positions))


@lru_cache(maxsize=1024)
def _positions(size: int, share: float) -> tuple[Batch, Batch]:
    """Positions of the held-out samples among `size`, and of the others; cached, as every lower round uses them."""
    held_out = np.diff(np.floor(share * np.arange(size + 1))) > 0
    parts = np.flatnonzero(held_out), np.flatnonzero(~held_out)
    for positions in parts:
        positions.flags.writeable = False
    return parts


@no_numpy_warnings
def _largest_eigenvalue(data: Dataset) -> float:
    """Largest eigenvalue of U'U/N, U (N, p) the inputs, by power iteration until it grows by less than 1e-6.

    The start (multiples of the golden ratio modulo 1) is irregular, so that no symmetry makes it orthogonal to the
    eigenvector.
    """
    vector = 0.5 + np.arange(data.features) * (math.sqrt(5) - 1) / 2 % 1
    factor, positions, largest = data.factor, np.arange(len(data)), 0.0
    for _ in range(MATRIX_PRODUCTS):
        model = np.asarray(vector / np.linalg.norm(vector) * factor, np.float32)
        vector = np.zeros(data.features)
        for inputs, _ in unscaled(data, positions, np.float32):
            vector += (inputs @ model) @ inputs
        vector *= factor / len(data)
        before, largest = largest, float(np.linalg.norm(vector))
        if not largest > (1 + 1e-6) * before:
            break
    return largest
