"""Test accuracy against three budgets: rounds, bytes sent, samples whose gradients the clients computed.

python analysis/a_budget.py [--grid jobs/a_table1.toml] [--results DIR] [--out NAME] [--partial]

A figure NAME_DATA per data set, a row of panels per cell, a line per method: mean and range over seeds. Bytes are those
down and up of all clients, samples the local steps of all participants times the batch (ZO-HFL: both solves; its
evaluations and the server's own gradients do not count). A method that sends or computes nothing is a level line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from shared import command, figures, files, wording
from shared.budgets import rounds, sent, unit_of
from shared.groups import Array, Group, entries, series, split
from shared.reading import read

from zofl_mpi.errors import UserError


def main(words: list[str] | None = None) -> None:
    """Draw the figures, print the totals and the paths; exit status 2 if a result is missing."""
    flags = command.parser("a_budget", __doc__, ["a_table1.toml"]).parse_args(words)
    with command.refusals("a_budget"):
        groups = read("a_budget", flags, ("data", "problem", "cell", "method"), ("method",))
        print(f"{text(groups)}\n\n{wording.paragraph(wording.caption(groups))}\n")
        for data, block in split(groups, wording.data_of).items():
            word = data.replace(" (", "-").replace(")", "")
            files.keep(draw(block), flags.out.with_name(f"{flags.out.name}_{word}"))


# --- budgets: (R,) each, the sum over the rounds so far, mean over seeds


def samples(group: Group) -> Array:
    """(R,) samples of all local steps so far, mean over seeds.

    Raises:
        UserError: a result does not tell its local steps.
    """
    if "batch" not in group.config:  # the method has no local steps at all
        return np.zeros(group.rounds)
    steps = np.stack([series(run, "local_steps") for run in group.runs])
    if np.isnan(steps).any():
        raise UserError(f"{group.runs[0].path} or another seed has rounds without local_steps")
    return np.asarray(np.cumsum(steps, axis=1).mean(axis=0)) * float(group.config["batch"])


def text(groups: Sequence[Group]) -> str:
    """Table of what each method ends with, and what it took."""
    header = ("data", "cell", "method", "accuracy (%)", "rounds", "MiB", "10^6 samples")
    rows = [
        [wording.data_of(g), g.entry("cell"), g.entry("method"), wording.percent(*g.accuracy(), g.note), *used(g)]
        for g in groups
    ]
    return wording.aligned(header, rows, left=3)


def used(group: Group) -> list[str]:
    """Rounds, MiB and millions of samples in all."""
    if not group.runs:
        return ["-"] * 3
    return [str(group.rounds), *wording.digits(sent(group)[-1] / 2**20, samples(group)[-1] / 1e6)]


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws cells below each other; rounds, bytes and samples side by side."""
    cells, methods = split(groups, lambda g: g.entry("cell")), entries(groups, "method")
    scale, unit = unit_of(max(float(sent(g)[-1]) for g in groups if g.runs))
    budgets = {
        "rounds": rounds,
        f"sent down and up ({unit})": lambda group: sent(group) / scale,
        "client gradients ($10^6$ samples)": lambda group: samples(group) / 1e6,
    }

    def line(panel: Any, budget: Array, values: Array, group: Group) -> None:
        k = figures.place_of(group.entry("method"), methods)
        if budget[-1]:
            figures.band(panel, budget, values, wording.method_of(group), k)
        else:
            level(panel, float(values[:, -1].mean()), group, k)

    figure, panels = figures.against(cells, budgets, figures.accuracies, line, 1.9, sharex="col", sharey="row")
    for row, (cell, found) in zip(panels, cells.items(), strict=True):
        title = f"{wording.spelled(wording.data_of(found[0]))}, {wording.cell_name(found, cell)}"
        figures.titled(row[0], title, found, wording.method_of)
        row[0].set_ylabel("test accuracy (%)")
        for panel in row[1:]:
            panel.set_xscale("log")
    panels[0, 0].set_xlim(left=0)
    figures.legend(figure, panels, 3)
    return figure


def level(panel: Any, height: float, group: Group, k: int) -> None:
    """Draws a level line at the last accuracy of a method whose budget stays 0."""
    panel.axhline(height, **(figures.look(k) | {"marker": "", "linewidth": 0.8}))
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    panel.annotate(f"{wording.method_of(group)}: 0", (0.02, height), (0, 2), **where)


if __name__ == "__main__":
    main()
