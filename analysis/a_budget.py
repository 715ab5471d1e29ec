"""Test accuracy against three budgets: rounds, bytes sent, samples whose gradients the clients computed.

python analysis/a_budget.py [--grid jobs/a_table1.toml] [--results DIR] [--out NAME] [--partial]

A figure NAME_DATA per data set, a row of panels per cell, a line per method: mean and range over seeds. Bytes are those
down and up of all clients, samples the local steps of all participants times the batch (ZO-HFL: both solves; its
evaluations and the server's own gradients do not count). A method that sends or computes nothing is a level line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import study
from study import Array, Group

from zofl_mpi.errors import UserError

UNITS = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))


def main(words: list[str] | None = None) -> None:
    """Draw the figures, print the totals and the paths; exit status 2 if a result is missing."""
    flags = study.parser("a_budget", __doc__, ["a_table1.toml"]).parse_args(words)
    with study.told("a_budget"):
        groups = study.read("a_budget", flags, ("data", "problem", "cell", "method"), ("method",))
        print(f"{text(groups)}\n\n{study.paragraph(study.caption(groups))}\n")
        for data, block in study.split(groups, study.data_of).items():
            word = data.replace(" (", "-").replace(")", "")
            study.keep(draw(block), flags.out.with_name(f"{flags.out.name}_{word}"))


# --- budgets: (R,) each, the sum over the rounds so far, mean over seeds


def rounds(group: Group) -> Array:
    """1, 2, ..., R."""
    return np.arange(1.0, group.rounds + 1)


def sent(group: Group) -> Array:
    """Bytes to and from all clients."""
    totals = [run.clients["bytes_down"].sum((1, 2)) + run.clients["bytes_up"].sum((1, 2)) for run in group.runs]
    return np.asarray(np.cumsum(totals, axis=1).mean(axis=0))


def samples(group: Group) -> Array:
    """Samples of all local steps.

    Raises:
        UserError: a result does not tell its local steps.
    """
    if "batch" not in group.config:  # the method has no local steps at all
        return np.zeros(group.rounds)
    steps = np.stack([study.series(run, "local_steps") for run in group.runs])
    if np.isnan(steps).any():
        raise UserError(f"{group.runs[0].path} or another seed has rounds without local_steps")
    return np.asarray(np.cumsum(steps, axis=1).mean(axis=0)) * float(group.config["batch"])


def text(groups: Sequence[Group]) -> str:
    """What each method ends with, and what it took."""
    header = ("data", "cell", "method", "accuracy (%)", "rounds", "MiB", "10^6 samples")
    rows = [
        [study.data_of(g), g.entry("cell"), g.entry("method"), study.percent(*g.accuracy(), g.note), *used(g)]
        for g in groups
    ]
    return study.aligned(header, rows, left=3)


def used(group: Group) -> list[str]:
    """Rounds, MiB and millions of samples in all."""
    if not group.runs:
        return ["-"] * 3
    return [str(group.rounds), *study.digits(sent(group)[-1] / 2**20, samples(group)[-1] / 1e6)]


# --- figure


def draw(groups: Sequence[Group]) -> Any:
    """Cells below each other; rounds, bytes and samples side by side."""
    cells, methods = study.split(groups, lambda g: g.entry("cell")), study.entries(groups, "method")
    scale, unit = unit_of(max(float(sent(g)[-1]) for g in groups if g.runs))
    with plt.rc_context(study.STYLE):
        figure, panels = study.canvas(len(cells), 3, study.PAGE, 1.9, sharex="col", sharey="row")
        for line, (cell, found) in zip(panels, cells.items(), strict=True):
            for group in found:
                curves(line, group, study.place_of(group.entry("method"), methods), scale)
            title = f"{study.spelled(study.data_of(found[0]))}, {study.cell_name(found, cell)}"
            study.titled(line[0], title, found, study.method_of)
            line[0].set_ylabel("test accuracy (%)")
        axes(panels, unit)
        study.legend(figure, panels, 3)
    return figure


def curves(panels: Any, group: Group, k: int, scale: float) -> None:
    """A method's line in each of the three panels of a cell."""
    if not group.runs:
        return
    at, values = group.curve("test_accuracy")
    budgets = (rounds(group), sent(group) / scale, samples(group) / 1e6)
    for panel, budget in zip(panels, budgets, strict=True):
        if budget[-1]:
            study.band(panel, budget[at - 1], 100 * values, study.method_of(group), k)
        else:
            level(panel, 100 * float(values[:, -1].mean()), group, k)


def level(panel: Any, height: float, group: Group, k: int) -> None:
    """The last accuracy of a method whose budget stays 0."""
    panel.axhline(height, **(study.look(k) | {"marker": "", "linewidth": 0.8}))
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    panel.annotate(f"{study.method_of(group)}: 0", (0.02, height), (0, 2), **where)


def axes(panels: Any, unit: str) -> None:
    """Scales, and labels below the last row."""
    panels[0, 0].set_xlim(left=0)
    for panel in panels[:, 1:].flat:
        panel.set_xscale("log")
    for panel, label in zip(
        panels[-1], ("rounds", f"sent down and up ({unit})", "client gradients ($10^6$ samples)"), strict=True
    ):
        panel.set_xlabel(label)


def unit_of(largest: float) -> tuple[float, str]:
    """The largest unit that makes it at least 1, and its name."""
    name, scale = next(((n, s) for n, s in reversed(UNITS) if largest >= s), UNITS[0])
    return float(scale), name


if __name__ == "__main__":
    main()
