"""Paths that a user gives, by a flag, a variable or a file of their own, and the folders that are theirs."""

import os
from contextlib import suppress
from pathlib import Path

from zofl_mpi.errors import UserError


def user_path(text: str | os.PathLike[str], called: str) -> Path:
    """The path of a user's text, with `~` for a home folder where it begins with one.

    UserError: it is not UTF-8, which no result could hold; has a NUL; or nobody knows that home folder.

    Args:
        called: the flag, variable or key that gave it, as it is typed.
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
    """Refuses what the system passed on without being text: bytes that are not UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        shown = given.encode(errors="surrogateescape").decode(errors="backslashreplace")
        sentence = f"{called} {shown}: it is not UTF-8; rename the file, or name it by a link".lstrip()
        raise UserError(sentence) from error


def user_folder(variable: str, part: str) -> Path:
    """The folder that the environment's `variable` names, else `part` of the user's cache folder (UserError: the user
    has none).
    """
    if named := os.environ.get(variable):
        return user_path(named, variable)
    import platformdirs  # as pooch finds it, which takes 0.1 s to import, times every rank of a node

    found = Path("~")
    with suppress(RuntimeError):  # of newer versions; older ones return "~/.cache"
        found = Path(platformdirs.user_cache_dir("zofl_mpi"))
    if not found.is_absolute():
        raise UserError(f"this process has no home folder (HOME is not set): set {variable} to a folder")
    return found / part
