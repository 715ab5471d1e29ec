"""Opening HDF5 files, and what h5py raises turned into sentences."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import h5py

from zofl_mpi.errors import UserError

T = TypeVar("T")
Columns = Mapping[str, tuple[str, str]]
SCHEMA = 1
# What h5py raises for a file that is full, torn or damaged: it depends on the call that meets it.
FAILURES = (OSError, RuntimeError, KeyError, ValueError)


class WriteError(UserError):
    """A result or checkpoint could not be written; says which, why, and what is safe."""


def set_attributes(attrs: Any, values: Mapping[str, Any]) -> None:
    """Sets attributes of an HDF5 object; dicts and lists as JSON, None as an empty string."""
    for name, value in values.items():
        attrs[name] = json.dumps(value) if isinstance(value, (dict, list, tuple)) else "" if value is None else value


@contextmanager
def explaining(path: Path, safe: int) -> Iterator[None]:
    """Turns what h5py raises into one sentence."""
    try:
        yield
    except UserError:
        raise
    except FAILURES as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else reason_of(error)
        raise WriteError(f"cannot write {path}: {reason}; {safe} finished rounds are safe in it") from error


def reason_of(error: BaseException) -> str:
    """The system's own words, which h5py hides in the middle of a sentence of its own."""
    text = str(error)
    start = text.find("error message = '")
    return text[start:].split("'")[1] if start >= 0 else text


def read_file(path: Path, read: Callable[[Any], T]) -> T:
    """Returns what `read` makes of the open file. One caught in the middle of a flush is read again a moment later."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    for wait in (0.05, 0.1, 0.2, 0.4, None):
        try:
            with _opened(path) as file:
                return read(file)
        except PermissionError as error:
            raise UserError(f"no permission to read {path}") from error
        except FAILURES as error:
            if wait is None:
                raise UserError(
                    f"{path} is {'damaged' if _has_signature(path) else 'not an HDF5 file'}: {error}"
                ) from error
            time.sleep(wait)
    raise AssertionError("unreachable")


def _opened(path: Path) -> Any:
    """Opens without locking, so that the writer does not notice; a file that this process writes has its own way."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
        return h5py.File(path, "r", locking="best-effort")


def _has_signature(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"
