"""Bilevel and minimax problems for [B], with lower and upper solutions in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.analytic.known import KnownBilevel, Noisy, Random, Solved
from zofl_mpi.problems.analytic.quadratic import SAMPLES, Quadratic, QuadraticData


@final
@dataclass(frozen=True)
class Follower(QuadraticData):
    """Lower-level data of a client of `BilevelBowls`: h_j(x, y) = q_j(y - B x), with this q_j and a = 0."""

    B: Vector  # (n_lower, n)


@final
@dataclass(frozen=True)
class BilevelData:
    """Data of a client of `BilevelBowls`."""

    upper: QuadraticData  # of f_i, as a function of y (n_lower,)
    lower: Follower  # of h_i

    def __len__(self) -> int:
        return len(self.upper) + len(self.lower)


@final
@dataclass(frozen=True)
class BilevelBowls(Solved, KnownBilevel):
    """Quadratic bilevel problem with closed-form solutions.

    h_i = 1/2 (y - B_i x)' A_i (y - B_i x), f_i = 1/2 (y - c_i)' C_i (y - c_i) + rho/2 |x|^2. y(x) = P x with P = (sum
    A_i)^{-1} sum A_i B_i. With unequal A_i this is not the mean of the clients' own minimisers B_i x, to which
    uncorrected local steps lead. F(x) = (1/m) sum_i f_i(x, P x) = F(x*) + 1/2 (x - x*)' M (x - x*), M = P' C P + rho I,
    C the mean of the C_i, and M x* = P' (1/m) sum_i C_i c_i.
    """

    rho: float  # weight of |x|^2, > 0
    homogeneous: bool  # True if all clients have the same A and B
    P: Vector  # (n_lower, n)
    spectrum: tuple[float, float]  # smallest and largest eigenvalue of the mean of the A_i
    hessian: Vector  # (n, n) M

    @classmethod
    def random(
        cls,
        streams: Streams,
        n: int,
        m: int,
        *,
        n_lower: int = 0,
        rho: float = 1.0,
        homogeneous: bool = False,
        samples: int = SAMPLES,
        noise: float = 0.0,
        noise_upper: float = 0.0,
    ) -> Random[BilevelBowls, BilevelData]:
        """Random problem in which every A_i and C_i has eigenvalues from 0.5 to 2.

        Args:
            n_lower: length of y; 0: n.
            homogeneous: lower parts differ in noise only.
            noise, noise_upper: standard deviation of each entry of a sample's gradient in y of h_i and of f_i.
        """
        size = n_lower or n
        bowls = Quadratic.random(streams, size, 2 * m + 2, samples=samples, noise=1.0)[2]
        uppers, lowers = bowls[::2], bowls[1::2]
        B = streams(Purpose.SYNTHETIC, t=3).standard_normal((m + 1, size, n)) / np.sqrt(n)
        links = list[BilevelData]()
        for i, (upper, lower) in enumerate(zip(uppers, lowers, strict=True)):
            like = 0 if homogeneous else i
            follower = Follower(lowers[like].A, np.zeros(size), noise * lower.noise, B[like])
            links.append(BilevelData(replace(upper, noise=noise_upper * upper.noise), follower))
        server, *clients = links
        A = np.mean([link.lower.A for link in clients], axis=0)
        P = np.linalg.solve(A, np.mean([link.lower.A @ link.lower.B for link in clients], axis=0))
        C = np.mean([link.upper.A for link in clients], axis=0)
        M = P.T @ C @ P + rho * np.eye(n)
        x = np.linalg.solve(M, P.T @ np.mean([link.upper.A @ link.upper.a for link in clients], axis=0))
        value = float(np.mean([link.upper.value(P @ x) for link in clients]) + rho / 2 * x @ x)
        eigenvalues = np.linalg.eigvalsh(A)
        ends = float(eigenvalues[0]), float(eigenvalues[-1])
        return cls(x, value, rho, homogeneous, P, ends, M), server, tuple(clients)

    @property
    def n_lower(self) -> int:
        return int(self.P.shape[0])

    def parts(self, data: BilevelData) -> tuple[QuadraticData, Follower]:
        return data.upper, data.lower

    def f(self, i: int, x: Array, y: Array, data: QuadraticData, batch: Batch | None = None) -> Vector:
        return np.asarray(data.values(y, batch) + self.rho / 2 * np.einsum("kn,kn->k", x, x))

    def gradient_h(self, i: int, x: Array, y: Array, data: Follower, batch: Batch | None = None) -> Array:
        return data.gradient(y - data.B @ x, batch)

    def gradients_f(
        self, i: int, x: Array, y: Array, data: QuadraticData, batch: Batch | None = None
    ) -> tuple[Array, Array]:
        return self.rho * x, data.gradient(y, batch)

    def hessian_h(self, i: int, x: Array, y: Array, u: Array, data: Follower, batch: Batch | None = None) -> Array:
        return np.asarray(data.A @ u)

    def cross_h(self, i: int, x: Array, y: Array, u: Array, data: Follower, batch: Batch | None = None) -> Array:
        return np.asarray(-data.B.T @ (data.A @ u))

    def curvature(self, x: Array) -> tuple[float, float]:
        return self.spectrum

    def solution(self, x: Array, data: Sequence[BilevelData]) -> Array:
        return self.P @ x

    def implicit(self, x: Array) -> float:
        d = x - self.minimiser
        return float(self.value + d @ self.hessian @ d / 2)


@final
@dataclass(frozen=True)
class SaddleData(Noisy):
    """Data of a client of `Saddle`."""

    A: Vector  # (n, n)
    b: Vector  # (n,)
    noise: Vector  # (N, n) deviations of the samples' gradients in y from their mean


@final
@dataclass(frozen=True)
class Saddle(Solved, KnownBilevel):
    """Minimax example of FedNest's section 5 (see `methods/fednest.py`): min_x max_y (1/m) sum_i f_i, h_i = -f_i.

    f_i = -1/2 |y|^2 - b_i'y + y'A_i x + lam/2 |x|^2. With the means A and b the inner solution is y(x) = A x - b, and
    F(x) = 1/2 |A x - b|^2 + lam/2 |x|^2. The saddle point is x* = (A'A + lam I)^{-1} A'b, y* = A x* - b. All h_i have
    the Hessian I, so y(x) is the mean of the clients' own maximisers.
    """

    homogeneous: ClassVar[bool] = True
    lam: float  # weight of |x|^2, > 0
    A: Vector  # (n, n) mean of the A_i
    b: Vector  # (n,) mean of the b_i

    @classmethod
    def random(
        cls, streams: Streams, n: int, m: int, *, lam: float = 10.0, noise: float = 0.0
    ) -> Random[Saddle, SaddleData]:
        """Random problem with A_i = I + t_i Q_i, t_i uniform in (0, 0.1), and standard normal entries of Q_i.

        The b_i are standard normal, shifted to a standard normal mean. Entries of a sample's gradient in y have the
        standard deviation `noise`.
        """
        generator = streams(Purpose.SYNTHETIC)
        t = generator.uniform(0.0, 0.1, m + 1)
        Q, b = generator.standard_normal((m + 1, n, n)), generator.standard_normal((m + 1, n))
        b += generator.standard_normal(n) - b[1:].mean(axis=0)
        drawn = noise * generator.standard_normal((m + 1, SAMPLES, n))
        drawn -= drawn.mean(axis=1, keepdims=True)
        server, *clients = (SaddleData(t[i] * Q[i] + np.eye(n), b[i], drawn[i]) for i in range(m + 1))
        A = np.mean([game.A for game in clients], axis=0)
        mean_b = np.mean([game.b for game in clients], axis=0)
        x = np.linalg.solve(A.T @ A + lam * np.eye(n), A.T @ mean_b)
        value = float((A @ x - mean_b) @ (A @ x - mean_b) / 2 + lam / 2 * x @ x)
        return cls(x, value, lam, A, mean_b), server, tuple(clients)

    def initial(self, generator: np.random.Generator) -> Array:
        return generator.standard_normal(self.n)

    def f(self, i: int, x: Array, y: Array, data: SaddleData, batch: Batch | None = None) -> Vector:
        inner = np.einsum("kn,kn->k", y, x @ data.A.T - data.b - y / 2 - data.mean_noise(batch))
        return np.asarray(inner + self.lam / 2 * np.einsum("kn,kn->k", x, x))

    def gradient_h(self, i: int, x: Array, y: Array, data: SaddleData, batch: Batch | None = None) -> Array:
        return np.asarray(y + data.b - data.A @ x + data.mean_noise(batch))

    def gradients_f(
        self, i: int, x: Array, y: Array, data: SaddleData, batch: Batch | None = None
    ) -> tuple[Array, Array]:
        return data.A.T @ y + self.lam * x, -self.gradient_h(i, x, y, data, batch)

    def hessian_h(self, i: int, x: Array, y: Array, u: Array, data: SaddleData, batch: Batch | None = None) -> Array:
        return u

    def cross_h(self, i: int, x: Array, y: Array, u: Array, data: SaddleData, batch: Batch | None = None) -> Array:
        return np.asarray(-data.A.T @ u)

    def curvature(self, x: Array) -> tuple[float, float]:
        return 1.0, 1.0

    def solution(self, x: Array, data: Sequence[SaddleData]) -> Array:
        return np.asarray(self.A @ x - self.b)

    def implicit(self, x: Array) -> float:
        y = self.solution(x, ())
        return float(y @ y / 2 + self.lam / 2 * x @ x)


@final
@dataclass(frozen=True)
class Coupled(KnownBilevel):
    """Minimax example with a coupled constraint, [B] Remark 1.

    min over x in [-1, 1] of max over y in [-1, 1], x + y <= 0, of x^2 + y; or in the opposite order, max-min. In code x
    is the outer and y the inner variable. Both lie in [-1, 1], and Y(x) = [-1, u(x)] with u(x) = -x. Outside X = [-1,
    1], which x + v may leave, u(x) = clip(-x, -1, 1): Y is never empty.

    "min-max": f = x^2 + y, h = -f. y(x) = u(x) and F(x) = x^2 - x on X; the solution is x = 1/2, y = -1/2, F = -1/4.
    h is linear in y, not strongly convex. The rates of projected steps need only
    h(y) - h(y(x)) >= mu_h/2 |y - y(x)|^2 on Y(x). This holds with mu_h = 1, since |y - y(x)| <= 2; L_h is arbitrary.
    Projected steps of total length 2 end exactly in y(x); Algorithm 3's total is 2 ln(a_r) >= 2 ln 5.

    "max-min": max over y of min over x of x^2 + y. In code f(x, y) = -(y^2 + x) and h = -f, 2-strongly convex.
    y(x) = min(0, u(x)), the point of [-1, u(x)] nearest to 0. F(x) = -x for x <= 0 (inactive constraint), and
    F(x) = -(x^2 + x) for x >= 0; the solution is x = 1, y = -1, F = -2. It lies on the boundary of X: with the penalty
    dist^2 / (2 eta) instead of X the limit is x = 1 + eta (F is -(1 + x) beyond).

    All clients are equal; data are ignored.

    Attributes:
        order: min-max, with the solution (0.5, -0.5), or max-min: (-1, 1).
        m: number of clients.
    """

    constrained: ClassVar[bool] = True
    homogeneous: ClassVar[bool] = True
    n: ClassVar[int] = 1
    order: Literal["min-max", "max-min"] = "min-max"
    m: int = at_least(1, 5)

    def initial(self, generator: np.random.Generator) -> Array:
        return generator.uniform(-1, 1, 1)

    def f(self, i: int, x: Array, y: Array, data: object, batch: Batch | None = None) -> Vector:
        return np.asarray(x**2 + y if self.order == "min-max" else -(y**2 + x))[:, 0]

    def gradient_h(self, i: int, x: Array, y: Array, data: object, batch: Batch | None = None) -> Array:
        return np.full_like(y, -1.0) if self.order == "min-max" else 2 * y

    def curvature(self, x: Array) -> tuple[float, float]:
        """Curvature of h; (1, 1) for min-max, in the class docstring's sense on Y(x)."""
        return (1.0, 1.0) if self.order == "min-max" else (2.0, 2.0)

    def project(self, i: int, x: Array) -> Array:
        return np.clip(x, -1, 1)

    def project_lower(self, x: Array, y: Array) -> Array:
        return np.clip(y, -1, np.clip(-x, -1, 1))

    def solution(self, x: Array, data: object) -> Array:
        return self.project_lower(x, np.full(1, 1.0 if self.order == "min-max" else 0.0))

    def implicit(self, x: Array) -> float:
        """F(x), also outside X."""
        return float(self.f(0, x[None], self.solution(x, None)[None], None)[0])

    def truth(self) -> tuple[Vector, float]:
        """Solution x* and F(x*), x the outer variable."""
        return (np.array([0.5]), -0.25) if self.order == "min-max" else (np.array([1.0]), -2.0)
