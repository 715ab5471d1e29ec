"""A result that is open for writing: its HDF5 file, what that changes on the disk, and the lock."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import h5py

from zofl_mpi.errors import UserError
from zofl_mpi.run.records.hdf5 import FAILURES, WriteError
from zofl_mpi.run.records.lock import WriterLock, lock
from zofl_mpi.run.records.staged import StagedFile, create_exclusively


@final
class OpenResult:
    """The file of a result whose changes reach the disk by `commit` only.

    Attributes:
        path: of the result.
        file: as h5py has it; false once it is closed.
    """

    def __init__(self, path: Path, writer: WriterLock, *, new: bool) -> None:
        """Makes a new file, or opens one.

        Raises:
            UserError: another process writes it.
            OSError: it cannot be made or opened; the lock is given back.
        """
        self.path, self._writer = path, writer
        try:
            self._staged = _staged(path, new)
            # Without a chunk cache a row is written by itself; with one, all its chunks are.
            self.file: Any = h5py.File(self._staged, "w" if new else "r+", rdcc_nbytes=0)
        except BaseException:
            writer.release()
            raise
        # HDF5 must be done with a Python file before the interpreter ends.
        self.abandon = weakref.finalize(self, _let_go, self.file, self._staged, writer)

    def check(self) -> None:
        """Refuses to write to a file that was deleted, replaced or taken over: it would be lost."""
        if self._writer.is_lost():
            raise WriteError(f"{self.path}: another process has removed {self._writer.path} and writes it now")
        try:
            there = os.stat(self.path).st_ino
        except FileNotFoundError:
            there = -1
        if there != os.fstat(self._staged.number).st_ino:
            raise WriteError(f"{self.path} was deleted or replaced by another run: this run's rounds went with it")

    def commit(self) -> None:
        """Brings all changes to the disk, or none (OSError: they cannot be written)."""
        if self.file:
            self.file.flush()
        self._staged.commit()

    def sync(self) -> None:
        """Makes what is committed survive a power cut."""
        os.fsync(self._staged.number)


def _staged(path: Path, new: bool) -> StagedFile:
    number = create_exclusively(path) if new else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        lock(number)
        return StagedFile(number, write=True)
    except BlockingIOError as error:
        os.close(number)
        raise UserError(f"{path} is being written by another process: let it end, or choose another --out") from error
    except OSError:
        os.close(number)
        raise


def _let_go(file: Any, staged: StagedFile, writer: WriterLock) -> None:
    with suppress(*FAILURES):
        file.close()
    staged.close()
    writer.release()
