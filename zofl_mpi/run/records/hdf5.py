"""Open HDF5 files, and turn h5py's exceptions into error messages."""

import errno
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run.records.staged import StagedFile

T = TypeVar("T")
Columns = Mapping[str, tuple[str, str]]  # name -> (unit, description)
Attributes = Mapping[str, Any]
FileName = str | os.PathLike[str]
FORMAT = 1
"""Format version of results and checkpoints; newer files are refused."""
ATTRIBUTE_BYTES = 60_000
"""Most bytes of an attribute: HDF5 allows 64 kB, including its own overhead."""
LONG = "long"
"""Group for texts too long for an attribute."""
FAILURES = (OSError, RuntimeError, KeyError, ValueError)
"""Exceptions of h5py for failed writes; which one depends on the call."""


class WriteError(UserError):
    """A result or checkpoint could not be written; the message names file, reason and safe rounds."""

    status = 1


class DamagedError(WriteError):
    """Another process changed the result during the run."""


class LostError(UserError):
    """A result or checkpoint is missing or damaged; not raised for other kinds of files."""


def set_attributes(item: Any, values: Attributes) -> None:
    """Set attributes of an HDF5 object; dicts and lists as JSON, None as "".

    In the root, a text too long for an attribute becomes the data set /long/NAME.
    """
    is_root = item.name == "/"
    for name, value in values.items():
        known = json.dumps(value) if isinstance(value, (dict, list, tuple)) else "" if value is None else value
        stored = text(known) if isinstance(known, str) else known
        place = f"{LONG}/{name}"
        if is_root and place in item:
            del item[place]
        if is_root and isinstance(known, str) and stored.nbytes > ATTRIBUTE_BYTES:
            item.attrs.pop(name, None)
            item[place] = stored
        else:
            _set(item.id, name.encode(), np.asarray(stored))


def _set(holder: Any, name: bytes, value: NDArray[Any]) -> None:
    """Set an attribute of an object (h5py's ObjectID); h5py's `attrs` takes three times as long."""
    if h5py.h5a.exists(holder, name):
        h5py.h5a.delete(holder, name)
    place = h5py.h5s.create_simple(value.shape) if value.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    h5py.h5a.create(holder, name, h5py.h5t.py_create(value.dtype, logical=True), place).write(value)


def text(value: str) -> NDArray[np.bytes_]:
    """Fixed-length HDF5 string: variable-length ones lie in a heap, where one wrong bit hangs HDF5."""
    block = value.encode()
    return np.array(block, h5py.string_dtype("utf-8", max(1, len(block))))


def texts(values: Sequence[str]) -> NDArray[np.bytes_]:
    """Fixed-length HDF5 strings; see `text`."""
    blocks = [value.encode() for value in values]
    return np.array(blocks, h5py.string_dtype("utf-8", max(map(len, blocks), default=1)))


def plain(value: Any) -> Any:
    """A value read from HDF5; text as str, an array of texts as a tuple."""
    if isinstance(value, bytes):
        return value.decode()
    return tuple(map(plain, value)) if isinstance(value, np.ndarray) and value.dtype.kind == "S" else value


def attributes_of(item: Any) -> dict[str, Any]:
    """Read the attributes of an HDF5 object, including long ones of the root."""
    long = item[LONG].items() if item.name == "/" and LONG in item else ()
    return own_attributes(item.id) | {name: plain(data[()]) for name, data in long}


def own_attributes(item: Any) -> dict[str, Any]:
    """Read the attributes of an object by its identifier: numbers, and texts of fixed length."""
    values = dict[str, Any]()
    for k in range(h5py.h5a.get_num_attrs(item)):
        entry = h5py.h5a.open(item, index=k)  # by h5py's `attrs` it takes twice as long
        value = np.empty(entry.shape, entry.dtype)
        entry.read(value)
        values[entry.name.decode()] = plain(value[()])
    return values


def array(data: Any) -> NDArray[Any]:
    """Read all numbers of a data set by its identifier."""
    values = np.empty(data.shape, data.dtype)
    data.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


@contextmanager
def explaining(path: Path, safe: int) -> Iterator[None]:
    """Context that turns write errors into an error message; the first `safe` rounds are in the file."""
    try:
        yield
    except FAILURES as error:
        fault = f"round {safe + 1}: cannot write {path}: {reason_of(error, path)}"
        raise WriteError(f"{fault}; {safe} finished rounds are safe in it") from without_frames(error)


def reason_of(error: BaseException, path: Path) -> str:
    """The system's message, with the remaining space if that is the cause."""
    if not isinstance(error, OSError) or not error.errno:
        return str(error)
    words = os.strerror(error.errno)
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        words += f" (a file may have {limit} bytes: ulimit -f)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        there = os.statvfs(path.parent)
        words += f" ({there.f_bavail * there.f_frsize} bytes are free there)"
    return words


def read_file(path: Path, read: Callable[[Any], T]) -> T:
    """Call `read` on the open file; retry a moment later if the file is being flushed."""
    if not os.path.isfile(path):  # unlike Path.is_file, raises nothing for an impossible name
        raise LostError(f"there is no file {path}")
    for wait in (0.05, 0.1, 0.2, 0.4, None):
        try:
            with _opened(path) as file:
                return read(file)
        except PermissionError as error:
            raise UserError(f"no permission to read {path}") from error
        except Exception as error:  # h5py, NumPy and json raise a dozen types for changed bytes
            without_frames(error)
            if isinstance(error, UserError) and (wait is None or not isinstance(error, LostError)):
                raise
            if wait is None:
                kind, what = (LostError, "damaged") if _was_hdf5(path) else (UserError, "not an HDF5 file")
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                raise kind(f"{path} is {what}: {reason}") from error
            time.sleep(wait)
    raise AssertionError("unreachable")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file without a lock, which would disturb its writer; replay the journal of a killed writer."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with h5py.File(StagedFile(number, write=False), "r") as file:
            yield file
    finally:
        os.close(number)


def without_frames(error: BaseException) -> BaseException:
    """The error without tracebacks: their frames keep HDF5 objects alive, which crash at Python's exit."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__, each = None, each.__context__
    return error


def _was_hdf5(path: Path) -> bool:
    """True if a file has HDF5's signature, or is empty or begins with zeros, as after a power cut."""
    with path.open("rb") as file:
        return file.read(8) in (b"\x89HDF\r\n\x1a\n", bytes(8), b"")
