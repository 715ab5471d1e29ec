"""A paper's figure of groups of runs, with the numbers beside it: curves over seeds as PDF, CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from zofl_mpi.arrays import Array
from zofl_mpi.errors import UserError, plain
from zofl_mpi.report.means import AGAINST, Curve
from zofl_mpi.report.palette import COLOURS
from zofl_mpi.report.wording import METHODS, latex

MOST_CURVES = 24
"""Maximum number of curves that a reader can tell apart."""
WIDTH, HEIGHT = 3.5, 2.3
"""Inches: one column of a paper, and the panel."""
LABEL = 60
"""Maximum number of characters of a legend name."""
LEGEND_WORDS = 22
"""Maximum number of characters of legend names in two columns."""
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "legend.fontsize": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
LOOKS = tuple(
    zip(
        (*COLOURS, "0.5"),
        ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))),
        ("o", "s", "^", "D", "v", "P", "X", "*"),
        strict=True,
    )
)
"""Colour, line and marker of each line, by its number; lines differ, too, for print in grey."""


def draw(curves: Sequence[Curve], y: str, x: str, control: str | None = None) -> Any:
    """A matplotlib figure of 3.5 inches: each group's mean, and its 95 % t interval as a band.

    UserError: there are too many curves, or matplotlib is not installed.
    """
    if len(curves) > MOST_CURVES:
        raise UserError(
            f"{len(curves)} curves are more than the {MOST_CURVES} of a figure; choose by --only AXIS=ENTRY"
        )
    try:
        import matplotlib

        matplotlib.use("Agg")  # before pyplot: a node of a cluster has no display
        import matplotlib.pyplot as plt
    except ImportError as exc:
        raise UserError("the figure needs matplotlib, which is not installed: pip install 'zofl_mpi[report]'") from exc
    names = [plain(curve.name, LABEL).replace("$", r"\$") for curve in curves]  # no mathematics
    columns = 2 if max(map(len, names)) <= LEGEND_WORDS and len(names) > 1 else 1
    lines = -(-len(names) // columns)
    with plt.rc_context(STYLE):
        figure, panel = plt.subplots(figsize=(WIDTH, HEIGHT + 0.25 + 0.16 * lines), layout="constrained")
        panel.grid(color="0.9", linewidth=0.5)
        panel.set_axisbelow(True)
        for k, (curve, name) in enumerate(zip(curves, names, strict=True)):
            _line(panel, curve, name, k, 100.0 if _in_percent(y) else 1.0)
        if control:
            panel.axhline(0.0, color="0.4", linewidth=0.8)
        panel.set_xlabel(AGAINST[x])
        label = quantity_in_words(curves, y, control).replace("$", r"\$")
        panel.set_ylabel(label.replace(" less ", "\nless ", 1))
        figure.legend(
            loc="outside upper left",
            ncols=columns,
            frameon=False,
            title=convention(curves),
            title_fontsize=8,
            handlelength=3,
        )
    return figure


def convention(curves: Sequence[Curve]) -> str:
    """Meaning of line and band, with the number of seeds."""
    counts = sorted({curve.n for curve in curves})
    if counts == [1]:
        return "one seed each" if len(curves) > 1 else "one seed"
    n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean and 95 % t interval, n = {n} seeds"


def quantity_in_words(curves: Sequence[Curve], y: str, control: str | None) -> str:
    """A column with its unit, and the quantity subtracted from it."""
    unit = next((run.units[y] for curve in curves for run in curve.group.runs if run.units.get(y)), "1")
    shown = "%" if _in_percent(y) else "" if unit == "1" else plain(unit, LABEL)
    if control:
        shown = "points" if _in_percent(y) else shown
        name = plain(METHODS.get(control, control), LABEL)
        return y.replace("_", " ") + (f" ({shown})" if shown else "") + f" less {name}"
    return y.replace("_", " ") + (f" ({shown})" if shown else "")


def table(curves: Sequence[Curve], y: str, x: str, control: str | None) -> str:
    """The CSV: a row for each point of each curve, numbers with all their digits, nothing for nan."""
    text = io.StringIO()
    what = f"{y}_difference" if control else y
    axes = list(curves[0].group.where)
    told = list(curves[0].group.told)
    spent = [] if x == "rounds" else [AGAINST[x]]
    header = ["group", *axes, *told, "round", *spent, "seeds", "seeds_planned"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*header, f"{what}_mean", f"{what}_sd", f"{what}_low", f"{what}_high"])
    for curve in curves:
        group, ends = curve.group, numbers(curve)
        first = [group.label, *(plain(group.where[axis]) for axis in axes), *(group.told[key] for key in told)]
        for k, r in enumerate(curve.rounds):
            counts = [*([curve.x[k]] if spent else []), curve.n, group.planned]
            writer.writerow([*first, int(r), *counts, *(cell(values[k]) for values in ends.values())])
    return text.getvalue()


def numbers(curve: Curve) -> dict[str, Array]:
    """(k,) mean, deviation and ends of the interval at the points of a curve."""
    mean, half = curve.mean, curve.half
    sd = np.asarray(curve.values.std(axis=0, ddof=1)) if curve.n > 1 else half
    return {"mean": mean, "sd": sd, "low": mean - half, "high": mean + half}


def cell(number: float) -> float | str:
    """A number in a CSV; nothing for nan."""
    return "" if np.isnan(number) else float(number)


def rounded(curve: Curve, y: str) -> str:
    """The last point of a curve as 91.7 ± 2.4."""
    scale = 100.0 if _in_percent(y) else 1.0
    return _ended(scale * curve.mean[-1], scale * curve.half[-1]).replace(r"\pm", "±").replace("$", "")


def tabular(curves: Sequence[Curve], y: str, x: str, control: str | None, notes: Sequence[str]) -> str:
    """The LaTeX table: each curve's last point; what was left out stands in comments."""
    scale, spent = 100.0 if _in_percent(y) else 1.0, x != "rounds"
    header = ["", "rounds", *([AGAINST[x]] if spent else []), quantity_in_words(curves, y, control), "$n$"]
    rows = [
        [
            latex(curve.group.label),
            str(curve.rounds[-1]),
            *([f"{curve.x[-1]:.4g}"] if spent else []),
            _ended(scale * curve.mean[-1], scale * curve.half[-1]),
            str(curve.n) if curve.n == curve.group.planned else f"{curve.n} of {curve.group.planned}",
        ]
        for curve in curves
    ]
    lines = [
        f"% {convention(curves)}, after the last round; made by zofl-report",
        *(f"% {note}" for note in notes),
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\hline",
        " & ".join([*map(latex, header[:-1]), header[-1]]) + r" \\",
        r"\hline",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _line(panel: Any, curve: Curve, name: str, k: int, scale: float) -> None:
    """Draw line number k and its band."""
    (colour, _, marker), line = LOOKS[k % len(LOOKS)], LOOKS[(k + k // len(LOOKS)) % len(LOOKS)][1]
    every = max(len(curve.x) // 8, min(4, len(curve.x) // 2), 1)
    look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 3, "linewidth": 1.1}
    mean, half = scale * curve.mean, scale * curve.half
    panel.plot(curve.x, mean, label=name, markevery=(k % every, every), zorder=3 - k / 100, **look)
    if curve.n > 1:
        panel.fill_between(curve.x, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)


def _in_percent(y: str) -> bool:
    return y.endswith("accuracy")


def _ended(mean: float, half: float) -> str:
    """A number and its half width, with two digits of the latter."""
    if not np.isfinite(half):
        return f"{mean:.4g}"
    digits = int(np.clip(1 - np.floor(np.log10(half)), 0, 8)) if half > 0 else 2
    return f"${mean:.{digits}f} \\pm {half:.{digits}f}$"
