"""What the paper leaves open, read in several ways: final accuracy under each reading, and its distance from Table I.

python analysis/a_readings.py [--grid jobs/a_readings.toml] [--results DIR] [--out NAME] [--partial]

Prints a table per method (a row per reading, a column per cell: ours, and ours - paper), the mean distances, and the
reading that comes nearest; writes NAME.csv.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import study
from study import Group


def main(words: list[str] | None = None) -> None:
    """Print and write the tables; exit status 2 if a result is missing."""
    flags = study.parser("a_readings", __doc__, ["a_readings.toml"]).parse_args(words)
    with study.told("a_readings"):
        known = ("data", "problem", "cell", "reading", "method")
        groups = study.read("a_readings", flags, known, ("reading", "method"))
        for method, block in study.split(groups, lambda g: g.entry("method")).items():
            print(f"{study.method_name(method)}, test accuracy in %: ours (ours - paper)\n{table(block)}\n")
        study.write_csv(flags.out, [row(group) for group in groups])
        print(f"\n{distances(groups)}\n\n{study.paragraph(study.caption(groups))}\n\n{nearest(groups)}")


def table(groups: Sequence[Group]) -> str:
    """One method: readings below each other, cells side by side; the paper's numbers first."""
    columns = study.split(groups, column_of)
    rows = [["paper", *(study.plain(found[0].paper) for found in columns.values())]]
    for reading, block in study.split(groups, lambda g: g.entry("reading")).items():
        there = {column_of(g): told(g) for g in block}
        rows.append([reading, *(there.get(column, "-") for column in columns)])
    return study.aligned(["reading", *columns], rows)


def column_of(group: Group) -> str:
    """Data set and cell."""
    return f"{study.data_of(group)} {group.entry('cell')}"


def told(group: Group) -> str:
    """74.23 ± 0.31 (-16.59)."""
    gap = difference(group)
    return study.percent(*group.accuracy(), group.note) + ("" if math.isnan(gap) else f" ({gap:+.2f})")


def difference(group: Group) -> float:
    """Ours - paper; nan where one of them is missing."""
    return group.accuracy()[0] - group.paper


def row(group: Group) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    return {
        "reading": group.entry("reading"),
        "method": group.entry("method"),
        "data": group.entry("data"),
        "cell": group.entry("cell"),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "paper_percent": group.paper,
        "difference_percent": difference(group),
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


# --- which reading comes nearest


def completed(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """{reading: a group for each method, data set and cell}.

    A reading that the grid leaves out for a method is no question of that method: the first reading stands for it.
    """
    readings = study.split(groups, lambda g: g.entry("reading"))
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
    """The mean of |ours - paper| over cells: for each method, and over all."""
    methods = study.entries(groups, "method")
    rows = []
    for reading, block in completed(groups).items():
        parts = [[g for g in block if g.entry("method") == method] for method in methods]
        rows.append([reading, *(study.plain(distance(part)) for part in (*parts, block))])
    title = "mean |ours - paper| in points; where a reading is no question of a method, its first reading counts"
    return f"{title}\n" + study.aligned(["reading", *map(study.method_name, methods), "all"], rows)


def distance(groups: Sequence[Group]) -> float:
    """The mean of |ours - paper|; nan unless all seeds are there, and where the paper has no number."""
    if any(group.note for group in groups):
        return math.nan
    gaps = [abs(difference(group)) for group in groups if not math.isnan(group.paper)]
    return math.fsum(gaps) / len(gaps) if gaps else math.nan


def nearest(groups: Sequence[Group]) -> str:
    """The sentence that names the reading of the least mean distance."""
    found = completed(groups)
    known = {reading: distance(block) for reading, block in found.items() if not math.isnan(distance(block))}
    if not known:
        return "No reading has all its results and numbers of the paper to compare them with."
    best = min(known, key=lambda reading: known[reading])
    count = sum(not math.isnan(g.paper) for g in found[best])
    left = ", ".join(reading for reading in found if reading not in known)
    unranked = f" (not ranked, for want of results: {left})" if left else ""
    return (
        f"Nearest to the paper: {best}, mean |ours - paper| = {known[best]:.2f} points over {count} numbers{unranked}."
    )


if __name__ == "__main__":
    main()
