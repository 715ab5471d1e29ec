"""Steps of a study that are chosen by its first seed: [tune] in the file of a grid.

[tune]
over = ["local", "server"]     # axes of steps
by = "validation_accuracy"     # a column of the validation part; an accuracy is best highest, all else lowest
seed = 1                       # every step is tried with this seed
then = [1, 2, 3]               # the best step of each group has these, too

The axis seed is [tune]'s own. What is chosen follows from the results alone, so a study is resumed as any grid.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from zofl_mpi.run import records
from zofl_mpi.run.grid.file import Grid, GridRun, Tune
from zofl_mpi.run.grid.state import finished

LAST_EVALUATIONS = 5
"""A choice takes the mean of so many at the end: the last one alone swings."""


def planned(grid: Grid, tried: bool = False, best: bool = False) -> tuple[dict[int, GridRun], list[str]]:
    """{number: run} of what a study consists of as far as its results tell, and a message for each choice.

    Args:
        tried: all runs of the first seed have been tried: the choice is among those that are finished.
        best: leaves out what was tried and not chosen.
    """
    tune, runs = grid.tune, dict(enumerate(grid.runs))
    if tune is None:
        return runs, []
    first = {k: run for k, run in runs.items() if run.coordinates["seed"] == tune.seed}
    found, notes = dict[int, GridRun]() if best else dict(first), list[str]()
    for place, same in _groups(grid, tune, first.values()).items():
        chosen, note = _best(grid, tune, same, tried)
        notes.append(f"{place}: {note}")
        if chosen is not None:
            steps = {**chosen.coordinates, "seed": ""}
            further = {k: run for k, run in runs.items() if run.coordinates["seed"] in tune.then}
            found |= {k: run for k, run in further.items() if {**run.coordinates, "seed": ""} == steps}
    return dict(sorted(found.items())), notes


def _groups(grid: Grid, tune: Tune, runs: Iterable[GridRun]) -> dict[str, list[GridRun]]:
    """{name: the runs that differ in their steps alone}."""
    found: dict[str, list[GridRun]] = {}
    rest = [axis for axis, entries in grid.axes.items() if axis not in ("seed", *tune.over) and len(entries) > 1]
    for run in runs:
        name = ", ".join(filter(None, (run.coordinates[axis] for axis in rest))) or "all runs"
        found.setdefault(name, []).append(run)
    return found


def _best(grid: Grid, tune: Tune, same: Sequence[GridRun], tried: bool) -> tuple[GridRun | None, str]:
    """The best of runs that differ in their steps alone, if it can be told, and a message."""
    if len(same) == 1:
        return same[0], "nothing is to be chosen"
    results = [finished(grid, run) for run in same]
    values = [at_the_end(each, tune.by) if isinstance(each, records.Run) else math.nan for each in results]
    there = sum(isinstance(each, records.Run) for each in results)
    if there < len(same) and not tried:
        return None, f"{there} of {len(same)} runs with seed {tune.seed} are finished; then the best has further seeds"
    k = best_of(values, tune.by)
    if k is None:
        return None, f"no run with seed {tune.seed} has a number of {tune.by}; --validation of a run gives it"
    steps = ", ".join(f"{axis} {entry}" for axis in tune.over if (entry := same[k].coordinates[axis]))
    lost = f"; {len(same) - there} of them did not finish" if there < len(same) else ""
    edge = edges(k, [(run.coordinates, run.flags) for run in same], tune.over)[1]
    return same[k], f"{steps} is the best of {len(same)} by {tune.by}, {values[k]:.4g}{lost}{edge}"


def at_the_end(run: records.Run, column: str) -> float:
    """A column's mean over the last evaluations; nan where there is none."""
    values = run.rounds.get(column, np.empty(0))
    values = values[np.isfinite(values)][-LAST_EVALUATIONS:]
    return float(values.mean()) if values.size else math.nan


def best_of(values: Sequence[float], column: str) -> int | None:
    """The number of the best value of a column, the first of equal ones; None where all are nan."""
    sign = 1 if column.endswith("accuracy") else -1
    known = (k for k, value in enumerate(values) if not math.isnan(value))
    return max(known, key=lambda k: sign * values[k], default=None)


Point = tuple[Mapping[str, str], Mapping[str, Any]]
"""{axis: entry} and flags of what was tried."""


def edges(k: int, tried: Sequence[Point], over: Sequence[str]) -> tuple[list[str], str]:
    """The axes of steps along which number k lies at an edge of what was tried, and words that tell it."""
    ends = [axis for axis in over if _at_edge(k, tried, axis, over)]
    return ends, f"; at an edge of {', '.join(ends)}: a better one may lie beyond" if ends else ""


def _at_edge(k: int, tried: Sequence[Point], axis: str, over: Sequence[str]) -> bool:
    """True if, with the other steps unchanged, no tried value lies on one side of number k's entry on the axis."""
    if len({where[axis] for where, _ in tried}) < 2:
        return False
    others = [other for other in over if other != axis]
    line = [point for point in tried if all(point[0][other] == tried[k][0][other] for other in others)]
    sizes = [_size(flags, [own for _, own in line]) for _, flags in line]
    order: list[Any] = sizes if all(sizes) else list(range(len(line)))
    own = order[line.index(tried[k])]
    return own in (min(order), max(order))


def _size(flags: Mapping[str, Any], line: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """The numbers among the flags in which points on a line differ; () if there are none."""
    numbers = {k: v for k, v in sorted(flags.items()) if isinstance(v, int | float) and not isinstance(v, bool)}
    return tuple(v for k, v in numbers.items() if any(other.get(k) != v for other in line))
