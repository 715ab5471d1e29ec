"""What the tables and figures share: the results of a grid, group by group, and how they are told and drawn.

A group is what a grid repeats over seeds. Nothing is averaged over silently: a run that is missing or not finished ends
a script with a sentence, or, with --partial, is told on stderr and in the table or figure: "(2 of 3 seeds)".
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import matplotlib.pyplot as plt
import numpy as np
from a_run import BLUE, GREEN, ORANGE, PURPLE, save  # chooses Agg, too
from numpy.typing import NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records

Array = NDArray[np.float64]
Table = Sequence[Sequence[str]]

HERE = Path(__file__).resolve().parent
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "legend.fontsize": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLUMN, PAGE = 3.5, 7.0
"""Inches: the widths of one and of two columns of a paper."""
SKY, YELLOW, BLACK = "#56B4E9", "#E69F00", "#000000"
LOOKS = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    (PURPLE, ":", "D"),
    (BLACK, (0, (5, 1)), "v"),
    (SKY, (0, (3, 1, 1, 1)), "P"),
    (YELLOW, (0, (1, 1)), "X"),
)
"""Colour, line and marker: Okabe and Ito's colours, and told apart in grey too."""

DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
METHODS = {
    "zo_hfl": "ZO-HFL",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "server_sgd": "server SGD",
    "fedavg+server": "FedAvg + server",
}
"""How tables and figures spell them, in the order of their looks. Others are spelled as in the grid."""

PAPER = {
    ("mnist", 1000.0, 0.9): {"fedavg": 87.17, "fedprox": 86.90, "scaffold": 91.54, "zo_hfl": 90.82},
    ("fashion-mnist", 1000.0, 0.9): {"fedavg": 77.52, "fedprox": 77.34, "scaffold": 82.25, "zo_hfl": 78.51},
    ("cifar10", 1000.0, 0.9): {"fedavg": 68.36, "fedprox": 67.52, "scaffold": 72.36, "zo_hfl": 68.12},
    ("mnist", 1.0, 0.5): {"fedavg": 77.33, "fedprox": 75.61, "scaffold": 91.25, "zo_hfl": 88.44},
    ("fashion-mnist", 1.0, 0.5): {"fedavg": 59.64, "fedprox": 60.28, "scaffold": 83.48, "zo_hfl": 85.51},
    ("cifar10", 1.0, 0.5): {"fedavg": 37.20, "fedprox": 38.55, "scaffold": 50.41, "zo_hfl": 58.06},
    ("mnist", 0.1, 0.1): {"fedavg": 39.19, "fedprox": 45.15, "scaffold": 87.36, "zo_hfl": 87.70},
    ("fashion-mnist", 0.1, 0.1): {"fedavg": 45.50, "fedprox": 49.44, "scaffold": 74.91, "zo_hfl": 76.86},
    ("cifar10", 0.1, 0.1): {"fedavg": 27.43, "fedprox": 29.03, "scaffold": 44.65, "zo_hfl": 52.51},
}
"""[A] Table I: (data, alpha, beta) -> method -> test accuracy in %."""


# --- groups


