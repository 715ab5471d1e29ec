"""Layout of results and checkpoints; each file is checked against it before it is read.

People send each other these files. A malicious one may claim more than it stores, or use external storage, virtual
sources and links to lead HDF5 to any file of the reader. A file that passes has the names, types and shapes that this
version writes, and stores everything itself.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from zofl_mpi.errors import UserError
from zofl_mpi.run.records.hdf5 import FORMAT, LONG, LostError, attributes_of, plain
from zofl_mpi.run.records.rows import CLIENTS, RANK_TABLE, RANKS, TABLE

ABSENT = 1 << 28
"""Most bytes that a file may claim without storing them, as for lost rows: filling them takes one or two seconds."""
CHUNK_OVERHEAD = 25_000
"""Bytes that take as long to fill as one chunk."""
OBJECTS = 100_000
"""Most groups and data sets of a file."""
ATTRIBUTES = 1000
"""Most attributes of an object, and most kilobytes of one."""
NUMBERS, TEXT = "biuf", "S"
"""NumPy type kinds allowed. Variable-length strings are not: one wrong bit in their heap hangs HDF5."""
NUMERIC = (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM)
"""HDF5 type classes of `NUMBERS`; truth values are an ENUM."""
RESULT = {
    "rounds/*": (np.float64, 1),
    **{f"clients/{name}": (np.int64, 3) for name in CLIENTS},
    **{f"ranks/{name}": (np.float64 if unit == "s" else np.int64, 3) for name, unit in RANKS.items()},
    RANK_TABLE: (TABLE, 1),
    "partition/counts": (None, 2),
    "final/*": (None, None),
    f"{LONG}/*": (None, 0),
}
"""Types (None: any numbers, or one text) and numbers of axes (None: any) of a result's data sets."""
CHECKPOINT = {"payload/*": (np.uint8, 1), "checksums": (np.uint32, 1), f"{LONG}/*": (None, 0)}
"""The same for a checkpoint."""
ATTRIBUTES_OF_RESULTS = {
    "status": str,
    "run": str,
    "ranks": int,
    "sessions": [{"from_round": int, "ranks": int, "started": str}],
}
"""Attributes of every result; lists and dictionaries are stored as JSON."""
ATTRIBUTES_OF_CHECKPOINTS = {"checksums": int, "round": int}
FURTHER = {
    "blas": [str],
    "config": {},
    "costs": {},
    "device": [str],
    "devices": [{"class": str, "clients": int, "lacks": float}],
    "directions_per_parameter": float,
    "folders": {},
    "git_commit": str,
    "hosts": [str],
    "kernel": str,
    "lost": [{"round": int, "ranks": [int], "repeated": bool}],
    "missing_rounds": [int],
    "run": str,
    "seconds_start": float,
    "steps": [str],
    "threads": [int],
    "versions": {},
}
"""Optional attributes; unlisted ones may be any text or number."""
ACCEPTED_TYPES: dict[Any, Any] = {int: (int, np.integer), float: (float, np.floating), bool: (bool, np.bool_), str: str}


def check_result(file: Any, path: object) -> dict[str, Any]:
    """Check an open result; return {name: HDF5's identifier} of its data sets.

    UserError: no result, a newer format, or a reference to another file; LostError: damaged.
    """
    if "checkpoint" in file.attrs:
        raise UserError(f"{path} is a checkpoint: name the result beside it")
    if "schema" not in file.attrs:
        raise UserError(f"{path} is an HDF5 file, but no result of zofl_mpi (it lacks the attribute 'schema')")
    data = _checked(file, path, "schema", RESULT, ATTRIBUTES_OF_RESULTS)
    shapes = {name: item.shape for name, item in data.items()}
    done = file["rounds"].attrs["done"]
    _demand(isinstance(done, np.int64) and done >= 0, path, "rounds", "does not say how many rounds are done")
    for group, names in (("clients", CLIENTS), ("ranks", RANKS)):
        steps, own = plain(file[group].attrs["steps"]), {shapes[f"{group}/{name}"] for name in names}
        alike = len(own) == 1 and {shape[1] for shape in own} == {len(steps)}
        _demand(alike and all(isinstance(name, str) for name in steps), path, group, "has damaged steps")
    width = shapes["clients/messages"][2]
    first = np.asarray(file["clients"].attrs.get("first_clients", np.arange(width)))
    ordered = first.dtype.kind == "i" and first.shape == (width,) and bool(np.all(np.diff(first, prepend=-1) > 0))
    _demand(ordered, path, "clients", "has damaged first_clients")
    for name, shape in shapes.items():
        if name.startswith(("rounds/", "clients/", "ranks/")) and name != RANK_TABLE:
            _demand(shape[0] >= done, path, name, f"has {shape[0]} of {done} rounds")
    return data


def check_checkpoint(file: Any, path: object) -> dict[str, Any]:
    """Check an open checkpoint; return {name: HDF5's identifier} of its data sets. Raises as `check_result`."""
    if "checkpoint" not in file.attrs:
        raise UserError(f"{path} is not a checkpoint of zofl_mpi")
    data = _checked(file, path, "checkpoint", CHECKPOINT, ATTRIBUTES_OF_CHECKPOINTS)
    _demand({"payload/state", "checksums"} <= data.keys(), path, "payload", "holds no state, or no checksums")
    return data


