"""Which of a method's steps is its best: chosen on a validation part where the runs have one (--validation).

A study that tunes steps has a row for each that was tried; its groups are those of a grid with axes of steps:

    tried = choices(groups, place("method"), by(criterion), by_size(STEPS))
    rows = [{"step": step(choice.group, STEPS), **choice.row} for choice in tried]
    best = [choice.group for choice in tried if choice.best]
"""

import math
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shared import edges
from shared.groups import Group, entries, split
from shared.study import accuracy, counts
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid.tune import at_the_end as at_the_end


def validated(groups: Iterable[Group], column: str) -> bool:
    """Whether all results have the column of the validation part."""
    return all(column in run.rounds for group in groups for run in group.runs)


@final
@dataclass(frozen=True)
class Choice:
    """What is known of a group among those that differ from it in their step alone.

    Attributes:
        value: what the step is chosen by; nan where nothing is known.
        best: whether it has the best value.
        at_edge: of the best, the axes along which it is at an edge of what was tried.
    """

    group: Group
    value: float
    best: bool = False
    at_edge: tuple[str, ...] = ()

    @property
    def row(self) -> dict[str, Any]:
        """Columns of the CSV."""
        return {"best": self.best, "at_edge": " ".join(self.at_edge)}


def choices(
    groups: Sequence[Group],
    whose: Callable[[Group], str],
    values: Callable[[Sequence[Group]], Sequence[float]],
    axes: Callable[[Sequence[Group]], Mapping[str, Sequence[str]]] | Mapping[str, Sequence[str]],
    lowest: bool = False,
) -> list[Choice]:
    """The choice for each group, in their order; of equal ones that of more seeds is best, and of these the first.

    Args:
        whose: equal for groups that differ in their step alone.
        values: of such groups what they are chosen by.
        axes: {axis of steps: its entries by their size}, or a function of such groups that gives it.
        lowest: whether the lowest value is best, and not the highest.
    """
    found: dict[int, Choice] = {}
    for same in split(groups, whose).values():
        each = list(values(same))
        known = [k for k, value in enumerate(each) if not math.isnan(value)]
        sign = -1 if lowest else 1
        best = max(known, key=lambda k: (sign * each[k], len(same[k].runs)), default=-1)
        for k, (group, value) in enumerate(zip(same, each, strict=True)):
            order = axes(same) if callable(axes) else axes
            ends = edges.at_edge(group, [g for g in same if g.runs], order) if k == best else []
            found[id(group)] = Choice(group, value, k == best, tuple(ends))
    return [found[id(group)] for group in groups]


def place(*axes: str) -> Callable[[Group], str]:
    """A function that tells groups apart by their entries on these axes alone."""
    return lambda group: "\n".join(map(group.entry, axes))


def step_axes(flags: Namespace, steps: Callable[[str], bool]) -> dict[str, list[str]]:
    """{axis that holds steps, as `steps` knows them: its entries}, of all grids of a command line."""
    found: dict[str, list[str]] = {}
    for path in flags.grid:
        for axis, words in grid.read(path, flags.results, trust=True).axes.items():
            if steps(axis):
                found[axis] = list(dict.fromkeys([*found.get(axis, []), *words]))
    return found


def by_size(axes: Iterable[str]) -> Callable[[Sequence[Group]], dict[str, list[str]]]:
    """A function of groups that gives {axis of steps that they have: its entries by their size}."""
    return lambda same: {axis: sorted(entries(same, axis), key=size) for axis in axes if axis in same[0].where}


def rows(
    groups: Sequence[Group],
    axes: Sequence[str],
    steps: str,
    values: Callable[[Sequence[Group]], Sequence[float]],
    more: Callable[[Group], Mapping[str, Any]] = lambda group: {},
) -> list[dict[str, Any]]:
    """The rows of a CSV, one a group: entries on the axes, the choice on the axis of steps, accuracy, seeds.

    Args:
        values: validation accuracies in % of groups that differ in their step alone.
        more: further columns.
    """
    others = [axis for axis in axes if axis != steps]
    tried = choices(groups, lambda g: " ".join(g.entry(axis) for axis in others), values, by_size([steps]))
    return [
        {axis: choice.group.entry(axis) for axis in axes}
        | {"validation_percent": choice.value, **choice.row}
        | {**more(choice.group), **accuracy(choice.group), **counts(choice.group)}
        for choice in tried
    ]


def step(group: Group, axes: Iterable[str], without: str = "") -> str:
    """A group's steps as the grid calls them; not those that do not concern its method, whose entries end in none."""
    words = [group.where[axis] for axis in axes if axis in group.where]
    return " ".join(word for word in words if not word.endswith("none")) or without


def named_step(group: Group, axes: Iterable[str]) -> str:
    """A group's steps, each after its axis: lam-30 local-0.03."""
    return " ".join(f"{axis}-{group.where[axis]}" for axis in axes if axis in group.where)


def size(entry: str) -> float:
    """How long a step is, or how large a weight, from its name in the grid: local-0.03, lam-5."""
    return float(entry.rpartition("-")[2])


def by(criterion: Callable[[records.Run], float]) -> Callable[[Sequence[Group]], list[float]]:
    """A function that gives the mean criterion of each of a method's groups; see `means`."""
    return lambda same: means(same, criterion)


def means(same: Sequence[Group], criterion: Callable[[records.Run], float]) -> list[float]:
    """The mean criterion of each group of a method; nan for those without results, or without all of their seeds.

    The mean over the seeds that all of them have, so that a step is not better for an easier seed.
    """
    having = [g for g in same if g.runs and not g.note] or [g for g in same if g.runs]
    common = set.intersection(*(set(g.seeds) for g in having)) if having else set()
    return [
        float(np.mean([criterion(run) for seed, run in g.seeds.items() if not common or seed in common]))
        if g in having
        else math.nan
        for g in same
    ]
