"""Each method with its best constant step: final accuracy for each step of a grid, then the methods at their best.

python analysis/a_tuned.py [--grid jobs/a_tuned.toml] [--results DIR] [--out NAME] [--partial]

The grid's axes other than data, problem, cell, method and seed are the steps; their entries stand in the order of their
size. The best step is chosen by the accuracy on the validation part, mean of the last evaluations, where the runs have
one (--validation), else on the test samples; over the seeds that all of a method's steps have. Prints a table per data
set and cell (a row per step, a column per method, the best with *, one at an edge of the grid with *!) and the
comparison, all in test accuracy.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from shared import choosing, command, edges, wording
from shared.budgets import sent
from shared.files import Report
from shared.groups import Group, mean_sd, series, split
from shared.reading import read
from shared.study import accuracy, counts, last

from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid.tune import LAST_EVALUATIONS

COMMON = ("data", "problem", "cell", "method")
VALIDATION = "validation_accuracy"
SENSOR = "test_accuracy_"

Axes = Mapping[str, Sequence[str]]
"""{axis of steps: its entries, in the order of their size}."""
Row = Mapping[str, Any]
"""A row of the CSV."""


def report(flags: Any) -> Report:
    """All steps, and the methods at their best."""
    for path in flags.grid:
        if not any(map(is_step, grid.read(path, flags.results, trust=True).axes)):
            raise UserError(f"{path} has no axis of steps, only such of {', '.join(COMMON)} and seed")
    axes = choosing.step_axes(flags, is_step)
    groups = read("a_tuned", flags, (*COMMON, *axes), ("method",))
    rows = rows_of(groups, axes)
    return Report(tables(rows), told(groups, axes), rows)


main = command.script("a_tuned", __doc__, report, grids=["a_tuned.toml"])

NOTES = {
    True: (
        "The best step is that of the highest accuracy on the validation part, mean of the last "
        f"{LAST_EVALUATIONS} evaluations, over the seeds that all of a method's steps have; the tables tell the test "
        "accuracy."
    ),
    False: (
        "The best step is that of the highest mean test accuracy over the seeds that all of a method's steps have: "
        "chosen on the test samples."
    ),
}
"""How the best step is chosen, with a validation part and without."""


def is_step(axis: str) -> bool:
    """Whether an axis holds steps."""
    return axis not in (*COMMON, "seed")


# --- the choice


def rows_of(groups: Sequence[Group], axes: Axes) -> list[dict[str, Any]]:
    """The rows of the CSV, in the groups' order."""
    chosen_by = choosing.by(at_the_end if choosing.validated(groups, VALIDATION) else last_accuracy)
    tried = choosing.choices(groups, choosing.place(*COMMON), chosen_by, axes)
    sensors = sorted({name for g in groups for run in g.runs for name in run.rounds if name.startswith(SENSOR)})
    return [row(choice, axes) | seen(choice.group, sensors) for choice in tried]


def at_the_end(run: records.Run) -> float:
    """The accuracy in % on the validation part, mean of the last evaluations."""
    return 100 * choosing.at_the_end(run, VALIDATION)


def last_accuracy(run: records.Run) -> float:
    """The last test accuracy in %."""
    return 100 * float(series(run, "test_accuracy")[-1])


def seen(group: Group, sensors: Sequence[str]) -> dict[str, float]:
    """Mean test accuracy in % of the clients with each sensor (--shift), by these columns of the results."""
    return {f"{name}_mean_percent": mean_sd(100 * group.last(name))[0] for name in sensors}


def row(choice: choosing.Choice, axes: Axes) -> dict[str, Any]:
    """A row of the CSV."""
    group = choice.group
    return {
        "data": wording.data_of(group),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "step": choosing.step(group, axes, "none"),
        **accuracy(group),
        "accuracy_by_seed_percent": " ".join(f"{100 * value:.4f}" for value in group.last("test_accuracy")),
        "chosen_by_percent": choice.value,
        **choice.row,
        "directions_per_parameter": directions(group),
        "bytes": last(sent)(group, None),
        **counts(group),
    }


def directions(group: Group) -> float:
    """Directions per parameter that a run draws; nan for methods that draw none."""
    return mean_sd(np.array([run.attrs.get("directions_per_parameter", math.nan) for run in group.runs]))[0]


# --- tables


def tables(rows: Sequence[Row]) -> str:
    """All steps place by place, the methods at their best, and which of these steps are at an edge."""
    blocks = split(rows, where)
    parts = [f"{place}: test accuracy in %, * the method's best\n{table(block)}\n" for place, block in blocks.items()]
    several = len(blocks) > 1
    ends = [
        f"{wording.method_name(r['method'])} ({r['step']}){f' in {where(r)}' if several else ''}"
        for r in rows
        if r["at_edge"]
    ]
    best = f"Each method with its best constant step\n{comparison(rows)}\n\n{edges.told(ends)}"
    return "\n".join([*parts, best])


def table(rows: Sequence[Row]) -> str:
    """Table of one place: a row per step, a column per method."""
    cells = ((r["step"], wording.method_name(r["method"]), f"{percent(r)}{edges.star(r):<3}") for r in rows)
    return wording.crossed("step", cells)


def comparison(rows: Sequence[Row]) -> str:
    """Table with methods below each other, places side by side: the best accuracy and its step."""
    best = [r for r in rows if r["best"]]
    cells = ((wording.method_name(r["method"]), where(r), f"{percent(r)} ({r['step']})") for r in best)
    return wording.crossed("method", cells)


def where(row: Row) -> str:
    """A row's data set and cell."""
    return f"{row['data']} {row['cell']}"


def percent(row: Row) -> str:
    """A row's accuracy, with the seeds that are missing."""
    return wording.mean_of(row, "accuracy", note=wording.seeds_of(row))


def told(groups: Sequence[Group], axes: Axes) -> str:
    """The caption, without what the steps change."""
    note = NOTES[choosing.validated(groups, VALIDATION)]
    return f"{note} {wording.caption(groups, (*axes, 'gamma', 'gamma_local'))}."


if __name__ == "__main__":
    main()
