"""Cache of prepared data sets, one copy per node; as a command, lists or empties it.

An entry is a folder of .npy files that all ranks of a node map read-only. One rank of each node prepares the entry and
verifies its checksums; then all ranks of the node open it. Entries take at most `MOST_BYTES`: the least recently used
ones are deleted, except those that a run has mapped. You may list and delete entries at any time:

    python -m zofl_mpi.data.cache                 # lists the entries, most recently used first
    python -m zofl_mpi.data.cache --empty         # deletes entries that no run has open
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zofl_mpi.data import Raw
from zofl_mpi.errors import UserError, refused
from zofl_mpi.paths import user_folder

FORMAT = 2  # of entries and readers' results; a new number invalidates all entries
UNFINISHED = ".making-"
LEAVING = ".leaving-"
DAY = 24 * 3600.0
MOST_BYTES = 20 << 30
JUST_USED = 60.0  # seconds after a use in which an entry stays: a run may be about to map it
FACTS = "facts.json"
CHECKED = ".checked"  # folder of known checksums of unchanged files
SETTLED = 1_000_000_000  # nanoseconds; a change this long after the last one certainly gets a new change time


class Sources(NamedTuple):
    """Origin of a data set: its name, its cache key, its reader."""

    name: str  # the user's name for it
    key: str  # name of its cache entry; depends on the files' contents or the parameters
    read: Callable[[], Raw]  # reads or generates the data set (takes seconds); raises UserError


def default_cache_dir() -> Path:
    """Cache folder: ``$ZOFL_CACHE``, else a folder in the user's cache."""
    return user_folder("ZOFL_CACHE", "arrays")


def identify(
    name: str, read: Callable[[], Raw], files: Sequence[Path] = (), parameters: Mapping[str, float] | None = None
) -> Sources:
    """Sources whose key hashes the files' contents and the parameters (UserError: a file cannot be read)."""
    facts = [FORMAT, name, [_fingerprint(path) for path in files], dict(parameters or {})]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return Sources(name, f"{re.sub('[^a-z0-9]+', '-', Path(name).stem.lower())[:100]}-{digest[:16]}", read)


