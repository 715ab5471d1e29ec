"""One copy of a data set per node: plain .npy files that all ranks of the node map read-only.

Every rank asks for the sources (a rank that lacks a file says so), one rank of each node prepares, all wait for it,
every rank opens. Entries may be deleted at any time between runs.
"""

import hashlib
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zofl_mpi.data import Raw
from zofl_mpi.errors import UserError

FORMAT = 1  # of the entries and of what the readers return; a new number makes all entries anew
UNFINISHED = ".making-"
DAY = 24 * 3600.0
CHECKED = ".checked"  # folder of notes: the checksums of files that have not changed since
SETTLED = 1_000_000_000  # nanoseconds after which a further change of a file gets another change time for certain


class Sources(NamedTuple):
    """Origin of a data set."""

    name: str  # as the user calls it
    key: str  # name of its cache entry, another one for files of other content or other parameters
    read: Callable[[], Raw]  # reads or makes the data set (seconds); raises UserError


def user_folder(variable: str, part: str) -> Path:
    """The folder that the environment's `variable` names, else `part` of the user's cache folder."""
    if named := os.environ.get(variable):
        return Path(named)
    import platformdirs  # as pooch finds it, which takes 0.1 s to import, times every rank of a node

    return Path(platformdirs.user_cache_dir("zofl_mpi")) / part


def default_cache_dir() -> Path:
    """``$ZOFL_CACHE``, else a folder in the user's cache."""
    return user_folder("ZOFL_CACHE", "arrays")


def identify(
    name: str, read: Callable[[], Raw], files: Sequence[Path] = (), parameters: Mapping[str, float] | None = None
) -> Sources:
    """Sources with a key made of the files' contents or of parameters (UserError: a file is not there)."""
    facts = [FORMAT, name, [_fingerprint(path) for path in files], dict(parameters or {})]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return Sources(name, f"{re.sub('[^a-z0-9]+', '-', Path(name).stem.lower())[:100]}-{digest[:16]}", read)


def _fingerprint(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file, computed anew when its change time has moved."""
    try:
        status, true_path = path.stat(), str(path.resolve())
        facts = [true_path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        note = default_cache_dir() / CHECKED / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
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
    """Writes a small file in one step, where the cache can be written."""
    fresh = note.with_name(f"{note.name}.{secrets.token_hex(8)}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(text)
            os.replace(fresh, note)
        finally:  # nothing is left where the disk is full
            fresh.unlink(missing_ok=True)


def prepare(sources: Sources, cache_dir: Path | None = None) -> None:
    """Makes the cache entry unless an intact one exists (UserError: it cannot); several ranks may try at once."""
    folder = cache_dir or default_cache_dir()
    if _is_intact(folder / sources.key):
        return
    import tempfile  # this and shutil: one rank of a node writes, and only once

    raw = sources.read()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _forget_unfinished(folder)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder, ignore_cleanup_errors=True) as making:
            fresh = Path(making) / sources.key
            fresh.mkdir()  # unlike the temporary folder it has the user's umask: a group can share a cache
            _write(raw, fresh)
            _place(fresh, folder / sources.key)
    except OSError as error:
        fault = f"the cache folder {folder} cannot be written ({error.strerror or error})"
        raise UserError(f"{fault}: set ZOFL_CACHE to a folder on a disk with space") from error


def open(sources: Sources, cache_dir: Path | None = None) -> Raw:
    """The prepared data set, its arrays mapped read-only (UserError: its entry is missing or damaged)."""
    entry = (cache_dir or default_cache_dir()) / sources.key
    try:
        return _map(entry)
    except Exception as error:
        fault = f"the cached copy of {sources.name} in {entry} is missing or damaged ({error})"
        raise UserError(f"{fault}: delete that folder and run again") from error


def _forget_unfinished(folder: Path) -> None:
    """Removes the folders of killed writers, older than a day."""
    import shutil

    for left in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):  # another writer may be removing it
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)


def _write(raw: Raw, fresh: Path) -> None:
    arrays = {name: value for name, value in vars(raw).items() if isinstance(value, np.ndarray)}
    for name, values in arrays.items():
        np.save(fresh / f"{name}.npy", values, allow_pickle=False)
    facts = {name: int(value) for name, value in vars(raw).items() if isinstance(value, int | np.integer)}
    sizes = {name: (fresh / f"{name}.npy").stat().st_size for name in arrays}
    (fresh / "facts.json").write_text(json.dumps({**facts, "bytes": sizes, "shape": raw.shape}))


def _place(fresh: Path, entry: Path) -> None:
    """Puts the entry under its name in one step, unless another writer was first.

    A folder's rename refuses to replace a full folder: files that others have mapped are never unlinked, which on a
    network file system would kill their readers on other nodes.
    """
    for attempt in range(5):
        with suppress(OSError):
            os.rename(fresh, entry)
        if _is_intact(entry):
            return
        with suppress(FileNotFoundError):  # another writer has just moved the damaged one
            os.rename(entry, fresh.with_name(f"damaged-{attempt}"))
    os.rename(fresh, entry)


def _is_intact(entry: Path) -> bool:
    try:
        _map(entry)
    except Exception:  # a damaged header makes numpy raise nearly anything
        return False
    return True


def _map(entry: Path) -> Raw:
    facts = json.loads((entry / "facts.json").read_text())
    arrays: dict[str, Any] = {}
    for name, size in facts.pop("bytes").items():
        path = entry / f"{name}.npy"
        if path.stat().st_size != size:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {size}")
        # a plain view: np.memmap is slow to index
        arrays[name] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    shape = tuple(facts.pop("shape"))
    return Raw(**arrays, **facts, shape=shape)
