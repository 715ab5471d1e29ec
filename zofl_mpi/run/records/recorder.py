"""Writing a result: a row a round."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, final

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run.records.checkpoint import checkpoint_path
from zofl_mpi.run.records.hdf5 import FAILURES, SCHEMA, Columns, WriteError, explaining, set_attributes
from zofl_mpi.run.records.provenance import now
from zofl_mpi.run.records.result import load
from zofl_mpi.run.records.rows import CLIENTS, RANKS, Rows, add_places, by_round, growing, lay_out, truncate

Array = NDArray[Any]
ATTRIBUTE_BYTES = 60_000  # HDF5 allows 64 kB
LOSSES = 500
"""So many losses are named."""


class Loss(NamedTuple):
    """Client ranks that were lost, and survived: in which round, and whether it was begun again."""

    round: int
    ranks: tuple[int, ...]
    repeated: bool


@final
class Recorder:
    """A result file that grows by one row a round. The rows appended so far survive the death of the process.

    Attributes:
        path: of the file.
        rounds: R, rows written and flushed.
        run: random name of the run, kept by its continuations, and in its checkpoints too.
        steps: names of the steps seen so far, in the order of the file's axis.
    """

    def __init__(self, file: Any, path: Path, rounds: int, planned: int, columns: Columns) -> None:
        self.path, self.rounds, self._file, self._planned, self._columns = path, rounds, file, planned, dict(columns)
        self.steps = [str(name) for name in file["clients"].attrs["steps"]]
        self.run = str(file.attrs["run"])
        self._first = file["clients"].attrs.get("first_clients")
        self._done = h5py.h5a.open(file["rounds"].id, b"done")
        self._failed = False
        self._rows = {
            f"{g}/{name}": Rows(data) for g in ("rounds", "clients", "ranks") for name, data in by_round(file, g)
        }

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        attrs: Mapping[str, Any],
        m: int,
        ranks: int,
        rounds: int,
        force: bool = False,
        columns: Columns | None = None,
    ) -> Recorder:
        """Starts a new result.

        Args:
            attrs: of the root; dicts and lists are stored as JSON.
            m: clients. More than `rows.LISTED` share columns of /clients and rows of /partition: their sums.
            ranks: length of the last axis of /ranks.
            rounds: planned number; more are possible.
            force: replace an existing file, and remove its checkpoint.
            columns: name -> (unit, description) of the columns that `append` may be given.

        Raises:
            UserError: the file exists and `force` is not set, or its folder is missing or cannot be written.
            WriteError: the file cannot be written.
        """
        place = _new_place(Path(path), force)
        with explaining(place, 0):
            file = _begun(place)
            try:
                lay_out(file, m, ranks, rounds)
                set_attributes(file.attrs, {"run": secrets.token_hex(8), **attrs})
                set_attributes(file.attrs, {"schema": SCHEMA, "status": "running", "ranks": ranks})
                set_attributes(file.attrs, {"sessions": [_session(0, ranks, attrs)]})
                file.flush()
            except BaseException:
                _abandon(file)
                place.unlink(missing_ok=True)
                raise
        return cls(file, place, 0, rounds, columns or {})

    @classmethod
    def reopen(
        cls,
        path: str | os.PathLike[str],
        rounds_done: int,
        *,
        ranks: int | None = None,
        rounds: int | None = None,
        attrs: Mapping[str, Any] | None = None,
        columns: Columns | None = None,
    ) -> Recorder:
        """Continues a result: every row after the first `rounds_done` is dropped, and /final too.

        Args:
            ranks: of this session; /ranks is as wide as the widest of all sessions, 0 where a rank was not there.
            rounds: planned in total.
            attrs: of this session, for `sessions`; of the root only `config` is replaced.

        Raises:
            UserError: the file is no result, or has fewer rounds than `rounds_done`.
            WriteError: the file cannot be written.
        """
        run = load(path)
        if run.length < rounds_done:
            raise UserError(f"{path} holds {run.length} rounds, fewer than the {rounds_done} to continue from")
        with explaining(Path(path), rounds_done):
            file = h5py.File(path, "r+", locking="best-effort")
            truncate(file, rounds_done, ranks or int(run.attrs["ranks"]))
            session = _session(rounds_done, ranks or int(run.attrs["ranks"]), attrs or {})
            sessions = [*json.loads(run.attrs["sessions"]), session]
            while len(json.dumps(sessions)) > ATTRIBUTE_BYTES:
                del sessions[1]
            config = {"config": attrs["config"]} if attrs and "config" in attrs else {}
            set_attributes(file.attrs, {**config, "status": "running", "ranks": session["ranks"], "sessions": sessions})
            file.flush()
        return cls(file, Path(path), rounds_done, rounds or max(rounds_done, 1), columns or {})

    def append(
        self,
        row: Mapping[str, float],
        *,
        steps: Sequence[str] = (),
        bytes_down: ArrayLike = 0,
        bytes_up: ArrayLike = 0,
        messages: ArrayLike = 0,
        seconds_compute: ArrayLike = 0.0,
        seconds_wait: ArrayLike = 0.0,
        seconds_comm: ArrayLike = 0.0,
        peak_bytes: ArrayLike = 0,
        seconds_staging: ArrayLike = 0.0,
    ) -> None:
        """Appends a round, on its way to the disk when this returns: the death of the process cannot take it back.

        Args:
            row: name -> number for /rounds; a name may come later than others (NaN before).
            steps: names of the steps of this round, the first axis of what follows; a name may come later (0 before).
            bytes_down, bytes_up, messages: (steps, m).
            seconds_compute, seconds_wait, seconds_comm, peak_bytes, seconds_staging: (steps, ranks).

        Raises:
            WriteError: the file cannot be written; the earlier rounds are safe in it.
        """
        clients = {"bytes_down": bytes_down, "bytes_up": bytes_up, "messages": messages}
        seconds = {
            "seconds_compute": seconds_compute,
            "seconds_wait": seconds_wait,
            "seconds_comm": seconds_comm,
            "seconds_staging": seconds_staging,
        }
        with self._writing():
            self._name_steps(steps)
            for name in row:
                self._add_column(name)
            for data in self._rows.values():
                data.grow(self.rounds + 1)
            for name, number in row.items():
                self._rows[f"rounds/{name}"].put_last(np.array(number, np.float64))
            self._put("clients", clients, steps)
            self._put("ranks", {**seconds, "peak_bytes": peak_bytes}, steps)
            self._file.flush()
            self._done.write(np.array(self.rounds + 1))  # after the row: a row that is written in part does not count
            self._file.flush()
        self.rounds += 1

    def begins(self, seconds: float) -> None:
        """Writes what came before this session's first round: seconds since its process began."""
        with self._writing():
            sessions = json.loads(self._file.attrs["sessions"])
            sessions[-1]["seconds_start"] = seconds
            first = {} if "seconds_start" in self._file.attrs else {"seconds_start": seconds}
            set_attributes(self._file.attrs, {**first, "sessions": sessions})
            self._file.flush()

    def survived(self, losses: Sequence[Loss]) -> None:
        """Adds to attributes `lost` (JSON) and `repeated_rounds`: ranks that were lost while the others went on."""
        with self._writing():
            lost = [*json.loads(self._file.attrs.get("lost", "[]")), *(loss._asdict() for loss in losses)]
            repeated = sum(bool(loss["repeated"]) for loss in lost)
            set_attributes(self._file.attrs, {"lost": lost[-LOSSES:], "repeated_rounds": repeated})
            self._file.flush()

    def describe(self, columns: Columns) -> None:
        """Sets unit and description of columns that `append` will be given, and of the fields of the last state."""
        self._columns |= columns

    def partition(self, counts: Array) -> None:
        """Writes /partition/counts: (m, classes) realised label counts of the clients; summed where columns are."""
        with self._writing():
            if "partition" not in self._file:
                self._file["partition/counts"] = self._summed(np.asarray(counts), axis=0)
                self._file.flush()

    def places(self, places: Sequence[Mapping[str, int | str]]) -> None:
        """Adds this session's rows to /ranks/table: where each rank computes."""
        with self._writing():
            add_places(self._file, self.rounds, places)
            self._file.flush()

    def sync(self) -> None:
        """Forces the rows onto the disk, so that they survive a power cut; for checkpoints: it costs milliseconds."""
        with self._writing():
            self._file.flush()
            os.fsync(self._file.id.get_vfd_handle())

    def finish(self, state: Mapping[str, Any], **attrs: Any) -> None:
        """Writes /final/<field> of the last state, attribute `meaning` as given to `describe`; closes it as "done"."""
        with self._writing():
            for name, value in state.items():
                self._file[f"final/{name}"] = value if isinstance(value, str) else np.asarray(value)
                set_attributes(self._file[f"final/{name}"].attrs, {"meaning": self._columns.get(name, ("", ""))[1]})
        self.close("done", **attrs)

    def close(self, status: str = "interrupted", **attrs: Any) -> None:
        """Ends the file with that status. After a failed write it only lets go of the file, as it is on the disk."""
        if not self._file:
            return
        if self._failed:
            self.abandon()
            return
        with self._writing():
            set_attributes(self._file.attrs, {"ended": now(), **attrs, "status": status})
            self.sync()
            self._file.close()

    def abandon(self) -> None:
        """Lets go of the file as the last flush left it: where the disk is full, even a new status could damage it."""
        self._failed = True
        if self._file:
            _abandon(self._file)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with explaining(self.path, self.rounds):
                self._check_place()
                yield
        except WriteError:
            self._failed = True
            raise

    def _check_place(self) -> None:
        """Refuses to write to a file that was deleted or replaced: it would be lost."""
        try:
            there = os.stat(self.path).st_ino
        except FileNotFoundError:
            there = -1
        if there != os.fstat(self._file.id.get_vfd_handle()).st_ino:
            raise WriteError(f"{self.path} was deleted or replaced by another run: this run's rounds went with it")

    def _name_steps(self, steps: Sequence[str]) -> None:
        new = [name for name in steps if name not in self.steps]
        if not new:
            return
        self.steps += new
        for group, names in (("clients", CLIENTS), ("ranks", RANKS)):
            self._file[group].attrs["steps"] = self.steps
            for name in names:
                self._rows[f"{group}/{name}"].widen(len(self.steps))

    def _add_column(self, name: str) -> None:
        if f"rounds/{name}" in self._rows:
            return
        data = growing(self._file, f"rounds/{name}", (self.rounds,), np.float64, self._planned, np.nan)
        unit, description = self._columns.get(name, ("", ""))
        set_attributes(data.attrs, {"unit": unit, "description": description})
        self._rows[f"rounds/{name}"] = Rows(data)

    def _put(self, group: str, values: Mapping[str, ArrayLike], steps: Sequence[str]) -> None:
        places = [self.steps.index(name) for name in steps]
        for name, value in values.items():
            data = self._rows[f"{group}/{name}"]
            block = np.zeros(data.row, data.dtype)
            given = self._summed(np.asarray(value), axis=-1) if group == "clients" else np.asarray(value)
            width = given.shape[-1] if given.ndim else block.shape[1]  # a session may have fewer ranks than one before
            block[places, :width] = given
            data.put_last(block)

    def _summed(self, table: Array, axis: int) -> Array:
        """A table with an entry for each client as the file keeps it."""
        return table if self._first is None or not table.ndim else np.add.reduceat(table, self._first, axis=axis)


