"""Whether a best step lies inside the steps that were tried, or at an edge, where a better one may lie beyond."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared import wording
from shared.groups import Group

MARK = "!"
"""Of a best step at an edge, in tables."""


def at_edge(best: Group, tried: Sequence[Group], axes: Mapping[str, Sequence[str]]) -> list[str]:
    """The axes along which a best step is the first or the last that was tried.

    Args:
        tried: groups with results of the same method and place, the best among them.
        axes: {axis of steps: its entries in the order of their size}.
    """
    return [axis for axis, order in axes.items() if _ends_at(best, tried, axis, order, [a for a in axes if a != axis])]


def _ends_at(best: Group, tried: Sequence[Group], axis: str, order: Sequence[str], others: Sequence[str]) -> bool:
    """Whether, with the entries on the other axes as they are, nothing was tried on one side of the best."""
    if len({group.where.get(axis) for group in tried}) < 2:  # not tuned
        return False
    line = [g for g in tried if all(g.where.get(other) == best.where.get(other) for other in others)]
    places = [order.index(group.where[axis]) for group in line]
    return order.index(best.where[axis]) in (min(places), max(places))


def star(row: Mapping[str, Any]) -> str:
    """The mark of the best step in a row of a CSV, and of one at an edge."""
    return " *" + MARK * bool(row["at_edge"]) if row["best"] else ""


def step(row: Mapping[str, Any]) -> str:
    """A row's step, and the mark of one at an edge."""
    return f"{row['step']} {MARK}" if row["at_edge"] else str(row["step"])


def accuracy(row: Mapping[str, Any], marked: bool = False) -> str:
    """A row's accuracy in a table, with the mark of a step at an edge if `marked`, and the seeds that are missing."""
    notes = MARK * (marked and bool(row["at_edge"])), wording.seeds_of(row)
    return wording.mean_of(row, "accuracy", note=" ".join(filter(None, notes)))


def told(names: Sequence[str]) -> str:
    """A line that names the best steps at an edge."""
    if not names:
        return "Every best step has smaller and larger ones beside it in the grid."
    return wording.paragraph(f"{MARK} at an edge of the grid, a better step may lie beyond: {', '.join(names)}.")
