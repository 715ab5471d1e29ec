"""The figures of c_pays: accuracy against what was spent, and against the memory of a client's step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from shared import figures
from shared.budgets import sent
from shared.groups import Group
from shared.pays import costs, name, spelled
from shared.split_costs import label_bytes, local_steps

LINES = ("sflv2", "cse_fsl", "heron-n2", "ho_sfl-sample", "heron-sample", "heron", "heron-frozen")
"""Methods that have a line, in the order of their looks."""
CURVE = ("heron-head", "heron-n2", "heron-n4", "cse_fsl")
"""From forward passes only to first order: the client's last 0, 2, 4 and all layers exact."""
POINTS = ("heron-frozen", "heron", "ho_sfl", "ho_sfl-sample", "heron-sample", "sflv2")
Places = Mapping[str, Sequence[Group]]
"""{setting: its groups, each method at its best step}."""


def budgets(places: Places) -> Any:
    """Draws a row of panels per setting: accuracy against rounds, bytes, and the clients' work."""
    with plt.rc_context(figures.STYLE):
        figure, panels = figures.canvas(len(places), 3, figures.PAGE, 2.2, sharex="col", sharey="row")
        for line, (title, found) in zip(panels, places.items(), strict=True):
            for k, method in enumerate(LINES):
                for group in (g for g in found if g.entry("method") == method and g.runs):
                    curves(line, group, k)
            line[0].set_title(title, loc="left")
            line[0].set_ylabel("test accuracy (%)")
        for panel, label in zip(panels[-1], ("rounds", "sent, with labels (MiB)", "client MAC ($10^9$)"), strict=True):
            panel.set(xlabel=label, xlim=(0, None))
        figures.legend(figure, panels, 4)
    return figure


def curves(panels: Any, group: Group, k: int) -> None:
    """Draws a method's line in all panels of a row."""
    at, values = group.curve("test_accuracy")
    spent = sent(group) + label_bytes(group)
    work = np.mean([np.cumsum(local_steps(run)) for run in group.runs], axis=0) * costs(group)["macs"]
    for panel, x in zip(panels, (at, spent[at - 1] / 2**20, work[at - 1] / 1e9), strict=True):
        figures.band(panel, x, 100 * values, name(group), k)


def memory(places: Places) -> Any:
    """Draws a panel per setting: accuracy against bytes live at once in a client's step; the curve of exact layers."""
    with plt.rc_context(figures.STYLE):
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
    lasts = [100 * g.last("test_accuracy") for g in groups]
    label = "HERON's last 0, 2, 4, all layers exact"
    looks = {"color": figures.BLUE, "marker": "o", "markersize": 4, "linewidth": 1.2}
    panel.errorbar(x, [v.mean() for v in lasts], bars(lasts), label=label, capsize=2, elinewidth=0.7, **looks)


def point(panel: Any, group: Group, k: int) -> None:
    """Draws a method's point."""
    values = 100 * group.last("test_accuracy")
    colour, _, marker = figures.LOOKS[(k + 1) % len(figures.LOOKS)]
    looks = {"color": colour, "marker": marker, "linestyle": "", "markersize": 5, "capsize": 2, "elinewidth": 0.7}
    x = [costs(group)["peak"] / 2**20]
    panel.errorbar(x, [values.mean()], bars([values]), label=name(group), **looks)


def bars(values: Sequence[Any]) -> Any:
    """(2, points) from the mean down to the least and up to the largest."""
    return np.array([[v.mean() - v.min() for v in values], [v.max() - v.mean() for v in values]])