@final
@dataclass(frozen=True)
class Group:
    """The runs of a grid that differ in nothing but their seed.

    Attributes:
        where: {axis: entry} without the seed.
        planned: number of seeds in the grid.
        config: the resolved configuration; the grid's flags where no run is finished.
        runs: the finished results.
    """

    where: dict[str, str]
    planned: int
    config: dict[str, Any]
    runs: tuple[records.Run, ...]

    def entry(self, axis: str) -> str:
        """The coordinate on an axis; where the grid has no such axis, the value of that flag."""
        return self.where.get(axis) or shown(self.config.get(axis, "-"))

    @property
    def note(self) -> str:
        """What a reader must know of the seeds; empty if all are there."""
        return "" if len(self.runs) == self.planned else f"({len(self.runs)} of {self.planned} seeds)"

    @property
    def rounds(self) -> int:
        """R, the same for all runs; 0 if there is none."""
        lengths = {run.length for run in self.runs}
        if len(lengths) > 1:
            raise UserError(f"{', '.join(self.where.values())}: the seeds differ in their rounds, {sorted(lengths)}")
        return lengths.pop() if lengths else 0

    @property
    def paper(self) -> float:
        """The test accuracy in % that the paper's Table I prints; nan where it prints none."""
        alpha, beta = (_number(self.config.get(key)) for key in ("alpha", "beta"))
        return PAPER.get((str(self.config.get("data")), alpha, beta), {}).get(self.entry("method"), math.nan)

    def last(self, column: str) -> Array:
        """(seeds,) the column in the last round.

        Raises:
            UserError: a result has no such number.
        """
        values = [float(series(run, column)[-1]) for run in self.runs]
        for run, value in zip(self.runs, values, strict=True):
            if math.isnan(value):
                raise UserError(f"{run.path} has no {column} in its last round")
        return np.array(values)

    def accuracy(self) -> tuple[float, float]:
        """Mean and standard deviation over seeds of the test accuracy in % after the last round; nan for none."""
        return mean_sd(100 * self.last("test_accuracy"))

    def curve(self, column: str) -> tuple[NDArray[np.int64], Array]:
        """(k,) finished rounds at which all runs have a number, and (seeds, k) the numbers."""
        self.rounds  # noqa: B018  the runs are equally long
        values = np.stack([series(run, column) for run in self.runs])
        there = ~np.isnan(values).any(axis=0)
        return 1 + np.flatnonzero(there), values[:, there]


def series(run: records.Run, column: str) -> Array:
    """(R,) a column of a result.

    Raises:
        UserError: it has no such column.
    """
    if column not in run.rounds:
        raise UserError(f"{run.path} has no column {column}; it has {', '.join(sorted(run.rounds))}")
    return run.rounds[column]


def mean_sd(values: Array) -> tuple[float, float]:
    """Mean and standard deviation (divided by n - 1); nan where there are too few values for them."""
    mean = float(np.mean(values)) if len(values) else math.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


# --- reading


def parser(name: str, about: str | None, grids: Sequence[str]) -> argparse.ArgumentParser:
    """The flags that the scripts share; `grids` lie in jobs/ and are read by default."""
    made = argparse.ArgumentParser(prog=name, description=(about or "").split("\n")[0])
    found = [HERE.parent / "jobs" / g for g in grids]
    listed = " ".join(f"jobs/{g}" for g in grids)
    made.add_argument("--grid", type=Path, nargs="+", default=found, help=f"TOML files (default: {listed})")
    made.add_argument("--results", type=Path, help="the folder with the results (default: the grid's own)")
    made.add_argument("--partial", action="store_true", help="go on without the results that are missing, and say so")
    add_out(made, name)
    return made


def add_out(made: argparse.ArgumentParser, name: str) -> None:
    """--out: where the files go."""
    made.add_argument(
        "--out",
        type=Path,
        default=HERE / "results" / name,
        help=f"the files' name without suffix (default: analysis/results/{name})",
    )


@contextmanager
def told(name: str) -> Iterator[None]:
    """A mistake of the user, or a missing result: its lines on stderr, and exit status 2."""
    try:
        yield
    except UserError as error:
        tell(name, str(error).split("\n"))
        raise SystemExit(2) from error


def tell(name: str, lines: Iterable[str]) -> None:
    """Lines on stderr, each with the script's name."""
    for line in lines:
        print(f"{name}: {line}", file=sys.stderr)


def read(name: str, flags: argparse.Namespace, known: Sequence[str], needed: Sequence[str] = ()) -> list[Group]:
    """The groups of the grids of a command line, in the grids' order.

    Args:
        known: axes that the script shows; what it does not know it would have to average over.
        needed: axes that it cannot do without.

    Raises:
        UserError: a run is not finished, of another configuration or unreadable (unless --partial), or all are; or a
            grid has other axes.
    """
    groups: list[Group] = []
    troubles: list[str] = []
    for path in flags.grid:
        study = grid.read(path, flags.results)
        _check_axes(path, study, known, needed)
        found, sentences = _collect(study)
        groups += sorted(found, key=lambda g: _position(study, g, known))
        troubles += sentences
    there, planned = sum(len(g.runs) for g in groups), sum(g.planned for g in groups)
    if troubles and not (flags.partial and there):
        hint = "; --partial goes on without them" if there else ""
        raise UserError("\n".join([*troubles, f"{len(troubles)} of {planned} results cannot be used{hint}"]))
    tell(name, troubles)
    return groups


