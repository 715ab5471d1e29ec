"""[A] figure 1: how many samples of each class each client holds, one panel per alpha.

python analysis/a_fig1.py [--grid jobs/a_table1.toml] [--results DIR] [--columns 1|2] [--out NAME]
python analysis/a_fig1.py RESULT RESULT ... [--out NAME]

From a grid: of each cell the first seed, in any result of it that is finished; a figure NAME_DATA per data set. From
results: those, in their order. The area of a disc is the number of samples; an empty place is a class that is absent.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from shared import command, figures, files, wording
from shared.groups import shown

from zofl_mpi.errors import UserError
from zofl_mpi.report.palette import BLUE
from zofl_mpi.run import grid, records


def main(words: list[str] | None = None) -> None:
    """Draw the figures and print their paths; exit status 2 if a result is missing."""
    made = command.parser("a_fig1", __doc__, ["a_table1.toml"])
    made.add_argument("result", type=Path, nargs="*", help="HDF5 results, instead of a grid")
    made.add_argument("--columns", type=int, choices=(1, 2), default=2, help="width in columns of a paper (default 2)")
    flags = made.parse_args(words)
    with command.refusals("a_fig1"):
        if flags.result:
            files.keep(draw([records.load(path) for path in flags.result], flags.columns), flags.out)
            return
        for data, runs in of_grids(flags).items():
            files.keep(draw(runs, flags.columns), flags.out.with_name(f"{flags.out.name}_{data}"))


def of_grids(flags: argparse.Namespace) -> dict[str, list[records.Run]]:
    """{data set: a result for each of its alphas}.

    Raises:
        UserError: a cell has none (unless --partial), or all have none.
    """
    found: dict[str, list[records.Run]] = {}
    missing: list[str] = []
    for path in flags.grid:
        known = grid.read(path, flags.results, trust=True)
        for (data, alpha), members in partitions(known).items():
            tried = [grid.finished(known, member) for member in members]
            runs = [run for run in tried if isinstance(run, records.Run)]
            found.setdefault(data, []).extend(runs[:1])
            missing += [] if runs else [f"{data}, alpha {alpha}: no result is finished; {tried[0]}"]
    found = {data: runs for data, runs in found.items() if runs}
    if missing and not (flags.partial and found):
        raise UserError("\n".join(missing))
    command.tell("a_fig1", missing)
    return found


def partitions(known: grid.Grid) -> dict[tuple[str, str], list[grid.GridRun]]:
    """{(data, alpha): the runs of the first seed that have this partition}."""
    first = known.axes.get("seed", ("",))[0]
    found: dict[tuple[str, str], list[grid.GridRun]] = {}
    for run in known.runs:
        if run.coordinates.get("seed", "") == first:
            data = str(run.flags.get("data", "digits"))
            found.setdefault((data, shown(run.flags.get("alpha", "inf"))), []).append(run)
    return found


@figures.styled
def draw(runs: Sequence[records.Run], columns: int) -> Any:
    """Draws panels side by side on two columns of a paper, below each other on one."""
    largest = max(int(counts_of(run).max()) for run in runs)
    shape = (len(runs), 1) if columns == 1 else (1, len(runs))
    width, height = (figures.COLUMN, 2.4) if columns == 1 else (figures.PAGE, 2.4)
    figure, panels = figures.canvas(*shape, width, height, sharex=True, sharey=True)
    for panel, run in zip(panels.flat, runs, strict=True):
        discs(panel, counts_of(run), largest, size(panel))
        panel.set_title(label(run))
    for panel in panels[-1]:
        panel.set_xlabel("client")
    for panel in panels[:, 0]:
        panel.set_ylabel("class")
    key(figure, largest, size(panels[0, 0]))
    return figure


def counts_of(run: records.Run) -> NDArray[np.int64]:
    """(m, classes) samples of each class that each client holds.

    Raises:
        UserError: the run's problem has no classes.
    """
    if run.counts is None:
        raise UserError(f"{run.path} has no /partition/counts: its problem has no classes")
    return np.asarray(run.counts)


def label(run: records.Run) -> str:
    """The title of a panel."""
    held = counts_of(run).sum()
    return f"{wording.spelled(run.config['data'])}, α = {shown(run.config['alpha'])} ({held:,} samples)"


def size(panel: Any) -> float:
    """The area in points^2 of the largest disc: it nearly fills its place."""
    return 170.0 if panel.figure.get_figwidth() < 5 else 130.0


def discs(panel: Any, table: NDArray[np.int64], largest: int, area: float) -> None:
    """Draws one disc for each client and class."""
    clients, classes = np.nonzero(table)
    panel.scatter(clients, classes, s=area * table[clients, classes] / largest, color=BLUE, linewidth=0)
    for axis, length in ((panel.xaxis, table.shape[0]), (panel.yaxis, table.shape[1])):
        axis.set_ticks(range(0, length, max(1, length // 10)))
    panel.set_xlim(-0.7, table.shape[0] - 0.3)
    panel.set_ylim(-0.7, table.shape[1] - 0.3)


def key(figure: Any, largest: int, area: float) -> None:
    """Draws discs of known numbers, above the panels."""
    numbers = sorted({rounded(largest / part) for part in (100, 10, 2, 1)})
    handles = [plt.scatter([], [], s=area * number / largest, color=BLUE, linewidth=0) for number in numbers]
    labels = [f"{number:,}" for number in numbers]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, title="samples of a class")


def rounded(number: float) -> int:
    """The next lower 1, 2 or 5 times a power of ten; at least 1."""
    power = 10 ** int(np.log10(max(number, 1)))
    return int(max(k * power for k in (1, 2, 5) if k * power <= max(number, 1)))


if __name__ == "__main__":
    main()
