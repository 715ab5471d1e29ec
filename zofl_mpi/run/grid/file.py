"""The file of a grid: a product of axes in TOML, read into runs that are checked before the first of them starts.

module = "zofl_mpi.zo_hfl"            # the family of methods
ranks = 3                             # processes of a run; 1 (the default) is without mpirun
folder = "results/a_table1"           # where the results go (default: results/ and this file's name)
name = "{data}-{cell}-{method}-t{steps}-s{seed}"     # of a run (default: its entries, joined by -); an axis that a run
                                      # does not have is left out, with the text before it
optional = ["beta"]                   # flags that are dropped where a method or problem does not have them

[fixed]                               # flags of all runs; an axis may set them to something else
rounds = 500

[axes]
seed = [1, 2, 3]                      # a list: the axis is the flag
[axes.cell]                           # a table: an entry sets any number of flags, also none
"a0.1-b0.5" = { alpha = 0.1, beta = 0.5 }
[axes.method]
zo_hfl = { method = "zo_hfl" }
server_sgd = { method = "server_sgd" }
[axes.steps]
tau = [5, 20]                         # a list in a table: a flag, an entry for each of its values

[when]                                # an axis that only the runs with these entries on other axes have
steps = { method = "zo_hfl" }         # the others have the entry "" there, which sets nothing

[[skip]]                              # leaves out the runs with all of these entries; a list means any of it
method = "zo_hfl"
seed = [2, 3]

[[only]]                              # keeps the runs with all of these entries alone, or those of another [[only]]
seed = 1
"method steps" = [["zo_hfl", 5], ["server_sgd", ""]]    # several axes: any of these combinations

[[set]]                               # flags of the runs with all of these entries, in place of their axes' own
cell = "a0.1-b0.5"
flags = { gamma = 0.3 }

[tune]                                # steps are chosen by results: see python -m pydoc zofl_mpi.run.grid.tune
[figure]                              # of zofl-report, which has these flags: x, y, control, best, over
[table]                               # beside the figure; columns of the results, differences to a control
rows = ["method"]                     # axes that tell the groups apart
columns = ["test_accuracy", "test_loss"]
control = "server_sgd"
"""

import functools
import json
import operator
import os
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from zofl_mpi.errors import UserError, check_one_of
from zofl_mpi.paths import user_path
from zofl_mpi.run.command import flags, plan
from zofl_mpi.run.command.family import family_of
from zofl_mpi.run.command.stored import CLASSES
from zofl_mpi.run.grid.axes import (
    NO_ENTRY,
    Axes,
    Entries,
    Flags,
    Tune,
    among,
    axis_of,
    combinations,
    conditions,
    entries,
    flags_in,
    tune_of,
)

KEYS = (
    *("module", "ranks", "folder", "name", "optional", "fixed", "axes", "when", "skip", "only", "set", "tune"),
    *("figure", "table"),  # of zofl-report
)
MAX_RANKS = 65_536
"""Most processes of a run: more is a mistake, or a stranger's file that would start them here."""
LONGEST = 200
"""Most bytes of a run's name; a file's may have 255, and checkpoint and log add their endings."""


@final
@dataclass(frozen=True)
class GridRun:
    """One run of a grid."""

    name: str  # unique in the grid; the result's name without suffix
    coordinates: dict[str, str]  # {axis: entry}
    flags: Flags
    out: Path  # the result

    @property
    def log(self) -> Path:
        """Log of all starts of the run; locked while it runs."""
        return self.out.with_suffix(".log")


@final
@dataclass(frozen=True)
class Grid:
    """Runs that belong together: the product of the axes without the skipped ones; the last axis changes fastest."""

    module: str
    ranks: int  # processes of a run; 1 is without mpirun
    folder: Path
    axes: dict[str, tuple[str, ...]]  # {axis: names of its entries}
    runs: tuple[GridRun, ...]
    sets: dict[str, frozenset[str]]  # {axis: the flags that its entries set}
    tune: Tune | None = None  # of a study, whose runs with further seeds depend on results: see `run.grid.tune`


def read(path: str | Path, results: str | Path | None = None, *, trust: bool = False) -> Grid:
    """Reads the grid in a file, with a folder `results` in place of its own; checks each run's flags and values' kinds.

    UserError: whatever is wrong with the file; it is named.

    Args:
        trust: user-defined modules and classes that it names may be imported, which runs them.
    """
    table, path = flags.read_toml(path, ""), Path(path)
    try:
        return _grid(table, path.stem, results, trust)
    except UserError as exc:
        raise UserError(f"{path}: {exc}") from exc