def _check_axes(path: Path, study: grid.Grid, known: Sequence[str], needed: Sequence[str]) -> None:
    for axis, entries in study.axes.items():
        if axis not in (*known, "seed") and len(entries) > 1:
            raise UserError(f"{path} has the axis {axis}, which would be averaged over; known are {', '.join(known)}")
    for axis in needed:
        if axis not in study.axes:
            raise UserError(f"{path} has no axis {axis}; it has {', '.join(study.axes)}")


def _position(study: grid.Grid, group: Group, axes: Sequence[str]) -> list[int]:
    """Where a group comes: by the first of these axes, then by the next; entries in the grid's order."""
    return [study.axes[axis].index(group.where[axis]) for axis in axes if axis in study.axes]


def _collect(study: grid.Grid) -> tuple[list[Group], list[str]]:
    """The groups of a grid, and a sentence for each result that cannot be used."""
    planned: dict[tuple[str, ...], list[grid.GridRun]] = {}
    for run in study.runs:
        planned.setdefault(tuple(e for axis, e in run.coordinates.items() if axis != "seed"), []).append(run)
    groups: list[Group] = []
    troubles: list[str] = []
    for members in planned.values():
        found = [finished(study, member) for member in members]
        runs = tuple(run for run in found if isinstance(run, records.Run))
        troubles += [sentence for sentence in found if isinstance(sentence, str)]
        where = {axis: entry for axis, entry in members[0].coordinates.items() if axis != "seed"}
        groups.append(Group(where, len(members), runs[0].config if runs else members[0].flags, runs))
    return groups, troubles


def finished(study: grid.Grid, member: grid.GridRun) -> records.Run | str:
    """The result of a run of a grid, or a sentence that says why there is none."""
    try:
        word, sentence = grid.state_of(study, member)
        if word == "finished":
            return records.load(member.out)
    except UserError as error:
        return f"{member.name}: {error}"
    return f"{member.name}: {sentence}{_last_words(member.log) if word in ('missing', 'begun', 'interrupted') else ''}"


def _last_words(log: Path) -> str:
    """What a run printed last: why it ended, if it failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f"; its log ends: {lines[-1].strip()[:200]}" if lines else ""


def entries(groups: Iterable[Group], axis: str) -> list[str]:
    """The coordinates on an axis, each once, in the grid's order."""
    return list(dict.fromkeys(group.entry(axis) for group in groups))


def split(groups: Sequence[Group], key: Callable[[Group], str]) -> dict[str, list[Group]]:
    """{key: its groups}, in order."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(key(group), []).append(group)
    return found


# --- words


def data_of(group: Group) -> str:
    """The data set, and the problem where the grid has several."""
    data = group.entry("data")
    return f"{data} ({group.where['problem']})" if "problem" in group.where else data


def spelled(data: str) -> str:
    """`data_of` as a reader knows it: CIFAR-10 (features)."""
    name, space, problem = data.partition(" ")
    return DATA.get(name, name) + space + problem


def method_name(method: str) -> str:
    """As a reader knows it."""
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


def shown(value: Any) -> str:
    """A value of a configuration: 1000.0 -> 1000, [1.0] -> 1."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


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


def caption(groups: Iterable[Group], left_out: Sequence[str] = ()) -> str:
    """Rounds, seeds, pixels, batches and steps, from the runs' configurations, with the methods where they differ."""
    groups = [g for g in groups if g.runs]
    seeds = listed(len(g.runs) for g in groups)
    words = [f"{listed(g.rounds for g in groups)} rounds", f"{seeds} seed{'' if seeds == '1' else 's'}"]
    for key, word in TOLD.items():
        having = [g for g in groups if key in g.config]
        values = split(having, valued(key))
        if values and key not in left_out:
            words.append(f"{word} " + ", ".join(value + _whose(told, having) for value, told in values.items()))
    return "; ".join(words)


