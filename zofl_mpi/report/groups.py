"""Groups of runs that differ in their seed only, from a grid or from named results."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, plain
from zofl_mpi.report.facts import CELL, LOSSES, UNTOLD
from zofl_mpi.report.wording import METHODS, label_of
from zofl_mpi.run import grid
from zofl_mpi.run.grid.file import selected_runs
from zofl_mpi.run.grid.state import FREE_FLAGS
from zofl_mpi.run.grid.tune import planned
from zofl_mpi.run.loop.divergence import has_diverged
from zofl_mpi.run.records import Run

IN_LABEL = 3
"""Number of flags in a group's name, unless more are needed to tell the groups apart."""


@final
@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        where: {axis: entry}, of the axes on which the groups differ; of named results {flag: value}.
        label: its name in legends.
        planned: number of seeds in the grid, or of results that were named.
        runs: the results that can be used, a seed each.
        flags: its flags, without the seed.
        told: further columns of the CSV, as a choice of steps adds.
    """

    where: dict[str, str]
    label: str
    planned: int
    runs: tuple[Run, ...]
    flags: Mapping[str, Any]
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> str:
        """Its entries as the grid spells them."""
        return ", ".join(filter(None, self.where.values()))

    @property
    def seeds(self) -> dict[Any, Run]:
        """{seed: its result}."""
        return {run.config.get("seed"): run for run in self.runs}


@final
@dataclass(frozen=True)
class Groups:
    """All groups of a figure or a page.

    Attributes:
        groups: those with results, in the grid's order.
        sets: {axis on which the groups differ: the flags that it sets}.
        notes: a message for each run that is left out.
        files: what was read.
    """

    groups: tuple[Group, ...]
    sets: Mapping[str, frozenset[str]]
    notes: tuple[str, ...]
    files: tuple[Path, ...]


def of_grid(path: Path, results: Path | None = None, only: Sequence[str] = (), trust: bool = False) -> Groups:
    """The groups of a grid: its runs along the axes that set the seed alone (UserError: none of its runs is usable)."""
    study = grid.read(path, results, trust=trust)
    known, choices = planned(study, tried=True, best=True)
    runs = [run for k, run in selected_runs(study, only).items() if k in known]
    over = study.tune.over if study.tune else ()
    others = [axis for axis, names in study.sets.items() if names != {"seed"}]
    differ = [axis for axis in others if len({run.coordinates[axis] for run in runs}) > 1]
    groups, notes = [], choices
    for members in split(runs, lambda run: str([run.coordinates[axis] for axis in others])).values():
        found = [grid.finished(study, member) for member in members]
        notes += [told for told in found if isinstance(told, str)]
        usable, diverged = _usable([run for run in found if isinstance(run, Run)])
        notes += diverged
        at = {axis: members[0].coordinates[axis] for axis in differ}
        where = {axis: entry for axis, entry in at.items() if axis not in over}
        steps = {axis: plain(entry) for axis, entry in at.items() if axis in over}
        flags = {name: value for name, value in members[0].flags.items() if name != "seed"}
        groups.append(Group(where, label_of(at, flags), len(members), tuple(usable), flags, steps))
    kept = tuple(group for group in groups if group.runs)
    if not kept:
        remedy = f"python -m zofl_mpi.run.grid {path} --run does what is left"
        raise UserError(f"{path}: none of its {len(runs)} runs can be drawn: {notes[0]}; {remedy}")
    sets = {axis: study.sets[axis] for axis in differ if axis not in over}
    return Groups(kept, sets, tuple(notes), (path, *(run.out for run in runs)))


def of_results(runs: Sequence[Run], whole: bool = True) -> Groups:
    """Groups of named results: those with one configuration, seeds aside.

    Args:
        whole: whether runs that are not done, or have diverged, are left out where a mean over seeds is taken.
    """
    untold, notes = UNTOLD | FREE_FLAGS | {"seed"}, list[str]()
    own = [{key: value for key, value in run.config.items() if key not in untold} for run in runs]
    method = [run.config.get("method", run.path.stem) for run in runs]
    told = [{"method": str(name), **config} for name, config in zip(method, own, strict=True)]
    shared = [key for key in told[0] if all(key in config for config in told)]
    differ = [key for key in shared if key != "method" and len({_text(config[key]) for config in told}) > 1]
    groups = []
    for members in split(range(len(runs)), lambda k: _text(told[k])).values():
        first = told[members[0]]
        where = {key: _shown(first[key]) for key in ("method", *differ)}
        same, usable = [runs[k] for k in members], [runs[k] for k in members]
        if whole and len(members) > 1:
            usable = [run for run in same if run.attrs["status"] == "done"]
            lost = [run for run in same if run.attrs["status"] != "done"]
            notes += [f"{run.path}: not done after {run.length} rounds" for run in lost]
            usable, diverged = _usable(usable)
            notes += diverged
        seeds = {run.config.get("seed"): run for run in reversed(usable)}
        again = [run for run in usable if seeds[run.config.get("seed")] is not run]
        if whole:
            notes += [f"{run.path}: has the seed of {seeds[run.config.get('seed')].path}" for run in again]
            usable = [run for run in usable if run not in again]
        flags = {key: value for key, value in first.items() if key != "method"}
        groups.append(Group(where, "", len(members), tuple(usable), flags))
    kept = _labelled([group for group in groups if group.runs])
    if not kept:
        raise UserError(f"none of the {len(runs)} results can be drawn: {notes[0]}")
    return Groups(tuple(kept), {key: frozenset([key]) for key in differ}, tuple(notes), tuple(r.path for r in runs))


def half_width(values: NDArray[Any]) -> NDArray[Any]:
    """(k,) half the 95 % t intervals of the means of (n, k) values; nan of one value."""
    return np.asarray(t_half_width(values.std(axis=0, ddof=min(1, len(values) - 1)), len(values)))


def t_half_width(sd: Any, n: int, freedom: int | None = None) -> Any:
    """t sd/sqrt(n): half the 95 % interval of a mean of n values of this standard deviation; nan for fewer than two.

    Student's t is that of n - 1 degrees of freedom, or of those given, as for a difference of two means.
    """
    if n < 2:
        return sd * math.nan
    from scipy.special import stdtrit  # scikit-learn brings it; scipy.stats takes a second to import

    return stdtrit(freedom or n - 1, 0.975) * sd / math.sqrt(n)


def split(items: Iterable[Any], key: Callable[[Any], str]) -> dict[str, list[Any]]:
    """{key: its items}, in order."""
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _usable(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The finished runs that have not diverged, and a message for each other one."""
    usable, notes = [], []
    for run in runs:
        name = next((name for name in LOSSES if _evaluated(run, name).size > 1), None)
        values = _evaluated(run, name) if name else np.zeros(2)
        if has_diverged(values[0], values[-1]):
            notes.append(f"{run.path.stem}: diverged: {name} went from {values[0]:.4g} to {values[-1]:.4g}")
        else:
            usable.append(run)
    return usable, notes


def _evaluated(run: Run, name: str) -> Any:
    values = run.rounds.get(name, np.empty(0))
    return values[~np.isnan(values)]


def _labelled(groups: Sequence[Group]) -> list[Group]:
    """The groups of results with names: the method and the first flags that tell them apart, all if need be."""
    for most in (IN_LABEL, math.inf):
        labels = [_label(group.where, most) for group in groups]
        if len(set(labels)) == len(labels):
            break
    else:
        labels = [f"{label} ({group.runs[0].path.name})" for label, group in zip(labels, groups, strict=True)]
    return [replace(group, label=label) for group, label in zip(groups, labels, strict=True)]


def _label(where: Mapping[str, str], most: float) -> str:
    words = [f"{key} {value}" for n, (key, value) in enumerate(where.items()) if 0 < n <= most]
    return plain(", ".join([METHODS.get(where["method"], where["method"]), *words]), CELL)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _shown(value: Any) -> str:
    """A flag's value: 1000.0 -> 1000."""
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
