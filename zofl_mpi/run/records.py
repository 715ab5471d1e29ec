"""Results and checkpoints in HDF5: written by rank 0 only, readable while they grow. The only file that imports h5py.

/                attrs: schema, command, config (JSON), seed, git_commit, ..., status = running | done | interrupted
/rounds/<name>   (R,)     NaN in rounds without the number; attrs unit, description; /rounds has attr done = R
/clients/bytes_down, bytes_up, messages   (R, steps, m)  attrs on /clients and /ranks: steps, the names of the steps
/ranks/seconds_compute, seconds_wait, seconds_comm, peak_bytes   (R, steps, ranks)
/partition/counts  (m, classes)          /final/<field>  of the last state
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run.ledger import Overlap, overlap
from zofl_mpi.run.provenance import now
from zofl_mpi.run.provenance import provenance as provenance

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
Columns = Mapping[str, tuple[str, str]]
T = TypeVar("T")

SCHEMA = 1
CLIENTS = {"bytes_down": "bytes", "bytes_up": "bytes", "messages": "1"}
RANKS = {"seconds_compute": "s", "seconds_wait": "s", "seconds_comm": "s", "peak_bytes": "bytes"}
CHUNK_BYTES = 131_072
ATTRIBUTE_BYTES = 60_000  # HDF5 allows 64 kB
# What h5py raises for a file that is full, torn or damaged: it depends on the call that meets it.
FAILURES = (OSError, RuntimeError, KeyError, ValueError)


class WriteError(UserError):
    """A result or checkpoint could not be written; says which, why, and what is safe."""


# --- writing


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
        self.path, self.rounds, self._file, self._planned, self._columns = path, rounds, file, planned, columns
        self.steps = [str(name) for name in file["clients"].attrs["steps"]]
        self.run = str(file.attrs["run"])
        self._done = h5py.h5a.open(file["rounds"].id, b"done")
        self._failed = False
        self._rows = {
            f"{g}/{name}": _Rows(data) for g in ("rounds", "clients", "ranks") for name, data in file[g].items()
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
        """Start a new result.

        Args:
            attrs: of the root; dicts and lists are stored as JSON.
            m, ranks: lengths of the last axes of /clients and /ranks.
            rounds: planned number; more are possible.
            force: replace an existing file, and remove its checkpoint.
            columns: name -> (unit, description) of the columns that `append` may be given.

        Raises:
            UserError: the file exists and `force` is not set, or its folder is missing or cannot be written.
            WriteError: the file cannot be written.
        """
        place = _new_place(Path(path), force)
        with _told(place, 0):
            file = _begun(place)
            try:
                _lay_out(file, m, ranks, rounds)
                _set(file.attrs, {"run": secrets.token_hex(8), **attrs})
                _set(file.attrs, {"schema": SCHEMA, "status": "running", "ranks": ranks})
                _set(file.attrs, {"sessions": [_session(0, ranks, attrs)]})
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
        """Continue a result: every row after the first `rounds_done` is dropped, and /final too.

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
        with _told(Path(path), rounds_done):
            file = h5py.File(path, "r+", locking="best-effort")
            _truncate(file, rounds_done, ranks or int(run.attrs["ranks"]))
            session = _session(rounds_done, ranks or int(run.attrs["ranks"]), attrs or {})
            sessions = [*json.loads(run.attrs["sessions"]), session]
            while len(json.dumps(sessions)) > ATTRIBUTE_BYTES:
                del sessions[1]
            config = {"config": attrs["config"]} if attrs and "config" in attrs else {}
            _set(file.attrs, {**config, "status": "running", "ranks": session["ranks"], "sessions": sessions})
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
    ) -> None:
        """One more round, on its way to the disk when this returns: the death of the process cannot take it back.

        Args:
            row: name -> number for /rounds; a name may come later than others (NaN before).
            steps: names of the steps of this round, the first axis of what follows; a name may come later (0 before).
            bytes_down, bytes_up, messages: (steps, m).
            seconds_compute, seconds_wait, seconds_comm, peak_bytes: (steps, ranks).

        Raises:
            WriteError: the file cannot be written; the earlier rounds are safe in it.
        """
        clients = {"bytes_down": bytes_down, "bytes_up": bytes_up, "messages": messages}
        seconds = {"seconds_compute": seconds_compute, "seconds_wait": seconds_wait, "seconds_comm": seconds_comm}
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

    def partition(self, counts: Array) -> None:
        """/partition/counts: (m, classes) realised label counts of the clients."""
        with self._writing():
            if "partition" not in self._file:
                self._file["partition/counts"] = np.asarray(counts)
                self._file.flush()

    def sync(self) -> None:
        """Force the rows onto the disk, so that they survive a power cut; for checkpoints: it costs milliseconds."""
        with self._writing():
            self._file.flush()
            os.fsync(self._file.id.get_vfd_handle())

    def finish(self, state: Mapping[str, Any], meanings: Mapping[str, str] | None = None, **attrs: Any) -> None:
        """/final/<field> for each field of the last state, attr `meaning` from `meanings`; closes it as "done"."""
        with self._writing():
            for name, value in state.items():
                self._file[f"final/{name}"] = value if isinstance(value, str) else np.asarray(value)
                _set(self._file[f"final/{name}"].attrs, {"meaning": (meanings or {}).get(name, "")})
        self.close("done", **attrs)

    def close(self, status: str = "interrupted", **attrs: Any) -> None:
        """End the file with that status. After a failed write it only lets go of the file, as it is on the disk."""
        if not self._file:
            return
        if self._failed:
            self.abandon()
            return
        with self._writing():
            _set(self._file.attrs, {"ended": now(), **attrs, "status": status})
            self.sync()
            self._file.close()

    def abandon(self) -> None:
        """Let go of the file as the last flush left it: where the disk is full, even a new status could damage it."""
        self._failed = True
        if self._file:
            _abandon(self._file)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with _told(self.path, self.rounds):
                self._check_place()
                yield
        except WriteError:
            self._failed = True
            raise

    def _check_place(self) -> None:
        """What is written to a file that was deleted or replaced is lost."""
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
        data = _grown(self._file, f"rounds/{name}", (self.rounds,), np.float64, self._planned, np.nan)
        unit, description = self._columns.get(name, ("", ""))
        _set(data.attrs, {"unit": unit, "description": description})
        self._rows[f"rounds/{name}"] = _Rows(data)

    def _put(self, group: str, values: Mapping[str, ArrayLike], steps: Sequence[str]) -> None:
        places = [self.steps.index(name) for name in steps]
        for name, value in values.items():
            data = self._rows[f"{group}/{name}"]
            block = np.zeros(data.row, data.dtype)
            given = np.asarray(value)
            width = given.shape[-1] if given.ndim else block.shape[1]  # a session may have fewer ranks than one before
            block[places, :width] = given
            data.put_last(block)


