"""The public interface, read from the code: python -m tests.tools.interface writes tests/formats/interface.json."""

import importlib
import inspect
import json
import typing
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any

import numpy as np

import zofl_mpi
from zofl_mpi.clients import privacy
from zofl_mpi.engine.fields import described
from zofl_mpi.engine.fleet import FleetColumns
from zofl_mpi.engine.setting import Method
from zofl_mpi.rounds.local_sgd import LocalSGDState
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.family import FAMILIES
from zofl_mpi.run.command.plan import HOOKS, groups_of
from zofl_mpi.run.records import layout
from zofl_mpi.run.records.hdf5 import FORMAT

FILE = Path(__file__).parents[1] / "formats/interface.json"
METHODS_OWN = ("start", "round", "evaluate")
PROVISIONAL = ("device_needs", "round_work")
"""Functions of `Method` that a later 1.x may still change."""
LOOPS_OWN = ("account", "holders", "retry_on_rank_loss", "close")
"""Functions of `Clients` that no method calls."""


def interface() -> dict[str, Any]:
    """What INTERFACE.md promises, complete: names, functions of a method, files, columns and flags."""
    modules = {name: importlib.import_module(name) for name in FAMILIES}
    return {
        "names": names(),
        "functions of a method": hooks(),
        "files": files(),
        "columns": {
            "--devices": [*described(FleetColumns)],
            "--clip": [*described(privacy.Spent)],
            **{family: columns(module) for family, module in modules.items()},
        },
        "flags": {family: all_flags(module) for family, module in modules.items()},
    }


def names() -> dict[str, list[str]]:
    """{public name: parameters of a function, or fields and functions of a class}."""
    found = {name: members(getattr(zofl_mpi, name)) for name in zofl_mpi.__all__}
    return found | {"what records.load returns": members(zofl_mpi.records.Run)}


def members(thing: Any) -> list[str]:
    """What a public name has, but for what the loop alone calls."""
    if thing is zofl_mpi.records:
        return ["load"]
    if inspect.isfunction(thing):
        return [*inspect.signature(thing).parameters]
    if isinstance(thing, EnumType):
        return [*thing.__members__]
    own = [cls for cls in reversed(getattr(thing, "__mro__", ())) if cls.__module__.startswith("zofl_mpi")]
    found = dict.fromkeys(name for cls in own for name in (*inspect.get_annotations(cls), *vars(cls)))
    return [name for name in found if not name.startswith("_") and name not in LOOPS_OWN]


def hooks() -> dict[str, list[str]]:
    """What a method of one's own must and may have."""
    known = [name for name in vars(Method) if not name.startswith("_")]
    calls = {name: [*inspect.signature(getattr(Method, name)).parameters][1:] for name in HOOKS}
    return {
        "required": ["setting", *METHODS_OWN],
        "called": [f"{name}({', '.join(parameters)})" for name, parameters in calls.items()],
        "read": [name for name in known if name not in (*METHODS_OWN, *HOOKS, *PROVISIONAL, "setting")],
        "provisional": [*PROVISIONAL],
    }


def files() -> dict[str, Any]:
    """Paths and attributes of results and checkpoints."""
    return {
        "format": FORMAT,
        "result": dict(_paths(layout.RESULT)),
        "checkpoint": dict(_paths(layout.CHECKPOINT)),
        "attributes of every result": [*layout.ATTRIBUTES_OF_RESULTS],
        "of some": sorted(layout.FURTHER.keys() - layout.ATTRIBUTES_OF_RESULTS),
        layout.RANK_TABLE: [*(layout.TABLE.names or ())],
    }


def _paths(known: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(path, type and number of axes) of each data set."""
    for path, (kind, axes) in known.items():
        named = "any" if kind is None else "table" if kind is layout.TABLE else np.dtype(kind).name
        yield f"/{path}", f"{named}, {'any' if axes is None else axes} axes"


def columns(module: Any) -> dict[str, Any]:
    """{method: the class of its state, its columns, those of its report}; a checkpoint holds the class's name."""
    found = {}
    for name, cls in module.METHODS.items():
        kinds = [typing.get_type_hints(getattr(cls, step))["return"] for step in ("start", "evaluate")]
        state, report = (LocalSGDState if kind is Any else kind for kind in kinds)
        found[name] = {"state": state.__name__, "columns": [*described(state)], "report": [*described(report)]}
    return found


def all_flags(module: Any) -> dict[str, list[str]]:
    """{method, problem or group: its flags}; a group with other flags for some methods has several entries."""
    told: dict[tuple[str, ...], list[str]] = {}
    for method, cls in module.METHODS.items():
        for problem in (name for name, choice in module.PROBLEMS.items() if cls.needs.__name__ in choice.roles):
            for title, group in groups_of(module, method, problem).items():
                owner = {"method": method, "problem": problem}.get(title, title)
                owners = told.setdefault(tuple(map(flags.flag, flags.flags_of({"": group}))), [])
                if owner not in owners:
                    owners.append(owner)
    found: dict[str, list[str]] = {}
    for own, owners in told.items():
        name = ", ".join(owners)
        found[name if name not in found else f"{name} (2)"] = [*own]
    return found


def written() -> str:
    """The file's text: a line a list."""
    return _text(interface()) + "\n"


def _text(value: Any, depth: int = 0) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    rows = (f"{' ' * (depth + 1)}{json.dumps(key)}: {_text(each, depth + 1)}" for key, each in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{' ' * depth}}}"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
