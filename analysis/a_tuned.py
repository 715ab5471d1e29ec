"""Each method with its best constant step: final accuracy for each step of a grid, then the methods at their best.

python analysis/a_tuned.py [--grid jobs/a_tuned.toml] [--results DIR] [--out NAME] [--partial]

The grid's axes other than data, problem, cell, method and seed are the steps. Prints a table per data set and cell (a
row per step, a column per method, the best with *) and the comparison; writes NAME.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from shared import command, files, wording
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
        files.write_csv(flags.out, [row(group, axes, best_of(groups, group)) for group in groups])
        print(f"\nEach method with its best constant step\n{comparison(groups, axes)}\n\n{told(groups, axes)}")


NOTE = "The best step is that of the highest mean test accuracy among those with all seeds: chosen on the test samples."


def step_axes(flags: argparse.Namespace) -> tuple[str, ...]:
    """The axes that hold the steps.

    Raises:
        UserError: a grid has none.
    """
    found: dict[str, None] = {}
    for path in flags.grid:
        axes = [axis for axis in grid.read(path, flags.results).axes if axis not in (*COMMON, "seed")]
        if not axes:
            raise UserError(f"{path} has no axis of steps, only such of {', '.join(COMMON)} and seed")
        found |= dict.fromkeys(axes)
    return tuple(found)


def place_of(group: Group) -> str:
    """Data set and cell."""
    return f"{wording.data_of(group)} {group.entry('cell')}"


def step_of(group: Group, axes: Sequence[str]) -> str:
    """The step, as the grid calls it, without axes that do not concern the method (entries named ...none)."""
    words = [group.where[axis] for axis in axes if axis in group.where]
    return " ".join(word for word in words if not word.endswith("none")) or "none"


def best(groups: Sequence[Group]) -> Group | None:
    """The group of the highest mean accuracy: among those with all seeds, else among those with any."""
    found = [g for g in groups if g.runs and not g.note] or [g for g in groups if g.runs]
    return max(found, key=lambda g: g.accuracy()[0], default=None)


def best_of(groups: Sequence[Group], group: Group) -> bool:
    """Whether a group is the best of its method in its place."""
    same = [g for g in groups if place_of(g) == place_of(group) and g.entry("method") == group.entry("method")]
    return best(same) is group


def table(groups: Sequence[Group], axes: Sequence[str]) -> str:
    """Table of one place: a row per step, a column per method."""
    methods = split(groups, lambda g: g.entry("method"))
    rows = []
    for step, block in split(groups, lambda g: step_of(g, axes)).items():
        words = {g.entry("method"): marked(g, methods[g.entry("method")]) for g in block}
        rows.append([step, *(words.get(method, "-") for method in methods)])
    return wording.aligned(["step", *map(wording.method_name, methods)], rows)


def marked(group: Group, others: Sequence[Group]) -> str:
    """The accuracy, with a star if no other step of the method does better."""
    return wording.percent(*group.accuracy(), group.note) + (" *" if best(others) is group else "  ")


def comparison(groups: Sequence[Group], axes: Sequence[str]) -> str:
    """Table with methods below each other, places side by side: the best accuracy and its step."""
    places = split(groups, place_of)
    rows = []
    for method in entries(groups, "method"):
        chosen = [best([g for g in block if g.entry("method") == method]) for block in places.values()]
        words = [f"{wording.percent(*g.accuracy(), g.note)} ({step_of(g, axes)})" if g else "-" for g in chosen]
        rows.append([wording.method_name(method), *words])
    return wording.aligned(["method", *places], rows)


def told(groups: Sequence[Group], axes: Sequence[str]) -> str:
    """The caption, without what the steps change."""
    return wording.paragraph(f"{NOTE} {wording.caption(groups, (*axes, 'gamma', 'gamma_local'))}.")


def row(group: Group, axes: Sequence[str], is_best: bool) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    return {
        "data": group.entry("data"),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "step": step_of(group, axes),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "best": is_best,
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


if __name__ == "__main__":
    main()
