"""Checkpoints: written in one stroke beside the result, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run.records.hdf5 import FAILURES, SCHEMA, WriteError, read_file, reason_of, set_attributes


@final
@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on.

    Attributes:
        attrs: round, config (JSON), seed and what else was given.
        payload: name -> (bytes,) uint8, packed messages: the state, and one memory a client.
    """

    attrs: dict[str, Any]
    payload: dict[str, NDArray[np.uint8]]


def checkpoint_path(out: str | os.PathLike[str]) -> Path:
    """Where the checkpoint of the result `out` lies: run.h5 -> run.ckpt.h5."""
    out = Path(out)
    return out.with_name(out.name.removesuffix(".h5") + ".ckpt.h5")


def save_checkpoint(path: str | os.PathLike[str], payload: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Replaces the checkpoint at `path` in one stroke: whatever happens, the old one or the new one is there, whole.

    Args:
        payload: name -> bytes, or anything with a buffer of bytes; a name may have parts ("memory/3").
        attrs: dicts and lists are stored as JSON.

    Raises:
        WriteError: the previous checkpoint, if any, is intact.
    """
    path = Path(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(beside, "w", locking="best-effort") as file:
            file.create_group("payload")
            for name, value in payload.items():
                file[f"payload/{name}"] = np.frombuffer(value, np.uint8) if len(value) else np.zeros(0, np.uint8)
            set_attributes(file.attrs, {**attrs, "checkpoint": SCHEMA})
            file.flush()
            os.fsync(file.id.get_vfd_handle())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except FAILURES as error:
        raise WriteError(
            f"cannot write {path}: {reason_of(error)}; the previous checkpoint, if any, is intact"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`.

    Raises:
        UserError: there is none, or it cannot be read.
    """

    def read(file: Any) -> Checkpoint:
        if file.attrs.get("checkpoint") != SCHEMA:
            raise UserError(f"{path} is not a checkpoint of this version of zofl_mpi (schema {SCHEMA})")
        payload: dict[str, NDArray[np.uint8]] = {}
        file["payload"].visititems(
            lambda name, data: payload.update({name: data[()]} if isinstance(data, h5py.Dataset) else {})
        )
        return Checkpoint(dict(file.attrs), payload)

    return read_file(Path(path), read)


def _sync_folder(folder: Path) -> None:
    """Makes the renaming durable, where the file system offers it."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
