"""Readers of image data sets (IDX, CIFAR-10's binary version, .npz), and the way from a name to the samples."""

from __future__ import annotations

import difflib
import gzip
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Array, Raw, cache
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.download import IDX_FILES, default_data_dir, remedy
from zofl_mpi.data.synthetic import Synthetic, digits, make
from zofl_mpi.errors import UserError
from zofl_mpi.run.streams import Streams

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "synthetic")

SIDE = 28  # of MNIST's and Fashion-MNIST's images
# MNIST and Fashion-MNIST use the same file names; their training labels tell them apart (sha256, unpacked).
TRAIN_LABELS = {
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13": "mnist",
    "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7": "fashion-mnist",
}

CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_ARCHIVES = tuple(f"cifar-10-binary.tar{packing}" for packing in (".gz", ".xz", ".bz2", ""))
CIFAR_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
CIFAR_RECORD = 1 + 3 * 32 * 32  # label, red, green, blue
CIFAR_BYTES = 10_000 * CIFAR_RECORD

MOST_CLASSES = 65_536  # of a .npz; a label beyond it is a mistake, and the counts are arrays of this length


# From a name to a data set


def load(
    name: str, data_dir: Path | None, cache_dir: Path | None, streams: Streams, synthetic: Synthetic | None = None
) -> Raw:
    """Find, prepare and open a data set, all in this process. See `sources` and `cache` for the three steps.

    Raises:
        UserError: whatever is wrong with the name, the files or the folders.
    """
    found = sources(name, data_dir, streams, synthetic)
    cache.prepare(found, cache_dir)
    return cache.open(found, cache_dir)


def sources(name: str, data_dir: Path | None, streams: Streams, synthetic: Synthetic | None = None) -> Sources:
    """What the data set `name` (one of NAMES, or a path ending in .npz) is read or made from. Reads nothing yet.

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
            raise UserError(_missing(name, what, data_dir))
        return cache.identify(name, partial(read_cifar, files), files)
    files = _find_idx(name, data_dir)
    return cache.identify(name, partial(read_idx, name, files), files)


def _existing(path: Path) -> Path:
    if not os.path.isfile(path):  # unlike Path.is_file it answers where a folder may not be searched
        raise UserError(f"--data {path}: there is no such file; check the path (it is relative to {Path.cwd()})")
    return path


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), NAMES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"--data {name}: there is no such data set; it is one of {', '.join(NAMES)}, or a path ending in .npz{hint}"


def _missing(name: str, what: str, data_dir: Path) -> str:
    return (
        f"--data {name}: {what} in {data_dir / name} or {data_dir}; {remedy(name, data_dir)}, "
        "or set --data-dir or ZOFL_DATA to the folder that holds it"
    )


# Files


@contextmanager
def _reading(path: Path, advice: str) -> Iterator[None]:
    """Turn whatever the decoders raise for a bad file into one sentence.

    Between them gzip, lzma, zipfile, tarfile and numpy raise a dozen types, some undocumented (a damaged .npy header
    can end in a TokenError or a MemoryError): hence Exception, around nothing but the decoding.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        reason = error.strerror or "it is damaged or cut short"
        raise UserError(f"{path} cannot be read ({reason}): {advice}") from error
    except Exception as error:
        detail = str(error).partition("\n")[0]
        raise UserError(f"{path} is damaged or cut short ({type(error).__name__}: {detail}): {advice}") from error


def _again(name: str) -> str:
    return f"delete it and {remedy(name)}"


# IDX: MNIST and Fashion-MNIST


def _find_idx(name: str, data_dir: Path) -> tuple[Path, ...]:
    """The four files, packed or not, all in one folder, in the order of IDX_FILES."""
    lacking: list[str] = []
    for folder in (data_dir / name, data_dir):
        found = {file: path for file in IDX_FILES if (path := _plain_or_gz(folder / file))}
        if len(found) == len(IDX_FILES):
            return tuple(found[file] for file in IDX_FILES)
        lacking = min(lacking or list(IDX_FILES), [file for file in IDX_FILES if file not in found], key=len)
    raise UserError(_missing(name, f"no {', '.join(lacking)} (or the same with .gz)", data_dir))


