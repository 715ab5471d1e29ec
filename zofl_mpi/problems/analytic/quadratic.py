"""Hierarchical problems with solutions and implicit gradients in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics.projections import ball
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.analytic.known import KnownHierarchical, Noisy, Random
from zofl_mpi.problems.base import NumPyProblem

SAMPLES = 32  # default number of samples of a client or the server


@dataclass(frozen=True)
class QuadraticData(Noisy):
    """Data of a client or of the server: N samples, q_j(y) = 1/2 (y - a)' A (y - a) + <noise_j, y>."""

    A: Vector  # (n, n) symmetric, positive semidefinite
    a: Vector  # (n,)
    noise: Vector  # (N, n)

    @classmethod
    def random(cls, streams: Streams, i: int, n: int, samples: int, noise: float) -> QuadraticData:
        """Random data number i: random axes, evenly spaced eigenvalues, noise with mean 0.

        Drawn at first use, so that a rank draws only its own clients' data.
        """
        bowl = object.__new__(cls)
        vars(bowl)["_drawn_from"] = streams, i, n, samples, noise
        return bowl

    def __len__(self) -> int:
        own = vars(self)
        return own["_drawn_from"][3] if "_drawn_from" in own else len(self.noise)

    def __getattr__(self, name: str) -> Any:
        """Draws A, a and noise of random data at their first use."""
        if name not in ("A", "a", "noise"):
            raise AttributeError(name)
        streams, i, n, samples, noise = vars(self)["_drawn_from"]
        generator = streams(Purpose.SYNTHETIC, i=i, t=1)
        axes, _ = np.linalg.qr(generator.standard_normal((n, n)))
        a = generator.standard_normal(n)
        table = noise * streams(Purpose.NOISE, i=i).standard_normal((samples, n))
        vars(self).update(A=axes * np.linspace(0.5, 2.0, n) @ axes.T, a=a, noise=table - table.mean(axis=0))
        return vars(self)[name]

    def gradient(self, y: Vector, batch: Batch | None = None) -> Vector:
        """Mean gradients (k, n) at the rows of y over the samples at positions `batch` (B,); None: over all."""
        return np.asarray((y - self.a) @ self.A + self.mean_noise(batch))

    def value(self, y: Vector) -> float:
        """Mean of q_j(y), y (n,), over all samples."""
        return float((y - self.a) @ self.A @ (y - self.a) / 2 + self.mean_noise() @ y)

    def values(self, y: Vector, batch: Batch | None) -> Vector:
        """Mean of q_j (k,) at the rows of y (k, n) over the samples at positions `batch` (B,); None: over all."""
        d = y - self.a
        return np.asarray(np.einsum("kn,kn->k", d @ self.A, d) / 2 + y @ self.mean_noise(batch))


class SmoothBowls(NumPyProblem, Protocol):
    """Members of the role `Smooth` for clients with `QuadraticData`."""

    def loss(self, x: Array, data: QuadraticData) -> float:
        return data.value(x)

    def gradient(self, x: Array, data: QuadraticData, batch: Batch | None = None) -> Array:
        return data.gradient(x, batch)

    def flops(self, batch_size: int) -> float:
        return 2.0 * self.n**2


@final
@dataclass(frozen=True)
class Quadratic(SmoothBowls, KnownHierarchical):
    """Quadratic hierarchical problem with proximal terms.

    f_1 = q of the server's `QuadraticData`, h_i = client i's q + mu_i/2 |x - y|^2, f_{2,i} = m rho_i lam/2 |x - y|^2.
    With K_i = (A_i + mu_i I)^{-1} A_i and noise of mean 0 the lower solution is y_i(x) = x - K_i (x - a_i), and
    f_{2,i}(x, y_i(x)) has the gradient m rho_i lam K_i' K_i (x - a_i).
    """

    n: int  # length of x
    weights: Vector  # (m,) rho_i
    mu: Vector  # (m,) proximal parameters
    lam: float = 1.0  # weight of f_2
    radius: float = np.inf  # of the ball Y_i(x) = {|y - x| <= radius}; inf: R^n

    @classmethod
    def random(
        cls, streams: Streams, n: int, m: int, *, samples: int = SAMPLES, noise: float = 0.0, **terms: float
    ) -> Random[Quadratic, QuadraticData]:
        """Random problem; every A has eigenvalues from 0.5 to 2.

        Args:
            noise: standard deviation of each entry of a sample's gradient.
            terms: lam and radius.
        """
        generator = streams(Purpose.SYNTHETIC)
        weights = 0.7 * generator.dirichlet(np.full(m, 2.0))  # 30% of the samples are the server's in [A]
        mu = generator.uniform(0.5, 2.0, m)
        server, *clients = (QuadraticData.random(streams, i, n, samples, noise) for i in range(m + 1))
        return cls(n, weights, mu, **terms), server, tuple(clients)

    def f1(self, x: Array, data: QuadraticData) -> float:
        return data.value(x)

    def gradient_f1(self, x: Array, data: QuadraticData, batch: Batch) -> Array:
        return data.gradient(x, batch)

    def f2(self, i: int, x: Array, y: Array) -> float:
        return float(len(self.weights) * self.weights[i] * self.lam / 2 * ((x - y) @ (x - y)))

    def gradient_h(self, i: int, data: QuadraticData, x: Array, y: Array, batch: Batch) -> Array:
        return np.asarray(data.gradient(y, batch) + self.mu[i] * (y - x))

    def project(self, i: int, x: Array, y: Array) -> Array:
        return ball(y, x, self.radius)

    def solution(self, i: int, data: QuadraticData, x: Array) -> Array | None:
        """y_i(x) = (A + mu I)^{-1} (A a - mean noise + mu x) for x (n,); None with a constraint."""
        if self.radius < np.inf:
            return None
        force = data.A @ data.a - data.mean_noise() + self.mu[i] * x
        return np.linalg.solve(data.A + self.mu[i] * np.eye(self.n), force)

    def score(self, x: Array, data: QuadraticData, mix: Vector | None = None) -> dict[str, float]:
        return {"loss": data.value(x)}


@final
@dataclass(frozen=True)
class Corner(KnownHierarchical):
    """Nonconvex, nonsmooth example, [A] equation (3): y(x) = max(x, 0), f(x) = 1/2 |x + 1 - y(x)|^2.

    f_1 = 0 and h_i = 1/2 |y - x|^2 over y >= 0 for all clients. Entry by entry f_j = 1/2 for x_j >= 0, where every
    point is stationary, else (x_j + 1)^2 / 2, with the minimiser -1. Data are ignored.

    Attributes:
        n: length of x.
        m: number of clients, all equal.
    """

    n: int = at_least(1, 8)
    m: int = at_least(1, 10)

    def f1(self, x: Array, data: object) -> float:
        return 0.0

    def gradient_f1(self, x: Array, data: object, batch: Batch) -> Array:
        return np.zeros_like(x)

    def f2(self, i: int, x: Array, y: Array) -> float:
        return float((x + 1 - y) @ (x + 1 - y) / 2)

    def gradient_h(self, i: int, data: object, x: Array, y: Array, batch: Batch) -> Array:
        return y - x

    def project(self, i: int, x: Array, y: Array) -> Array:
        return np.maximum(y, 0)

    def solution(self, i: int, data: object, x: Array) -> Array:
        return np.maximum(x, 0)

    def score(self, x: Array, data: object, mix: Vector | None = None) -> dict[str, float]:
        return {"loss": self.f2(0, x, np.maximum(x, 0))}
