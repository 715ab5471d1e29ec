"""File with atomic commits: HDF5's writes are staged in memory until `commit`.

HDF5 must never see a failed write: it could not close the file, and would end in a segmentation fault.
A write beyond the committed end of the file goes to the disk at once, since nothing refers to it yet. A write before
that end is staged; `commit` first copies all staged writes to a journal behind the end of the file:

    the file as of the last commit | free | pieces: (offset, length, bytes) ... | MAGIC, length, end, CRC-32

If the process is killed while it copies the pieces to their places, `StagedFile` replays the journal. HDF5 ignores
bytes behind the end. The journal keeps its space until the file is closed, hence later commits need no new space.
"""

import errno
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import final

MAGIC = b"zofl-jrn"
PIECE_HEADER, TRAILER = struct.Struct("<QQ"), struct.Struct("<8sQQI")
JOURNAL_ALIGNMENT = 4096
"""Bytes; the journal's space is a multiple, so that slightly longer commits fit, too."""
Writes = list[tuple[int, bytes]]


@final
class StagedFile:
    """File object for h5py with staged writes; see the module's docstring.

    Args:
        number: file descriptor.
        room: bytes reserved for the journal at the first commit, for longer commits on a full disk.
    """

    def __init__(self, number: int, *, write: bool, room: int = 0) -> None:
        self.number, self._room = number, room
        self._size = os.fstat(number).st_size
        self._waiting, self._end = journal(number, self._size)
        self._at, self._committed = 0, self._end
        self._failure: OSError | None = None
        self._halfway = False
        if write:
            self._apply()

    def seek(self, offset: int, origin: int = os.SEEK_SET) -> int:
        self._at = offset if origin == os.SEEK_SET else self._end + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, block: memoryview) -> int:
        """Read the content as of the next commit; zeros beyond its end."""
        start, view = self._at, memoryview(block).cast("B")
        self._at += len(view)
        stored = _read_all(self.number, view, start)
        view[stored:] = bytes(len(view) - stored)
        for at, data in self._waiting:
            low, high = max(at, start), min(at + len(data), self._at)
            if low < high:
                view[low - start : high - start] = data[low - at : high - at]
        return len(view)

    def read(self, count: int) -> bytes:
        block = bytearray(count)
        self.readinto(memoryview(block))
        return bytes(block)

    def write(self, block: memoryview) -> int:
        """Stage a write; never fails: `commit` reports errors."""
        view = memoryview(block).cast("B")
        start, self._at = self._at, self._at + len(view)
        self._end = max(self._end, self._at)
        before = len(view) if self._failure else min(max(self._committed - start, 0), len(view))
        if before:
            self._waiting.append((start, bytes(view[:before])))
        if before < len(view):
            try:
                write_all(self.number, view[before:], start + before)
            except OSError as error:
                self._failure = error
                self._waiting.append((start + before, bytes(view[before:])))
        return len(view)

    def truncate(self, size: int) -> None:
        """Set the end of the file, for the next commit."""
        self._end = size

    def flush(self) -> None:
        """Do nothing: `commit` writes."""

    def commit(self) -> None:
        """Write all staged writes to the file; atomic for readers that use `StagedFile`.

        OSError: the file is as of the last commit, or (an error of the device) its journal completes it.
        """
        if self._failure:
            raise self._failure
        if not self._waiting and self._end == self._committed:
            return
        body = b"".join(part for at, data in self._waiting for part in (PIECE_HEADER.pack(at, len(data)), data))
        block = body + TRAILER.pack(MAGIC, len(body), self._end, _checksum(body, self._end))
        size = max(self._size, -(-(self._end + max(len(block), self._room)) // JOURNAL_ALIGNMENT) * JOURNAL_ALIGNMENT)
        try:
            if size > self._size or self._end > self._committed:
                _allocate(self.number, self._committed, size - self._committed)
            write_all(self.number, block, size - len(block))
            self._size = size
            self._apply()
        except OSError as error:
            self._failure = error
            raise
        self._committed = self._end

    def close(self) -> None:
        """Close the file as of the last commit; remove the journal unless a reader needs it."""
        if not self._halfway:
            with suppress(OSError):
                os.ftruncate(self.number, self._committed)
        os.close(self.number)

    def _apply(self) -> None:
        self._halfway = True
        for at, data in self._waiting:
            write_all(self.number, data, at)
        self._waiting.clear()
        self._halfway = False


def journal(number: int, size: int) -> tuple[Writes, int]:
    """Pieces of a file's journal and the file's end without it; no pieces and `size` if it has no journal."""
    trailer = os.pread(number, TRAILER.size, max(size - TRAILER.size, 0))
    if len(trailer) < TRAILER.size or not trailer.startswith(MAGIC):
        return [], size
    _, length, end, checksum = TRAILER.unpack(trailer)
    start = size - TRAILER.size - length
    if not 0 <= end <= start:
        return [], size
    body = os.pread(number, length, start)
    if len(body) < length or _checksum(body, end) != checksum:
        return [], size
    pieces, at = [], 0
    while at < length:
        offset, count = PIECE_HEADER.unpack_from(body, at)
        pieces.append((offset, body[at + PIECE_HEADER.size : at + PIECE_HEADER.size + count]))
        at += PIECE_HEADER.size + count
    return pieces, end


def _checksum(body: bytes, end: int) -> int:
    return zlib.crc32(body, zlib.crc32(PIECE_HEADER.pack(len(body), end)))


def create_exclusively(path: Path) -> int:
    """Create and open a new file; follow no link and open no existing file."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_all(number: int, block: bytes | memoryview, at: int) -> None:
    """Write all bytes at an offset, in several system calls if necessary: one writes at most 2 GiB."""
    view = memoryview(block)
    while view:
        written = os.pwrite(number, view, at)
        view, at = view[written:], at + written


def _read_all(number: int, view: memoryview, at: int) -> int:
    """Fill a buffer from an offset on; return the number of bytes read."""
    done = 0
    while done < len(view) and (count := os.preadv(number, [view[done:]], at + done)):
        done += count
    return done


def _allocate(number: int, start: int, count: int) -> None:
    """Allocate a range in the file system: later writes there cannot fail for lack of space."""
    try:
        os.posix_fallocate(number, start, count)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
