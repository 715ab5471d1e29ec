"""Paths from flags, variables or files, and the user's own folders."""

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zofl_mpi.errors import UserError


def user_path(text: str | os.PathLike[str], called: str) -> Path:
    """Path of a user's text; expands `~`.

    UserError: the text is not UTF-8 (results could not store it), contains a NUL, or names an unknown home folder.

    Args:
        called: the flag, variable or key that gave it, as typed.
    """
    given = os.fspath(text)
    check_text(given, called)
    if "\0" in given:
        raise UserError(f"{called} {given!r}: no path has a NUL in it; choose another name")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        who = given.partition("/")[0]
        known = "this process has no home folder (HOME is not set)" if who == "~" else f"there is no user {who[1:]}"
        raise UserError(f"{called} {given}: {known}; write the whole path, or ./{given} for one here") from error


def check_text(given: str, called: str) -> None:
    """Refuse text that is not UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        shown = given.encode(errors="surrogateescape").decode(errors="backslashreplace")
        sentence = f"{called} {shown}: it is not UTF-8; rename the file, or name it by a link".lstrip()
        raise UserError(sentence) from error


def user_folder(variable: str, part: str) -> Path:
    """The folder in the environment's `variable`, else `part` of the user's cache folder.

    UserError: the user has none.
    """
    if named := os.environ.get(variable):
        return user_path(named, variable)
    import platformdirs  # like pooch, whose import takes 0.1 s on every rank of a node

    found = Path("~")
    with suppress(RuntimeError):  # newer versions only; older ones return "~/.cache"
        found = Path(platformdirs.user_cache_dir("zofl_mpi"))
    if not found.is_absolute():
        raise UserError(f"this process has no home folder (HOME is not set): set {variable} to a folder")
    return found / part


@contextmanager
def new_file(path: Path, called: str, force: bool = False, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield an empty temporary file beside `path`, with its suffix; it takes the name when complete.

    UserError: `path` must not or cannot be written, for example on a full disk; an existing file stays intact.

    Args:
        called: the flag or key that named it, as typed; "" for an internal name.
        force: an existing file may be replaced.
        inputs: files that were read for it; they are never replaced.
    """
    check_new_file(path, called, force, inputs)
    fresh = path.with_name(f".zofl-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())  # some file systems report a full disk only here
        check_new_file(path, called, force, inputs)  # another process may have created it meanwhile
        os.replace(fresh, path)
    except OSError as error:
        why = f"cannot be written ({error.strerror or error})"
        raise UserError(f"{called} {path}: {why}; choose another place, or make room".lstrip()) from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def check_new_file(path: Path, called: str, force: bool = False, inputs: Iterable[Path] = ()) -> None:
    """Refuse a path that `new_file` could not write, before the work is done."""
    named = f"{called} {path}".lstrip()
    if not path.name or path.is_dir():
        raise UserError(f"{named} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{named}: there is no folder {path.parent}; make it first")
    if not os.path.lexists(path):
        return
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise UserError(f"{named} is a link: name the file itself")
    if not stat.S_ISREG(mode):
        raise UserError(f"{named} is a device, a pipe or a socket: name a file")
    if any(os.path.samefile(path, read) for read in inputs if read.exists()):
        raise UserError(f"{named} is one of the input files: choose another name")
    if not force:
        raise UserError(f"{named} exists: choose another name or add --force")
