"""Table of a study: one row per group, means over seeds after the last round, differences to a control."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from zofl_mpi.errors import UserError, check_one_of, plain
from zofl_mpi.report import figure, means
from zofl_mpi.report.groups import Group, Groups
from zofl_mpi.report.means import Curve
from zofl_mpi.report.wording import METHODS, text_table

Row = dict[str, Any]
NOTE = "Mean over seeds in the last evaluated round ± half its 95 % t interval; differences are taken seed by seed."


def table(
    found: Groups, rows: Sequence[str] = (), columns: Sequence[str] = (), control: str | None = None
) -> tuple[str, str, list[str]]:
    """The table as text and as CSV, and a message for each number that is missing.

    Args:
        rows: axes whose entries tell the groups apart; all, if none is named.
        columns: of the results; the test accuracy or the loss, if none is named.
        control: as of `means.differences`.
    """
    axes = _axes(found, rows)
    lines = [[plain(group.where[axis]) for axis in axes] for group in found.groups]
    both = zip(lines, found.groups, strict=True)
    kept: list[Row] = [{**dict(zip(axes, line, strict=True)), **group.told} for line, group in both]
    header, notes = list(axes), list[str]()
    for y in columns or [means.quantity(found.groups, None)]:
        curves, lost = means.curves(found, means.quantity(found.groups, y), "rounds")
        notes += lost
        header.append(figure.quantity_in_words(curves, y, None))
        _add(found.groups, curves, y, lines, kept)
        if control:
            less, lost = means.differences(curves, found, control)
            notes += lost
            header.append(f"less {METHODS.get(control, control)}")
            _add(found.groups, less, y, lines, kept, "_difference")
    for group, line, row in zip(found.groups, lines, kept, strict=True):
        line.append(f"{len(group.runs)} of {group.planned}")
        row |= {"seeds": len(group.runs), "seeds_planned": group.planned}
    text = io.StringIO()
    writer = csv.DictWriter(text, list(kept[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    told = text_table([plain(word) for word in (*header, "seeds")], lines, len(axes))
    return f"{told}\n\n{NOTE}\n", text.getvalue(), notes


def _axes(found: Groups, rows: Sequence[str]) -> list[str]:
    """The axes of the table (UserError: one is unknown, or they do not tell the groups apart)."""
    for axis in rows:
        check_one_of(found.groups[0].where, axis, "axis", "table: rows: ")
    axes = list(rows) or list(found.groups[0].where)
    names = [", ".join(group.where[axis] for axis in axes) for group in found.groups]
    for name in names:
        if names.count(name) > 1:
            others = ", ".join(axis for axis in found.groups[0].where if axis not in axes)
            raise UserError(f"table: rows = {axes}: {names.count(name)} groups are {name!r}; add one of {others}")
    return axes


def _add(
    groups: Sequence[Group],
    curves: Sequence[Curve],
    y: str,
    lines: Sequence[list[str]],
    rows: Sequence[Row],
    end: str = "",
) -> None:
    """Add the last points of a column's curves to the lines of the text and the rows of the CSV."""
    for group, line, row in zip(groups, lines, rows, strict=True):
        curve = next((curve for curve in curves if curve.group.where == group.where), None)
        last = {} if curve is None else {key: figure.cell(of[-1]) for key, of in figure.numbers(curve).items()}
        row |= {f"{y}{end}_{key}": last.get(key, "") for key in ("mean", "sd", "low", "high")}
        line.append("-" if curve is None else figure.rounded(curve, y))
