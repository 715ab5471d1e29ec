"""Selection of the best step sizes on validation samples, with a notice if they lie at an edge."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zofl_mpi.errors import UserError, check_one_of, plain
from zofl_mpi.report.groups import Group, Groups, split
from zofl_mpi.run.grid.tune import at_the_end, best_of, edges

STEPS = frozenset(
    ["align_lr", "eta_g", "gamma", "gamma_local", "gamma_lower", "lr_client", "lr_server", "personal_gamma", "step"]
)
"""Flags that are step sizes."""
WITH_STEPS = frozenset(["schedule", "schedule_local", "personal_schedule", "decay_steps", "decay_steps_server"])
"""Flags that an axis of steps may set beside them."""


def best(found: Groups, column: str, over: Sequence[str] = ()) -> Groups:
    """The groups with the best steps; notes name each choice, and whether it lies at an edge of what was tried.

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
        k = best_of(values, column)
        if k is None:
            raise UserError(f"--best {column}: {same[0].label} has no such column; run it with --validation 0.1")
        ends, edge = edges(k, [(group.where, group.flags) for group in same], tuned)
        notes.append(f"{same[k].label}: the best of {len(same)} by {column}, {values[k]:.4g}{edge}")
        where = {axis: same[k].where[axis] for axis in rest}  # its steps do not tell it from a control any more
        columns: dict[str, Any] = {axis: plain(same[k].where[axis]) for axis in tuned}
        columns |= {f"best_{column}": values[k], "at_edge": " ".join(ends)}
        chosen.append(replace(same[k], where=where, told=columns))
    return replace(found, groups=tuple(chosen), notes=tuple(notes), sets={axis: found.sets[axis] for axis in rest})


def _values(same: Sequence[Group], column: str) -> list[float]:
    """Mean of each group over the seeds common to all complete groups; nan: the group cannot be compared."""
    complete = [group for group in same if len(group.runs) == group.planned] or list(same)
    common = set.intersection(*(set(group.seeds) for group in complete))
    return [
        float(np.mean([at_the_end(run, column) for seed, run in group.seeds.items() if not common or seed in common]))
        if group in complete
        else math.nan
        for group in same
    ]
