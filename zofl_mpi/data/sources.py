"""A data set by its name, or by the path of an .npz file: where its samples come from."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from zofl_mpi.data import Raw, cache
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.images import CIFAR_ARCHIVES, CIFAR_FOLDER, find_cifar, find_idx, read_cifar, read_idx
from zofl_mpi.data.npz import read_npz
from zofl_mpi.data.published import default_data_dir
from zofl_mpi.data.reading import missing_files
from zofl_mpi.data.synthetic import Synthetic, digits, make
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "synthetic")


def load(
    name: str, data_dir: Path | None, cache_dir: Path | None, streams: Streams, synthetic: Synthetic | None = None
) -> Raw:
    """Finds, prepares and opens a data set, all in this process; see `find`, `cache.prepare` and `cache.open`.

    Raises:
        UserError: whatever is wrong with the name, the files or the folders.
    """
    stored = find(name, data_dir, streams, synthetic)
    cache.prepare(stored, cache_dir)
    return cache.open(stored, cache_dir)


def find(name: str, data_dir: Path | None, streams: Streams, synthetic: Synthetic | None = None) -> Sources:
    """Where the data set `name` (one of NAMES, or a path ending in .npz) comes from. Reads nothing yet.

    Args:
        data_dir: where the files are, or the folders named after the data sets; None is the default folder.
        streams: the run's, for synthetic data alone.
        synthetic: size of the synthetic data.

    Raises:
        UserError: unknown name, or files that are not there.
    """
    if name.endswith(".npz"):
        return cache.identify(name, partial(read_npz, Path(name)), [_existing(Path(name))])
    if name == "digits":
        return cache.identify(name, digits)
    if name == "synthetic":
        size = synthetic or Synthetic()
        return cache.identify(name, partial(make, size, streams), parameters={"seed": streams.seed, **vars(size)})
    if name not in NAMES:
        raise UserError(_unknown(name))
    return _published(name, data_dir or default_data_dir())


def _published(name: str, data_dir: Path) -> Sources:
    if name == "cifar10":
        files = find_cifar(data_dir)
        if not files:
            what = f"neither a folder {CIFAR_FOLDER} with its six .bin files nor an archive {CIFAR_ARCHIVES[0]} is"
            raise UserError(missing_files(name, what, data_dir))
        return cache.identify(name, partial(read_cifar, files), files)
    files = find_idx(name, data_dir)
    return cache.identify(name, partial(read_idx, name, files), files)


def _existing(path: Path) -> Path:
    if not os.path.isfile(path):  # unlike Path.is_file it answers where a folder may not be searched
        raise UserError(f"--data {path}: there is no such file; check the path (it is relative to {Path.cwd()})")
    return path


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), NAMES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"--data {name}: there is no such data set; it is one of {', '.join(NAMES)}, or a path ending in .npz{hint}"
