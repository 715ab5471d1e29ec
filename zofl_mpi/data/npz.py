"""Reader of a user's data set: an .npz file with the arrays x, y and optionally client."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.data import LONGEST_NAME, Raw, numbered
from zofl_mpi.data.published import reading_file
from zofl_mpi.engine.memory import host_bytes
from zofl_mpi.errors import UserError

MOST_CLASSES = 65_536  # bounds the arrays of class counts; a larger label is a mistake
CHANNELS = (1, 3)  # grey or colours


def read_npz(path: Path) -> Raw:
    """Reads an .npz file with the arrays x, y and optionally client; inputs (N, p).

    - x: bytes, float32 or float64. A table (N, p), or images (N, height, width) or (N, channels, height, width) with
      1 or 3 channels.
    - y: labels (N,), integers >= 0 or booleans, classes = max y + 1; or targets (N, ...), floats.
    - client: (N,) integers >= 0 or texts, the client of each sample.

    Raises:
        UserError: the file is not of this form.
    """
    x, y, client = _arrays(path)
    shape = _shape_of_one(path, x)
    labels, targets = _labels(path, x, y)
    clients, names = (None, None) if client is None else _clients(path, client, len(x))
    return Raw(
        np.ascontiguousarray(x.reshape(len(x), -1).astype(x.dtype.newbyteorder("="), copy=False)),
        labels,
        int(labels.max()) + 1,
        levels=255 if x.dtype == np.uint8 and len(shape) == 3 else None,
        channels=shape[0] if len(shape) == 3 else 1,
        targets=targets,
        shape=shape,
        clients=clients,
        names=names,
    )


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    advice = "write it with numpy.savez(path, x=..., y=...), arrays of numbers and no objects"
    with reading_file(path, advice), path.open("rb") as file:  # given a path, np.load leaks the file of a bad zip
        stored = np.load(file, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise UserError(f"{path} holds one bare array: {advice}")
        with stored:
            if not {"x", "y"} <= set(stored.files) <= {"x", "y", "client"}:
                found = ", ".join(stored.files) or "nothing"
                allowed = "x and y alone, or with client for --partition natural"
                raise UserError(f"{path} holds {found}, it must hold {allowed}: {advice}")
            size, memory = sum(member.file_size for member in stored.zip.infolist()) if stored.zip else 0, host_bytes()
            if memory and size > memory[1]:  # checked before unpacking
                needed, total = (f"{count / 2**30:.1f} GiB" for count in (size, memory[1]))
                raise UserError(f"{path}: x and y take {needed} unpacked, this machine has {total}: keep fewer samples")
            client = np.asarray(stored["client"]) if "client" in stored.files else None
            return np.asarray(stored["x"]), np.asarray(stored["y"]), client


def _shape_of_one(path: Path, x: Array) -> tuple[int, ...]:
    """Shape of one input: (p,) of a table, (channels, height, width) of images (UserError: another dtype or layout)."""
    if x.dtype.type not in (np.uint8, np.float32, np.float64):
        raise UserError(f"{path}: x is {x.dtype}, it must be uint8, float32 or float64: convert it with x.astype")
    if x.ndim < 2 or x.size == 0:
        raise UserError(f"{path}: x has the shape {x.shape}, it must be (samples, features...), none of them 0")
    if x.dtype.kind == "f":
        _check_finite(path, "x", x)
    if x.ndim == 3:
        return (1, *x.shape[1:])
    if x.ndim == 2 or (x.ndim == 4 and x.shape[1] in CHANNELS):
        return x.shape[1:]
    last = x.ndim == 4 and x.shape[3] in CHANNELS
    remedy = "x.transpose(0, 3, 1, 2) brings the channels forward" if last else "x.reshape(len(x), -1) makes it a table"
    allowed = "(samples, columns), (samples, height, width) or (samples, channels, height, width) with 1 or 3 channels"
    raise UserError(f"{path}: x has the shape {x.shape}, it must be {allowed}: {remedy}")


def _check_finite(path: Path, field: str, values: Array) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        first = int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))
        raise UserError(f"{path}: {field} is NaN or infinite (first in sample {first}): remove or repair these samples")


def _labels(path: Path, x: Array, y: Array) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Labels (N,), and targets (N, ...) or None; with targets all labels are 0 (UserError: y is neither)."""
    allowed = 1 if y.dtype.kind != "f" or y[:1].size < 2 else max(1, y.ndim)
    if y.dtype.kind not in "biuf" or y.ndim != allowed:
        raise UserError(
            f"{path}: y is {y.dtype} of shape {y.shape}, it must be one integer (a class) a sample, shape "
            "(samples,), or floats (targets), shape (samples,) or (samples, 2 or more)"
        )
    if len(y) != len(x):
        what = "targets" if y.dtype.kind == "f" else "labels"
        raise UserError(f"{path}: x holds {len(x)} samples but y {len(y)} {what}, the numbers must be equal")
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):  # refused below
            targets = y.astype(np.float64)
        _check_finite(path, "y", targets)
        return np.zeros(len(y), np.int64), targets
    if y.min() < 0 or y.max() >= MOST_CLASSES:
        fault = f"{path}: y runs from {y.min()} to {y.max()}"
        raise UserError(f"{fault}, labels must lie in 0 to {MOST_CLASSES - 1}: number the classes from 0")
    return y.astype(np.int64), None


def _clients(path: Path, client: Array, samples: int) -> tuple[NDArray[np.int64], NDArray[np.str_] | None]:
    """Client index (N,) of each sample, and the clients' names if they are texts."""
    if client.dtype.kind not in "iuU" or client.shape != (samples,):
        raise UserError(
            f"{path}: client is {client.dtype} of shape {client.shape}, it must be one integer or one text a sample, "
            f"shape ({samples},), the number or the name of the sample's client"
        )
    if client.dtype.kind == "U":
        if client.dtype.itemsize > 4 * LONGEST_NAME:
            raise UserError(f"{path}: client is {client.dtype}: a name may have at most {LONGEST_NAME} characters")
        return numbered(client.tolist())
    if client.min() < 0 or client.max() > np.iinfo(np.int64).max:
        fault = f"{path}: client runs from {client.min()} to {client.max()}"
        raise UserError(f"{fault}, numbers of clients must lie in 0 to {np.iinfo(np.int64).max}: number them from 0")
    return client.astype(np.int64), None
