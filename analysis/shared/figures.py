"""The looks of all figures: sizes, colours, lines, bands, titles and the legend."""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import count
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: a node of a cluster has no display
import matplotlib.pyplot as plt
import numpy as np

from shared.groups import Array, Group
from zofl_mpi.report.figure import LOOKS as LOOKS
from zofl_mpi.report.figure import STYLE
from zofl_mpi.report.groups import half_width

COLUMN, PAGE = 3.5, 7.0
"""Inches: the widths of one and of two columns of a paper."""
DPI = 200


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: draws under `STYLE`."""

    @wraps(draw)
    def drawn(*args: Any, **named: Any) -> Any:
        with plt.rc_context(STYLE):
            return draw(*args, **named)

    return drawn


def canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure and its (rows, columns) panels; `height` in inches is a row's. Call it in a `styled` function."""
    size = (width, 0.5 + height * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, dpi=DPI, layout="constrained", squeeze=False, **options)
    for panel in panels.flat:
        panel.grid(color="0.9", linewidth=0.5)
        panel.set_axisbelow(True)
    return figure, panels


def look(k: int) -> dict[str, Any]:
    """Line number k's colour, line and marker."""
    colour, line, marker = LOOKS[k % len(LOOKS)]
    return {
        "color": colour,
        "linestyle": line,
        "marker": marker,
        "markersize": 3,
        "linewidth": 1.1,
        "zorder": 3 - k / 10,
    }


def smooth(k: int) -> dict[str, Any]:
    """The look of a line without markers."""
    return look(k) | {"marker": ""}


def band(panel: Any, x: Any, values: Array, label: str, k: int) -> None:
    """Draws line number k: the mean over seeds, and the range from least to largest; values (seeds, points)."""
    every, looks = max(len(x) // 8, min(4, len(x) // 2), 1), look(k)
    panel.plot(x, values.mean(axis=0), label=label, markevery=(k % every, every), **looks)
    if len(values) > 1:
        panel.fill_between(x, values.min(axis=0), values.max(axis=0), color=looks["color"], alpha=0.15, linewidth=0)


def barred(panel: Any, x: Sequence[float], means: Sequence[float], halves: Any, **looks: Any) -> None:
    """Draws means over seeds, and bars of these half widths of their 95 % t intervals."""
    panel.errorbar(x, means, halves, **{"capsize": 2, "elinewidth": 0.7, **looks})


def averaged(values: Sequence[Array]) -> tuple[list[float], list[float]]:
    """Means and half widths of points, as `barred` takes them, from the values of each point's seeds."""
    return [float(v.mean()) for v in values], [float(half_width(v)) for v in values]


def apart(panel: Any, x: Sequence[float], y: Sequence[float], size: float = 6.5) -> Array:
    """The x of points of so many typographic points, moved sideways where one would lie on another.

    The panel has its limits and its place in the figure: `figure.draw_without_rendering()` before.
    """
    places: list[Array] = []
    for point in panel.transData.transform(np.column_stack([x, y])):
        moves = (k // 2 * (-1) ** k * size / 4 * panel.figure.dpi / 72 for k in count(1))
        tried = (point + np.array([move, 0]) for move in moves)
        places.append(
            next(at for at in tried if all(np.hypot(*(at - p)) >= size * panel.figure.dpi / 72 for p in places))
        )
    return np.asarray(panel.transData.inverted().transform(places)[:, 0])


def accuracies(group: Group) -> tuple[Any, Array]:
    """(k,) evaluated rounds, and (seeds, k) test accuracies in % there."""
    at, values = group.curve("test_accuracy")
    return at, 100 * values


def points(groups: Sequence[Group], column: str = "test_accuracy") -> Array:
    """(seeds, groups) last numbers in %; their means alone, (1, groups), where not all have as many seeds."""
    values = [100 * group.last(column) for group in groups]
    alike = len(set(map(len, values))) == 1
    return np.stack(values, axis=1) if alike else np.array([[v.mean() for v in values]])


def ticks(panel: Any, at: Iterable[float]) -> None:
    """Puts marks at these places and nowhere else."""
    places = sorted(set(at))
    panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.minorticks_off()


def titled(panel: Any, title: str, groups: Iterable[Group], name: Callable[[Group], str]) -> None:
    """Sets a panel's title, and below it the lines that lack seeds, by their names."""
    notes = [f"{name(group)} {group.note}" for group in groups if group.note]
    panel.set_title("\n".join([title, *notes]), loc="left")


BAND = "line: mean over seeds; band: least to largest"


def legend(figure: Any, panels: Any, columns: int, title: str = BAND) -> None:
    """Draws one legend for all panels, above them."""
    found: dict[str, Any] = {}
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        title=title,
        title_fontsize=8,
        handlelength=3,
    )
