"""What the paper leaves open, read in several ways: final accuracy under each reading, and its distance from Table I.

python analysis/a_readings.py [--grid jobs/a_readings.toml] [--results DIR] [--out NAME] [--partial]

Prints a table per method (a row per reading, a column per cell: ours, and ours - paper), the mean distances, and the
reading that comes nearest.
"""

import math
from collections.abc import Sequence

from shared import wording
from shared.files import Report
from shared.groups import Group, entries, split
from shared.paper import printed
from shared.study import ACCURACY, COUNTS, entry, number, row, study


def report(groups: Sequence[Group]) -> Report:
    """The tables, and the reading that comes nearest."""
    tables = [
        f"{wording.method_name(method)}, test accuracy in %: ours (ours - paper)\n{table(block)}\n"
        for method, block in split(groups, lambda g: g.entry("method")).items()
    ]
    told = [*tables, f"\n{distances(groups)}\n", f"{wording.paragraph(wording.caption(groups))}\n", nearest(groups)]
    return Report("\n".join(told), rows=[row(COLUMNS, group) for group in groups])


def table(groups: Sequence[Group]) -> str:
    """Table of one method: readings below each other, cells side by side; the paper's numbers first."""
    paper = [("paper", column_of(g), wording.plain(printed(g))) for g in groups]
    return wording.crossed("reading", [*paper, *((g.entry("reading"), column_of(g), told(g)) for g in groups)])


def column_of(group: Group) -> str:
    """Data set and cell."""
    return f"{wording.data_of(group)} {group.entry('cell')}"


def told(group: Group) -> str:
    """Our accuracy and its difference to the paper's: 74.23 ± 0.31 (-16.59)."""
    gap = difference(group)
    return wording.percent(*group.accuracy(), group.note) + ("" if math.isnan(gap) else f" ({gap:+.2f})")


def difference(group: Group) -> float:
    """Our accuracy less the paper's; nan where one of them is missing."""
    return group.accuracy()[0] - printed(group)


COLUMNS = (
    *map(entry, ("reading", "method", "data", "cell")),
    ACCURACY,
    number("paper_percent", lambda group, _: printed(group)),
    number("difference_percent", lambda group, _: difference(group)),
    COUNTS,
)


# --- which reading comes nearest


def completed(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """{reading: a group for each method, data set and cell}.

    A reading that the grid leaves out for a method is no question of that method: the first reading stands for it.
    """
    readings = split(groups, lambda g: g.entry("reading"))
    first = next(iter(readings.values()))
    found = {}
    for reading, block in readings.items():
        there = {place_of(g) for g in block}
        found[reading] = [*block, *(g for g in first if place_of(g) not in there)]
    return found


def place_of(group: Group) -> tuple[str, str]:
    """Method, and data set and cell."""
    return group.entry("method"), column_of(group)


def distances(groups: Sequence[Group]) -> str:
    """Table of the mean of |ours - paper| over cells: for each method, and over all."""
    cells = []
    for reading, block in completed(groups).items():
        parts = {m: [g for g in block if g.entry("method") == m] for m in entries(groups, "method")} | {"all": block}
        cells += [(reading, wording.method_name(m), wording.plain(distance(part))) for m, part in parts.items()]
    title = "mean |ours - paper| in points; where a reading is no question of a method, its first reading counts"
    return f"{title}\n{wording.crossed('reading', cells)}"


def distance(groups: Sequence[Group]) -> float:
    """The mean of |ours - paper|; nan unless all seeds are there, and where the paper has no number."""
    if any(group.note for group in groups):
        return math.nan
    gaps = [abs(difference(group)) for group in groups if not math.isnan(printed(group))]
    return math.fsum(gaps) / len(gaps) if gaps else math.nan


def nearest(groups: Sequence[Group]) -> str:
    """The sentence that names the reading of the least mean distance."""
    found = completed(groups)
    known = {reading: distance(block) for reading, block in found.items() if not math.isnan(distance(block))}
    if not known:
        return "No reading has all its results and numbers of the paper to compare them with."
    best = min(known, key=lambda reading: known[reading])
    count = sum(not math.isnan(printed(g)) for g in found[best])
    left = ", ".join(reading for reading in found if reading not in known)
    unranked = f" (not ranked, for want of results: {left})" if left else ""
    return (
        f"Nearest to the paper: {best}, mean |ours - paper| = {known[best]:.2f} points over {count} numbers{unranked}."
    )


AXES = ("data", "problem", "cell", "reading", "method")
main = study("a_readings", __doc__, ["a_readings.toml"], AXES, report, needed=("reading", "method"))

if __name__ == "__main__":
    main()
