"""The page of the public interface, made from the code: python -m tests.tools.interface > zofl_mpi/INTERFACE.md"""

import importlib
import inspect
import typing
from collections.abc import Iterable, Iterator
from enum import EnumType
from typing import Any

import numpy as np

import zofl_mpi
from zofl_mpi.clients import privacy
from zofl_mpi.engine.fields import described
from zofl_mpi.engine.fleet import Spent
from zofl_mpi.engine.setting import Method
from zofl_mpi.rounds.local_sgd import LocalSGDState
from zofl_mpi.run import flags
from zofl_mpi.run.plan import HOOKS, groups_of
from zofl_mpi.run.records import layout
from zofl_mpi.run.records.hdf5 import FORMAT

FAMILIES = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl")
METHODS_OWN = ("start", "round", "evaluate")
PROVISIONAL = ("device_needs", "round_work")
"""Functions of `Method` that a later 1.x may still change."""
LOOPS_OWN = ("account", "holders", "steadily", "close")
"""Functions of `Clients` that no method calls."""
HEAD = """# The public interface

Versions follow [semantic versioning](https://semver.org). What stands on this page stays in every 1.x: a later one may
add to it, removes and renames nothing, reads every result and checkpoint that an earlier one wrote, and continues it
with the same bits on the same machine (`tests/formats` holds runs of 1.0.0, which a test opens, draws and continues).
Everything else may move: modules, classes and functions that are not named here, the words of sentences, the layout of
pages and figures. A number changes only where it was wrong, and the [changelog](../CHANGELOG.md) says so.
`python -m tests.tools.interface` makes this page from the code; a test compares them.

## Commands

`python -m zofl_mpi` lists them. Exit statuses: 0 done; 1 a run that failed, or a file that cannot be written; 2 a
mistake in flags, files or data; 75 stopped by a signal after a checkpoint; each but 0 with a sentence.
"""


def page() -> str:
    """The page."""
    sections = [HEAD, names(), hooks(), files(), *columns(), *all_flags()]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def names() -> str:
    """Public names, with parameters of functions, fields and functions of classes."""
    rows = [f"| `{name}` | {listed(members(getattr(zofl_mpi, name)))} |" for name in zofl_mpi.__all__]
    opened = f"| what `records.load` returns | {listed(members(zofl_mpi.records.Run))} |"
    head = "`from zofl_mpi import ...`; parameters of a function, fields and functions of a class.\n"
    return "\n".join(["## Names\n", head, "| name | |\n|---|---|", *rows, opened, ""])


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


def hooks() -> str:
    """What a method of one's own must and may have."""
    known = [name for name in vars(Method) if not name.startswith("_")]
    others = [name for name in known if name not in (*METHODS_OWN, *HOOKS, *PROVISIONAL, "setting")]
    calls = {name: [*inspect.signature(getattr(Method, name)).parameters][1:] for name in HOOKS}
    shown = [f"{name}({', '.join(parameters)})" for name, parameters in calls.items()]
    return (
        "## Functions of a method\n\n"
        f"Required: {listed(['setting', *METHODS_OWN])}. Called where a method has them, so that another function\n"
        f"needs another name: {listed(shown)}. Read where a method has them: {listed(others)}.\n"
        f"Not promised yet: {listed(PROVISIONAL)}, with which a method takes part under `--devices`.\n"
    )


def files() -> str:
    """Paths and attributes of results and checkpoints."""
    rows = [*_paths("result", layout.RESULT), *_paths("checkpoint", layout.CHECKPOINT)]
    return "\n".join(
        [
            "## Files\n",
            f"Format {FORMAT}, the attribute `schema` of a result and `checkpoint` of a checkpoint; newer is refused.",
            "What each holds: [runs and their results](run/README.md#the-result-file); `*`: any name.\n",
            "| file | path | type | axes |\n|---|---|---|---|",
            *rows,
            f"\nAttributes of every result: {listed(layout.ATTRIBUTES_OF_RESULTS)};",
            f"of some: {listed(sorted(layout.FURTHER.keys() - layout.ATTRIBUTES_OF_RESULTS))}.",
            f"Columns of `{layout.RANK_TABLE}`: {listed(layout.TABLE.names or ())}.\n",
        ]
    )


def _paths(file: str, described_: dict[str, Any]) -> Iterator[str]:
    for path, (kind, axes) in described_.items():
        named = "any" if kind is None else "table" if kind is layout.TABLE else np.dtype(kind).name
        yield f"| {file} | `/{path}` | {named} | {'any' if axes is None else axes} |"


def columns() -> Iterator[str]:
    """Columns of each family's methods: numbers of the state after every round, and of the report at evaluations."""
    yield (
        "## Columns\n\n"
        "Under `/rounds`, each with its unit and a description; `seconds` in every result. Vectors: `/final`.\n"
        "Before the columns of a state its class, whose name a checkpoint holds.\n"
        f"With `--devices`: {listed(described(Spent))}.\n"
        f"With `--clip`: {listed(described(privacy.Spent))}.\n"
    )
    for family, module in modules():
        told: dict[str, list[str]] = {}
        for name, cls in module.METHODS.items():
            kinds = [typing.get_type_hints(getattr(cls, step))["return"] for step in ("start", "evaluate")]
            state, report = (LocalSGDState if kind is Any else kind for kind in kinds)
            shown = f"{state.__name__}: {listed(described(state))}; {listed(described(report))}"
            told.setdefault(shown, []).append(name)
        rows = [f"| {listed(methods)} | {' | '.join(shown.split('; '))} |" for shown, methods in told.items()]
        yield "\n".join([f"| `{family}` | state | report |\n|---|---|---|", *rows, ""])


def all_flags() -> Iterator[str]:
    """Flags by group; those of a group stand once where several methods or problems have them all."""
    yield "## Flags\n\nEach is also a key of `--config` and of grids (`_` or `-`). Defaults and ranges: `--help`.\n"
    for family, module in modules():
        told: dict[str, list[str]] = {}
        for method, cls in module.METHODS.items():
            for problem in (name for name, choice in module.PROBLEMS.items() if cls.needs.__name__ in choice.roles):
                for title, group in groups_of(module, method, problem).items():
                    owner = {"method": method, "problem": problem}.get(title, title)
                    owners = told.setdefault(listed(map(flags.flag, flags.flags_of({"": group}))), [])
                    if owner not in owners:
                        owners.append(owner)
        rows = [f"| {', '.join(owners)} | {shown} |" for shown, owners in told.items()]
        yield "\n".join([f"| `{family}` | flags |\n|---|---|", *rows, ""])


def modules() -> Iterator[tuple[str, Any]]:
    return ((name, importlib.import_module(name)) for name in FAMILIES)


if __name__ == "__main__":
    print(page(), end="")
