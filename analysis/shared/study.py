"""Studies: what is read of which grids, and told and drawn of their groups.

A group is what a grid repeats over seeds. Most studies make a `Report` of their groups; a whole script:

    main = study("c_x", __doc__, ["c_x.toml"], ("data", "method"), report)

    if __name__ == "__main__":
        main()

reads jobs/c_x.toml and writes results/c_x.txt, .csv, .pdf and .png. A `Study` tells a row per group, and is
described by its columns:

    main = Study(
        "c_x",
        __doc__,
        grids=["c_x.toml"],
        axes=("data", "method"),
        columns=(
            entry("data", "data"),
            entry("method", "method", heron.name),
            ACCURACY,
            compared("less_frozen", "less frozen", heron.points, heron.signed),
            number("bytes", last(all_bytes), "MiB", 2**20),
            COUNTS,
        ),
        control=lambda group, groups: alike(group, groups, "data", method="heron-frozen"),
        note=lambda groups: f"What the columns are. {wording.caption(groups)}.",
        draw=draw,  # groups -> a figure, see `figures`
    ).main

Those that choose the best of several steps have `shared/choosing.py` for it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shared import command, wording
from shared.files import Report
from shared.groups import Array, Group, mean_sd
from shared.reading import read

Told = Callable[[Group, Group | None], Any]
"""What is told of a group, given the one that it is compared with, or None."""


def study(
    name: str,
    about: str | None,
    grids: Sequence[str],
    axes: Sequence[str],
    report: Callable[[Sequence[Group]], Report],
    needed: Sequence[str] = ("method",),
) -> Callable[..., None]:
    """The `main` of a script that makes a report of the groups of its grids.

    Args:
        name, about, grids: as of `command.script`.
        axes: those that it tells; a grid with another one would be averaged over, and is refused.
        needed: axes without which a grid is refused.
    """
    return command.script(name, about, lambda flags: report(read(name, flags, axes, needed)), grids=grids)


@final
@dataclass(frozen=True)
class Column:
    """A quantity of a group: columns of the CSV, and a column of the table.

    Attributes:
        kept: {column of the CSV: value}.
        header: of the table; "" for what only the CSV has.
        shown: the cell of the table.
    """

    kept: Told
    header: str = ""
    shown: Told = lambda group, control: ""


@final
@dataclass(frozen=True)
class Study:
    """What is read, told and drawn; see the module's docstring.

    Attributes:
        name, about, grids, axes, needed: as of `study`.
        columns: of table and CSV, in their order.
        note: the paragraph below the table.
        draw: the figure; None for a study without one.
        control: the group among all that a group is compared with, or None.
        arrange: all groups in the order of the table, before anything else is done with them.
        left: columns of words in the table, set to the left.
    """

    name: str
    about: str | None
    grids: Sequence[str]
    axes: Sequence[str]
    columns: Sequence[Column]
    note: Callable[[Sequence[Group]], str]
    draw: Callable[[Sequence[Group]], Any] | None = None
    needed: Sequence[str] = ("method",)
    control: Callable[[Group, Sequence[Group]], Group | None] = lambda group, groups: None
    arrange: Callable[[Sequence[Group]], Sequence[Group]] = lambda groups: groups
    left: int = 2

    def main(self, words: list[str] | None = None) -> None:
        """Print and write the table, draw the figure; exit status 2 if a result is missing."""
        study(self.name, self.about, self.grids, self.axes, self.report, self.needed)(words)

    def report(self, groups: Sequence[Group]) -> Report:
        """Table and figure."""
        groups = self.arrange(groups)
        text = table(self.columns, groups, self.control, self.left)
        return Report(text, self.note(groups), self.rows(groups), self.draw(groups) if self.draw else None)

    def rows(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """The rows of the CSV."""
        return [row(self.columns, group, self.control(group, groups)) for group in groups]


def row(columns: Sequence[Column], group: Group, control: Group | None = None) -> dict[str, Any]:
    """A row of the CSV."""
    return {key: value for column in columns for key, value in column.kept(group, control).items()}


def table(
    columns: Sequence[Column], groups: Sequence[Group], control: Any = lambda group, groups: None, left: int = 1
) -> str:
    """The table on screen, a row per group."""
    told = [column for column in columns if column.header]
    cells = [[column.shown(g, other) for column in told] for g in groups for other in [control(g, groups)]]
    return wording.text_table([column.header for column in told], cells, left)


def alike(group: Group, groups: Sequence[Group], *axes: str, **where: str) -> Group | None:
    """The first group with the same entries on these axes, and with these of others; None where there is none."""
    fits = (g for g in groups if all(g.entry(a) == group.entry(a) for a in axes))
    return next((g for g in fits if all(g.entry(a) == e for a, e in where.items())), None)


# --- columns


def entry(axis: str, header: str = "", shown: Callable[[Group], str] | None = None, key: str = "") -> Column:
    """A coordinate as the grid calls it, in the table as `shown` spells it."""
    spelled = shown or (lambda group: group.entry(axis))
    return Column(lambda group, _: {key or axis: group.entry(axis)}, header, lambda group, _: spelled(group))


def word(header: str, shown: Callable[[Group], str]) -> Column:
    """A cell that the table alone has."""
    return Column(lambda group, _: {}, header, lambda group, _: shown(group))


def number(key: str, value: Told, header: str = "", unit: float = 1) -> Column:
    """A number; in the table with four digits, in this unit."""
    return Column(lambda g, o: {key: value(g, o)}, header, lambda g, o: wording.digits(value(g, o) / unit)[0])


def averaged(key: str, values: Told, header: str, shown: Callable[[Array, int], str]) -> Column:
    """Mean and deviation over seeds of (seeds,) values; `shown` spells the values, of so many seeds in the grid."""
    return Column(
        lambda g, o: spread(key, values(g, o)),
        header,
        lambda g, o: shown(values(g, o), g.planned),
    )


def compared(
    key: str, header: str, values: Callable[[Group, Group], Array], shown: Callable[[Array, int], str]
) -> Column:
    """As `averaged`, of differences to the control; nothing where there is none, or in the table its own."""
    return Column(
        lambda g, o: spread(key, np.empty(0) if o is None else values(g, o)),
        header,
        lambda g, o: "" if o is None or o is g else shown(values(g, o), g.planned),
    )


def last(budget: Callable[[Group], Array]) -> Told:
    """What a group has used up after its last round; nan where it has no results."""
    return lambda group, _: float(budget(group)[-1]) if group.runs else math.nan


def spread(key: str, values: Array, unit: str = "") -> dict[str, float]:
    """The columns of a mean and a deviation over seeds."""
    mean, sd = mean_sd(values)
    return {f"{key}_mean{unit}": mean, f"{key}_sd{unit}": sd}


def accuracy(group: Group) -> dict[str, float]:
    """The columns of the last test accuracy in %."""
    return spread("accuracy", 100 * group.last("test_accuracy"), "_percent")


def counts(group: Group) -> dict[str, int]:
    """The columns that tell how much a row stands on."""
    return {"rounds": group.rounds, "seeds": len(group.runs), "seeds_planned": group.planned}


ACCURACY = Column(
    lambda group, _: accuracy(group),
    "accuracy (%)",
    lambda group, _: wording.percent(*group.accuracy(), group.note),
)
ALONE = Column(lambda g, _: accuracy(g), "accuracy (%)", lambda g, _: wording.percent(*g.accuracy()))
"""The accuracy in a table that has a column of seeds, too."""
COUNTS = Column(lambda group, _: counts(group))
SEEDS = Column(
    lambda group, _: counts(group),
    "seeds",
    lambda group, _: f"{len(group.runs)} of {group.planned}" if group.note else str(group.planned),
)
