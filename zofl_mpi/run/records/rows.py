"""Data sets of a result with a row per round, and records of its sessions."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import h5py
import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.engine.ledger import TIME_KINDS
from zofl_mpi.errors import UserError
from zofl_mpi.run.records.hdf5 import FORMAT, Attributes, attributes_of, plain, set_attributes, text, texts
from zofl_mpi.run.records.provenance import now

CLIENTS = {"bytes_down": "bytes", "bytes_up": "bytes", "messages": "1"}
_BYTES = ("peak_bytes", "transport_sent", "transport_received")
RANKS = {**{f"seconds_{kind}": "s" for kind in TIME_KINDS}, **dict.fromkeys(_BYTES, "bytes")}
RANK_TABLE = "ranks/table"
_NAME, _LIST = h5py.string_dtype("utf-8", 64), h5py.string_dtype("utf-8", 256)  # longer ones are cut off
_TEXTS = {"host": _LIST, "device": _NAME, "uuid": _NAME, "cores": _LIST, "role": _NAME}
_RANK_COLUMNS = ("from_round", "rank", "host", "device", "uuid", "gpus", "cores", "threads", "clients", "role")
TABLE = np.dtype([(name, _TEXTS.get(name, np.int64)) for name in _RANK_COLUMNS])
"""Row type of /ranks/table."""
CHUNK_BYTES = 131_072
LISTED = 1000
"""Most clients with a column each; beyond, consecutive clients share columns to bound the file's size."""
SUMS = 100
"""Client columns of a result with more than LISTED clients."""
SESSIONS = 200
"""Most sessions in the attribute `sessions`: the first and the latest."""
LOSSES = 500
"""Most rank losses in the attribute `lost`: the latest."""


class Loss(NamedTuple):
    """A survived loss of client ranks: the round, and True if it was repeated."""

    round: int
    ranks: tuple[int, ...]
    repeated: bool


@final
class Rows:
    """A data set that grows by rows; caches objects that h5py would recreate at each access.

    It stays open for the whole run: closing it would drop the chunk cache, and each row would read its chunk again.
    """

    def __init__(self, data: Any) -> None:
        self._id, self.row, self.dtype = data.id, data.shape[1:], data.dtype
        self._kind, self._place = h5py.h5t.py_create(self.dtype), data.id.get_space()
        self._length = data.shape[0]

    def grow(self, length: int) -> None:
        """Grow to `length` rows; new rows have the fill value."""
        self._length = length
        self._id.set_extent((length, *self.row))
        self._place.set_extent_simple((length, *self.row))

    def put(self, start: int, block: Array) -> None:
        """Write a block (rows, *row) at row `start`."""
        shape = (len(block), *self.row)
        self._place.select_hyperslab((start, *[0] * len(self.row)), shape)
        self._id.write(h5py.h5s.create_simple(shape), self._place, block, self._kind)

    def widen(self, places: int) -> None:
        """Widen the rows to `places` entries along their first axis."""
        self.row = (places, *self.row[1:])
        self.grow(self._length)


def lay_out(m: int, ranks: int, rounds: int, missing: int, attrs: Attributes, file: Any) -> None:
    """Create an empty result; its first `missing` rows, lost with an earlier file, hold fill values.

    One chunk per step and data set holds all planned rounds, if possible. After the first rows the file then needs no
    new space: a full disk, or a kill during a write, leaves no half-made structure.
    """
    file.create_group("rounds").attrs["done"] = np.int64(missing)
    if missing:
        file.attrs["missing_rounds"] = text(f"[1, {missing}]")
    first = first_clients(m)
    for group, units, width in (("clients", CLIENTS, len(first)), ("ranks", RANKS, ranks)):
        file.create_group(group).attrs["steps"] = texts(())
        for name, unit in units.items():
            kind = np.float64 if unit == "s" else np.int64
            set_attributes(growing(file, f"{group}/{name}", (missing, 0, width), kind, rounds, 0), {"unit": unit})
    file.create_dataset(RANK_TABLE, (0,), TABLE, chunks=(64,), maxshape=(None,))
    if len(first) < m:
        meaning = f"sums over clients: column k of {SUMS} has those from first_clients[k] to that of the next column"
        set_attributes(file["clients"], {"aggregated": meaning, "clients": m})
        file["clients"].attrs["first_clients"] = first
    own = {"schema": FORMAT, "status": "running", "ranks": ranks, "sessions": [session(missing, ranks, attrs)]}
    set_attributes(file, {"run": secrets.token_hex(8), **attrs, **own})