def _fingerprint(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file; recomputed only if the file's times or size have changed."""
    notes = default_cache_dir() / CHECKED
    try:
        status, true_path = path.stat(), str(path.resolve())
        facts = [true_path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        note = notes / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        with suppress(OSError, ValueError):
            return status.st_size, int(note.read_text(), 16)
        checksum = _checksum(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its name and permissions") from error
    if time.time_ns() - status.st_ctime_ns > SETTLED:
        keep_note(note, f"{checksum:08x}")
    return status.st_size, checksum


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def keep_note(note: Path, text: str) -> None:
    """Writes a small file atomically, if the cache is writable."""
    fresh = note.with_name(f"{note.name}.{secrets.token_hex(8)}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(text)
            os.replace(fresh, note)
        finally:  # a full disk leaves no partial file
            fresh.unlink(missing_ok=True)


def prepare(sources: Sources, cache_dir: Path | None = None) -> None:
    """Creates the cache entry unless an intact one exists; several ranks may call it at once.

    Raises:
        UserError: the data cannot be read, or the cache cannot be written.
    """
    folder = cache_dir or default_cache_dir()
    entry = folder / sources.key
    if _is_intact(entry):
        with suppress(OSError):  # somebody else's cache may be read-only
            os.utime(entry)
        return
    import tempfile  # this and shutil: one rank of a node writes, and only once

    raw = sources.read()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _forget_unfinished(folder)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder, ignore_cleanup_errors=True) as making:
            fresh = Path(making) / sources.key
            fresh.mkdir()  # with the user's umask, unlike the temporary folder: a group can share a cache
            _write(raw, sources.name, fresh)
            _place(fresh, entry)
        remove_oldest(MOST_BYTES, folder)
    except OSError as error:
        fault = f"the cache folder {folder} cannot be written ({error.strerror or error})"
        raise UserError(f"{fault}: set ZOFL_CACHE to a folder on a disk with space") from error


def open_entry(sources: Sources, cache_dir: Path | None = None) -> Raw:
    """Opens a prepared data set, its arrays mapped read-only (UserError: its entry is missing or damaged).

    Checks the files' sizes; `prepare` checks their checksums.
    """
    entry = (cache_dir or default_cache_dir()) / sources.key
    try:
        facts = _facts(entry)
        arrays = {field: _mapped(entry / f"{field}.npy", size) for field, (size, _) in facts.pop("files").items()}
        del facts["name"]
        return Raw(**arrays, **{**facts, "shape": tuple(facts["shape"])})
    except Exception as error:
        fault = f"the cached copy of {sources.name} in {entry} is missing or damaged ({error})"
        raise UserError(f"{fault}: delete that folder and run again") from error


def _forget_unfinished(folder: Path) -> None:
    """Removes folders more than a day old that killed writers left."""
    import shutil

    for left in (*folder.glob(f"{UNFINISHED}*"), *folder.glob(f"{LEAVING}*")):
        with suppress(OSError):  # another writer may be removing it
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)


def _write(raw: Raw, name: str, fresh: Path) -> None:
    """Writes an entry and syncs it to disk: a power cut never leaves half of it under its name."""
    arrays = {field: value for field, value in vars(raw).items() if isinstance(value, np.ndarray)}
    for field, values in arrays.items():
        np.save(fresh / f"{field}.npy", values, allow_pickle=False)
    own = {field: int(value) for field, value in vars(raw).items() if isinstance(value, int | np.integer)}
    paths = {field: fresh / f"{field}.npy" for field in arrays}
    files = {field: (path.stat().st_size, _checksum(path)) for field, path in paths.items()}
    facts = {**own, "shape": raw.shape, "fingerprint": raw.known, "name": name, "files": files}
    text = json.dumps(facts)
    (fresh / FACTS).write_text(json.dumps({"facts": text, "crc32": zlib.crc32(text.encode())}))
    for path in (*fresh.iterdir(), fresh):
        _sync(path)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _place(fresh: Path, entry: Path) -> None:
    """Renames the entry to its final name atomically, unless another writer was first.

    Renaming a folder never replaces a non-empty one. Mapped files are therefore never unlinked, which on a network
    file system would kill readers on other nodes.
    """
    for attempt in range(5):
        with suppress(OSError):
            os.rename(fresh, entry)
        if _is_intact(entry):
            _sync(entry.parent)
            return
        with suppress(FileNotFoundError):  # another writer has just moved the damaged one
            os.rename(entry, fresh.with_name(f"damaged-{attempt}"))
    os.rename(fresh, entry)


def _is_intact(entry: Path) -> bool:
    """True if the checksums of all files of an entry match."""
    try:
        facts = _facts(entry)
        return all(_fingerprint(entry / f"{field}.npy") == tuple(known) for field, known in facts["files"].items())
    except Exception:  # damaged facts may be anything
        return False


def _facts(entry: Path) -> dict[str, Any]:
    stored = json.loads((entry / FACTS).read_text())
    if zlib.crc32(stored["facts"].encode()) != stored["crc32"]:
        raise ValueError(f"{FACTS} has another checksum")
    return json.loads(stored["facts"])  # type: ignore[no-any-return]


def _mapped(path: Path, size: int) -> Any:
    """Array of a .npy file, mapped read-only; the map keeps a shared lock on the file."""
    with path.open("rb") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        found = os.stat(file.fileno()).st_size
        if found != size:
            raise ValueError(f"{path.name} has {found} bytes, not {size}")
        np.lib.format.read_magic(file)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)  # `_write` makes short headers
        if dtype.hasobject:
            raise ValueError(f"{path.name} holds objects")  # addresses, which a map would follow
        # the map duplicates the file descriptor, which keeps the lock; a plain view, since np.memmap indexes slowly
        order: Any = "F" if is_fortran else "C"
        return np.asarray(np.memmap(file, dtype, "r", file.tell(), shape, order))


# --- contents of the cache


class Entry(NamedTuple):
    """A data set in the cache."""

    folder: Path
    name: str  # the user's name for the data set
    size: int  # bytes
    used: float  # time of last use, in seconds since 1970


def entries(cache_dir: Path | None = None) -> list[Entry]:
    """All entries of the cache, damaged ones included, most recently used first."""
    folder, found = cache_dir or default_cache_dir(), list[Entry]()
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # another process may be removing it
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            try:
                name = str(_facts(entry)["name"])
            except Exception:  # damaged facts may be anything
                name = "(damaged, or of another version)"
            size = sum(path.stat().st_size for path in entry.iterdir())
            found.append(Entry(entry, name, size, entry.stat().st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def remove_oldest(most: int, cache_dir: Path | None = None, spared: float = JUST_USED) -> list[Entry]:
    """Removes the least recently used entries until the rest take at most `most` bytes; returns the removed ones.

    Entries that a run has mapped, or used in the last `spared` seconds, stay.
    """
    removed, known = list[Entry](), entries(cache_dir)
    total = sum(entry.size for entry in known)
    for entry in reversed(known):
        if total > most and time.time() - entry.used >= spared and _remove(entry.folder):
            removed.append(entry)
            total -= entry.size
    return removed


def _remove(entry: Path) -> bool:
    """Removes an entry; False if a run has it mapped, or if locks cannot tell."""
    import shutil

    leaving = entry.with_name(f"{LEAVING}{secrets.token_hex(8)}")
    try:
        with ExitStack() as locked:
            for path in entry.glob("*.npy"):
                fcntl.flock(locked.enter_context(path.open("r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(entry, leaving)  # atomic: nobody opens half of it
    except OSError:
        return False
    shutil.rmtree(leaving, ignore_errors=True)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    import argparse  # only the command needs it

    parser = argparse.ArgumentParser(prog="python -m zofl_mpi.data.cache", description="List or empty the cache.")
    parser.add_argument("--empty", action="store_true", help="delete the entries that no run has open")
    given = parser.parse_args(arguments)
    try:
        folder = default_cache_dir()
    except UserError as error:
        return refused(error)
    removed = remove_oldest(-1, folder, 0.0) if given.empty else []
    known = entries(folder)
    for entry in known:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(f"{entry.size / 2**20:>9,.1f} MiB  used {used}  {entry.name}  ({entry.folder.name})")
    total = f"{sum(entry.size for entry in known) / 2**30:.2f} of at most {MOST_BYTES / 2**30:.0f} GiB"
    words = f"; {len(removed)} deleted, those that runs have open stay" if given.empty else ""
    print(f"{folder}: {len(known)} data set{'s' * (len(known) != 1)}, {total}{words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
