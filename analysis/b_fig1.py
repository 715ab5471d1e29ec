"""[B] figure 1: the loss of FedRZO against rounds for each H, a panel per eta and seed.

python analysis/b_fig1.py [--grid jobs/b_fig1.toml] [--results DIR] [--out NAME] [--partial]
python analysis/b_fig1.py --grid jobs/b_fig1_sum.toml --rows H --lines reading --column test_loss --log \
    --out analysis/results/b_fig1_sum

The figure that is kept has eta = 0.1 alone (--partial), as the lines of the other eta lie on these.

The loss is the nonsmooth one that FedRZO minimises, on all of the clients' samples. Prints, and writes to NAME.csv, the
losses after the first and the last round, and the first evaluated round in which the mean over seeds is at or below
what the slowest line of the same panel ends with: how many times faster the others are, in rounds and in local steps.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Group, entries, mean_sd, series, split
from shared.reading import read
from shared.study import counts

COLUMNS = {
    "objective": "mean loss + ridge",
    "test_loss": "mean loss + ridge, test samples",
}
"""Column -> label of its axis. A loss is half a squared error of targets +1 and -1: it has no unit."""
NOTHING = 0.5
"""The mean loss of outputs 0."""
NAMES = {"eta": "η", "gamma": "γ"}
READINGS = {"mean": "mean, γ = 1e-5", "sum": "sum, γ = 1e-5", "sum-12600": "sum, γ = 1e-5 / 12,600"}


def report(flags: Any) -> Report:
    """The table and the figure."""
    groups = read("b_fig1", flags, ("data", flags.rows, flags.lines), (flags.rows, flags.lines))
    rows = [row(g, groups, flags) for g in groups]
    told = [[shown(value) for value in r.values()] for r in rows]
    text = wording.text_table([key.replace("_", " ") for key in rows[0]], told, left=3)
    caption = wording.caption(groups, ("data", flags.rows, flags.lines))
    return Report(text, f"{COLUMNS[flags.column]}; {caption}.", rows, draw(groups, flags))


FLAGS = {
    "--rows": command.flag("eta", "axis of the grid: a panel for each of its entries"),
    "--lines": command.flag("H", "axis of the grid: a line for each of its entries"),
    "--column": command.flag("objective", "what is drawn", choices=COLUMNS),
    "--log": command.flag(False, "a logarithmic vertical axis"),
}
main = command.script("b_fig1", __doc__, report, FLAGS, ["b_fig1.toml"])


def name(axis: str, group: Group) -> str:
    """Name of a panel or a line: η = 0.1, H = 5."""
    entry = group.entry(axis)
    return READINGS.get(entry, entry) if axis == "reading" else f"{NAMES.get(axis, axis)} = {entry}"


# --- numbers


def row(group: Group, groups: Sequence[Group], flags: argparse.Namespace) -> dict[str, Any]:
    """A row of the table and of the CSV."""
    same = [g for g in groups if places(g, flags) == places(group, flags)]
    first, last = ends(group, flags.column)
    reached = reach(group, flags.column, level(same, flags.column))
    return {
        "data": group.entry("data"),
        flags.rows: group.entry(flags.rows),
        flags.lines: group.entry(flags.lines),
        "first": first,
        "last": last,
        "last_sd": mean_sd(group.last(flags.column))[1],
        "reached_in_round": reached,
        "in_local_steps": reached * float(group.config["H"]),
        **counts(group),
    }


def places(group: Group, flags: argparse.Namespace) -> tuple[str, str]:
    """The panel of a group."""
    return group.entry("data"), group.entry(flags.rows)


def ends(group: Group, column: str) -> tuple[float, float]:
    """Means over seeds after the first and the last round; nan for none."""
    if not group.runs:
        return math.nan, math.nan
    _, values = group.curve(column)
    return float(values[:, 0].mean()), float(values[:, -1].mean())


def level(groups: Sequence[Group], column: str) -> float:
    """The largest mean after the last round among lines that descend; nan for none."""
    both = [ends(group, column) for group in groups]
    return max((last for first, last in both if last < first), default=math.nan)


def reach(group: Group, column: str, level: float) -> float:
    """The first evaluated round with a mean over seeds of at most `level`; nan for none."""
    if not group.runs or math.isnan(level):
        return math.nan
    rounds, values = group.curve(column)
    there = np.flatnonzero(values.mean(axis=0) <= level)
    return float(rounds[there[0]]) if len(there) else math.nan


def shown(value: Any) -> str:
    """A number with four digits; - for nan."""
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.0f}" if value.is_integer() and value < 1e9 else f"{value:.4g}"


# --- figure


@figures.styled
def draw(groups: Sequence[Group], flags: argparse.Namespace) -> Any:
    """Draws a row of panels for each entry that has results, a panel per seed: starts differ by more than lines do."""
    blocks = split([group for group in groups if group.runs], lambda g: "\n".join(places(g, flags)))
    lines, seeds = entries(groups, flags.lines), sorted({seed for group in groups for seed in group.seeds})
    size = (max(len(blocks), 1), max(len(seeds), 1))
    figure, panels = figures.canvas(*size, figures.PAGE, 2, sharex=True, sharey=not flags.log)
    for row, block in zip(panels, blocks.values(), strict=False):
        title = f"{wording.spelled(block[0].entry('data'))}, {name(flags.rows, block[0])}"
        for panel, seed in zip(row, seeds, strict=True):
            for group in (g for g in block if seed in g.seeds):
                values = series(group.seeds[seed], flags.column)
                rounds = 1 + np.flatnonzero(~np.isnan(values))
                k, every = lines.index(group.entry(flags.lines)), max(len(rounds) // 6, 1)
                looks = figures.look(k) | {"markevery": (k % every, every)}
                panel.plot(rounds, values[rounds - 1], label=name(flags.lines, group), **looks)
            panel.set_title(f"{title}, seed {seed}", loc="left")
    finish(panels, flags)
    figures.legend(figure, panels, 5, "each seed has a start of its own")
    return figure


def finish(panels: Any, flags: argparse.Namespace) -> None:
    """Sets scales and labels; one label for all panels where they are low."""
    for panel in panels.flat:
        panel.axhline(NOTHING, color="0.4", linewidth=0.8, label="a network that outputs 0")
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if flags.log:
            logarithmic(panel)
    for panel in panels[-1]:
        panel.set(xlabel="rounds", xlim=(0, None))
    panels[0, 0].figure.supylabel(COLUMNS[flags.column], fontsize=8)


def logarithmic(panel: Any) -> None:
    """Makes the vertical axis logarithmic: few powers of ten where it reaches far, plain numbers where it does not."""
    panel.set_yscale("log")
    if panel.get_ylim()[1] > 1e4:
        panel.yaxis.set_major_locator(LogLocator(10, numticks=6))
        panel.yaxis.set_minor_locator(NullLocator())
        return
    panel.yaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000]))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(NullLocator())


if __name__ == "__main__":
    main()
