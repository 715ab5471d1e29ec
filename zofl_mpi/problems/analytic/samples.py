"""Means over the samples of problems with known solutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.problems import Batch
from zofl_mpi.problems.analytic.quadratic import Bowl

Vector = NDArray[np.float64]


def mean_noise(noise: Vector, batch: Batch | None) -> Vector:
    """(n,) the mean of the noise over the samples at positions `batch`; None: over all."""
    return np.asarray((noise if batch is None else noise[batch]).mean(axis=0))


def bowl_values(bowl: Bowl, x: Vector, batch: Batch | None) -> Vector:
    """(k,) the mean of q_j at the rows of x (k, n) over the samples at positions `batch` (B,); None: over all."""
    d = x - bowl.a
    return np.asarray(np.einsum("kn,kn->k", d @ bowl.A, d) / 2 + x @ mean_noise(bowl.noise, batch))


def mean_over(data: Any, one: type[Any], value: Callable[[Any], float]) -> float:
    """The value of one client's data, or its mean over a sequence of several clients'."""
    return value(data) if isinstance(data, one) else float(np.mean([value(part) for part in data]))
