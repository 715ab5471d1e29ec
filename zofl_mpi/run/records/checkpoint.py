"""Checkpoints beside the result, written atomically; the last two are kept."""

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run.records import hdf5
from zofl_mpi.run.records.hdf5 import FAILURES, FORMAT, Attributes, FileName, LostError, WriteError, read_file
from zofl_mpi.run.records.layout import check_checkpoint
from zofl_mpi.run.records.staged import StagedFile, create_exclusively

Blocks = Mapping[str, NDArray[np.uint8]]
PREVIOUS, TEMPORARY = ".previous", ".tmp"
"""Suffixes of the previous checkpoint, and of one being written."""
CHECKSUMS = "checksums"


@final
@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint, sufficient to continue a run."""

    attrs: dict[str, Any]
    payload: dict[str, NDArray[np.uint8]]  # name -> packed message: the state and each client's memory
    newer: str = ""  # why a newer checkpoint was skipped; "" if none was


def checkpoint_path(out: FileName) -> Path:
    """Path of a result's checkpoint: run.h5 -> run.ckpt.h5."""
    out = Path(out)
    return out.with_name(out.name.removesuffix(".h5") + ".ckpt.h5")


def save_checkpoint(path: FileName, payload: Mapping[str, Any], attrs: Attributes) -> None:
    """Write a checkpoint atomically; the existing one at `path` becomes run.ckpt.h5.previous.

    `payload`: name -> bytes or a buffer of bytes; names may have parts ("memory/3"). WriteError: not written; an
    existing checkpoint is intact.
    """
    path = Path(path)
    fresh = path.with_name(path.name + TEMPORARY)
    try:
        fresh.unlink(missing_ok=True)  # left by a process that was killed
        _write(fresh, payload, attrs)
        with suppress(FileNotFoundError):
            os.replace(path, path.with_name(path.name + PREVIOUS))
        os.replace(fresh, path)
        _sync_folder(path.parent)
    except FAILURES as error:
        fault = f"cannot write {path}: {hdf5.reason_of(error, path)}"
        raise WriteError(f"{fault}; the previous checkpoint, if any, is intact") from error
    finally:
        with suppress(OSError):  # a folder or no permission: reported above
            fresh.unlink()


def load_checkpoint(path: FileName, *, whole: bool = True) -> Checkpoint:
    """Load the checkpoint at `path`, or the previous one if it is missing or damaged; UserError: neither is readable.

    Without `whole`, reads and checks only its attributes: a payload may have gigabytes.
    """
    path = Path(path)
    previous = path.with_name(path.name + PREVIOUS)
    try:
        return _load(path, whole)
    except UserError as error:
        if not previous.is_file():
            raise
        try:
            return replace(_load(previous, whole), newer=f"{error}; {previous} is read in its place")
        except UserError as other:
            raise UserError(f"{error}; {other}") from other


def _write(path: Path, payload: Mapping[str, Any], attrs: Attributes) -> None:
    staged = StagedFile(create_exclusively(path), write=True)
    try:
        with h5py.File(staged, "w") as file:
            file.create_group("payload")
            blocks = {name: np.frombuffer(value, np.uint8) for name, value in payload.items()}
            for name, block in blocks.items():
                file[f"payload/{name}"] = block
            hdf5.set_attributes(file, {**attrs, "checkpoint": FORMAT, CHECKSUMS: len(blocks) + 1})
            file[CHECKSUMS] = _checksums(blocks, hdf5.attributes_of(file))
        staged.commit()
        os.fsync(staged.number)
    finally:
        staged.close()


def _load(path: Path, whole: bool) -> Checkpoint:
    def read(file: Any) -> Checkpoint:
        named = check_checkpoint(file, path)
        attrs, stored, place = hdf5.attributes_of(file), file[CHECKSUMS][()], "payload/"
        payload = [name for name in named if name.startswith(place)] if whole else []
        blocks = {name.removeprefix(place): file[name][()] for name in payload}
        stored = stored if whole else stored[-1:]
        found = _checksums(blocks, attrs)
        if found.shape != stored.shape:
            raise LostError(f"{path} is damaged: it stores {len(stored)} checksums for {len(found)} entries")
        for name, differs in zip([*sorted(blocks), "the attributes"], found != stored, strict=True):
            if differs:
                raise LostError(f"{path} is damaged: the checksum of {name} is not the one stored")
        return Checkpoint(attrs, blocks)

    return read_file(path, read)


def _checksums(blocks: Blocks, attrs: Attributes) -> NDArray[np.uint32]:
    """CRC-32 of each array, ordered by name, then of the attributes."""
    facts = json.dumps({name: str(value) for name, value in attrs.items()}, sort_keys=True).encode()
    sums = [zlib.crc32(blocks[name].data, zlib.crc32(name.encode())) for name in sorted(blocks)]
    return np.array([*sums, zlib.crc32(facts)], np.uint32)


def _sync_folder(folder: Path) -> None:
    """Make the renaming durable, if the file system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
