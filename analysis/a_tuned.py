"""Each method with its best constant step: final accuracy for each step of a grid, then the methods at their best.

python analysis/a_tuned.py [--grid jobs/a_tuned.toml] [--results DIR] [--out NAME] [--partial]

The grid's axes other than data, problem, cell, method and seed are the steps; their entries stand in the order of their
size. The best step is chosen by the accuracy on the validation part, mean of the last evaluations, where the runs have
one (--validation), else on the test samples; over the seeds that all of a method's steps have. Prints a table per data
set and cell (a row per step, a column per method, the best with *, one at an edge of the grid with *!) and the
comparison, all in test accuracy; writes NAME.csv.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shared import choosing, command, edges, files, wording
from shared.budgets import sent
from shared.groups import Group, mean_sd, series, split
from shared.reading import read

from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records

COMMON = ("data", "problem", "cell", "method")
VALIDATION = "validation_accuracy"
SENSOR = "test_accuracy_"

Axes = Mapping[str, Sequence[str]]
"""{axis of steps: its entries, in the order of their size}."""
Row = Mapping[str, Any]
"""A row of the CSV."""


def main(words: list[str] | None = None) -> None:
    """Print and write the tables; exit status 2 if a result is missing."""
    flags = command.parser("a_tuned", __doc__, ["a_tuned.toml"]).parse_args(words)
    with command.refusals("a_tuned"):
        axes = step_axes(flags)
        groups = read("a_tuned", flags, (*COMMON, *axes), ("method",))
        rows = rows_of(groups, axes)
        print(tables(rows))
        files.write_csv(flags.out, rows)
        print(f"\n{told(groups, axes)}")


NOTES = {
    True: (
        "The best step is that of the highest accuracy on the validation part, mean of the last "
        f"{choosing.LAST} evaluations, over the seeds that all of a method's steps have; the tables tell the test "
        "accuracy."
    ),
    False: (
        "The best step is that of the highest mean test accuracy over the seeds that all of a method's steps have: "
        "chosen on the test samples."
    ),
}
"""How the best step is chosen, with a validation part and without."""


def step_axes(flags: argparse.Namespace) -> Axes:
    """The axes that hold the steps, with their entries.

    Raises:
        UserError: a grid has none.
    """
    found: dict[str, list[str]] = {}
    for path in flags.grid:
        every = grid.read(path, flags.results).axes
        axes = {axis: steps for axis, steps in every.items() if axis not in (*COMMON, "seed")}
        if not axes:
            raise UserError(f"{path} has no axis of steps, only such of {', '.join(COMMON)} and seed")
        for axis, steps in axes.items():
            found[axis] = list(dict.fromkeys([*found.get(axis, []), *steps]))
    return found


# --- the choice


def criterion(by_validation: bool) -> Callable[[records.Run], float]:
    """The accuracy in % that a run is chosen by."""
    if not by_validation:
        return lambda run: 100 * float(series(run, "test_accuracy")[-1])
    return lambda run: 100 * choosing.at_the_end(run, VALIDATION)


def rows_of(groups: Sequence[Group], axes: Axes) -> list[dict[str, Any]]:
    """The rows of the CSV, in the groups' order."""
    by_validation = choosing.validated(groups, VALIDATION)
    rows: dict[int, dict[str, Any]] = {}
    for same in split(groups, lambda g: f"{place_of(g)}\n{g.entry('method')}").values():
        values = choosing.means(same, criterion(by_validation))
        known = [value for value in values if not math.isnan(value)]
        chosen = values.index(max(known)) if known else -1
        run = [g for g in same if g.runs]
        for k, group in enumerate(same):
            ends = edges.at_edge(group, run, axes) if k == chosen else []
            rows[id(group)] = row(group, axes, values[k], k == chosen, ends)
    sensors = sorted({name for g in groups for run in g.runs for name in run.rounds if name.startswith(SENSOR)})
    return [rows[id(group)] | seen(group, sensors) for group in groups]


