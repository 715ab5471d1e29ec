"""Bilevel problems with a black-box level, which returns values or solutions but no derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Never, final

import numpy as np

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.projections import simplex
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.analytic.known import KnownBilevel, Random
from zofl_mpi.problems.analytic.quadratic import SAMPLES, Quadratic, QuadraticData

PAIRS, OUTLIERS = 20, 1  # held-out inputs of a client, two targets each; outliers among them
USUAL, LARGE = 0.2, 2.0  # |error| of the best predictor on usual samples and on outliers
UNKNOWN = "this problem's lower level only returns its solution, neither gradients nor curvature; use --lower exact"


@final
@dataclass(frozen=True)
class PortfolioData:
    """Data of a client of `CVaR`."""

    inputs: Vector  # (N, p) of the held-out samples
    targets: Vector  # (N,)
    training: QuadraticData  # quadratic training loss, in y

    def __len__(self) -> int:
        return len(self.targets)


@final
@dataclass(frozen=True)
class CVaR(KnownBilevel):
    """Chooses the prior of a ridge regression by conditional value at risk: the mean of the largest tenth of |errors|.

    x = (w, t), h_i(x, y) = q_i(y) + mu/2 |y - w|^2, q_i the training loss of client i's `QuadraticData`
    f_i(x, y) = t + mean_j max(0, |answer(u_j, y) - v_j| - t) / (1 - level) over its held-out samples (u_j, v_j)

    answer(u, y) is <u, y> rounded to multiples of `resolution`: f has kinks and jumps, and no gradient.

    y(x) = (A + mu I)^{-1} (sum_i A_i a_i / m + mu w), A the mean of the A_i; y* does not minimise the mean of the q_i.
    In problems of `random` each held-out input has the targets <u, y*> + e and <u, y*> - e, with e = 0.2 for 19 inputs
    of 20 and e = 2 for one. With exact answers F(x) = f(x, y(x)) is convex and even in w around w*, where y(x*) = y*;
    w* minimises it at every t. The largest tenth begins among the errors of 0.2: the unique solution has t* = 0.2 and
    F* = 1.1. Rounded answers change F by at most resolution / (2 (1 - level)).
    """

    A: Vector  # (p, p) mean of the A_i
    force: Vector  # (p,) mean of the A_i a_i
    best: Vector  # (p,) y*
    mu: float = 1.0  # weight of |y - w|^2/2, > 0
    level: float = 0.9  # f averages the largest 1 - level of the errors
    resolution: float = 0.001  # of an answer; 0: exact

    @classmethod
    def random(
        cls, streams: Streams, n: int, m: int, *, noise: float = 0.0, resolution: float = 0.001
    ) -> Random[CVaR, PortfolioData]:
        """Random problem, n >= 2; entries of a sample's gradient of h_i have the standard deviation `noise`."""
        demand(n >= 2, "n", n, "a whole number, at least 2: x holds a threshold besides the prior")
        p, N = n - 1, 2 * PAIRS
        bowls = Quadratic.random(streams, p, m + 1, samples=N, noise=noise)[2]
        generator = streams(Purpose.SYNTHETIC, t=4)
        best = generator.standard_normal(p)
        inputs = np.repeat(generator.standard_normal((m + 1, PAIRS, p)), 2, axis=1)
        sides = np.tile([1.0, -1.0], PAIRS) * np.repeat([LARGE] * OUTLIERS + [USUAL] * (PAIRS - OUTLIERS), 2)
        books = [PortfolioData(u, u @ best + sides, bowl) for u, bowl in zip(inputs, bowls, strict=True)]
        training = [book.training for book in books[1:]]
        A = np.mean([bowl.A for bowl in training], axis=0)
        force = np.mean([bowl.A @ bowl.a for bowl in training], axis=0)
        return cls(A, force, best, resolution=resolution), books[0], tuple(books[1:])

    @property
    def n(self) -> int:
        return len(self.best) + 1

    @property
    def n_lower(self) -> int:
        return len(self.best)

    def answer(self, inputs: Vector, y: Array) -> Vector:
        """Predictions (k, B) for inputs (B, p) with weights y (k, p)."""
        exact = np.asarray(y @ inputs.T, np.float64)
        return np.rint(exact / self.resolution) * self.resolution if self.resolution else exact

    def f(self, i: int, x: Array, y: Array, data: PortfolioData, batch: Batch | None = None) -> Vector:
        samples = slice(None) if batch is None else batch
        errors = np.abs(self.answer(data.inputs[samples], y) - data.targets[samples])
        t = x[:, -1:]
        return np.asarray(t[:, 0] + np.maximum(0, errors - t).mean(axis=1) / (1 - self.level))

    def gradient_h(self, i: int, x: Array, y: Array, data: PortfolioData, batch: Batch | None = None) -> Array:
        return np.asarray(data.training.gradient(y, batch) + self.mu * (y - x[:-1]))

    def curvature(self, x: Array) -> tuple[float, float]:
        eigenvalues = np.linalg.eigvalsh(self.A)
        return float(eigenvalues[0]) + self.mu, float(eigenvalues[-1]) + self.mu

    def solution(self, x: Array, data: Sequence[PortfolioData]) -> Array:
        return np.linalg.solve(self.A + self.mu * np.eye(self.n_lower), self.force + self.mu * x[:-1])

    def truth(self) -> tuple[Vector, float]:
        """Solution x* and F(x*), for exact answers."""
        prior = self.best + (self.A @ self.best - self.force) / self.mu
        beyond = (LARGE - USUAL) * OUTLIERS / PAIRS
        return np.append(prior, USUAL), USUAL + beyond / (1 - self.level)