def _new_place(path: Path, force: bool) -> Path:
    """`path`, if a result may be made there."""
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file in it")
    if path.exists() and not force:
        raise UserError(f"--out {path} exists: choose another name or add --force")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--out {path}: no permission to write there; choose another folder")
    # A run that still writes the old file goes on in what is then a file without a name: the two do not mix.
    path.unlink(missing_ok=True)
    checkpoint_path(path).unlink(missing_ok=True)  # a resume must not meet the one of the run that is replaced
    return path


def _session(start: int, ranks: int, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """A session of a run: what its later rounds were computed with."""
    known = {name: attrs[name] for name in ("command", "git_commit", "git_dirty", "mpi", "kernel") if name in attrs}
    if "blas" in attrs:
        known["blas"] = sorted(set(attrs["blas"]))
    return {"from_round": start, "ranks": ranks, "started": now(), **known}


def _begun(path: Path) -> Any:
    """Makes a new HDF5 file, or none at all."""
    try:
        return h5py.File(path, "x", locking="best-effort")
    except FileExistsError:
        raise
    except FAILURES:
        path.unlink(missing_ok=True)
        raise


def _abandon(file: Any) -> None:
    """Closes a file whose last write failed, and leave it on the disk as it is.

    Closing writes what is still in memory; on a full disk HDF5 (2.0) fails in that, and then crashes the process with a
    segmentation fault. So let it write elsewhere.
    """
    with suppress(*FAILURES, AttributeError):  # memfd_create is Linux's; elsewhere the file stays open
        elsewhere = os.memfd_create("abandoned")
        os.dup2(elsewhere, file.id.get_vfd_handle())
        os.close(elsewhere)
        file.close()