@final
class _Rows:
    """A data set that grows by rows. Keeps what h5py makes anew at each access: ten data sets a round add up.

    It stays open for the whole run: a data set that is closed loses its chunk cache, and each row would read it again.

    Attributes:
        row: the shape of a row.
        dtype: of its entries.
    """

    def __init__(self, data: Any) -> None:
        self._id, self.row, self.dtype = data.id, data.shape[1:], data.dtype
        self._kind, self._place = h5py.h5t.py_create(self.dtype), data.id.get_space()
        self._one = h5py.h5s.create_simple((1, *self.row))
        self._length = data.shape[0]

    def grow(self, length: int) -> None:
        """New rows have the data set's fill value."""
        self._length = length
        self._id.set_extent((length, *self.row))
        self._place.set_extent_simple((length, *self.row))

    def put_last(self, block: Array) -> None:
        """Sets the last row."""
        self._place.select_hyperslab((self._length - 1, *[0] * len(self.row)), (1, *self.row))
        self._id.write(self._one, self._place, block, self._kind)

    def widen(self, places: int) -> None:
        """Rows of `places` instead of fewer entries along their first axis."""
        self.row = (places, *self.row[1:])
        self._one = h5py.h5s.create_simple((1, *self.row))
        self.grow(self._length)


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
    """One start of a run: what its later rounds were computed with."""
    told = {name: attrs[name] for name in ("command", "git_commit", "git_dirty", "mpi", "kernel") if name in attrs}
    if "blas" in attrs:
        told["blas"] = sorted(set(attrs["blas"]))
    return {"from_round": start, "ranks": ranks, "started": now(), **told}


def _begun(path: Path) -> Any:
    """A new HDF5 file, or none at all."""
    try:
        return h5py.File(path, "x", locking="best-effort")
    except FileExistsError:
        raise
    except FAILURES:
        path.unlink(missing_ok=True)
        raise


def _lay_out(file: Any, m: int, ranks: int, rounds: int) -> None:
    """The empty data sets.

    One chunk a step and data set holds all planned rounds if it can: after the first rows the file then needs no new
    space, so a disk that fills up, or a kill in the middle of a write, meets no half-made structure.
    """
    file.create_group("rounds").attrs["done"] = np.int64(0)
    for group, units, width in (("clients", CLIENTS, m), ("ranks", RANKS, ranks)):
        file.create_group(group).attrs["steps"] = np.array([], dtype=h5py.string_dtype())
        for name, unit in units.items():
            kind = np.float64 if unit == "s" else np.int64
            _set(_grown(file, f"{group}/{name}", (0, 0, width), kind, rounds, 0).attrs, {"unit": unit})