@final
@dataclass(frozen=True)
class Shares(KnownBilevel):
    """Chooses scores x that a black-box service maps to shares y(x), the projection onto {y >= 0, sum y = 1}.

    f_i(x, y) = mean_j 1/2 |y - c_ij|^2 + rho/2 |x|^2 over client i's wishes c_ij, the rows of its data (N, n). The
    lower level has only `solution`, for `--lower exact`.

    Scores x give the shares y if, for some s, x = y + s where y > 0 and x <= s elsewhere. The shortest such x is
    y - 1/n, with |x|^2 = |y|^2 - 1/n. F(x) = f(x, y(x)) is therefore least where y minimises
    1/2 |y - c|^2 + rho/2 |y|^2 over the simplex, c the mean wish: y* = P(c / (1 + rho)), x* = y* - 1/n. At an entry 0
    of y* the score lies where its share begins: F has a kink there, and no gradient.
    """

    solution_only: ClassVar[bool] = True
    wish: Vector  # (n,) c
    spread: float  # mean over clients and samples of |c_ij - c|^2/2
    rho: float = 0.5  # weight of |x|^2/2, > 0

    @classmethod
    def random(cls, streams: Streams, n: int, m: int, *, noise: float = 0.0) -> Random[Shares, Vector]:
        """Random problem; entries of a wish have the standard deviation `noise` around the client's mean."""
        generator = streams(Purpose.SYNTHETIC, t=5)
        table = noise * generator.standard_normal((m + 1, SAMPLES, n))
        common = generator.standard_normal(n)
        points = common + 0.5 * generator.standard_normal((m + 1, 1, n)) + table
        wish = points[1:].mean(axis=(0, 1))
        spread = float(np.square(points[1:] - wish).sum(axis=2).mean() / 2)
        return cls(wish, spread), points[0], tuple(points[1:])

    @property
    def n(self) -> int:
        return len(self.wish)

    def initial(self, generator: np.random.Generator) -> Array:
        return generator.standard_normal(self.n)

    def f(self, i: int, x: Array, y: Array, data: Vector, batch: Batch | None = None) -> Vector:
        points = data if batch is None else data[batch]
        distances = np.square(y[:, None] - points).sum(axis=2).mean(axis=1)
        return np.asarray(distances / 2 + self.rho / 2 * np.einsum("kn,kn->k", x, x))

    def gradient_h(self, i: int, x: Array, y: Array, data: Vector, batch: Batch | None = None) -> Never:
        raise UserError(UNKNOWN)

    def curvature(self, x: Array) -> Never:
        raise UserError(UNKNOWN)

    def solution(self, x: Array, data: Sequence[Vector]) -> Array:
        return np.asarray(simplex(x[None])[0])

    def implicit(self, x: Array) -> float:
        d = simplex(x[None])[0] - self.wish
        return float(d @ d / 2 + self.spread + self.rho / 2 * x @ x)

    def truth(self) -> tuple[Vector, float]:
        x = simplex(self.wish[None] / (1 + self.rho))[0] - 1 / self.n
        return x, self.implicit(x)
