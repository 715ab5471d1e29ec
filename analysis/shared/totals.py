"""Figures of what methods reach and use up: a row for each method, a column for each quantity, from rows of a CSV."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from matplotlib.ticker import LogLocator, NullLocator

from shared import figures
from shared.wording import seeds_of
from zofl_mpi.report import palette
from zofl_mpi.report.groups import t_half_width

Row = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Quantity:
    """A column of panels.

    Attributes:
        label: of the axis, with the unit.
        value: of a row, in that unit.
        sd: its standard deviation over seeds; nan for none.
        most: where the axis ends at the latest.
        log: the axis is logarithmic; a value of 0 is written at its lower end.
    """

    label: str
    value: Callable[[Row], float]
    sd: Callable[[Row], float] = lambda row: math.nan
    most: float = math.inf
    log: bool = False


@figures.styled
def draw(
    blocks: Mapping[str, Sequence[Row]],
    name: Callable[[Row], str],
    quantities: Sequence[Quantity],
    title: str = "after the last round; dot: mean over seeds; bar: 95 % t interval",
) -> Any:
    """Draws a row of panels for each block, {title: rows}; rows that lack seeds say so."""
    most = max(map(len, blocks.values()))
    figure, panels = figures.canvas(
        len(blocks), len(quantities), figures.PAGE, 0.35 + 0.17 * most, sharex="col", sharey="row"
    )
    for line, (place, rows) in zip(panels, blocks.items(), strict=True):
        for panel, quantity in zip(line, quantities, strict=True):
            _dots(panel, rows, quantity)
        line[0].set_title(place, loc="left")
        names = [f"{name(row)} {seeds_of(row)}".rstrip() for row in rows]
        line[0].set_yticks(range(len(rows)), names)
        line[0].set_ylim(len(rows) - 0.5, -0.5)
    for panel, quantity in zip(panels[-1], quantities, strict=True):
        panel.set_xlabel(quantity.label)
        if not quantity.log and all(math.isnan(quantity.sd(row)) for rows in blocks.values() for row in rows):
            panel.set_xlim(0, 1.05 * panel.get_xlim()[1])  # once all is drawn
        panel.set_xlim(right=min(panel.get_xlim()[1], quantity.most))
    figure.suptitle(title, fontsize=8)
    return figure


def _dots(panel: Any, rows: Sequence[Row], quantity: Quantity) -> None:
    values = [quantity.value(row) for row in rows]
    bars = [t_half_width(quantity.sd(row), int(row["seeds"])) for row in rows]
    if quantity.log:
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(NullLocator())
    for place, (value, bar) in enumerate(zip(values, bars, strict=True)):
        if quantity.log and value == 0:
            panel.annotate("0", (0.01, place), xycoords=("axes fraction", "data"), va="center")
        elif not math.isnan(value):
            width = None if math.isnan(bar) else bar
            panel.errorbar(value, place, xerr=width, color=palette.BLUE, marker="o", markersize=4, capsize=2)
