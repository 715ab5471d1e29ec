"""[A] figure 1: how many samples of each class each client holds, one panel per alpha.

python analysis/a_fig1.py [--grid jobs/a_table1.toml] [--results DIR] [--out NAME] [--partial]

Of each cell the first seed, in any result of it; a figure NAME_DATA per data set. The area of a disc is the number of
samples; an empty place is a class that is absent.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from shared import figures, wording
from shared.files import Report
from shared.groups import Group, shown, split
from shared.study import study

from zofl_mpi.errors import UserError
from zofl_mpi.report.palette import BLUE
from zofl_mpi.run import records

AREA = 130.0
"""Of the largest disc in points^2: it nearly fills its place."""


def report(groups: Sequence[Group]) -> Report:
    """A figure for each data set."""
    drawn = {}
    for data, found in split(groups, lambda g: g.entry("data")).items():
        cells = split((run for g in found for run in g.runs), lambda run: shown(run.config["alpha"]))
        drawn[f"_{data}"] = draw([min(runs, key=lambda run: int(run.config["seed"])) for runs in cells.values()])
    return Report(more=drawn)


main = study("a_fig1", __doc__, ["a_table1.toml"], ("data", "problem", "cell", "method"), report)


@figures.styled
def draw(runs: Sequence[records.Run]) -> Any:
    """Draws panels side by side."""
    largest = max(int(counts_of(run).max()) for run in runs)
    figure, panels = figures.canvas(1, len(runs), figures.PAGE, 2.4, sharex=True, sharey=True)
    for panel, run in zip(panels.flat, runs, strict=True):
        discs(panel, counts_of(run), largest)
        held = f"{counts_of(run).sum():,} samples"
        panel.set_title(f"{wording.spelled(run.config['data'])}, α = {shown(run.config['alpha'])} ({held})")
        panel.set_xlabel("client")
    panels[0, 0].set_ylabel("class")
    key(figure, largest)
    return figure


def counts_of(run: records.Run) -> NDArray[np.int64]:
    """(m, classes) samples of each class that each client holds.

    Raises:
        UserError: the run's problem has no classes.
    """
    if run.counts is None:
        raise UserError(f"{run.path} has no /partition/counts: its problem has no classes")
    return np.asarray(run.counts)


def discs(panel: Any, table: NDArray[np.int64], largest: int) -> None:
    """Draws one disc for each client and class."""
    clients, classes = np.nonzero(table)
    panel.scatter(clients, classes, s=AREA * table[clients, classes] / largest, color=BLUE, linewidth=0)
    for axis, length in ((panel.xaxis, table.shape[0]), (panel.yaxis, table.shape[1])):
        axis.set_ticks(range(0, length, max(1, length // 10)))
    panel.set_xlim(-0.7, table.shape[0] - 0.3)
    panel.set_ylim(-0.7, table.shape[1] - 0.3)


def key(figure: Any, largest: int) -> None:
    """Draws discs of known numbers, above the panels."""
    numbers = sorted({rounded(largest / part) for part in (100, 10, 2, 1)})
    handles = [plt.scatter([], [], s=AREA * number / largest, color=BLUE, linewidth=0) for number in numbers]
    labels = [f"{number:,}" for number in numbers]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, title="samples of a class")


def rounded(number: float) -> int:
    """The next lower 1, 2 or 5 times a power of ten; at least 1."""
    power = 10 ** int(np.log10(max(number, 1)))
    return int(max(k * power for k in (1, 2, 5) if k * power <= max(number, 1)))


if __name__ == "__main__":
    main()
