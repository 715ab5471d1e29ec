"""The figures of c_pays: accuracy against what was spent, against a step's memory, and what estimates are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shared import figures
from shared.groups import Group, split
from shared.pays import name, work
from shared.pays_estimates import Places
from shared.split_costs import all_bytes
from zofl_mpi.report import palette
from zofl_mpi.report.groups import t_half_width

LINES = ("sflv2", "cse_fsl", "heron-n2", "ho_sfl-n2", "heron-head-8", "heron", "heron-frozen")
"""Methods that have a line, in the order of their looks."""
CURVE = ("heron-head", "heron-n2", "heron-n4", "cse_fsl")
"""From forward passes only to first order: none, the last one, two and all of the client's stages exact."""
NAMES = {
    "heron": "HERON",
    "heron-head": "HERON, exact head",
    "heron-head-8": "HERON, exact head, eight directions",
    "heron-head-jvp": "HERON, exact head, derivatives, mu to 0",
    "heron-sample": "HERON, exact head, a direction a sample",
    "heron-sample-8": "HERON, exact head, eight directions a sample",
    "ho_sfl": "HO-SFL",
    "ho_sfl-jvp": "HO-SFL, derivatives, mu to 0",
    "ho_sfl-sample": "HO-SFL, a direction a sample",
    "heron-n2": "last stage exact, the others frozen",
    "ho_sfl-n2": "HO-SFL, last stage exact, the others frozen",
    "heron-n4": "last two stages exact",
    "cse_fsl": "CSE-FSL, all stages",
    "sflv2": "SFLV2",
}
"""Methods beside the frozen client, as the page's table calls them; those of c_pays_estimates in its order."""
MARKS = {
    **dict(zip(CURVE, ((palette.BLUE, marker) for marker in "osD^"), strict=True)),
    "heron": (palette.ORANGE, "v"),
    "heron-head-8": (palette.ORANGE, "P"),
    "heron-sample": (palette.ORANGE, "X"),
    "ho_sfl-n2": (palette.BLACK, "D"),
    "sflv2": (palette.YELLOW, "*"),
}
"""{method of c_pays_memory: colour and marker}; estimates have one colour."""
Row = Mapping[str, Any]


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
def memory(rows: Sequence[Row]) -> Any:
    """Draws a panel per setting: points won against bytes live at once in a client's step; a curve of exact stages."""
    places = split(rows, lambda r: str(r["setting"]))
    figure, panels = figures.canvas(1, len(places), figures.PAGE, 2.8, sharey=True)
    for panel, (title, found) in zip(panels.flat, places.items(), strict=True):
        of = {r["method"]: r for r in found if r["seeds"]}
        curve = [of[m] for m in CURVE if m in of]
        panel.plot([mib(r) for r in curve], [r["gain_mean"] for r in curve], color=palette.BLUE, linewidth=1.2)
        taken = [mib(r) for r in curve]
        for method, (colour, marker) in MARKS.items():
            if method in of:
                row, x = of[method], mib(of[method])
                while method not in CURVE and any(abs(x - other) < 0.03 for other in taken):
                    x += 0.07  # beside a point of as many bytes
                taken.append(x)
                looks = {"color": colour, "marker": marker, "linestyle": "", "markersize": 5}
                half = t_half_width(row["gain_sd"], int(row["seeds"]))
                figures.barred(panel, [x], [row["gain_mean"]], half, label=NAMES[method], **looks)
                if not math.isnan(row["client_peak_again_bytes"]):
                    looks |= {"markerfacecolor": "white", "label": f"{NAMES[method]}, activations computed again"}
                    panel.plot(mib(row, "client_peak_again_bytes"), row["gain_mean"], **looks)
        panel.axhline(0, color="0.5", linewidth=0.7)
        panel.set_title(title, loc="left")
        panel.set(xlim=(0, None), xlabel="peak of a client's step, beyond its model (MiB)")
    panels[0, 0].set_ylabel("less a frozen client\n(points of test accuracy)")
    figures.legend(figure, panels, 2, "mean over seeds of the difference seed by seed; bar: its 95 % t interval")
    return figure


def mib(row: Row, key: str = "client_peak_bytes") -> float:
    """Memory of a client's step in MiB."""
    return float(row[key]) / 2**20


@figures.styled
def estimates(rows: Sequence[Row]) -> Any:
    """Draws a row per method: an estimate's cosine, what it wins, and the forward passes of a step."""
    places = split([r for r in rows if r["seeds"]], lambda r: str(r["setting"]))
    methods = [m for m in NAMES if any(r["method"] == m for found in places.values() for r in found)]
    figure, ((left, middle, right),) = figures.canvas(1, 3, figures.PAGE, 0.25 * len(methods), sharey=True)
    for k, (title, found) in enumerate(places.items()):
        looks = {"color": figures.look(k)["color"], "marker": "os"[k % 2], "markersize": 4.5, "linestyle": ""}
        for row in (r for r in found if r["method"] in methods):
            at, n = methods.index(row["method"]) + 0.24 * (k - (len(places) - 1) / 2), int(row["seeds"])
            for panel, mean, sd in ((left, "cosine", "cosine_sd"), (middle, "gain_mean", "gain_sd")):
                half = t_half_width(row[sd], n)
                panel.errorbar(row[mean], at, xerr=half, capsize=2, elinewidth=0.7, label=title, **looks)
            left.plot(row["cosine_rule"], at, "|", color="0.25", markersize=7, label="expected")
            right.plot(row["passes"], at, **looks)
    middle.axvline(0, color="0.5", linewidth=0.7)
    left.set(xlabel="cosine with the gradient", xlim=(0, 0.042))
    middle.set(xlabel="less a frozen client\n(points of test accuracy)")
    right.set(xlabel="forward passes of a step", xlim=(0, 19))
    left.set_yticks(range(len(methods)), [NAMES[m] for m in methods])
    left.invert_yaxis()
    title = "mean over seeds; bar: 95 % t interval; expected: sqrt(P/(P + d + 1)) of P directions in d dimensions"
    figures.legend(figure, np.array([[left]]), 2, title)
    return figure
