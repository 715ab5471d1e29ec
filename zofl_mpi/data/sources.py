"""Sources of a data set that is named, or given by the path of an .npz file."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from zofl_mpi.data import cache
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.images import CIFAR_ARCHIVES, CIFAR_FOLDER, find_cifar, find_idx, read_cifar, read_idx
from zofl_mpi.data.npz import read_npz
from zofl_mpi.data.published import default_data_dir
from zofl_mpi.data.reading import missing_files
from zofl_mpi.data.synthetic import Synthetic, digits, make
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "synthetic")
DEFAULT = Synthetic()


def find(name: str, data_dir: Path | None, streams: Streams, synthetic: Synthetic = DEFAULT) -> Sources:
    """The sources of the data set `name` (one of NAMES, or a path ending in .npz). Reads nothing yet.

    Args:
        data_dir: where the files are, or the folders named after the data sets; None is the default folder.
        streams: the run's, for synthetic data alone.

    Raises:
        UserError: unknown name, or files that are not there.
    """
    if name.endswith(".npz"):
        if not os.path.isfile(name):  # unlike Path.is_file it answers where a folder may not be searched
            raise UserError(f"--data {name}: there is no such file; check the path (it is relative to {Path.cwd()})")
        return cache.identify(name, partial(read_npz, Path(name)), [Path(name)])
    if name == "digits":
        return cache.identify(name, digits)
    if name == "synthetic":
        parameters = {"seed": streams.seed, **synthetic._asdict()}
        return cache.identify(name, partial(make, synthetic, streams), parameters=parameters)
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


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), NAMES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"--data {name}: there is no such data set; it is one of {', '.join(NAMES)}, or a path ending in .npz{hint}"
