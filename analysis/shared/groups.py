"""The results of a grid, group by group, and the means over their seeds.

A group is what a grid repeats over seeds. Nothing is averaged over silently: `Group.note` says which seeds are missing.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.run import records

Array = NDArray[np.float64]
Item = TypeVar("Item")


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
        return lacking(len(self.runs), self.planned)

    @property
    def rounds(self) -> int:
        """R, the same for all runs; 0 if there is none."""
        self.check_lengths()
        return self.runs[0].length if self.runs else 0

    def check_lengths(self) -> None:
        """Refuses seeds that differ in their rounds.

        Raises:
            UserError: they do.
        """
        lengths = {run.length for run in self.runs}
        if len(lengths) > 1:
            raise UserError(f"{', '.join(self.where.values())}: the seeds differ in their rounds, {sorted(lengths)}")

    def last(self, column: str) -> Array:
        """(seeds,) numbers of a column in the last round.

        Raises:
            UserError: a result has no such number.
        """
        values = [float(series(run, column)[-1]) for run in self.runs]
        for run, value in zip(self.runs, values, strict=True):
            if math.isnan(value):
                raise UserError(f"{run.path} has no {column} in its last round")
        return np.array(values)

    @property
    def seeds(self) -> dict[int, records.Run]:
        """{seed: its result}."""
        return {int(run.config["seed"]): run for run in self.runs}

    def percent(self, column: str) -> dict[int, float]:
        """{seed: a column in % after the last round}."""
        return dict(zip(self.seeds, 100 * self.last(column), strict=True))

    def accuracy(self) -> tuple[float, float]:
        """Mean and standard deviation over seeds of the test accuracy in % after the last round; nan for none."""
        return mean_sd(100 * self.last("test_accuracy"))

    def curve(self, column: str) -> tuple[NDArray[np.int64], Array]:
        """(k,) finished rounds at which all runs have a number, and (seeds, k) the numbers."""
        self.check_lengths()
        values = np.stack([series(run, column) for run in self.runs])
        there = ~np.isnan(values).any(axis=0)
        return 1 + np.flatnonzero(there), values[:, there]


def lacking(found: int, planned: int) -> str:
    """What a reader must know of so many seeds of those in the grid; empty if all are there."""
    return "" if found == planned else f"({found} of {planned} seeds)"


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


def ahead(group: Group, other: Group | None, column: str) -> Array:
    """(seeds,) a column less another group's after the last round, in points, on the seeds that both have."""
    one, two = group.percent(column), other.percent(column) if other else {}
    return np.array([one[seed] - two[seed] for seed in one if seed in two])


def entries(groups: Iterable[Group], axis: str) -> list[str]:
    """The coordinates on an axis, each once, in the grid's order."""
    return list(dict.fromkeys(group.entry(axis) for group in groups))


def split(groups: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """{key: its groups, or rows of a table}, in order."""
    found: dict[str, list[Item]] = {}
    for group in groups:
        found.setdefault(key(group), []).append(group)
    return found


def shown(value: Any) -> str:
    """A value of a configuration: 1000.0 -> 1000, [1.0] -> 1."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
