"""A lower level that answers with its solution and nothing else: no gradient, no curvature, no derivative of y(x)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Never, final

import numpy as np

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.projections import simplex
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.analytic.known import KnownBilevel, Vector

UNKNOWN = "this problem's lower level only returns its solution, neither gradients nor curvature; take --lower exact"


@final
@dataclass(frozen=True)
class Wishes:
    """Data of a client of `Shares`.

    Attributes:
        points: (N, n) the shares that it wishes, a sample a row.
    """

    points: Vector

    def __len__(self) -> int:
        return len(self.points)


@final
@dataclass(frozen=True)
class Shares(KnownBilevel):
    """Scores x, which a service turns into shares y(x), the nearest point of the simplex {y >= 0, sum y = 1}.

    f_i(x, y) = mean_j 1/2 |y - c_ij|^2 + rho/2 |x|^2 over client i's wishes c_ij. The lower level is a black box with
    `solution` alone, for `--lower exact`.

    Scores have the shares y if, for some number s, they are y + s where y > 0 and at most s elsewhere; the shortest of
    them are y - 1/n, with |y|^2 - 1/n for |x|^2. So F(x) = f(x, y(x)) is least where y minimises
    1/2 |y - c|^2 + rho/2 |y|^2 over the simplex, c the mean wish: y* = P(c / (1 + rho)), x* = y* - 1/n. An entry 0 of
    y* lies at the score at which its share begins: F has a kink there, and no gradient.

    Attributes:
        rho: weight of |x|^2/2, > 0.
        wish: (n,) c.
        spread: the mean over clients and samples of |c_ij - c|^2/2.
    """

    solution_only: ClassVar[bool] = True
    rho: float
    wish: Vector
    spread: float

    @classmethod
    def random(
        cls, streams: Streams, n: int, m: int, *, noise: float = 0.0, samples: int = 32, rho: float = 0.5
    ) -> tuple[Shares, Wishes, tuple[Wishes, ...]]:
        """A problem with unequal clients, the server's part (that no client has), and each client's.

        Args:
            noise: standard deviation of each entry of a wish around the client's mean.
        """
        generator = streams(Purpose.SYNTHETIC, t=5)
        table = noise * generator.standard_normal((m + 1, samples, n))
        common = generator.standard_normal(n)
        points = common + 0.5 * generator.standard_normal((m + 1, 1, n)) + table
        wish = points[1:].mean(axis=(0, 1))
        spread = float(np.square(points[1:] - wish).sum(axis=2).mean() / 2)
        server, *clients = map(Wishes, points)
        return cls(rho, wish, spread), server, tuple(clients)

    @property
    def n(self) -> int:
        """Length of x."""
        return len(self.wish)

    @property
    def n_lower(self) -> int:
        """Length of y."""
        return len(self.wish)

    def initial(self, generator: np.random.Generator) -> Array:
        return generator.standard_normal(self.n)

    def f(self, i: int, x: Array, y: Array, data: Wishes, batch: Batch | None = None) -> Vector:
        points = data.points if batch is None else data.points[batch]
        distances = np.square(y[:, None] - points).sum(axis=2).mean(axis=1)
        return np.asarray(distances / 2 + self.rho / 2 * np.einsum("kn,kn->k", x, x))

    def gradient_h(self, i: int, x: Array, y: Array, data: Wishes, batch: Batch | None = None) -> Never:
        """Refuses: nothing of h is known."""
        raise UserError(UNKNOWN)

    def curvature(self, x: Array) -> Never:
        """Refuses: nothing of h is known."""
        raise UserError(UNKNOWN)

    def solution(self, x: Array, data: Sequence[Wishes]) -> Array:
        """The shares of the scores x (n,)."""
        return np.asarray(simplex(x[None])[0])

    def implicit(self, x: Array) -> float:
        """F(x)."""
        d = simplex(x[None])[0] - self.wish
        return float(d @ d / 2 + self.spread + self.rho / 2 * x @ x)

    def truth(self) -> tuple[Vector, float]:
        """x*, F(x*)."""
        x = simplex(self.wish[None] / (1 + self.rho))[0] - 1 / self.n
        return x, self.implicit(x)

    def flops_evaluation(self, batch_size: int) -> float:
        return 3.0 * batch_size * self.n