def seen(group: Group, sensors: Sequence[str]) -> dict[str, float]:
    """Mean test accuracy in % of the clients with each sensor (--shift), by these columns of the results."""
    return {f"{name}_mean_percent": mean_sd(100 * group.last(name))[0] for name in sensors}


def row(group: Group, axes: Axes, value: float, is_best: bool, ends: Sequence[str]) -> dict[str, Any]:
    """A row of the CSV; `ends`: the axes along which the best step is at an edge."""
    mean, sd = group.accuracy()
    return {
        "data": wording.data_of(group),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "step": step_of(group, axes),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "accuracy_by_seed_percent": " ".join(f"{100 * value:.4f}" for value in group.last("test_accuracy")),
        "chosen_by_percent": value,
        "best": is_best,
        "at_edge": " ".join(ends),
        "directions_per_parameter": directions(group),
        "bytes": float(sent(group)[-1]) if group.runs else math.nan,
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


def directions(group: Group) -> float:
    """Directions per parameter that a run draws; nan for methods that draw none."""
    drawn = [float(run.attrs.get("directions_per_parameter", math.nan)) for run in group.runs]
    return sum(drawn) / len(drawn) if drawn else math.nan


def place_of(group: Group) -> str:
    """Data set and cell."""
    return f"{wording.data_of(group)} {group.entry('cell')}"


def step_of(group: Group, axes: Axes) -> str:
    """The step, as the grid calls it, without axes that do not concern the method (entries named ...none)."""
    words = [group.where[axis] for axis in axes if axis in group.where]
    return " ".join(word for word in words if not word.endswith("none")) or "none"


# --- tables


def tables(rows: Sequence[Row]) -> str:
    """All steps place by place, the methods at their best, and which of these steps are at an edge."""
    blocks = grouped(rows, where)
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
    methods = list(dict.fromkeys(r["method"] for r in rows))
    lines = []
    for step, block in grouped(rows, lambda r: str(r["step"])).items():
        words = {r["method"]: f"{percent(r)}{star(r):<3}" for r in block}
        lines.append([step, *(words.get(method, "-") for method in methods)])
    return wording.aligned(["step", *map(wording.method_name, methods)], lines)


def comparison(rows: Sequence[Row]) -> str:
    """Table with methods below each other, places side by side: the best accuracy and its step."""
    places = grouped(rows, where)
    best = {(where(r), r["method"]): f"{percent(r)} ({r['step']})" for r in rows if r["best"]}
    methods = dict.fromkeys(r["method"] for r in rows)
    lines = [[wording.method_name(m), *(best.get((place, m), "-") for place in places)] for m in methods]
    return wording.aligned(["method", *places], lines)


def grouped(rows: Iterable[Row], key: Any) -> dict[str, list[Row]]:
    """{key: its rows}, in order."""
    found: dict[str, list[Row]] = {}
    for each in rows:
        found.setdefault(key(each), []).append(each)
    return found


def where(row: Row) -> str:
    """A row's data set and cell."""
    return f"{row['data']} {row['cell']}"


def percent(row: Row) -> str:
    """A row's accuracy, with the seeds that are missing."""
    some = row["seeds"] != row["seeds_planned"]
    note = f"({row['seeds']} of {row['seeds_planned']} seeds)" if some else ""
    return wording.percent(row["accuracy_mean_percent"], row["accuracy_sd_percent"], note)


def star(row: Row) -> str:
    """The mark of a best step, and of one at an edge."""
    return " *" + edges.MARK * bool(row["at_edge"]) if row["best"] else ""


def told(groups: Sequence[Group], axes: Axes) -> str:
    """The caption, without what the steps change."""
    note = NOTES[choosing.validated(groups, VALIDATION)]
    return wording.paragraph(f"{note} {wording.caption(groups, (*axes, 'gamma', 'gamma_local'))}.")


if __name__ == "__main__":
    main()
