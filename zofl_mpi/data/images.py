"""Readers of image data sets: IDX (MNIST, Fashion-MNIST) and CIFAR-10 (binary and Python version)."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path, PurePosixPath

import numpy as np

from zofl_mpi.arrays import Array
from zofl_mpi.data import Raw
from zofl_mpi.data.published import fetch_again, find_files, reading_file, remedy
from zofl_mpi.errors import UserError

SIDE = 28  # pixels, of MNIST's and Fashion-MNIST's images
MAX_IDX_SAMPLES = 1_000_000  # bounds the unpacking of a malicious file; no data set in this format has more
# MNIST and Fashion-MNIST use the same file names; their training labels tell them apart (sha256, unpacked).
TRAIN_LABELS = {
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13": "mnist",
    "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7": "fashion-mnist",
}
CIFAR_FOLDER, CIFAR_PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
CIFAR_ARCHIVES = tuple(
    f"cifar-10-{version}.tar{packing}" for version in ("binary", "python") for packing in (".gz", ".xz", ".bz2", "")
)
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
PICKLED_BYTES = CIFAR_BYTES + 1_000_000  # maximum of a Python-version file, which also holds the images' names


def read_idx(name: str, files: Sequence[Path]) -> Raw:
    """Reads four IDX files: training images and labels, test images and labels; inputs (N, 784) bytes.

    Raises:
        UserError: a file is damaged, of another format, or of another data set.
    """
    (train, train_labels), (test, test_labels) = (_labelled(name, *files[k : k + 2]) for k in (0, 2))
    owner = TRAIN_LABELS.get(hashlib.sha256(train_labels.tobytes()).hexdigest(), name)
    if owner != name:
        raise UserError(f"{files[1]} belongs to {owner}, not to {name}: use --data {owner}, or another --data-dir")
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    return Raw(np.concatenate([train, test]), labels, 10, official_test=len(test), levels=255)


def _labelled(name: str, image_file: Path, label_file: Path) -> tuple[Array, Array]:
    images, labels = _idx(name, image_file, 3), _idx(name, label_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise UserError(f"{image_file} holds images of {size} pixels, not {SIDE} x {SIDE}: {fetch_again(name)}")
    if len(images) != len(labels):
        counts = f"{image_file} holds {len(images)} images but {label_file} {len(labels)} labels"
        raise UserError(f"{counts}, the numbers must be equal: delete both and {remedy(name)}")
    if labels.max() > 9:
        raise UserError(f"{label_file} holds the label {labels.max()}, labels are 0 to 9: {fetch_again(name)}")
    return images.reshape(len(images), -1), labels


def _idx(name: str, path: Path, dimensions: int) -> Array:
    """Array of an IDX file: bytes 0, 0, 8, number of dimensions; each length as a big-endian uint32; the data."""
    import gzip  # only one rank of a node needs it, once

    right, header = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    most = header + MAX_IDX_SAMPLES * SIDE ** (dimensions - 1)
    with reading_file(path, fetch_again(name)), path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        data = (gzip.GzipFile(fileobj=file) if packed else file).read(most + 1)
    if len(data) > most:
        raise UserError(f"{path} holds more than {most} bytes, too many for its format: {fetch_again(name)}")
    if data[:4] != right:
        start = f"starts with {data[:4].hex()} where {right.hex()} is expected" if data else "is empty"
        raise UserError(f"{path} {start}, so it is no IDX file of {dimensions}-dimensional bytes: {fetch_again(name)}")
    shape = [int(length) for length in np.frombuffer(data[4:header], ">u4")] if len(data) >= header else []
    if prod(shape) == 0 or len(data) != header + prod(shape):
        fault = f"{path} holds {len(data)} bytes, not one header and the samples it announces ({shape})"
        raise UserError(f"{fault}: {fetch_again(name)}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def find_cifar(data_dir: Path) -> tuple[Path, ...]:
    """Paths of CIFAR-10's six files, else of one archive; () if neither exists."""
    pickled = [file.removesuffix(".bin") for file in CIFAR_MD5]
    for folder in (data_dir / "cifar10", data_dir):
        for files, names in ((list(CIFAR_MD5), CIFAR_FOLDER), (pickled, CIFAR_PYTHON)):
            if found := find_files(files, [folder / names, folder])[0]:
                return found
        if archive := next(filter(os.path.isfile, (folder / name for name in CIFAR_ARCHIVES)), None):
            return (archive,)
    return ()


def read_cifar(files: Sequence[Path]) -> Raw:
    """Reads and verifies CIFAR-10's six files or archive; inputs (60000, 3072) (UserError: wrong files).

    The md5 sums are the binary version's; files of the Python version are converted to it first.
    """
    parts: dict[str, Array] = {}
    place, advice = files[0] if len(files) == 1 else files[0].parent, fetch_again("cifar10")
    with reading_file(place, advice):
        for file, data in _members(files):
            name = file if file in CIFAR_MD5 else f"{file}.bin"
            records = data if file in CIFAR_MD5 else _records(data, file)
            md5 = hashlib.md5(records, usedforsecurity=False).hexdigest()
            if md5 != CIFAR_MD5[name]:
                raise UserError(f"{file} in {place} has md5 {md5}, it should be {CIFAR_MD5[name]}: {advice}")
            parts[name] = np.frombuffer(records, np.uint8).reshape(-1, CIFAR_RECORD)
    if lacking := [file for file in CIFAR_MD5 if file not in parts]:
        raise UserError(f"{place} does not hold {', '.join(lacking)}: {advice}")
    ordered = [parts[file] for file in CIFAR_MD5]
    labels = np.concatenate([part[:, 0] for part in ordered]).astype(np.int64)
    return Raw(np.concatenate([part[:, 1:] for part in ordered]), labels, 10, len(ordered[-1]), 255, channels=3)


def _records(pickled: bytes, file: str) -> bytes:
    """Converts a file of the Python version to the binary version's records.

    Unpickling could execute code. Instead this scans the opcodes: the numbers after the text "labels" are the labels,
    the longest text or bytes the pixels.
    """
    from pickletools import genops

    labels, pixels, is_labels = list[int](), b"", False
    for code, value, _ in genops(pickled):
        if isinstance(value, str | bytes):
            text = value.encode("latin-1") if isinstance(value, str) else value
            pixels, is_labels = max(pixels, text, key=len), text == b"labels"
        elif is_labels and code.name == "BININT1" and value is not None:
            labels.append(int(value))
        elif code.name not in ("EMPTY_LIST", "MARK", "APPENDS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "FRAME"):
            is_labels = False
    width = CIFAR_RECORD - 1
    if not labels or len(pixels) != len(labels) * width:
        raise ValueError(f"{file} holds {len(labels)} labels and {len(pixels)} bytes of pixels, not {width} for each")
    images = np.frombuffer(pixels, np.uint8).reshape(-1, width)
    return np.column_stack([np.array(labels, np.uint8), images]).tobytes()


def _members(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of each file; extracts nothing to disk and skips oversized members."""
    if len(files) > 1:
        for path in files:
            with path.open("rb") as loose:
                yield path.name, loose.read(PICKLED_BYTES + 1)
        return
    import tarfile

    with tarfile.open(files[0], "r:*") as tar:
        for member in tar:
            file = PurePosixPath(member.name).name
            most = CIFAR_BYTES if file in CIFAR_MD5 else PICKLED_BYTES if f"{file}.bin" in CIFAR_MD5 else -1
            if member.isreg() and member.size <= most:
                stream = tar.extractfile(member)
                yield file, stream.read() if stream else b""
