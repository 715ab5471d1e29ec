"""Principal components of the inputs, fitted on the training part: a linear model with few parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from zofl_mpi.data import Array, Federation
from zofl_mpi.engine.world import World, at_server
from zofl_mpi.errors import UserError

CHUNK = 4096  # samples that are looked at together


def parsed(features: str) -> int:
    """K of pca:K; 0 for all.

    Raises:
        UserError: neither.
    """
    kind, _, number = features.partition(":")
    if features == "all":
        return 0
    if kind != "pca" or not number.isdigit() or int(number) < 1:
        raise UserError(f"--features {features}: choose all, or pca:K with a whole number K of components, at least 1")
    return int(number)


def projected(world: World, federation: Federation, K: int) -> Federation:
    """The samples' first K principal components, centred, and a constant 1; rank 0 computes them for all ranks.

    Raises:
        UserError: an input has fewer than K numbers.
    """
    p = federation.server.features
    if p < K:
        raise UserError(f"--features pca:{K}: an input has {p} numbers; take at most as many components")
    components = world.bcast(at_server(world, lambda: _components(federation, K)))
    return federation.seen_as(lambda part: replace(part, inputs=components, scale=1.0, shift=0.0))


def _components(federation: Federation, K: int) -> Array:
    """(N, K + 1) float32 of all N samples. On one thread, so that bits do not depend on how many a rank has."""
    rows = federation.training_rows()
    whole = replace(federation.server, rows=None)

    def chunks(positions: NDArray[np.int64]) -> Iterator[Array]:
        for start in range(0, len(positions), CHUNK):
            yield whole.take(positions[start : start + CHUNK], np.float64)[0]

    with threadpool_limits(1, "blas"):
        mean = sum(chunk.sum(axis=0) for chunk in chunks(rows)) / len(rows)
        covariance = sum((chunk - mean).T @ (chunk - mean) for chunk in chunks(rows)) / len(rows)
        axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :K]
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(K)])  # an eigenvector has no sign of its own
        every = [(chunk - mean) @ axes for chunk in chunks(np.arange(len(whole.labels)))]
    return np.pad(np.concatenate(every), ((0, 0), (0, 1)), constant_values=1).astype(np.float32)