def cut_back(path: object, m: int, ranks: int, rounds: int, attrs: Attributes, file: Any) -> None:
    """Truncate a result to its first `rounds` rows and drop /final, to continue with m clients (0: as before)."""
    columns, wanted = file["clients/messages"].shape[2], len(first_clients(m))
    if m and columns != wanted:
        raise UserError(f"{path} has {columns} columns for clients; a run with {m} clients needs {wanted}")
    if (held := file["rounds"].attrs["done"]) < rounds:
        raise UserError(f"{path} holds {held} rounds, fewer than the {rounds} to continue from")
    before = attributes_of(file)
    ranks = ranks or int(before["ranks"])
    for group in ("rounds", "clients", "ranks"):
        for _, data in by_round(file, group):
            data.resize(rounds, axis=0)
            if group == "ranks":
                data.resize(max(ranks, data.shape[2]), axis=2)
    file["rounds"].attrs.modify("done", rounds)
    if "final" in file:
        del file["final"]
    sessions = [*json.loads(before["sessions"]), session(rounds, ranks, attrs)]
    while len(sessions) > SESSIONS:
        del sessions[1]
    config = {name: attrs[name] for name in ("config", "folders", "derived_flags") if name in attrs}
    if "missing_rounds" in before:
        config["missing_rounds"] = [1, min(rounds, json.loads(before["missing_rounds"])[1])]
    set_attributes(file, {**config, "status": "running", "ranks": ranks, "sessions": sessions})


def session(start: int, ranks: int, attrs: Attributes) -> dict[str, Any]:
    """Command, commit and machine of a session, for the attribute `sessions`."""
    known = {name: attrs[name] for name in ("command", "git_commit", "git_dirty", "mpi", "kernel") if name in attrs}
    if "blas" in attrs:
        known["blas"] = sorted(set(attrs["blas"]))
    return {"from_round": start, "ranks": ranks, "started": now(), **known}


def first_clients(m: int) -> NDArray[np.int64]:
    """First client of each client column of a result with m clients."""
    return np.arange(m) if m <= LISTED else np.arange(SUMS) * m // SUMS


def by_round(file: Any, group: str) -> list[tuple[str, Any]]:
    """Names and data sets of a group that have one row per round."""
    return [(name, data) for name, data in file[group].items() if f"{group}/{name}" != RANK_TABLE]


def add_placements(file: Any, start: int, places: Sequence[Mapping[str, int | str]]) -> None:
    """Append the rank placements of a session that begins after round `start` to /ranks/table."""
    table = file[RANK_TABLE]
    table.resize(len(table) + len(places), axis=0)
    given = ({"from_round": start, **place} for place in places)
    rows = [tuple(v.encode() if isinstance(v := place[name], str) else v for name in _RANK_COLUMNS) for place in given]
    table[len(table) - len(rows) :] = np.array(rows, TABLE)


def read_placements(file: Any) -> list[dict[str, Any]]:
    """Rows of /ranks/table, all sessions."""
    table = file[RANK_TABLE][()]
    return [dict(zip(table.dtype.names, map(plain, row.tolist()), strict=True)) for row in table]


def growing(file: Any, name: str, shape: tuple[int, ...], kind: type, rounds: int, fill: float) -> Any:
    """Create a data set that grows along its first axis, chunked for `rounds` rows; h5py's own call takes longer."""
    rows = max(1, min(rounds, CHUNK_BYTES // (8 * max(1, shape[-1] if len(shape) > 1 else 1))))
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((rows, 1, max(1, shape[-1])) if len(shape) > 1 else (rows,))
    made.set_fill_value(np.array(fill, kind))
    made.set_obj_track_times(False)  # equal runs have equal files
    place = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED,) * len(shape))
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(kind)), place, made))
