"""Write a result, one row per round."""

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import h5py
import numpy as np
from numpy.typing import ArrayLike

from zofl_mpi.arrays import Array
from zofl_mpi.errors import UserError
from zofl_mpi.run.records import hdf5, rows
from zofl_mpi.run.records.hdf5 import Attributes, Columns, DamagedError, FileName, WriteError, set_attributes
from zofl_mpi.run.records.layout import check_result
from zofl_mpi.run.records.lock import WriterLock, lock
from zofl_mpi.run.records.output_path import beside, check_new, remove_checkpoints
from zofl_mpi.run.records.provenance import now
from zofl_mpi.run.records.result import heading
from zofl_mpi.run.records.staged import StagedFile, create_exclusively

ORIGIN = ("run", "config", "folders", "data", "kernel", "blas")
"""Attributes that a result shares with its checkpoints, to identify the run on --resume."""
FIRST_COLUMNS = {"round": ("1", "finished rounds"), "seconds": ("s", "wall time of the round, its evaluation included")}
"""{column: (unit, description)} of every result."""
EVERY = 0.25
"""Seconds between writes of buffered rows: a separate write takes 0.6 ms, longer than a fast round."""
BATCH = 1 << 16
"""Bytes of buffered rows that trigger a write; with the last row and HDF5's own data they fit into 3 * BATCH."""


@final
class _Row(NamedTuple):
    """A buffered round: the arguments of `Recorder.append`."""

    numbers: dict[str, float]
    steps: list[str]
    tables: dict[str, Array]

    def is_like(self, other: Self) -> bool:
        """True if both rows fit into one block."""
        shapes, others = ([(name, table.shape) for name, table in each.tables.items()] for each in (self, other))
        return self.steps == other.steps and shapes == others


