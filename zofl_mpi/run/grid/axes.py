"""Axes of a grid: their entries, the flags that these set, and which combinations of them are runs."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from zofl_mpi.errors import UserError, check_one_of
from zofl_mpi.run.command import flags

Flags = dict[str, Any]
"""{field name: value}, as in a file for --config."""
Axes = Mapping[str, Mapping[str, Flags]]
"""{axis: {entry: its flags}}."""
Entries = dict[str, set[str]]
"""{axis: entries}: the runs with one of them on each of the axes."""

MAX_RUNS = 20_000
"""Most runs of a grid, those that [[skip]] leaves out counted."""
OURS = ("out", "force", "resume", "config", "dry_run")
"""Flags that are decided anew whenever a run is started."""
NO_ENTRY = ""
"""Entry on an axis that a run does not have; it sets nothing."""


def axis_of(axis: str, given: Any) -> dict[str, Flags]:
    """{entry: its flags} of a list of values, or of a table of entries."""
    if isinstance(given, dict):
        named = [pair for key, value in given.items() for pair in _named(key, value)]
    elif isinstance(given, list):
        named = _named(axis, given)
    else:
        raise UserError(f"axis {axis} = {given!r}: must be a list of values of --{axis}, or a table of entries")
    if not named:
        raise UserError(f"axis {axis} has no entries; give it at least one, or remove it")
    for entry, count in Counter(entry for entry, _ in named).items():
        if count > 1:
            raise UserError(f"axis {axis} has the entry {entry} twice; remove one")
        if entry == NO_ENTRY:
            raise UserError(f"axis {axis} has an entry without a name; give it one")
    return {entry: flags_in(values, f"axis {axis}, entry {entry!r}") for entry, values in named}


def _named(key: str, value: Any) -> list[tuple[str, Any]]:
    """(entry, its flags) of an entry, or of each value of a flag."""
    return [(entry_of(each), {key: each}) for each in value] if isinstance(value, list) else [(key, value)]


def entry_of(value: Any) -> str:
    """The entry's name for a value in a list."""
    if isinstance(value, list):
        return "_".join(map(entry_of, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def flags_in(values: Any, where: str) -> Flags:
    """The flags of a table, by field name, whatever their spelling."""
    if not isinstance(values, dict):
        raise UserError(f"{where} is {values!r}: must be a table of flags, as {{ alpha = 0.1 }}")
    named: Flags = {}
    for key, value in values.items():
        name = flags.field_of(key)
        if name in OURS:
            raise UserError(f"{where} sets --{flags.flag(name)}, which the grid runner sets itself; remove it")
        if name in named:
            raise UserError(f"{where} sets --{flags.flag(name)} twice; remove one")
        named[name] = value
    return named


def entries(key: str, given: Any, axes: Mapping[str, Iterable[str]]) -> list[Entries]:
    """The runs that a table under [[key]], or --only, concerns: those of any of these."""
    if not isinstance(given, dict) or not given:
        raise UserError(f"{key} = {given!r}: must be a table of axes and entries, as {{ seed = [1, 2] }}")
    found: list[Entries] = [{}]
    for name, value in given.items():
        names = name.split() or [name]
        for axis in names:
            check_one_of(axes, axis, "axis", f"{key}: ")
            if axis in found[0]:
                raise UserError(f"{key}: names the axis {axis} twice; remove one")
        choices = _choices(f"{key}: {name}", names, value if isinstance(value, list) else [value])
        for choice in choices:
            for axis, words in choice.items():
                for word in words:
                    check_one_of(axes[axis], word, f"entry of the axis {axis}", f"{key}: ")
        _check_count(len(found) * len(choices))
        found = [one | choice for one in found for choice in choices]
    return found


def _choices(where: str, names: Sequence[str], values: Sequence[Any]) -> list[Entries]:
    """Any of the values on one axis; any of the combinations on several."""
    if len(names) == 1:
        return [{names[0]: set(map(entry_of, values))}]
    for value in values:
        if not isinstance(value, list) or len(value) != len(names):
            raise UserError(f"{where}: has {value!r}; each of its values must be a list of {len(names)} entries")
    return [{axis: {entry_of(each)} for axis, each in zip(names, value, strict=True)} for value in values]


def among(where: Mapping[str, str], runs: Sequence[Entries]) -> bool:
    """True if a run with these entries on the axes is one of any of the runs."""
    return any(all(where[axis] in values for axis, values in each.items()) for each in runs)


def conditions(given: Mapping[str, Any], axes: Axes) -> dict[str, list[Entries]]:
    """{axis under [when]: the runs that have it}."""
    for axis in given:
        check_one_of(axes, axis, "axis", "when: ")
    found = {axis: entries("when", runs, axes) for axis, runs in given.items()}
    for axis, runs in found.items():
        for other in runs[0].keys() & given.keys():
            raise UserError(f"when: {axis} depends on {other}, which only some runs have; name axes that all have")
    return found


def combinations(axes: Axes, when: Mapping[str, Sequence[Entries]], only: Sequence[Any]) -> Iterator[dict[str, str]]:
    """Yields {axis: entry} of the runs that [when] and [[only]] leave; the last axis changes fastest."""
    names = {axis: tuple(given) for axis, given in axes.items()}
    found, count = set[tuple[int, ...]](), 0
    for given in only or [None]:
        before = count
        for part in entries("only", given, axes) if only else [Entries()]:
            for where in _within(part, axes, when):
                count += 1
                _check_count(count)
                found.add(tuple(names[axis].index(where[axis]) for axis in axes))
        if count == before:
            raise UserError(f"only = {given!r}: no run has all of these; correct or remove it")
    for numbers in sorted(found):
        yield {axis: names[axis][k] for axis, k in zip(axes, numbers, strict=True)}


def _within(part: Entries, axes: Axes, when: Mapping[str, Sequence[Entries]]) -> Iterator[dict[str, str]]:
    """Yields {axis: entry} of the runs with these entries; a run has NO_ENTRY on the axes that others alone have."""
    allowed = {axis: [entry for entry in given if entry in part.get(axis, given)] for axis, given in axes.items()}
    firm = {axis: choice for axis, choice in allowed.items() if axis not in when}
    _check_count(math.prod(map(len, firm.values())))
    for combination in itertools.product(*firm.values()):
        where = dict(zip(firm, combination, strict=True))
        has = {axis: among(where, runs) for axis, runs in when.items()}
        own = [[entry for entry in allowed[axis] if (entry != NO_ENTRY) == has[axis]] for axis in when]
        for further in itertools.product(*own):
            yield where | dict(zip(when, further, strict=True))


def _check_count(runs: int) -> None:
    if runs > MAX_RUNS:
        raise UserError(f"its axes have {runs} runs, at most {MAX_RUNS} make a grid: divide it into several")


@final
@dataclass(frozen=True)
class Tune:
    """Steps to be chosen: see `run.grid.tune`."""

    over: tuple[str, ...]
    by: str
    seed: str
    then: tuple[str, ...]


def tune_of(given: Any, axes: Mapping[str, Iterable[str]]) -> Tune:
    """The values under [tune]; UserError for an unknown or missing key."""
    for key in given:
        check_one_of(("over", "by", "seed", "then"), key, "key", "tune: ")
    over, by, seed, then = (given.get(key) for key in ("over", "by", "seed", "then"))
    if "seed" in axes:
        raise UserError("tune: [tune] gives the seeds; remove the axis seed")
    if not isinstance(over, list) or not over:
        raise UserError(f"tune: over = {over!r}: must be a list of axes of steps")
    for axis in over:
        check_one_of(axes, str(axis), "axis", "tune: over: ")
    if not isinstance(by, str) or not by.startswith("validation_"):
        raise UserError(f"tune: by = {by!r}: must be a column of the validation part, as validation_accuracy")
    if type(seed) is not int or not isinstance(then, list) or any(type(each) is not int for each in then):
        raise UserError(f"tune: seed = {seed!r}, then = {then!r}: must be a whole number and a list of whole numbers")
    return Tune(tuple(over), by, str(seed), tuple(map(str, then)))
