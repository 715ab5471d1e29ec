"""The results that a command line names, read group by group; what is missing is told, never averaged over."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from shared.command import tell
from shared.groups import Group, split
from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid.tune import planned


def read(name: str, flags: argparse.Namespace, known: Sequence[str], needed: Sequence[str] = ()) -> list[Group]:
    """The groups of the grids of a command line, in the grids' order.

    Args:
        known: axes that the script shows; what it does not know it would have to average over.
        needed: axes that it cannot do without.

    Raises:
        UserError: a run is not finished, of another configuration or unreadable (unless --partial), or all are; or a
            grid has other axes.
    """
    groups: list[Group] = []
    troubles: list[str] = []
    for path in flags.grid:
        study = grid.read(path, flags.results, trust=True)
        _check_axes(path, study, known, needed)
        found, sentences = _collect(study)
        groups += sorted(found, key=lambda g: _position(study, g, known))
        troubles += sentences
    there, planned = sum(len(g.runs) for g in groups), sum(g.planned for g in groups)
    if troubles and not (flags.partial and there):
        hint = "; --partial goes on without them" if there else ""
        raise UserError(*troubles, f"{len(troubles)} of {planned} results cannot be used{hint}")
    tell(name, troubles)
    return groups


def _check_axes(path: Path, study: grid.Grid, known: Sequence[str], needed: Sequence[str]) -> None:
    for axis, entries in study.axes.items():
        if axis not in (*known, "seed") and len(entries) > 1:
            raise UserError(f"{path} has the axis {axis}, which would be averaged over; known are {', '.join(known)}")
    for axis in needed:
        if axis not in study.axes:
            raise UserError(f"{path} has no axis {axis}; it has {', '.join(study.axes)}")


def _position(study: grid.Grid, group: Group, axes: Sequence[str]) -> list[int]:
    """The sort key of a group: its place by the first of these axes, then by the next; entries in the grid's order."""
    return [study.axes[axis].index(group.where.get(axis, "")) for axis in axes if axis in study.axes]


def _collect(study: grid.Grid) -> tuple[list[Group], list[str]]:
    """The groups of a grid, and a sentence for each result that cannot be used."""
    runs = planned(study, tried=True)[0].values()
    groups: list[Group] = []
    troubles: list[str] = []
    for members in split(runs, lambda run: str({**run.coordinates, "seed": ""})).values():
        found = [grid.finished(study, member) for member in members]
        usable = tuple(run for run in found if isinstance(run, records.Run))
        troubles += [sentence for sentence in found if isinstance(sentence, str)]
        where = {axis: entry for axis, entry in members[0].coordinates.items() if entry and axis != "seed"}
        groups.append(Group(where, len(members), usable[0].config if usable else members[0].flags, usable))
    return groups, troubles
