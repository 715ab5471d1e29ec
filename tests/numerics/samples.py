"""What the tests of problems on samples share: inputs of every kind, mini-batches, points."""

from typing import Any

import numpy as np

from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems.terms import ProximalTerms

STREAMS = Streams(11)
N, p, C = 60, 16, 4
SHAPE = (1, 4, 4)
"""Of a sample of p features as an image."""
WEIGHTS = np.array([0.1, 0.35, 0.25])
GENERATOR = STREAMS(Purpose.SYNTHETIC)
BYTES, LABELS = GENERATOR.integers(0, 256, (2 * N, p), dtype=np.uint8), GENERATOR.integers(0, C, 2 * N).astype(np.uint8)
BYTES.flags.writeable = False  # as maps of files are, for which numba compiles another function
ROWS = GENERATOR.permutation(2 * N)[:N]
DATA = {
    "bytes in [0, 1]": Dataset(BYTES, LABELS, C, ROWS, scale=1 / 255),
    "standardised": Dataset(BYTES, LABELS, C, ROWS, scale=1 / 80, shift=-1.5),
    "per feature": Dataset(BYTES, LABELS, C, ROWS, GENERATOR.uniform(0.002, 0.01, p), GENERATOR.standard_normal(p)),
    "per feature, no shift": Dataset(BYTES, LABELS, C, ROWS, GENERATOR.uniform(0.002, 0.01, p)),
    "negated": Dataset(BYTES, LABELS, C, ROWS, scale=-1 / 255),
    "floats": Dataset(GENERATOR.standard_normal((N, p)), LABELS[:N], C),
}
UNIT = DATA["bytes in [0, 1]"]
BATCH = np.array([3, 40, 3, 0, 17, 49])
"""A position twice: batches are drawn with replacement."""


def points(k: int, size: int, t: int = 0, dtype: Any = np.float64) -> Any:
    """(k, size) standard normal numbers."""
    return STREAMS(Purpose.START, t=t).standard_normal((k, size)).astype(dtype)


def batches(H: int, B: int) -> Any:
    """(H, B) positions of mini-batches."""
    return STREAMS(Purpose.BATCH).integers(0, N, (H, B))


def terms(**settings: Any) -> ProximalTerms:
    """Of three clients."""
    return ProximalTerms(**{"lam": 0.8, "mu": (0.5, 1.0, 2.0), **settings})


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    """To `tolerance` of the largest entry."""
    assert np.shape(a) == np.shape(b)
    assert np.max(np.abs(np.subtract(a, b))) <= tolerance * max(1.0, np.max(np.abs(b)))
