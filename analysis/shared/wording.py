"""How numbers, methods and data sets are spelled on screen, in captions and in LaTeX; and tables in plain text."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shared.groups import Group, entries, lacking, shown, split
from zofl_mpi.report.wording import DATA
from zofl_mpi.report.wording import METHODS as METHODS
from zofl_mpi.report.wording import latex as latex
from zofl_mpi.report.wording import text_table as text_table

Cell = str | Callable[[Any], Any]
"""A column's cell of an item: by a key, or a function of it."""


def table(items: Iterable[Any], columns: Mapping[str, Cell], left: int = 1) -> str:
    """A table with a row per item and a column per header."""
    cells = [[str(item[c] if isinstance(c, str) else c(item)) for c in columns.values()] for item in items]
    return text_table(list(columns), cells, left)


def crossed(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """A table of (row, column, cell), in the order in which rows and columns come first; - where there is no cell."""
    found: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row, column, cell in cells:
        found.setdefault(row, {})[column] = cell
        columns.setdefault(column)
    return text_table([corner, *columns], [[row, *(of.get(c, "-") for c in columns)] for row, of in found.items()])


def numbers(form: str, key: str, unit: float = 1) -> Callable[[Mapping[str, Any]], str]:
    """A cell of `table`: a row's number in this unit, written so; - for nan."""
    return lambda row: "-" if math.isnan(row[key]) else format(row[key] / unit, form)


def four(key: str, unit: float = 1) -> Callable[[Mapping[str, Any]], str]:
    """A cell of `table`: a row's number with four significant digits; - for nan."""
    return numbers(".4g", key, unit)


def data_of(group: Group) -> str:
    """The data set, and the problem where the grid has several."""
    data = group.entry("data")
    return f"{data} ({group.where['problem']})" if "problem" in group.where else data


def spelled(data: str) -> str:
    """`data_of` as a reader knows it: CIFAR-10 (features)."""
    name, space, problem = data.partition(" ")
    return DATA.get(name, name) + space + problem


def method_name(method: str) -> str:
    """A method, as a reader knows it."""
    return METHODS.get(method, method)


def method_of(group: Group) -> str:
    """A group's method, as a reader knows it."""
    return method_name(group.entry("method"))


def cell_name(groups: Iterable[Group], cell: str) -> str:
    """α and β of a cell, told by a group that has both; else the grid's own word."""
    for group in groups:
        alpha, beta = group.config.get("alpha"), group.config.get("beta")
        if group.entry("cell") == cell and alpha is not None and beta is not None:
            return f"α = {shown(alpha)}, β = {shown(beta)}"
    return cell


TOLD = {
    "problem": "problem",
    "split": "split",
    "pixels": "pixels",
    "m": "m",
    "server_fraction": "server's share",
    "tau": "tau",
    "schedule_h": "H schedule",
    "batch": "batch",
    "server_batch": "server batch",
    "gamma": "gamma",
    "schedule": "gamma schedule",
    "gamma_local": "local step",
    "schedule_local": "local step schedule",
    "eta": "eta",
    "lam": "lambda",
    "mu": "mu",
    "x0": "x0",
    "y0": "y0",
    "width": "width",
    "stages": "stages",
    "h": "h",
    "lr_server": "server step",
    "dtype": "dtype",
}
"""Flags that a caption tells, and how."""


def caption(groups: Iterable[Group], left_out: Sequence[str] = (), flags: Mapping[str, str] = TOLD) -> str:
    """The caption, from the configurations: rounds, seeds, batches, steps ...; with the methods where they differ.

    Args:
        flags: which are told, and how.
    """
    groups = [g for g in groups if g.runs]
    seeds = listed(len(g.runs) for g in groups)
    words = [f"{listed(g.rounds for g in groups)} rounds", f"{seeds} seed{'' if seeds == '1' else 's'}"]
    for key, word in flags.items():
        having = [g for g in groups if key in g.config]
        values = split(having, valued(key))
        if values and key not in left_out:
            words.append(f"{word} " + ", ".join(value + _whose(told, having) for value, told in values.items()))
    return "; ".join(words)


def paragraph(text: str) -> str:
    """A text broken into lines of a screen."""
    return textwrap.fill(text, 100)


def valued(key: str) -> Callable[[Group], str]:
    """A function that gives a group's value of a flag, as it is shown."""
    return lambda group: shown(group.config[key])


def _whose(told: Iterable[Group], groups: Iterable[Group]) -> str:
    """The methods that have a value, unless all have it."""
    methods = entries(told, "method")
    return "" if methods == entries(groups, "method") else f" ({', '.join(map(method_name, methods))})"


def listed(values: Iterable[Any]) -> str:
    """The different values, each once: 500, or 500 / 100."""
    return " / ".join(dict.fromkeys(map(str, values)))


def percent(mean: float, sd: float, note: str = "") -> str:
    """A mean over seeds as 74.23 ± 0.31 and its note; - for none."""
    number = "-" if math.isnan(mean) else f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"
    return f"{number} {note}".rstrip()


def mean_of(row: Mapping[str, Any], key: str, unit: str = "_percent", note: str = "") -> str:
    """A mean with its deviation, from a row of a CSV."""
    return percent(row[f"{key}_mean{unit}"], row[f"{key}_sd{unit}"], note)


def seeds_of(row: Mapping[str, Any]) -> str:
    """What a reader must know of the seeds of a row of a CSV; empty if all are there."""
    return lacking(row["seeds"], row["seeds_planned"])


def plain(value: float) -> str:
    """A number as 90.82; - for nan."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def digits(*values: float) -> list[str]:
    """The numbers with four significant digits each; - for nan."""
    return ["-" if math.isnan(value) else f"{value:.4g}" for value in values]
