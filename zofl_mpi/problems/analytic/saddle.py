"""A minimax problem whose saddle point is known: the example of FedNest (see `methods/fednest.py`), section 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.analytic.known import KnownBilevel, Solved, Vector, mean_noise


@final
@dataclass(frozen=True)
class Game:
    """Data of a client of `Saddle`.

    Attributes:
        A: (n, n).
        b: (n,).
        noise: (N, n) of the samples' gradients in y around the mean.
    """

    A: Vector
    b: Vector
    noise: Vector

    def __len__(self) -> int:
        return len(self.noise)


@final
@dataclass(frozen=True)
class Saddle(KnownBilevel, Solved):
    """min_x max_y (1/m) sum_i f_i, f_i = -1/2 |y|^2 - b_i'y + y'A_i x + lam/2 |x|^2; h_i = -f_i.

    The inner solution is y(x) = A x - b with the means A and b, so F(x) = 1/2 |A x - b|^2 + lam/2 |x|^2: the saddle
    point is x* = (A'A + lam I)^{-1} A'b, y* = A x* - b. All h_i have the Hessian I: the mean of the clients' own
    maximisers is y(x).

    Attributes:
        lam: weight of |x|^2, > 0.
        A: (n, n) the mean of the A_i.
        b: (n,) the mean of the b_i.
        minimiser: (n,) x*.
        value: F(x*).
    """

    homogeneous: ClassVar[bool] = True
    lam: float
    A: Vector
    b: Vector
    minimiser: Vector
    value: float

    @classmethod
    def of(cls, clients: Sequence[Game], lam: float = 10.0) -> Saddle:
        """The problem of these clients, whose noise sums to 0."""
        A = np.mean([game.A for game in clients], axis=0)
        b = np.mean([game.b for game in clients], axis=0)
        x = np.linalg.solve(A.T @ A + lam * np.eye(len(b)), A.T @ b)
        return cls(lam, A, b, x, float((A @ x - b) @ (A @ x - b) / 2 + lam / 2 * x @ x))

    @classmethod
    def random(
        cls, streams: Streams, n: int, m: int, *, lam: float = 10.0, samples: int = 32, noise: float = 0.0
    ) -> tuple[Saddle, Game, tuple[Game, ...]]:
        """A problem with unequal clients, the server's part (that no client has), and each client's.

        A_i = I + t_i Q_i, t_i uniform in (0, 0.1), entries of Q_i and b_i standard normal; a common vector, standard
        normal too, is the mean of the b_i.

        Args:
            lam: the paper's 10.
            noise: standard deviation of each entry of a sample's gradient in y around the mean.
        """
        generator = streams(Purpose.SYNTHETIC)
        t = generator.uniform(0.0, 0.1, m + 1)
        Q, b = generator.standard_normal((m + 1, n, n)), generator.standard_normal((m + 1, n))
        b += generator.standard_normal(n) - b[1:].mean(axis=0)
        drawn = noise * generator.standard_normal((m + 1, samples, n))
        drawn -= drawn.mean(axis=1, keepdims=True)
        games = [Game(t[i] * Q[i] + np.eye(n), b[i], drawn[i]) for i in range(m + 1)]
        return cls.of(games[1:], lam), games[0], tuple(games[1:])

    @property
    def n(self) -> int:
        """Length of x."""
        return len(self.b)

    @property
    def n_lower(self) -> int:
        """Length of y."""
        return len(self.b)

    def initial(self, generator: np.random.Generator) -> Array:
        return generator.standard_normal(self.n)

    def f(self, i: int, x: Array, y: Array, data: Game, batch: Batch | None = None) -> Vector:
        inner = np.einsum("kn,kn->k", y, x @ data.A.T - data.b - y / 2 - mean_noise(data.noise, batch))
        return np.asarray(inner + self.lam / 2 * np.einsum("kn,kn->k", x, x))

    def gradient_h(self, i: int, x: Array, y: Array, data: Game, batch: Batch | None = None) -> Array:
        return np.asarray(y + data.b - data.A @ x + mean_noise(data.noise, batch))

    def gradients_f(self, i: int, x: Array, y: Array, data: Game, batch: Batch | None = None) -> tuple[Array, Array]:
        return data.A.T @ y + self.lam * x, -self.gradient_h(i, x, y, data, batch)

    def hessian_h(self, i: int, x: Array, y: Array, u: Array, data: Game, batch: Batch | None = None) -> Array:
        return u

    def cross_h(self, i: int, x: Array, y: Array, u: Array, data: Game, batch: Batch | None = None) -> Array:
        return np.asarray(-data.A.T @ u)

    def curvature(self, x: Array) -> tuple[float, float]:
        return 1.0, 1.0

    def solution(self, x: Array, data: Sequence[Game]) -> Array:
        """A x - b."""
        return np.asarray(self.A @ x - self.b)

    def implicit(self, x: Array) -> float:
        """F(x)."""
        y = self.A @ x - self.b
        return float(y @ y / 2 + self.lam / 2 * x @ x)

    def implicit_gradient(self, x: Array) -> Array:
        """(n,) the gradient of F."""
        return np.asarray(self.A.T @ (self.A @ x - self.b) + self.lam * x)

    def flops_evaluation(self, batch_size: int) -> float:
        return 2.0 * self.n**2 + 4.0 * self.n
