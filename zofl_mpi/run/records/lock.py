"""Lock of a result's writer, also without file-system locks: a file beside it names host and process."""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from zofl_mpi.engine.processes import stat
from zofl_mpi.errors import UserError
from zofl_mpi.run.records.provenance import now
from zofl_mpi.run.records.staged import create_exclusively, write_all

GLANCES = (0.1, 0.1, 0.1)
"""Pauses between attempts, in seconds: another process may hold the lock briefly, to test it."""
ENTRIES = ("host", "process", "since", "started", "flock")
"""Keys of a lock file (JSON)."""


@final
class WriterLock:
    """Exclusive right to write a result; `run` and `run.h5` share one lock, since they share a checkpoint."""

    def __init__(self, result: Path) -> None:
        """Acquires the lock (UserError: another process holds it; OSError: the lock file cannot be written)."""
        self.path, self._number = lock_path(result), -1
        while self._number < 0:
            try:
                self._number = create_exclusively(self.path)
            except FileExistsError:
                _remove_stale(self.path, result)
        self._file = os.fstat(self._number).st_ino
        mine: dict[str, Any] = {"host": socket.gethostname(), "process": os.getpid(), "since": now()}
        try:
            mine |= {"started": _started(os.getpid()), "flock": lock(self._number)}
            write_all(self._number, json.dumps(mine).encode(), 0)
        except OSError:
            self.release()
            raise

    def is_lost(self) -> bool:
        """True if another process has removed the lock and taken it."""
        with suppress(FileNotFoundError):
            return os.stat(self.path, follow_symlinks=False).st_ino != self._file
        return False

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._number < 0:
            return
        if not self.is_lost():
            self.path.unlink(missing_ok=True)
        os.close(self._number)
        self._number = -1


def lock_path(result: Path) -> Path:
    """Path of a result's lock file."""
    return result.with_name(result.name.removesuffix(".h5") + ".lock")


def lock(number: int) -> bool:
    """Locks an open file as HDF5 does; False if the file system has no locks (BlockingIOError: already locked)."""
    for wait in (*GLANCES, None):
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                raise
            time.sleep(wait)
        except OSError:  # the file system has no locks
            return False
        else:
            return True
    raise AssertionError("unreachable")


def _remove_stale(path: Path, result: Path) -> None:
    """Remove the lock of an ended process."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{result}: its lock {path} cannot be read ({error.strerror}): remove it") from error
    try:
        holder = _holder(number)
        if holder is None:
            raise UserError(
                f"{result}: its lock file would be {path}, which is no lock: rename that file, or choose another --out"
            )
        if _may_write(holder, number):
            which = "process {process} on {host} (since {since})".format(**holder) if holder else "another process"
            raise UserError(
                f"{result} is being written by {which}: let it end, or choose another --out; "
                f"if it has ended, remove {path}"
            )
        if os.stat(path, follow_symlinks=False).st_ino == os.fstat(number).st_ino:
            path.unlink()
    except FileNotFoundError:  # its writer or another waiting process has just removed it
        return
    finally:
        os.close(number)


def _may_write(holder: dict[str, Any], number: int) -> bool:
    try:
        locks = lock(number)
    except BlockingIOError:
        return True
    if locks and holder.get("flock", True):  # a process that has ended holds no flock
        return False
    return holder.get("host") != socket.gethostname() or holder.get("started") == _started(int(holder["process"]))


def _holder(number: int) -> dict[str, Any] | None:
    """Content of a lock file; {} if its process has not written it yet, None if it is no lock file."""
    try:
        found = json.loads(os.pread(number, 4096, 0) or "{}")
        known = not found or (found.keys() == set(ENTRIES) and type(found["process"]) is int)
        texts = [found.get(name, "") for name in ("host", "since")]
    except (ValueError, AttributeError, RecursionError, OSError):
        return None
    return found if known and all(isinstance(text, str) and text.isprintable() for text in texts) else None


def _started(process: int) -> str | None:
    """Start time of a process of this host, in ticks, since process IDs are reused; None if it has ended."""
    try:
        fields = stat(process)
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]  # a zombie has ended, too
