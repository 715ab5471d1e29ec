"""The figures of c_pays: accuracy against what was spent, against a step's memory, and what estimates are worth."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shared import figures
from shared.groups import Group
from shared.pays import FIRST, FROZEN, costs, name, paired, rule, spelled, work
from shared.pays_estimates import Places, cosines, passes
from shared.split_costs import all_bytes
from zofl_mpi.report import palette

LINES = ("sflv2", "cse_fsl", "heron-n2", "ho_sfl-n2", "heron-head-8", "heron", "heron-frozen")
"""Methods that have a line, in the order of their looks."""
CURVE = ("heron-head", "heron-n2", "heron-n4", "cse_fsl")
"""From forward passes only to first order: the client's last 0, 2, 4 and all layers exact."""
POINTS = ("heron-frozen", "heron", "ho_sfl-n2", "heron-head-8", "heron-sample", "sflv2")
FAMILIES = ("heron", "heron-head", "heron-head-jvp", "heron-sample", "ho_sfl", "ho_sfl-jvp", "ho_sfl-sample")
"""Estimates that have a line, from one direction to eight, in the order of their looks."""
TICKS, ANGLES = (2, 3, 9, 17), (0.002, 0.005, 0.01, 0.02)
BESIDE = {"heron-n2": "d", "cse_fsl": "h", "sflv2": "*"}
"""Markers of methods with backward passes beside these."""


@figures.styled
def budgets(places: Places) -> Any:
    """Draws a row of panels per setting: accuracy against rounds, bytes, and the clients' work."""
    figure, panels = figures.canvas(len(places), 3, figures.PAGE, 2.2, sharey="row")
    for line, (title, found) in zip(panels, places.items(), strict=True):
        for k, method in enumerate(LINES):
            for group in (g for g in found if g.entry("method") == method and g.runs):
                curves(line, group, k)
        line[0].set_title(title, loc="left")
        line[0].set_ylabel("test accuracy (%)")
    for panel, label in zip(panels[-1], ("rounds", "sent, with labels (MiB)", "client MAC ($10^9$)"), strict=True):
        panel.set_xlabel(label)
    for line in panels:
        line[-1].set_xscale("log")  # eight directions take three times a first-order client's work
        for panel in line[:-1]:
            panel.set_xlim(0, None)
    figures.legend(figure, panels, 4)
    return figure


def curves(panels: Any, group: Group, k: int) -> None:
    """Draws a method's line in all panels of a row."""
    at, values = group.curve("test_accuracy")
    for panel, x in zip(panels, (at, all_bytes(group)[at - 1] / 2**20, work(group)[at - 1] / 1e9), strict=True):
        figures.band(panel, x, 100 * values, name(group), k)


@figures.styled
def memory(places: Places) -> Any:
    """Draws a panel per setting: accuracy against bytes live at once in a client's step; the curve of exact layers."""
    figure, panels = figures.canvas(1, len(places), figures.PAGE, 2.8, sharey=False)
    for panel, (title, found) in zip(panels.flat, places.items(), strict=True):
        of = {g.entry("method"): g for g in found if g.runs}
        draw_curve(panel, [of[m] for m in CURVE if m in of])
        for k, method in enumerate(POINTS):
            if method in of:
                point(panel, of[method], k)
        for method, marker in (("cse_fsl", "h"), ("sflv2", "*")):
            if method in of and not math.isnan(costs(of[method])["peak_again"]):
                own = of[method].accuracy()[0]
                label = f"{spelled(method)}, blocks again"
                at = costs(of[method])["peak_again"] / 2**20
                panel.plot(at, own, marker, label=label, color="0.25", markerfacecolor="white", markersize=7)
        panel.set_title(title, loc="left")
        panel.set(xlim=(0, None), xlabel="peak of a client's step, beyond its model (MiB)")
    panels[0, 0].set_ylabel("test accuracy (%)")
    figures.legend(figure, panels, 3, "mean over seeds; bars: least to largest")
    return figure


def draw_curve(panel: Any, groups: Sequence[Group]) -> None:
    """Draws the line from forward passes only to first order."""
    x = [costs(g)["peak"] / 2**20 for g in groups]
    looks = {"color": palette.BLUE, "marker": "o", "markersize": 4, "linewidth": 1.2}
    lasts = [100 * g.last("test_accuracy") for g in groups]
    figures.barred(panel, x, lasts, label="last 0, 2, 4, all layers exact", **looks)


def point(panel: Any, group: Group, k: int) -> None:
    """Draws a method's point."""
    colour, _, marker = figures.LOOKS[(k + 1) % len(figures.LOOKS)]
    looks = {"color": colour, "marker": marker, "linestyle": "", "markersize": 5}
    figures.barred(
        panel, [costs(group)["peak"] / 2**20], [100 * group.last("test_accuracy")], label=name(group), **looks
    )


@figures.styled
def estimates(places: Places) -> Any:
    """Draws a row of panels per setting: an estimate's cosine, and the points won, against forward passes of a step."""
    figure, panels = figures.canvas(len(places), 2, figures.PAGE, 2.4, sharex=True)
    for (left, right), (title, found) in zip(panels, places.items(), strict=True):
        of = {g.entry("method"): g for g in found if g.runs}
        gained = gain_of(of)
        for k, family in enumerate(FAMILIES):
            line = [of[m] for m in (family, f"{family}-8") if m in of]
            for panel, values in ((left, cosines), (right, gained)):
                family_line(panel, line, values, k)
            rules = [(passes(g), rule(g)) for g in line if not math.isnan(rule(g))]
            for x, y in rules:
                left.plot(x, y, "_", color="0.25", markersize=9, label="the rule")
        for method, marker in BESIDE.items():
            if method in of and FROZEN in of:
                looks = {"color": "0.25", "markerfacecolor": "white", "markersize": 7, "label": spelled(method)}
                right.plot(passes(of[method]), gained(of[method]).mean(), marker, **looks)
        right.axhline(0, color="0.5", linewidth=0.7)
        left.set_title(title, loc="left")
        left.set(ylabel="cosine with the gradient", xscale="log", yscale="log", ylim=(0.0013, 0.04))
        left.set(yticks=ANGLES, yticklabels=list(map(str, ANGLES)))
        right.set_ylabel("points above a frozen client")
    for panel in panels.flat:
        panel.minorticks_off()
    for panel in panels[-1]:
        panel.set(xlabel="forward passes of a step", xticks=TICKS, xticklabels=list(map(str, TICKS)))
    figures.legend(figure, panels, 3, "mean over seeds; bars: least to largest; lines: one direction, eight")
    return figure


def gain_of(of: dict[str, Group]) -> Callable[[Group], Any]:
    """A function that gives (seeds,) points that a group is ahead of the frozen client; (0,) without the control."""
    if FROZEN not in of:
        return lambda group: np.empty(0)
    return lambda group: paired(group, of[FROZEN], of.get(FIRST, group))[0]


def family_line(panel: Any, line: Sequence[Group], values: Callable[[Group], Any], k: int) -> None:
    """Draws the line of an estimate, a point for each number of directions."""
    found = [(passes(g), values(g)) for g in line if len(values(g))]
    if found:
        colour, style, marker = figures.LOOKS[k]
        looks = {"color": colour, "linestyle": style, "marker": marker, "markersize": 5, "linewidth": 1.1}
        figures.barred(panel, [x for x, _ in found], [v for _, v in found], label=name(line[0]), **looks)