def _grown(file: Any, name: str, shape: tuple[int, ...], kind: type, rounds: int, fill: float) -> Any:
    rows = max(1, min(rounds, CHUNK_BYTES // (8 * max(1, shape[-1] if len(shape) > 1 else 1))))
    chunks = (rows, 1, max(1, shape[-1])) if len(shape) > 1 else (rows,)
    return file.create_dataset(name, shape, kind, chunks=chunks, maxshape=(None,) * len(shape), fillvalue=fill)


def _truncate(file: Any, rounds: int, ranks: int) -> None:
    for group in ("rounds", "clients", "ranks"):
        for data in file[group].values():
            data.resize(rounds, axis=0)
    file["rounds"].attrs.modify("done", rounds)
    for data in file["ranks"].values():
        data.resize(max(ranks, data.shape[2]), axis=2)
    if "final" in file:
        del file["final"]


def _abandon(file: Any) -> None:
    """Close a file whose last write failed, and leave it on the disk as it is.

    Closing writes what is still in memory; on a full disk HDF5 (2.0) fails in that, and then crashes the process with a
    segmentation fault. So let it write elsewhere.
    """
    with suppress(*FAILURES, AttributeError):  # memfd_create is Linux's; elsewhere the file stays open
        elsewhere = os.memfd_create("abandoned")
        os.dup2(elsewhere, file.id.get_vfd_handle())
        os.close(elsewhere)
        file.close()


def _set(attrs: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        attrs[name] = json.dumps(value) if isinstance(value, (dict, list, tuple)) else "" if value is None else value


@contextmanager
def _told(path: Path, safe: int) -> Iterator[None]:
    """Turn what h5py raises into one sentence."""
    try:
        yield
    except UserError:
        raise
    except FAILURES as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else _reason(error)
        raise WriteError(f"cannot write {path}: {reason}; {safe} finished rounds are safe in it") from error


def _reason(error: BaseException) -> str:
    """The system's own words, which h5py hides in the middle of a sentence of its own."""
    text = str(error)
    start = text.find("error message = '")
    return text[start:].split("'")[1] if start >= 0 else text


# --- checkpoints


@final
@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on.

    Attributes:
        attrs: round, config (JSON), seed and what else was given.
        payload: name -> (bytes,) uint8, packed messages: the state, and one memory a client.
    """

    attrs: dict[str, Any]
    payload: dict[str, NDArray[np.uint8]]


def checkpoint_path(out: str | os.PathLike[str]) -> Path:
    """Where the checkpoint of the result `out` lies: run.h5 -> run.ckpt.h5."""
    out = Path(out)
    return out.with_name(out.name.removesuffix(".h5") + ".ckpt.h5")


def save_checkpoint(path: str | os.PathLike[str], payload: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Replace the checkpoint at `path` in one stroke: whatever happens, the old one or the new one is there, whole.

    Args:
        payload: name -> bytes, or anything with a buffer of bytes; a name may have parts ("memory/3").
        attrs: dicts and lists are stored as JSON.

    Raises:
        WriteError: the previous checkpoint, if any, is intact.
    """
    path = Path(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(beside, "w", locking="best-effort") as file:
            file.create_group("payload")
            for name, value in payload.items():
                file[f"payload/{name}"] = np.frombuffer(value, np.uint8) if len(value) else np.zeros(0, np.uint8)
            _set(file.attrs, {**attrs, "checkpoint": SCHEMA})
            file.flush()
            os.fsync(file.id.get_vfd_handle())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except FAILURES as error:
        raise WriteError(
            f"cannot write {path}: {_reason(error)}; the previous checkpoint, if any, is intact"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`. Raises UserError if there is none, or it cannot be read."""

    def read(file: Any) -> Checkpoint:
        if file.attrs.get("checkpoint") != SCHEMA:
            raise UserError(f"{path} is not a checkpoint of this version of zofl_mpi (schema {SCHEMA})")
        payload: dict[str, NDArray[np.uint8]] = {}
        file["payload"].visititems(
            lambda name, data: payload.update({name: data[()]} if isinstance(data, h5py.Dataset) else {})
        )
        return Checkpoint(dict(file.attrs), payload)

    return _read(Path(path), read)


def _sync_folder(folder: Path) -> None:
    """Make the renaming durable, where the file system offers it."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# --- reading


@final
@dataclass(frozen=True)
class Run:
    """One result, as read. R rounds, m clients.

    Attributes:
        path: where it was read from.
        attrs: of the root, as stored; `status` is "running" for a run that goes on, and for one that was killed.
        config: the resolved configuration.
        rounds: name -> (R,) float64, NaN in rounds without that number.
        clients: bytes_down, bytes_up, messages -> (R, steps, m) int64.
        ranks: seconds_compute, seconds_wait, seconds_comm (float64, s), peak_bytes (int64) -> (R, steps, ranks).
        steps: names of the steps.
        counts: (m, classes) realised label counts, or None.
        final: field -> value of the last state; empty unless the run is done.
        units, descriptions: of the columns in `rounds`.
    """

    path: Path
    attrs: dict[str, Any]
    config: dict[str, Any]
    rounds: dict[str, NDArray[np.float64]]
    clients: dict[str, NDArray[np.int64]]
    ranks: dict[str, Array]
    steps: tuple[str, ...]
    counts: Array | None
    final: dict[str, Any]
    units: dict[str, str]
    descriptions: dict[str, str]

    @property
    def length(self) -> int:
        """R, the number of finished rounds."""
        return len(self.clients["messages"])

    def table(self) -> pd.DataFrame:
        """One row a round: bytes_down, bytes_up, messages summed over steps and clients, and `rounds`."""
        import pandas as pd

        sums = {name: values.sum((1, 2)) for name, values in self.clients.items()}
        return pd.DataFrame({**sums, **self.rounds})

    def overlap(self) -> Overlap:
        """How long clients and server computed in each round, and how long both at once."""
        return overlap(self.steps, self.ranks["seconds_compute"], self.rounds["seconds"])


def load(path: str | os.PathLike[str]) -> Run:
    """The result at `path`: finished, still growing, or of a run that was killed. The only reader.

    Raises:
        UserError: there is no such file, or it is no result of this version, or it is damaged.
    """

    def read(file: Any) -> Run:
        _check_ours(file, path)
        found = {
            group: {name: data[()] for name, data in file[group].items()} for group in ("rounds", "clients", "ranks")
        }
        length = int(file["rounds"].attrs["done"])  # a full disk or a kill may leave a row that is written in part
        rows = {group: {name: values[:length] for name, values in found[group].items()} for group in found}
        return Run(
            path=Path(path),
            attrs=dict(file.attrs),
            config=json.loads(file.attrs.get("config", "") or "{}"),
            **rows,
            steps=tuple(map(str, file["clients"].attrs["steps"])),
            counts=file["partition/counts"][()] if "partition/counts" in file else None,
            final=_values(file.get("final", {})),
            units={name: str(data.attrs.get("unit", "")) for name, data in file["rounds"].items()},
            descriptions={name: str(data.attrs.get("description", "")) for name, data in file["rounds"].items()},
        )

    return _read(Path(path), read)


def _values(group: Any, prefix: str = "") -> dict[str, Any]:
    """{name: value} of all data sets below a group; a data set in a subgroup is named SUBGROUP/NAME."""
    found: dict[str, Any] = {}
    for name, item in group.items():
        if isinstance(item, h5py.Group):
            found |= _values(item, f"{prefix}{name}/")
        else:
            value = item[()]
            found[prefix + name] = value.decode() if isinstance(value, bytes) else value
    return found


def _check_ours(file: Any, path: str | os.PathLike[str]) -> None:
    if "checkpoint" in file.attrs:
        raise UserError(f"{path} is a checkpoint: name the result beside it")
    if "schema" not in file.attrs:
        raise UserError(f"{path} is an HDF5 file, but no result of zofl_mpi (it has no attribute 'schema')")
    if file.attrs["schema"] != SCHEMA:
        raise UserError(f"{path} has schema {file.attrs['schema']}; this version of zofl_mpi reads schema {SCHEMA}")


def _read(path: Path, read: Callable[[Any], T]) -> T:
    """What `read` makes of the open file. A file caught in the middle of a flush is read again a moment later."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    for wait in (0.05, 0.1, 0.2, 0.4, None):
        try:
            with _opened(path) as file:
                return read(file)
        except PermissionError as error:
            raise UserError(f"no permission to read {path}") from error
        except FAILURES as error:
            if wait is None:
                raise UserError(
                    f"{path} is {'damaged' if _has_signature(path) else 'not an HDF5 file'}: {error}"
                ) from error
            time.sleep(wait)
    raise AssertionError("unreachable")


def _opened(path: Path) -> Any:
    """Without locking, so that the writer does not notice; a file that this very process writes has its own way."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
        return h5py.File(path, "r", locking="best-effort")


def _has_signature(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"
