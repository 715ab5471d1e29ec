"""Results and checkpoints in which one attribute, data set or flag is missing or of another type: what tests.adversary
plants, as (name, what is done in a folder that holds a.h5 and a.ckpt.h5).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from zofl_mpi.run import records
from zofl_mpi.run.records.hdf5 import set_attributes, texts

MISSING = object()
STORED: dict[str, Any] = {
    "missing": MISSING, "0": np.int64(0), "-1": np.int64(-1), "large": np.int64(1 << 62), "nan": np.nan,
    "inf": np.inf, "true": np.bool_(True), "no text": "", "x": "x", "number as text": "1", "null": "null",
    "a list": "[]", "a list of numbers": "[1]", "a list of lists": "[[]]", "a list of tables": "[{}]", "a table": "{}",
    "a table of lists": '{"a": [1]}', "numbers": np.arange(3), "texts": texts(["a", "b"]), "long": "y" * 70_000,
    "many digits": "9" * 5000, "no JSON": "[" * 5000, "infinity": "Infinity", "escape": "\x1b[2J\nzofl_mpi: forged",
}  # fmt: skip
"""Values of attributes."""
FLAGS: dict[str, Any] = {
    "missing": MISSING, "0": 0, "-1": -1, "large": 1 << 62, "huge": 10**400, "nan": float("nan"), "true": True,
    "no text": "", "x": "x", "null": None, "a list": [], "a list of numbers": [1], "a list of lists": [[]],
    "a table": {}, "long": "y" * 70_000, "escape": "\x1b[2J\nzofl_mpi: forged", "a class": "posix:system",
}  # fmt: skip
"""Values of flags in a configuration."""
Plant = Callable[[], None]


def of_result() -> Iterator[tuple[str, Plant]]:
    """Plants in the result."""
    for place, name in _attributes("a.h5"):
        for word, value in STORED.items():
            yield f"{place or '/'} {name} = {word}", lambda p=place, n=name, v=value: _attribute(p, n, v)
    with h5py.File("a.h5", "r") as file:
        held = [name for name in _names(file) if isinstance(file[name], h5py.Dataset)]
    for name in held:
        for word, change in SETS.items():
            yield f"{name}: {word}", lambda n=name, c=change: _data(n, c)
    for flag in records.load("a.h5").config:
        for word, value in FLAGS.items():
            yield f"its flag {flag} = {word}", lambda f=flag, v=value: _result_flag(f, v)


def of_checkpoint() -> Iterator[tuple[str, Plant]]:
    """Plants in the checkpoint, with checksums that fit."""
    found = records.load_checkpoint("a.ckpt.h5")
    for name in found.attrs:
        for word, value in STORED.items():
            yield f"{name} = {word}", lambda n=name, v=value: _saved({n: v}, {})
    for flag in json.loads(found.attrs["config"]):
        for word, value in FLAGS.items():
            yield f"its flag {flag} = {word}", lambda f=flag, v=value: _checkpoint_flag(f, v)
    for name in found.payload:
        for word, block in {"missing": MISSING, "empty": b"", "zeros": bytes(99), "text": b"x" * 99}.items():
            yield f"payload {name}: {word}", lambda n=name, b=block: _saved({}, {n: b})


SETS: dict[str, Callable[[h5py.File, str], Any]] = {
    "missing": lambda file, name: None,
    "a group": lambda file, name: file.create_group(name),
    "a number": lambda file, name: file.create_dataset(name, data=1.0),
    "a text": lambda file, name: file.create_dataset(name, data=np.bytes_(b"x")),
    "no entries": lambda file, name: file.create_dataset(name, data=np.zeros(0)),
    "short": lambda file, name: file.create_dataset(name, data=np.zeros((1, 1, 1), np.int64)),
    "texts": lambda file, name: file.create_dataset(name, data=texts(["a", "b", "c"])),
    "complex": lambda file, name: file.create_dataset(name, data=np.zeros(3, complex)),
}
"""What stands in the place of a data set."""


def _names(file: Any) -> list[str]:
    found: list[str] = []
    file.visit(found.append)
    return found


def _attributes(path: str) -> list[tuple[str, str]]:
    with h5py.File(path, "r") as file:
        return [(place, name) for place in ["", *_names(file)] for name in file[place or "/"].attrs]


def _attribute(place: str, name: str, value: Any) -> None:
    with h5py.File("a.h5", "r+") as file:
        item = file[place or "/"]
        if value is MISSING:
            del item.attrs[name]
        elif isinstance(value, str) and len(value) > 60_000 and place:
            item.attrs[name] = np.bytes_(value[:60_000].encode())
        elif isinstance(value, str):
            set_attributes(item, {name: value})
        else:
            item.attrs[name] = value


def _data(name: str, change: Callable[[h5py.File, str], Any]) -> None:
    with h5py.File("a.h5", "r+") as file:
        del file[name]
        change(file, name)


def _flag(attrs: dict[str, Any], flag: str, value: Any) -> str:
    config = json.loads(attrs["config"])
    if value is MISSING:
        del config[flag]
    else:
        config[flag] = value
    return json.dumps(config)


def _result_flag(flag: str, value: Any) -> None:
    _attribute("", "config", _flag(records.load("a.h5").attrs, flag, value))


def _checkpoint_flag(flag: str, value: Any) -> None:
    _saved({"config": _flag(records.load_checkpoint("a.ckpt.h5").attrs, flag, value)}, {})


def _saved(attrs: dict[str, Any], payload: dict[str, Any]) -> None:
    found = records.load_checkpoint("a.ckpt.h5")
    both = [{**found.attrs, **attrs}, {**found.payload, **payload}]
    blocks, kept = ({name: value for name, value in each.items() if value is not MISSING} for each in both[::-1])
    for name in ("a.ckpt.h5", "a.ckpt.h5.previous"):
        Path(name).unlink(missing_ok=True)
    records.save_checkpoint("a.ckpt.h5", blocks, kept)
