"""Checks of --out before the first round."""

import os
import shutil
from pathlib import Path

from zofl_mpi.errors import UserError
from zofl_mpi.paths import check_new_file
from zofl_mpi.run.records.checkpoint import PREVIOUS, TEMPORARY, checkpoint_path
from zofl_mpi.run.records.hdf5 import read_file, reason_of
from zofl_mpi.run.records.layout import check_checkpoint
from zofl_mpi.run.records.lock import WriterLock
from zofl_mpi.run.records.result import heading

DAMAGED = ".damaged"


def check_name(path: Path, flag: str) -> None:
    """Raise UserError for a path that no file can have."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        shown = str(path) if len(str(path)) < 100 else f"{str(path)[:100]}..."
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{flag} {shown}: {reason}; choose another name") from error
    if not path.name:
        raise UserError(f"{flag} {path} is a folder: name a file in it")


def check_new(path: Path, force: bool, continues: bool = False) -> None:
    """Refuse a path where no result may be created.

    Args:
        force: allow replacing a result and its checkpoints.
        continues: existing checkpoints belong to this run.
    """
    check_name(path, "--out")
    if path.name.startswith("-"):
        raise UserError(f"--out {path}: the name begins with '-' like a flag; choose another")
    if path.name.endswith(".ckpt.h5") or path.name == ".h5":
        raise UserError(f"--out {path}: that is a checkpoint's name; choose one like run.h5")
    check_new_file(path, "--out", force)
    most, checkpoint = os.pathconf(path.parent, "PC_NAME_MAX"), checkpoint_path(path)
    less = max(len(os.fsencode(checkpoint.name + more)) for more in (PREVIOUS, TEMPORARY)) - most
    if less > 0:
        raise UserError(f"--out {path.name}: {less} bytes too long: its checkpoint's name may have {most} bytes")
    other = path.with_name(path.name.removesuffix(".h5") if path.name.endswith(".h5") else path.name + ".h5")
    if other.is_file():
        raise UserError(f"--out {path}: {other} exists and has the same checkpoint: choose another name")
    if os.path.lexists(path):
        try:
            heading(path)
        except UserError as error:
            raise UserError(f"--out {path}: --force replaces results only, and {error}; remove it yourself") from error
    for left in () if continues else filter(os.path.lexists, checkpoints(path)):
        _check_checkpoint(path, left, force)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--out {path}: no permission to write there; choose another folder")


def _check_checkpoint(path: Path, left: Path, force: bool) -> None:
    """Refuse to replace an existing checkpoint, or another file, at the path of the run's checkpoint."""
    if not force:
        remedy = f"continue it with --resume {path}, choose another name, or add --force"
        raise UserError(f"--out {path}: the checkpoint {left} exists; {remedy}")
    try:
        read_file(left, lambda file: check_checkpoint(file, left))
    except UserError as error:
        raise UserError(f"--out {path}: --force replaces checkpoints only, and {error}; remove it yourself") from error


def checkpoints(path: Path) -> tuple[Path, Path]:
    """Paths of a result's checkpoints: the newest and the previous one."""
    newest = checkpoint_path(path)
    return newest, newest.with_name(newest.name + PREVIOUS)


def remove_checkpoints(path: Path) -> None:
    """Remove the checkpoints of a result, so that --resume cannot find those of a replaced run."""
    for left in checkpoints(path):
        left.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """Path of a new, empty result before it takes its place; for the holder of the result's lock."""
    fresh = path.with_name(path.name + TEMPORARY)
    fresh.unlink(missing_ok=True)  # left by a process that was killed
    return fresh


def copy(source: Path, path: Path) -> None:
    """Copy a result (UserError: the copy cannot be written; an existing file there is intact)."""
    try:
        fresh = beside(path)
        try:
            with source.open("rb") as old, fresh.open("xb") as new:
                shutil.copyfileobj(old, new)
                os.fsync(new.fileno())
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({reason_of(error, path)})") from error


def set_aside(path: Path, ending: str = DAMAGED) -> Path | None:
    """Rename a damaged result; return its new name, None if there is no file (UserError: it is being written)."""
    if not path.is_file():
        return None
    names = (path.with_name(f"{path.name}{ending}{k or ''}") for k in range(1_000_000))
    lock, aside = WriterLock(path), next(name for name in names if not os.path.lexists(name))
    try:
        os.replace(path, aside)
    finally:
        lock.release()
    return aside
