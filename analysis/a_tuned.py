"""Each method with its best constant step: final accuracy for each step of a grid, then the methods at their best.

python analysis/a_tuned.py [--grid jobs/a_tuned.toml] [--results DIR] [--out NAME] [--partial]

The grid's axes other than data, problem, cell, method and seed are the steps; their entries stand in the order of their
size. Prints a table per data set and cell (a row per step, a column per method, the best with *, one at an edge of the
grid with *!) and the comparison; writes NAME.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from shared import command, edges, files, wording
from shared.groups import Group, entries, split
from shared.reading import read

from zofl_mpi.errors import UserError
from zofl_mpi.run import grid

COMMON = ("data", "problem", "cell", "method")


def main(words: list[str] | None = None) -> None:
    """Print and write the tables; exit status 2 if a result is missing."""
    flags = command.parser("a_tuned", __doc__, ["a_tuned.toml"]).parse_args(words)
    with command.refusals("a_tuned"):
        axes = step_axes(flags)
        groups = read("a_tuned", flags, (*COMMON, *axes), ("method",))
        for place, block in split(groups, place_of).items():
            print(f"{place}: test accuracy in %, * the method's best\n{table(block, axes)}\n")
        files.write_csv(flags.out, [row(group, axes, alike(groups, group)) for group in groups])
        print(f"\nEach method with its best constant step\n{comparison(groups, axes)}\n")
        print(f"{edges.told(at_edges(groups, axes))}\n\n{told(groups, axes)}")


NOTE = "The best step is that of the highest mean test accuracy among those with all seeds: chosen on the test samples."


Axes = Mapping[str, Sequence[str]]
"""{axis of steps: its entries, in the order of their size}."""


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


def place_of(group: Group) -> str:
    """Data set and cell."""
    return f"{wording.data_of(group)} {group.entry('cell')}"


def step_of(group: Group, axes: Axes) -> str:
    """The step, as the grid calls it, without axes that do not concern the method (entries named ...none)."""
    words = [group.where[axis] for axis in axes if axis in group.where]
    return " ".join(word for word in words if not word.endswith("none")) or "none"


def best(groups: Sequence[Group]) -> Group | None:
    """The group of the highest mean accuracy: among those with all seeds, else among those with any."""
    found = [g for g in groups if g.runs and not g.note] or [g for g in groups if g.runs]
    return max(found, key=lambda g: g.accuracy()[0], default=None)


def alike(groups: Sequence[Group], group: Group) -> list[Group]:
    """The groups of the same method in the same place."""
    return [g for g in groups if place_of(g) == place_of(group) and g.entry("method") == group.entry("method")]


def edge_of(groups: Sequence[Group], axes: Axes) -> list[str]:
    """The axes along which the best of these groups, all of one method in one place, is at an edge of what was run."""
    found = best(groups)
    return edges.at_edge(found, [g for g in groups if g.runs], axes) if found else []


def at_edges(groups: Sequence[Group], axes: Axes) -> list[str]:
    """Method, step and place of each best step that is at an edge."""
    places = split(groups, place_of)
    found = []
    for place, block in places.items():
        for method, same in split(block, lambda g: g.entry("method")).items():
            chosen = best(same)
            if chosen and edge_of(same, axes):
                where = f" in {place}" if len(places) > 1 else ""
                found.append(f"{wording.method_name(method)} ({step_of(chosen, axes)}){where}")
    return found


def table(groups: Sequence[Group], axes: Axes) -> str:
    """Table of one place: a row per step, a column per method."""
    methods = split(groups, lambda g: g.entry("method"))
    rows = []
    for step, block in split(groups, lambda g: step_of(g, axes)).items():
        words = {g.entry("method"): marked(g, methods[g.entry("method")], axes) for g in block}
        rows.append([step, *(words.get(method, "-") for method in methods)])
    return wording.aligned(["step", *map(wording.method_name, methods)], rows)


def marked(group: Group, others: Sequence[Group], axes: Axes) -> str:
    """The accuracy, with a star if no other step of the method does better."""
    star = "  " if best(others) is not group else " *" + edges.MARK * bool(edge_of(others, axes))
    return f"{wording.percent(*group.accuracy(), group.note)}{star:<3}"


def comparison(groups: Sequence[Group], axes: Axes) -> str:
    """Table with methods below each other, places side by side: the best accuracy and its step."""
    places = split(groups, place_of)
    rows = []
    for method in entries(groups, "method"):
        chosen = [best([g for g in block if g.entry("method") == method]) for block in places.values()]
        words = [f"{wording.percent(*g.accuracy(), g.note)} ({step_of(g, axes)})" if g else "-" for g in chosen]
        rows.append([wording.method_name(method), *words])
    return wording.aligned(["method", *places], rows)


def told(groups: Sequence[Group], axes: Axes) -> str:
    """The caption, without what the steps change."""
    return wording.paragraph(f"{NOTE} {wording.caption(groups, (*axes, 'gamma', 'gamma_local'))}.")


def row(group: Group, axes: Axes, same: Sequence[Group]) -> dict[str, Any]:
    """A row of the CSV; `same` are all groups of its method and place."""
    mean, sd = group.accuracy()
    is_best = best(same) is group
    return {
        "data": group.entry("data"),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "step": step_of(group, axes),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "best": is_best,
        "at_edge": " ".join(edge_of(same, axes)) if is_best else "",
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


if __name__ == "__main__":
    main()
