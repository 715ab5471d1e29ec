"""Finds a data set's sources by its name or .npz path; makes the data sets that need no file."""

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zofl_mpi.data import Raw, cache, published
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.images import CIFAR_ARCHIVES, CIFAR_FOLDER, CIFAR_PYTHON, find_cifar, read_cifar, read_idx
from zofl_mpi.data.npz import read_npz
from zofl_mpi.data.published import IDX_FILES, default_data_dir, missing_files
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError, nearest
from zofl_mpi.paths import user_path

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "synthetic")
INPUTS, TEACHER = range(2)  # random streams of a synthetic data set


class Synthetic(NamedTuple):
    """Size of a synthetic data set: N, p, C."""

    samples: int = 10_000
    features: int = 64
    classes: int = 10


DEFAULT = Synthetic()


def find_sources(name: str, data_dir: Path | None, streams: Streams, synthetic: Synthetic = DEFAULT) -> Sources:
    """Finds the sources of data set `name`, one of NAMES or a path ending in .npz (else UserError); reads no data.

    Args:
        data_dir: folder of the files, or of folders named after the data sets; None: the default folder.
        streams: the run's, used only for synthetic data.
    """
    if name.endswith(".npz"):
        path = user_path(name, "--data")
        if not os.path.isfile(path):  # unlike Path.is_file it does not raise for an unreadable folder
            raise UserError(f"--data {name}: there is no such file; check the path (it is relative to {Path.cwd()})")
        return cache.identify(name, partial(read_npz, path), [path])
    if name == "digits":
        return cache.identify(name, digits)
    if name == "synthetic":
        parameters = {"seed": streams.seed, **synthetic._asdict()}
        return cache.identify(name, partial(make, synthetic, streams), parameters=parameters)
    if name not in NAMES:
        allowed = f"it must be one of {', '.join(NAMES)}, or a path ending in .npz"
        raise UserError(f"--data {name}: there is no such data set; {allowed}{nearest(name.lower(), NAMES)}")
    root = data_dir or default_data_dir()
    if name == "cifar10":
        files = find_cifar(root)
        if not files:
            what = f"neither a folder {CIFAR_FOLDER} or {CIFAR_PYTHON} nor an archive {CIFAR_ARCHIVES[0]} is"
            raise UserError(missing_files(name, what, root))
        return cache.identify(name, partial(read_cifar, files), files)
    files = published.find_data_set(name, IDX_FILES, root, packing=".gz")
    return cache.identify(name, partial(read_idx, name, files), files)


def make(size: Synthetic, streams: Streams) -> Raw:
    """Synthetic data: inputs (N, p) standard normal float32; labels (N,) argmax of C random linear scores."""
    try:
        inputs = streams(Purpose.SYNTHETIC, i=INPUTS).standard_normal((size.samples, size.features), np.float32)
        teacher = streams(Purpose.SYNTHETIC, i=TEACHER).standard_normal((size.features, size.classes))
        scores = np.zeros((size.samples, size.classes))
        for feature, weights in zip(inputs.T, teacher, strict=True):  # a BLAS sums in a machine-dependent order
            scores += np.multiply.outer(feature.astype(np.float64), weights)
    except MemoryError as error:
        raise UserError(
            f"--data synthetic: {size.samples} samples of {size.features} features do not fit into memory: reduce them"
        ) from error
    return Raw(inputs, scores.argmax(axis=1).astype(np.int64), size.classes)


def digits() -> Raw:
    """scikit-learn's 1,797 handwritten digits (8 x 8, values 0..16). Importing scikit-learn takes a second."""
    from sklearn.datasets import load_digits

    stored: Any = load_digits()
    return Raw(stored.data.astype(np.uint8), stored.target.astype(np.int64), 10, levels=16)