def arguments(module: str, given: Mapping[str, Any]) -> list[str]:
    """Flags as words of a command line (UserError: an unknown method, problem or flag; the nearest is named)."""
    return flags.to_arguments(given, known_flags(module, given), "flags")


def resolved(module: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run with these flags, as its result keeps it (UserError: a value of the wrong kind)."""
    config = plan.parse_plan(family_of(module), arguments(module, given)).config
    return json.loads(json.dumps(config))  # type: ignore[no-any-return]


def known_flags(module: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """{field name: kind} of all flags of the given method and problem."""
    family = family_of(module)
    names = (("method", family.METHODS), ("problem", family.PROBLEMS))
    return _flags_of(module, *(str(given.get(key, next(iter(table)))) for key, table in names))


@functools.cache
def _flags_of(module: str, method: str, problem: str) -> Mapping[str, Any]:
    return flags.flags_of(plan.groups_of(family_of(module), method, problem))


def _grid(table: Mapping[str, Any], stem: str, results: str | Path | None, trust: bool) -> Grid:
    for key in table:
        check_one_of(KEYS, key, "key")
    module, ranks = _value(table, "module", str, None), _value(table, "ranks", int, 1)
    if not 1 <= ranks <= MAX_RANKS:
        raise UserError(f"ranks = {ranks}: must be a whole number from 1 to {MAX_RANKS}")
    axes = {axis: axis_of(axis, given) for axis, given in _value(table, "axes", dict, {}).items()}
    if not axes:
        raise UserError("has no axes; name at least one under [axes], as seed = [1, 2, 3]")
    tune = tune_of(_value(table, "tune", dict, {}), axes) if "tune" in table else None
    if tune:
        seeds = dict.fromkeys((tune.seed, *tune.then))
        axes = {"seed": {seed: Flags(seed=int(seed)) for seed in seeds}} | axes
    when = conditions(_value(table, "when", dict, {}), axes)
    axes = {axis: {NO_ENTRY: Flags()} | given if axis in when else given for axis, given in axes.items()}
    own = _value(table, "folder", str, f"results/{stem}")
    folder = user_path(results, "--results") if results else user_path(own, "folder =")
    where = combinations(axes, when, _value(table, "only", list, []))
    runs = tuple(_runs(module, folder, table, axes, where, trust))
    _check_names(runs)
    names = {axis: tuple(given) for axis, given in axes.items()}
    sets = {axis: frozenset(name for given in axes[axis].values() for name in given) for axis in axes}
    return Grid(module, ranks, folder, names, runs, sets, tune)


def _value(table: Mapping[str, Any], key: str, kind: type[Any], default: Any) -> Any:
    """The value of a key (UserError: missing, or of another kind)."""
    value = table.get(key, default)
    if type(value) is not kind:
        words = {str: "some text", int: "a whole number", dict: "a table", list: "a list"}
        raise UserError(f"{key} = {value!r}: must be {words[kind]}" if key in table else f"the key {key} is missing")
    return value


# --- the runs


def _runs(
    module: str, folder: Path, table: Mapping[str, Any], axes: Axes, coordinates: Iterable[dict[str, str]], trust: bool
) -> Iterator[GridRun]:
    fixed = flags_in(table.get("fixed", {}), "fixed")
    optional = [flags.field_of(str(key)) for key in _value(table, "optional", list, [])]
    skips = [part for skip in _value(table, "skip", list, []) for part in entries("skip", skip, axes)]
    sets = [_set(given, axes) for given in _value(table, "set", list, [])]
    used: set[str] = set()
    for where in coordinates:
        if among(where, skips):
            continue
        name, own = _name(table, where), [given for runs, given in sets if among(where, runs)]
        try:
            given = functools.reduce(operator.or_, own, fixed | _chosen(axes, where))
            if not trust:
                _check_ours(module, given)
            given = _fitted(module, given, optional)
        except UserError as exc:
            raise UserError(f"run {name}: {exc}") from exc
        used |= given.keys()
        yield GridRun(name, where, given, folder / f"{name}.h5")
    for key in optional:
        if key not in used:
            raise UserError(f"optional: no run has and sets the flag --{flags.flag(key)}; correct or remove it")


def _check_ours(module: str, given: Flags) -> None:
    """Refuses user-defined classes: reading their flags would import, and so run, them."""
    names = {"module": module} if module.partition(".")[0] != "zofl_mpi" else {}
    names |= {key: str(given[key]) for key in CLASSES if ":" in str(given.get(key))}
    if names:
        listed = " and ".join(f'{key} = "{value}"' for key, value in names.items())
        raise UserError(f"{listed} is user-defined, and reading its flags would run it: add --trust if you trust it")


def _name(table: Mapping[str, Any], where: Mapping[str, str]) -> str:
    """The name of a run."""
    if "name" not in table:
        return "-".join(filter(None, where.values()))
    template = str(_value(table, "name", str, ""))
    try:
        name = ""
        for text, axis, form, conversion in string.Formatter().parse(template):
            if axis is not None:
                check_one_of(where, axis, "axis", f"name = {template!r}: ")
            if form or conversion:  # a width would make a name of any length
                raise ValueError(f"{{{axis}}} has a format of its own, which no name takes")
            if axis is None or where[axis] != NO_ENTRY:
                name += text + where.get(axis or "", "")
        if len(name) > LONGEST:
            raise ValueError(f"a run's name has at most {LONGEST} characters")
        return name
    except (ValueError, LookupError) as exc:
        raise UserError(f"name = {template!r}: {exc}; an axis is named as {{seed}}") from exc


def _chosen(axes: Axes, where: Mapping[str, str]) -> Flags:
    """The flags of one entry on each axis."""
    chosen: Flags = {}
    source: dict[str, str] = {}
    for axis, entry in where.items():
        for name, value in axes[axis][entry].items():
            if name in source:
                both = f"axis {source[name]} and axis {axis} both set --{flags.flag(name)}"
                raise UserError(f"{both}; leave it to one of them, or [[skip]] their combination")
            chosen[name], source[name] = value, axis
    return chosen


def _fitted(module: str, given: Flags, optional: Sequence[str]) -> Flags:
    """The flags without those that may be dropped; all others the method and the problem must have."""
    known = known_flags(module, given)
    kept = {name: value for name, value in given.items() if name in known or name not in optional}
    if ":" in str(kept.get("track", "")):
        beside = "name no folder in a grid, then each run has its own beside its result"
        raise UserError(f"track = {kept['track']!r}: all runs would write into one folder; {beside}")
    for name in kept:
        if name not in known:
            remedy = "correct it, or list it in optional if only some methods have it"
            raise UserError(f"{flags.unknown(name, known)}; {remedy}")
    resolved(module, kept)
    return kept


def selected_runs(grid: Grid, only: Sequence[str]) -> dict[int, GridRun]:
    """{number: run} of a part of a grid: those with all of these AXIS=ENTRY[,ENTRY] (UserError: there is none)."""
    words = [text.partition("=") for text in only]
    parts = [entries(f"--only {''.join(word)}", {word[0]: word[2].split(",")}, grid.axes) for word in words]
    runs = {k: run for k, run in enumerate(grid.runs) if all(among(run.coordinates, part) for part in parts)}
    if not runs:
        raise UserError(f"--only {' '.join(only)}: no run has all of these; the grid has {', '.join(grid.axes)}")
    return runs


def _set(given: Any, axes: Axes) -> tuple[list[Entries], Flags]:
    """The runs that a table under [[set]] concerns, and their flags."""
    runs = dict(given) if isinstance(given, dict) else given
    values = runs.pop("flags", None) if isinstance(runs, dict) else None
    return entries("set", runs, axes), flags_in(values, "set: flags")


def _check_names(runs: Sequence[GridRun]) -> None:
    if not runs:
        raise UserError("every run is left out by [[skip]]; leave one")
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            raise UserError(f"{count} runs have the name {name!r}; put every axis with several entries into the name")
        if len(os.fsencode(name)) > LONGEST:
            raise UserError(f"{name[:40]!r}...: a run's name has at most {LONGEST} bytes; give entries shorter names")
        if "/" in name or not name.strip(".") or name.endswith(".ckpt"):
            raise UserError(f"{name!r} cannot name a file; give the axis a table of entries with names of their own")
