"""Nonsmooth problems for [B] with solutions in closed form, in float64.

All clients hold equally many samples, so weights by size are equal weights. In problems of `random` the noise
<noise_j, .> sums to 0 over a client's samples: it affects mini-batches, not the solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems import Batch
from zofl_mpi.problems.analytic.known import KnownLipschitz, Noisy, Random, Solved
from zofl_mpi.problems.analytic.quadratic import SAMPLES, Quadratic, QuadraticData, SmoothBowls


@final
@dataclass(frozen=True)
class AffinePieces(Noisy):
    """Data of a client of `MaxAffine`: q_j(x) = sum_g max_k (<slopes[g, k], x> + offsets[g, k]) + <noise_j, x>."""

    slopes: Vector  # (G, K, n)
    offsets: Vector  # (G, K)
    noise: Vector  # (N, n)

    def values(self, x: Vector, batch: Batch | None = None) -> Vector:
        """Mean of q_j (k,) at the rows of x (k, n) over the samples at positions `batch` (B,); None: over all."""
        heights = np.tensordot(x, self.slopes, axes=(1, 2)) + self.offsets  # (k, G, K)
        return np.asarray(heights.max(axis=2).sum(axis=1) + x @ self.mean_noise(batch))

    def value(self, x: Vector) -> float:
        """Mean of q_j(x), x (n,), over all samples."""
        return float(self.values(x[None])[0])


@final
@dataclass(frozen=True)
class MaxAffine(Solved, KnownLipschitz):
    """Sums of maxima of affine functions (`AffinePieces`): convex, Lipschitz, kinked.

    `random` has a known minimiser: f_i(x) = sum_g c_{i,g} |<q_g, x - a_i>| with a common orthonormal basis q_1, ...,
    q_n, and weights c_i and centres a_i of each client. In the coordinates <q_g, x> the mean of the f_i separates. Its
    minimiser is in every coordinate the c-weighted median of the centres, where the mean has a kink. For n > 1 it is
    neither a client's own minimiser a_i nor their mean.
    """

    lipschitz: float  # L_0 of every f_i; a single sample's is larger by at most the norm of its noise

    @classmethod
    def random(cls, streams: Streams, n: int, m: int, *, noise: float = 0.0) -> Random[MaxAffine, AffinePieces]:
        """Random problem, c_{i,g} uniform in (0.5, 1.5); entries of a sample's noise have the deviation `noise`."""
        generator = streams(Purpose.SYNTHETIC, t=2)
        basis = np.linalg.qr(generator.standard_normal((n, n)))[0].T  # (n, n), rows q_g
        c = generator.uniform(0.5, 1.5, (m + 1, n))
        centres = generator.standard_normal((m + 1, n))  # the <q_g, a_i>
        tables = (noise * streams(Purpose.NOISE, i=i).standard_normal((SAMPLES, n)) for i in range(m + 1))
        server, *clients = (_absolute(basis, *parts) for parts in zip(c, centres, tables, strict=True))
        z = np.quantile(centres[1:], 0.5, axis=0, weights=c[1:], method="inverted_cdf")
        value = float(np.mean(np.sum(c[1:] * np.abs(z - centres[1:]), axis=1)))
        return cls(z @ basis, value, float(np.linalg.norm(c[1:], axis=1).max())), server, tuple(clients)

    def flops_evaluation(self, batch_size: int) -> float:
        """FLOPs of the 2 n pieces of `random` at one point."""
        return 4.0 * self.n**2


@final
@dataclass(frozen=True)
class Bowls(Solved, SmoothBowls, KnownLipschitz):
    """Quadratic f_i(x) = 1/2 (x - a_i)' A_i (x - a_i) of `QuadraticData`: `Smooth`; on bounded sets `Lipschitz`.

    For quadratics zeroth-order estimates are unbiased at any radius. First- and zeroth-order methods therefore have the
    same solution x* = (sum A_i)^{-1} sum A_i a_i.
    """

    @classmethod
    def of(cls, clients: Sequence[QuadraticData]) -> Bowls:
        """The problem of these clients; their noise need not sum to 0."""
        force = np.sum([b.A @ b.a - b.mean_noise() for b in clients], axis=0)
        x = np.linalg.solve(np.sum([b.A for b in clients], axis=0), force)
        return cls(x, float(np.mean([b.value(x) for b in clients])))

    @classmethod
    def random(cls, streams: Streams, n: int, m: int, **shape: Any) -> Random[Bowls, QuadraticData]:
        """Random problem; `shape` as in `Quadratic.random`."""
        _, server, clients = Quadratic.random(streams, n, m, **shape)
        return cls.of(clients), server, clients

    def flops_evaluation(self, batch_size: int) -> float:
        return self.flops(batch_size)


def _absolute(basis: Vector, c: Vector, centres: Vector, table: Vector) -> AffinePieces:
    """Data of sum_g c_g |<q_g, x> - centre_g|, q_g the rows of `basis`; centres the noise."""
    slopes = c[:, None] * basis
    sides = np.array([1.0, -1.0])
    return AffinePieces(
        slopes[:, None] * sides[None, :, None], -(c * centres)[:, None] * sides, table - table.mean(axis=0)
    )
