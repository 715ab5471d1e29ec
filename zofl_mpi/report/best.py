"""Of groups that differ in their steps alone, the best on validation samples; told where it lies at an edge."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zofl_mpi.errors import UserError, check_one_of
from zofl_mpi.report.groups import Group, Groups, split
from zofl_mpi.run.records import Run

LAST_EVALUATIONS = 5
"""A choice takes the mean of so many at the end: the last one alone swings."""
STEPS = frozenset(
    ["align_lr", "eta_g", "gamma", "gamma_local", "gamma_lower", "lr_client", "lr_server", "personal_gamma", "step"]
)
"""Flags that are step sizes."""
WITH_STEPS = frozenset(["schedule", "schedule_local", "personal_schedule", "decay_steps", "decay_steps_server"])
"""Flags that an axis of steps may set beside them."""


def best(found: Groups, column: str, over: Sequence[str] = ()) -> Groups:
    """The groups with the best steps; their notes tell what was chosen, and which lie at an edge of what was tried.

    A group with all of its seeds comes before one that lacks some: a step that lost seeds is not better for it.

    Args:
        column: of the validation part; an accuracy is best highest, all else lowest.
        over: the axes of steps; those that set only step sizes, if none is named.
    """
    if not column.startswith("validation_"):
        told = "a choice on other samples is no choice before the test"
        raise UserError(f"--best {column}: must be a column validation_...; {told}; --validation of a run gives them")
    tuned = list(over) or [axis for axis, names in found.sets.items() if names & STEPS and names <= STEPS | WITH_STEPS]
    for axis in over:
        check_one_of(found.sets, axis, "axis", f"--over {axis}: ")
    if not tuned:
        axes = ", ".join(found.sets) or "none"
        raise UserError(
            f"--best {column}: no axis sets step sizes alone; name one by --over; the groups differ in {axes}"
        )
    chosen, notes = [], list(found.notes)
    rest = [axis for axis in found.groups[0].where if axis not in tuned]
    for same in split(found.groups, lambda group: str([group.where[axis] for axis in rest])).values():
        values = _values(same, column)
        sign = 1 if column.endswith("accuracy") else -1
        k = max(
            (k for k in range(len(same)) if not math.isnan(values[k])), key=lambda k: sign * values[k], default=None
        )
        if k is None:
            raise UserError(f"--best {column}: {same[0].label} has no such column; run it with --validation 0.1")
        ends = [axis for axis in tuned if _at_edge(same[k], same, axis, tuned)]
        edge = f"; at an edge of {', '.join(ends)}: a better one may lie beyond" if ends else ""
        notes.append(f"{same[k].label}: the best of {len(same)} by {column}, {values[k]:.4g}{edge}")
        chosen.append(replace(same[k], told={f"best_{column}": values[k], "at_edge": " ".join(ends)}))
    return replace(found, groups=tuple(chosen), notes=tuple(notes))


def at_the_end(run: Run, column: str) -> float:
    """A column's mean over the last evaluations; nan where there is none."""
    values = run.rounds.get(column, np.empty(0))
    values = values[np.isfinite(values)][-LAST_EVALUATIONS:]
    return float(values.mean()) if values.size else math.nan


def _values(same: Sequence[Group], column: str) -> list[float]:
    """The mean of each group over the seeds that all complete ones have; nan of groups that cannot be compared."""
    complete = [group for group in same if len(group.runs) == group.planned] or list(same)
    common = set.intersection(*(set(group.seeds) for group in complete))
    return [
        float(np.mean([at_the_end(run, column) for seed, run in group.seeds.items() if not common or seed in common]))
        if group in complete
        else math.nan
        for group in same
    ]


def _at_edge(group: Group, same: Sequence[Group], axis: str, tuned: Sequence[str]) -> bool:
    """Whether, with the other steps as they are, nothing was tried on one side of a group's entry on the axis."""
    if len({other.where[axis] for other in same}) < 2:
        return False
    line = [g for g in same if all(g.where[a] == group.where[a] for a in tuned if a != axis)]
    sizes = [_size(g, line) for g in line]
    order = sizes if all(sizes) else list(range(len(line)))
    own = order[line.index(group)]
    return own in (min(order), max(order))


def _size(group: Group, line: Sequence[Group]) -> tuple[Any, ...]:
    """The numbers among the flags in which groups on a line differ; () if there are none."""
    numbers = {k: v for k, v in sorted(group.flags.items()) if isinstance(v, int | float) and not isinstance(v, bool)}
    return tuple(v for k, v in numbers.items() if any(other.flags.get(k) != v for other in line))