@final
class Recorder:
    """A result file that grows by one row per round, buffered for at most EVERY seconds and BATCH bytes.

    Attributes:
        path: result file.
        rounds: R, rows written and flushed.
        steps: names of the steps so far, in file order.
        origin: the attributes in ORIGIN; `run` is a random name that continuations keep.
    """

    def __init__(self, path: Path, rounds: int, planned: int, prepare: Callable[[Any], None], *, new: bool) -> None:
        """Create or open the file and call `prepare` on it, atomically.

        UserError: another process writes it; OSError: it cannot be created, opened or written.
        """
        self.path, self.rounds, self._planned, self._columns = path, rounds, planned, dict(FIRST_COLUMNS)
        self._writer, self._failed = WriterLock(path), False
        self._waiting, self._most, self._written = list[_Row](), 1, -math.inf
        self._lock, self._late = threading.RLock(), list[WriteError]()
        self._timer: threading.Timer | None = None
        try:
            made = beside(path) if new else path
            self._staged = _staged(made, new)
            # without a chunk cache HDF5 writes only the new row; with one, whole chunks
            file = self._file = h5py.File(self._staged, "w" if new else "r+", rdcc_nbytes=0)
        except BaseException:
            self._writer.release()
            raise
        # HDF5 must release a Python file before the interpreter ends
        self._let_go = weakref.finalize(self, _let_go, file, self._staged, self._writer)
        try:
            prepare(file)
            self._commit()
            if new:  # an existing file stays intact until here
                os.replace(made, path)
        except BaseException:
            self._let_go()
            if new:
                made.unlink(missing_ok=True)
            raise
        if new and not rounds:
            remove_checkpoints(path)
        self.steps = list(hdf5.attributes_of(file["clients"])["steps"])
        self.origin = {name: value for name, value in hdf5.attributes_of(file).items() if name in ORIGIN}
        self._first = file["clients"].attrs.get("first_clients")
        self._done = h5py.h5a.open(file["rounds"].id, b"done")
        groups = ("rounds", "clients", "ranks")
        self._rows = {
            f"{group}/{name}": rows.Rows(data) for group in groups for name, data in rows.by_round(file, group)
        }

    @classmethod
    def create(
        cls, path: FileName, *, attrs: Attributes, m: int, ranks: int, rounds: int, force: bool = False, start: int = 0
    ) -> Self:
        """Start a new result.

        UserError: the file exists and `force` is not set, or its folder is missing or cannot be written; WriteError.

        Args:
            attrs: root attributes; dicts and lists are stored as JSON.
            m: clients; more than `rows.LISTED` are summed into shared columns of /clients and rows of /partition.
            rounds: planned rounds; more are possible.
            force: replace an existing file and remove its checkpoint.
            start: finished rounds whose rows are lost; NaN or 0 in this file, listed in the attribute missing_rounds.
        """
        path = Path(path)
        check_new(path, force, continues=start > 0)
        with hdf5.explaining(path, 0):
            return cls(path, start, rounds, partial(rows.lay_out, m, ranks, rounds, start, attrs), new=True)

    @classmethod
    def reopen(
        cls, path: FileName, done: int, *, m: int = 0, ranks: int = 0, rounds: int = 0, attrs: Attributes | None = None
    ) -> Self:
        """Continue a result after its first `done` rows; drop later rows and /final.

        UserError: the file is no result, has other clients, or has fewer rounds than `done`; WriteError.

        Args:
            m: clients (0: as before).
            ranks: ranks of this session (0: as before); /ranks keeps the width of the widest session, padded with 0.
            rounds: planned rounds in total; 0: no more.
            attrs: attributes of this session; in the root only `config`, `folders` and `derived_flags` are replaced.
        """

        def prepare(file: Any) -> None:
            heading(path)  # refuses another file
            rows.cut_back(path, m, ranks, done, attrs or {}, file)

        with hdf5.explaining(Path(path), done):
            return cls(Path(path), done, rounds or max(done, 1), prepare, new=False)

    def append(self, row: Mapping[str, float], *, steps: Sequence[str] = (), **tables: ArrayLike) -> None:
        """Append a round; write all buffered rows if the last write was EVERY seconds ago.

        WriteError: the file cannot be written; rows written earlier are safe.

        Args:
            row: {column: value} for /rounds; a new column is NaN in earlier rounds.
            steps: names of this round's steps, the tables' first axis; a new step is 0 in earlier rounds.
            tables: (steps, m) for `rows.CLIENTS`, (steps, ranks) for `rows.RANKS`; 0 if left out.
        """
        given = {name: np.asarray(table) for name, table in tables.items()}
        given |= {name: self._summed(table, axis=-1) for name, table in given.items() if name in rows.CLIENTS}
        new = _Row(dict(row), list(steps), given)
        with self._lock:
            if self._waiting and not new.is_like(self._waiting[0]):
                self.flush()
            self._waiting.append(new)
            if len(self._waiting) >= self._most or time.monotonic() - self._written >= EVERY:
                self.flush()
            elif not self._timer:  # the next round may take hours
                self._timer = threading.Timer(EVERY, self._flush_late)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write the buffered rows to the system, which keeps them when the process ends."""
        if self._late or (self._waiting and not self._failed):
            with self._writing():
                pass

    def _flush_late(self) -> None:
        """Write the buffered rows after a delay; the next write reports failures."""
        self._timer = None
        try:
            self.flush()
        except WriteError as error:
            self._late.append(error)

    def _put_waiting(self) -> None:
        """Pass the buffered rows, all with equal steps and tables, to HDF5."""
        waiting = self._waiting
        if new := [name for name in waiting[0].steps if name not in self.steps]:
            self._name_steps(new)
        placements = [self.steps.index(step) for step in waiting[0].steps]
        names = dict.fromkeys(name for row in waiting for name in row.numbers)
        for name in names:
            if f"rounds/{name}" not in self._rows:
                data = rows.growing(self._file, f"rounds/{name}", (self.rounds,), np.float64, self._planned, np.nan)
                unit, description = self._columns.get(name, ("", ""))
                set_attributes(data, {"unit": unit, "description": description})
                self._rows[f"rounds/{name}"] = rows.Rows(data)
        for data in self._rows.values():
            data.grow(self.rounds + len(waiting))
        for name in names:
            column = np.array([row.numbers.get(name, np.nan) for row in waiting], np.float64)
            self._rows[f"rounds/{name}"].put(self.rounds, column)
        for name in waiting[0].tables:
            tables = np.stack([row.tables[name] for row in waiting])
            data = self._rows[f"{'clients' if name in rows.CLIENTS else 'ranks'}/{name}"]
            block = np.zeros((len(waiting), *data.row), data.dtype)
            block[:, placements, : tables.shape[-1]] = tables  # an earlier session may have had more ranks
            data.put(self.rounds, block)
        self._done.write(np.array(self.rounds + len(waiting)))
        self._most = -(-BATCH // sum(data.dtype.itemsize * math.prod(data.row) for data in self._rows.values()))

    def begins(self, seconds: float) -> None:
        """Write the seconds from the start of the process to this session's first round."""
        with self._writing():
            known = hdf5.attributes_of(self._file)
            sessions = json.loads(known["sessions"])
            sessions[-1]["seconds_start"] = seconds
            first = {} if "seconds_start" in known else {"seconds_start": seconds}
            set_attributes(self._file, {**first, "sessions": sessions})

    def survived(self, losses: Sequence[rows.Loss]) -> None:
        """Add survived rank losses to the attributes `lost` (JSON) and `repeated_rounds`."""
        with self._writing():
            before = hdf5.attributes_of(self._file).get("lost", "[]")
            lost = [*json.loads(before), *(loss._asdict() for loss in losses)]
            repeated = sum(bool(loss["repeated"]) for loss in lost)
            set_attributes(self._file, {"lost": lost[-rows.LOSSES :], "repeated_rounds": repeated})

    def describe(self, columns: Columns) -> None:
        """Set (unit, description) of columns before `append`, and of fields of the last state before `finish`."""
        self._columns |= columns

    def partition(self, counts: Array) -> None:
        """Write /partition/counts: (m, classes) label counts of the clients, summed like the client columns."""
        with self._writing():
            if "partition" not in self._file:
                self._file["partition/counts"] = self._summed(np.asarray(counts), axis=0)

    def placements(self, placements: Sequence[Mapping[str, int | str]]) -> None:
        """Add this session's rank placements to /ranks/table."""
        with self._writing():
            rows.add_placements(self._file, self.rounds, placements)

    def sync(self) -> None:
        """Force the rows onto the disk, so that a power cut does not lose them; takes milliseconds, for checkpoints."""
        if not self._failed:
            with self._writing():
                os.fsync(self._staged.number)

    def verify(self) -> None:
        """Check the file's layout on the disk (DamagedError: another program has changed it)."""
        try:
            hdf5.read_file(self.path, lambda file: check_result(file, self.path))
        except UserError as error:
            self._failed = True
            raise DamagedError(f"{error}: it was changed while this run wrote it") from error

    def finish(self, state: Mapping[str, Any], status: str = "done", **attrs: Any) -> None:
        """Write the last state to /final/<field>, with meanings from `describe`; close the file with this status.

        DamagedError: as in `verify`.
        """
        with self._writing():
            for name, value in state.items():
                self._file[f"final/{name}"] = hdf5.text(value) if isinstance(value, str) else np.asarray(value)
                set_attributes(self._file[f"final/{name}"], {"meaning": self._columns.get(name, ("", ""))[1]})
        self.close(status, **attrs)
        self.verify()

    def close(self, status: str = "interrupted", **attrs: Any) -> None:
        """Close the file with this status; after a failed write, leave it as it is on the disk."""
        if not self._file or self._failed:
            self.abandon()
            return
        try:
            with self._writing():
                set_attributes(self._file, {"ended": now(), **attrs, "status": status})
            with self._writing():
                self._file.close()
                self._commit()
                os.fsync(self._staged.number)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as the last commit left it."""
        self._failed = True
        if timer := self._timer:
            timer.cancel()
            timer.join()
        self._let_go()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Context that commits the buffered rows and all writes in its block, or none."""
        with self._lock:
            if self._late:  # raised in the timer's thread
                raise self._late[0]
            try:
                with hdf5.explaining(self.path, self.rounds):
                    self._check()
                    if self._waiting:
                        self._put_waiting()
                    yield
                    self._commit()
                self.rounds += len(self._waiting)
                self._waiting, self._written = [], time.monotonic()
            except WriteError:
                self._failed = True
                raise

    def _check(self) -> None:
        """Refuse to write to a file that was deleted, replaced or taken over."""
        if self._writer.is_lost():
            raise WriteError(f"{self.path}: another process has removed {self._writer.path} and is writing it now")
        with suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == os.fstat(self._staged.number).st_ino:
                return
        raise WriteError(f"{self.path} was deleted or replaced by another run: the rounds of this run are lost")

    def _commit(self) -> None:
        """Write all changes to the disk, or none; OSError: it failed."""
        if self._file:
            self._file.flush()
        self._staged.commit()

    def _name_steps(self, new: Sequence[str]) -> None:
        self.steps += new
        for group, names in (("clients", rows.CLIENTS), ("ranks", rows.RANKS)):
            self._file[group].attrs["steps"] = hdf5.texts(self.steps)
            for name in names:
                self._rows[f"{group}/{name}"].widen(len(self.steps))

    def _summed(self, table: Array, axis: int) -> Array:
        """Sum a per-client table into the file's client columns."""
        return table if self._first is None else np.add.reduceat(table, self._first, axis=axis)


def _staged(path: Path, new: bool) -> StagedFile:
    number = create_exclusively(path) if new else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        lock(number)
        return StagedFile(number, write=True, room=3 * BATCH)
    except OSError as error:
        os.close(number)
        if not isinstance(error, BlockingIOError):
            raise
        raise UserError(f"{path} is being written by another process: let it end, or choose another --out") from error


def _let_go(file: Any, staged: StagedFile, writer: WriterLock) -> None:
    with suppress(*hdf5.FAILURES):
        file.close()
    staged.close()
    writer.release()