def _demand(holds: Any, path: object, name: str, fault: str) -> None:
    if not holds:
        raise LostError(f"{path} is damaged: {name or 'its root'} {fault}")


def _checked(
    file: Any, path: object, kind: str, described: dict[str, Any], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Check format, data sets and attributes of a file; return {name: HDF5's identifier} of its data sets.

    By HDF5's own calls: h5py's objects would take twice as long, at each checkpoint.
    """
    _check_attributes(file.id, path, "")
    if isinstance(found := file.attrs[kind], np.integer) and found > FORMAT:
        raise UserError(f"{path} has format {found}, and this zofl_mpi reads format {FORMAT}: install a newer one")
    _demand(found == FORMAT, path, "", f"has the format {str(found)[:40]!r}")
    data, absent = dict[str, Any](), 0
    for name, item in _objects(file, path):
        _check_attributes(item, path, name)
        if isinstance(item, h5py.h5g.GroupID):
            continue
        own, shape = item.dtype, item.shape
        absent += _absent(item, own.itemsize, shape, path, name)
        _demand(absent <= ABSENT, path, name, f"claims rows of some {absent} bytes that are not stored")
        place = name if name in described else f"{name.partition('/')[0]}/*"
        if place in described:
            dtype, axes = described[place]
            usual = own.kind in NUMBERS or (own.kind == TEXT and not shape)
            if not ((usual if dtype is None else own == dtype) and axes in (None, len(shape))):
                _demand(False, path, name, f"is {own} with {len(shape)} axes")  # the text takes long to make
            data[name] = item
    held = attributes_of(file)  # long ones are data sets, checked above
    for name, like in (attributes | FURTHER).items():
        if name in attributes or name in held:
            _demand(_fits(held[name], like, stored=True), path, f"its attribute {name}", "has another type")
    return data


def _objects(file: Any, path: object) -> Iterator[tuple[str, Any]]:
    """Yield HDF5's identifiers of the groups and data sets of a file, each once, with their names.

    Refuses an object with two names: a group that contains itself would be read for ever.
    """
    links: list[tuple[bytes, int]] = []

    def note(name: bytes, link: Any) -> bool | None:
        links.append((name, link.type))  # h5py has one `link` for all
        return len(links) >= OBJECTS or None  # True ends the visit

    if file.id.links.visit(note, info=True):  # no flush in progress explains this: do not retry
        raise UserError(f"{path}: it has more than {OBJECTS:,} groups and data sets, as no file of zofl_mpi has")
    seen = {h5py.h5o.get_info(file.id).addr}
    for encoded, kind in links:
        name = encoded.decode()
        if kind != h5py.h5l.TYPE_HARD:
            fault = f"{name} is a link to another place, which no file of zofl_mpi has"
            raise UserError(f"{path}: {fault}; nothing is read")
        found = h5py.h5o.open(file.id, encoded)
        known = isinstance(found, h5py.h5g.GroupID | h5py.h5d.DatasetID)
        _demand(known, path, name, "is neither a group nor a data set")
        place = h5py.h5o.get_info(found).addr
        _demand(place not in seen, path, name, "has a second name")
        seen.add(place)
        yield name, found


def _absent(data: Any, itemsize: int, shape: tuple[int, ...] | None, path: object, name: str) -> int:
    """Bytes that a data set claims but does not store, plus CHUNK_OVERHEAD per missing chunk.

    UserError: its numbers lie in another file; LostError: they are compressed.
    """
    made = data.get_create_plist()
    layout = made.get_layout()
    if layout == h5py.h5d.VIRTUAL or made.get_external_count():
        fault = f"{name} names another file for its numbers, as no file of zofl_mpi does"
        raise UserError(f"{path}: {fault}; nothing is read")
    _demand(made.get_nfilters() == 0 and shape is not None, path, name, "is packed, or has no shape")
    assert shape is not None
    claimed = math.prod(shape) * itemsize
    absent: int = max(0, claimed - int(data.get_storage_size()))
    if not absent:
        return 0
    piece = math.prod(made.get_chunk() if layout == h5py.h5d.CHUNKED else shape) * itemsize
    return absent + absent // max(piece, 1) * CHUNK_OVERHEAD


def _check_attributes(item: Any, path: object, name: str) -> None:
    """Raise LostError for attributes that are neither texts nor numbers."""
    number = h5py.h5a.get_num_attrs(item)
    _demand(number <= ATTRIBUTES, path, name, f"has {number} attributes")
    for k in range(number):
        entry = h5py.h5a.open(item, index=k)
        kind = entry.get_type()  # its dtype takes longer
        known = kind.get_class() in NUMERIC or (isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str())
        size = math.prod(entry.shape) * kind.get_size()
        _demand(known and size <= 1024 * ATTRIBUTES, path, name, "has an attribute of another type")


def _fits(value: Any, like: Any, stored: bool = False) -> bool:
    """True if a value, or each entry of a list or dictionary, has the type of `like`; stored ones are JSON."""
    if isinstance(like, type):
        return isinstance(value, ACCEPTED_TYPES[like])
    if stored:
        if not isinstance(value, str):
            return False
        value = json.loads(value or json.dumps(type(like)()))
    if not isinstance(value, type(like)):
        return False
    if isinstance(like, list):
        return all(_fits(entry, like[0]) for entry in value)
    return all(name in value and _fits(value[name], entry) for name, entry in like.items())