def paragraph(text: str) -> str:
    """Text in lines of a screen."""
    return textwrap.fill(text, 100)


def valued(key: str) -> Callable[[Group], str]:
    """A group's value of a flag, as it is shown."""
    return lambda group: shown(group.config[key])


def _whose(told: Iterable[Group], groups: Iterable[Group]) -> str:
    """The methods that have a value, unless all have it."""
    methods = entries(told, "method")
    return "" if methods == entries(groups, "method") else f" ({', '.join(map(method_name, methods))})"


def listed(values: Iterable[Any]) -> str:
    """Different values: 500, or 500 / 100."""
    return " / ".join(dict.fromkeys(map(str, values)))


def percent(mean: float, sd: float, note: str = "") -> str:
    """74.23 ± 0.31, what is told of a mean over seeds; - for none."""
    number = "-" if math.isnan(mean) else f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"
    return f"{number} {note}".rstrip()


def plain(value: float) -> str:
    """90.82, or - for nan."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def digits(*values: float) -> list[str]:
    """Four significant digits each; - for nan."""
    return ["-" if math.isnan(value) else f"{value:.4g}" for value in values]


# --- tables


def aligned(header: Sequence[str], rows: Table, left: int = 1) -> str:
    """A table in plain text: the first `left` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    sides = ["<" if k < left else ">" for k in range(len(header))]
    return "\n".join(
        "  ".join(f"{word:{side}{width}}" for word, side, width in zip(line, sides, widths, strict=True)).rstrip()
        for line in lines
    )


def write(path: Path, text: str) -> None:
    """A text file, in a folder made for it.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    print(path)


def say(out: Path, text: str) -> None:
    """Text on screen, and OUT.txt."""
    print(text)
    write(out.with_name(out.name + ".txt"), text)


def write_csv(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """OUT.csv: numbers with all their digits, nan as nothing."""
    from io import StringIO

    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
    write(out.with_name(out.name + ".csv"), text.getvalue())


LATEX = {"±": r"$\pm$", "α": r"$\alpha$", "β": r"$\beta$", "τ": r"$\tau$", "−": "$-$"} | {c: "\\" + c for c in "_%&#$"}


def latex(text: str) -> str:
    """Text for LaTeX."""
    return "".join(LATEX.get(letter, letter) for letter in text)


# --- figures


def canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure and its (rows, columns) panels; `height` in inches is a row's. Call it under `STYLE`."""
    figure, panels = plt.subplots(
        rows, columns, figsize=(width, 0.5 + height * rows), layout="constrained", squeeze=False, **options
    )
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


def place_of(method: str, others: Sequence[str]) -> int:
    """The number of a method's line: the same in all figures; what METHODS does not know comes after it."""
    order = [*METHODS, *(other for other in others if other not in METHODS)]
    return order.index(method)


def band(panel: Any, x: Any, values: Array, label: str, k: int) -> None:
    """Line number k: the mean over seeds, with the range from the least to the largest; values (seeds, points)."""
    every, looks = max(len(x) // 8, min(4, len(x) // 2), 1), look(k)
    panel.plot(x, values.mean(axis=0), label=label, markevery=(k % every, every), **looks)
    if len(values) > 1:
        panel.fill_between(x, values.min(axis=0), values.max(axis=0), color=looks["color"], alpha=0.15, linewidth=0)


def titled(panel: Any, title: str, groups: Iterable[Group], name: Callable[[Group], str]) -> None:
    """A panel's title, and below it the lines that lack seeds, by their names."""
    notes = [f"{name(group)} {group.note}" for group in groups if group.note]
    panel.set_title("\n".join([title, *notes]), loc="left")


BAND = "line: mean over seeds; band: least to largest"


def legend(figure: Any, panels: Any, columns: int, title: str = BAND) -> None:
    """One legend for all panels, above them."""
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


def keep(figure: Any, out: Path) -> None:
    """OUT.png and OUT.pdf, whose paths are printed.

    Raises:
        UserError: they cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out.parent}: {error.strerror or error}") from error
    png = save(figure, out)
    print(png.with_suffix(".pdf"), png, sep="\n")
    plt.close(figure)
