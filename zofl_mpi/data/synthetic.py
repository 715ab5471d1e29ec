"""Data sets that need no file: random ones of any size, and scikit-learn's embedded digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Raw
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

INPUTS, TEACHER = range(2)  # the streams of a synthetic data set


class Synthetic(NamedTuple):
    """Size of a synthetic data set: N, p, C."""

    samples: int = 10_000
    features: int = 64
    classes: int = 10


def make(size: Synthetic, streams: Streams) -> Raw:
    """Inputs (N, p) standard normal float32; labels (N,) the largest of C random linear scores."""
    try:
        inputs = streams(Purpose.SYNTHETIC, i=INPUTS).standard_normal((size.samples, size.features), np.float32)
        teacher = streams(Purpose.SYNTHETIC, i=TEACHER).standard_normal((size.features, size.classes))
        labels = _scores(inputs, teacher).argmax(axis=1).astype(np.int64)
    except MemoryError as error:
        raise UserError(
            f"--data synthetic: {size.samples} samples of {size.features} features do not fit into memory: ask for less"
        ) from error
    return Raw(inputs, labels, size.classes)


def _scores(inputs: NDArray[np.float32], teacher: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, C) inputs @ teacher, added up feature by feature: a BLAS may order the sum differently on every machine."""
    scores = np.zeros((len(inputs), teacher.shape[1]))
    for feature, weights in zip(inputs.T, teacher, strict=True):
        scores += np.multiply.outer(feature.astype(np.float64), weights)
    return scores


def digits() -> Raw:
    """The 1,797 handwritten digits (8 x 8, values 0..16) that scikit-learn holds. Importing it takes a second."""
    from sklearn.datasets import load_digits

    stored: Any = load_digits()
    return Raw(stored.data.astype(np.uint8), stored.target.astype(np.int64), 10, levels=16)