def _plain_or_gz(path: Path) -> Path | None:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if os.path.isfile(candidate):
            return candidate
    return None


def read_idx(name: str, files: Sequence[Path]) -> Raw:
    """Training images and labels, test images and labels, in this order; inputs (N, 784) bytes.

    Raises:
        UserError: a file is damaged, of another kind or data set, or does not fit the others.
    """
    (train, train_labels), (test, test_labels) = (_labelled(name, *files[k : k + 2]) for k in (0, 2))
    _check_is(name, files[1], train_labels)
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    return Raw(np.concatenate([train, test]), labels, 10, official_test=len(test), levels=255)


def _labelled(name: str, image_file: Path, label_file: Path) -> tuple[Array, Array]:
    images = _idx(name, image_file, 3)
    labels = _idx(name, label_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise UserError(f"{image_file} holds images of {size} pixels, not {SIDE} x {SIDE}: {_again(name)}")
    if len(images) != len(labels):
        counts = f"{image_file} holds {len(images)} images but {label_file} {len(labels)} labels"
        raise UserError(f"{counts}, the numbers must be equal: delete both and {remedy(name)}")
    if labels.max() > 9:
        raise UserError(f"{label_file} holds the label {labels.max()}, labels are 0 to 9: {_again(name)}")
    return images.reshape(len(images), -1), labels


def _idx(name: str, path: Path, dimensions: int) -> Array:
    """An IDX file of bytes: 0, 0, 8 (bytes), the number of dimensions; each length as a big-endian uint32; the data."""
    with _reading(path, _again(name)):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    right, header = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    if data[:4] != right:
        start = f"starts with {data[:4].hex()} where {right.hex()} is expected" if data else "is empty"
        raise UserError(f"{path} {start}, so it is no IDX file of {dimensions}-dimensional bytes: {_again(name)}")
    shape = [int(length) for length in np.frombuffer(data[4:header], ">u4")] if len(data) >= header else []
    if prod(shape) == 0 or len(data) != header + prod(shape):
        raise UserError(
            f"{path} holds {len(data)} bytes, not one header and the samples it announces ({shape}): {_again(name)}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _check_is(name: str, path: Path, labels: Array) -> None:
    owner = TRAIN_LABELS.get(hashlib.sha256(labels.tobytes()).hexdigest(), name)
    if owner != name:
        raise UserError(f"{path} belongs to {owner}, not to {name}: ask for --data {owner}, or set --data-dir anew")


# CIFAR-10, binary version


def find_cifar(data_dir: Path) -> tuple[Path, ...]:
    """The six .bin files, or else one archive that may hold them; () if there is neither."""
    for folder in (data_dir / "cifar10", data_dir):
        files = tuple(folder / CIFAR_FOLDER / file for file in CIFAR_MD5)
        if all(map(os.path.isfile, files)):
            return files
        for archive in CIFAR_ARCHIVES:
            if os.path.isfile(folder / archive):
                return (folder / archive,)
    return ()


def read_cifar(files: Sequence[Path]) -> Raw:
    """The six .bin files or the archive, each .bin checked by its md5; inputs (60000, 3072), red, green, blue planes.

    Raises:
        UserError: a file is damaged, missing in the archive, or not the published one.
    """
    parts: dict[str, Array] = {}
    with _reading(files[0] if len(files) == 1 else files[0].parent, _again("cifar10")):
        for path, file, data in _unpacked(files[0]) if len(files) == 1 else _loose(files):
            _check_md5(path, file, data)
            parts[file] = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
    if lacking := [file for file in CIFAR_MD5 if file not in parts]:
        raise UserError(f"{files[0]} does not hold {', '.join(lacking)}: {_again('cifar10')}")
    ordered = [parts[file] for file in CIFAR_MD5]
    labels = np.concatenate([part[:, 0] for part in ordered]).astype(np.int64)
    return Raw(np.concatenate([part[:, 1:] for part in ordered]), labels, 10, len(ordered[-1]), 255, channels=3)


def _loose(files: Sequence[Path]) -> Iterator[tuple[Path, str, bytes]]:
    for path in files:
        yield path, path.name, path.read_bytes()


def _unpacked(archive: Path) -> Iterator[tuple[Path, str, bytes]]:
    """The wanted members, one by one; nothing of the archive is ever written, and nothing too large is read."""
    import tarfile

    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            file = PurePosixPath(member.name).name
            if file in CIFAR_MD5 and member.isreg() and member.size <= CIFAR_BYTES:
                stream = tar.extractfile(member)
                yield archive, file, stream.read() if stream else b""


def _check_md5(path: Path, file: str, data: bytes) -> None:
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != CIFAR_MD5[file]:
        raise UserError(f"{file} in {path} has md5 {found}, it should be {CIFAR_MD5[file]}: {_again('cifar10')}")


# A user's own .npz


def read_npz(path: Path) -> Raw:
    """Arrays x (N, ...) of bytes, float32 or float64 and y (N,); inputs (N, p).

    Integers y >= 0 are labels, classes = max y + 1. Floats y are the targets of a regression, all samples of one class.

    Raises:
        UserError: it is no such file, or its arrays do not fit that description.
    """
    x, y = (_npz_array(path, field) for field in ("x", "y"))
    _check_inputs(path, x)
    _check_shape(path, x, y)
    inputs = np.ascontiguousarray(x.reshape(len(x), -1).astype(x.dtype.newbyteorder("="), copy=False))
    levels = 255 if inputs.dtype == np.uint8 else None
    if y.dtype.kind == "f":
        return Raw(inputs, np.zeros(len(y), np.int64), 1, levels=levels, targets=_targets(path, y))
    _check_labels(path, y)
    return Raw(inputs, y.astype(np.int64), int(y.max()) + 1, levels=levels)


def _npz_array(path: Path, field: str) -> NDArray[Any]:
    advice = "write it with numpy.savez(path, x=..., y=...), arrays of numbers and no objects"
    with _reading(path, advice), path.open("rb") as file:  # given a path, np.load leaks the file of a bad zip
        stored = np.load(file, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise UserError(f"{path} holds one bare array: {advice}")
        with stored:
            if field not in stored.files:
                raise UserError(f"{path} has no array {field} but {', '.join(stored.files) or 'nothing'}: {advice}")
            return np.asarray(stored[field])


def _check_inputs(path: Path, x: Array) -> None:
    if x.dtype.type not in (np.uint8, np.float32, np.float64):
        raise UserError(f"{path}: x is {x.dtype}, it must be uint8, float32 or float64: convert it with x.astype")
    if x.ndim < 2 or x.size == 0:
        raise UserError(f"{path}: x has the shape {x.shape}, it must be (samples, features...), none of them 0")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        first = int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))[0])
        raise UserError(f"{path}: x is NaN or infinite (first in sample {first}): remove or repair such samples")


def _check_shape(path: Path, x: Array, y: Array) -> None:
    if y.dtype.kind not in "iuf" or y.ndim != 1:
        raise UserError(
            f"{path}: y is {y.dtype} of shape {y.shape}, it must be one integer (a class) or one float (a target of a "
            "regression) a sample, shape (samples,)"
        )
    if len(y) != len(x):
        what = "targets" if y.dtype.kind == "f" else "labels"
        raise UserError(f"{path}: x holds {len(x)} samples but y {len(y)} {what}, the numbers must be equal")


def _targets(path: Path, y: Array) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # told below
        targets = y.astype(np.float64)
    if not np.isfinite(targets).all():
        first = int(np.flatnonzero(~np.isfinite(targets))[0])
        raise UserError(f"{path}: y is NaN or infinite (first in sample {first}): remove or repair such samples")
    return targets


def _check_labels(path: Path, y: Array) -> None:
    if y.min() < 0 or y.max() >= MOST_CLASSES:
        span = f"{y.min()} to {y.max()}"
        raise UserError(
            f"{path}: y runs from {span}, labels must lie in 0 to {MOST_CLASSES - 1}: number the classes from 0"
        )
