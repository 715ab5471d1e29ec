"""Curves of groups: means over seeds with 95 % t intervals, and differences to a control, paired by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.errors import UserError, check_one_of
from zofl_mpi.report.charts import axes
from zofl_mpi.report.facts import LOSSES
from zofl_mpi.report.groups import Group, Groups, half_width
from zofl_mpi.run.records import Run

AGAINST = {
    "rounds": "finished rounds",
    "bytes": "MiB sent up and down so far",
    "seconds": "seconds of all rounds so far",
    "virtual_hours": "virtual hours so far",
    "joules": "joules of the clients' devices so far",
}
"""{--x: name of the horizontal axis among `charts.axes`}."""


@final
@dataclass(frozen=True)
class Curve:
    """A group's numbers at the rounds in which each of its seeds has one.

    Attributes:
        rounds: (k,) from 1.
        x: (k,) what the curve is drawn against: a mean over seeds, too.
        values: (n, k) a row a seed.
    """

    group: Group
    rounds: NDArray[np.int64]
    x: Array
    values: Array

    @property
    def n(self) -> int:
        """Seeds that the mean stands on."""
        return len(self.values)

    @property
    def mean(self) -> Array:
        """(k,) mean over seeds."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def half(self) -> Array:
        """(k,) half the width of the mean's 95 % t interval, nan of one seed."""
        return half_width(self.values)

    @property
    def name(self) -> str:
        """Name in legends; seeds that are missing are told."""
        lacking = f" ({self.n} of {self.group.planned} seeds)" if self.n < self.group.planned else ""
        return self.group.label + lacking


def quantity(groups: Sequence[Group], y: str | None) -> str:
    """Column to draw: `y`, or the test accuracy, or the first common loss; UserError: no such column."""
    found = [{name for run in group.runs for name in run.rounds} for group in groups]
    if y is not None:
        check_one_of(sorted(set.union(*found)), y, "column", f"--y {y}: ")
        return y
    shared = set.intersection(*found)
    name = next((name for name in ("test_accuracy", *LOSSES) if name in shared), None)
    if name is None:
        raise UserError(f"the runs have no column in common; name one by --y: {', '.join(sorted(set.union(*found)))}")
    return name


def curves(found: Groups, y: str, x: str) -> tuple[list[Curve], list[str]]:
    """A curve for each group that has the numbers, and a message for each that has not (UserError: none has)."""
    made, notes = [], []
    for group in found.groups:
        runs = [run for run in group.runs if y in run.rounds and AGAINST[x] in axes(run)]
        curve = _curve(group, runs, y, x) if runs else None
        if curve is None or not len(curve.rounds):
            notes.append(f"{group.label}: left out, its runs have no {y} against {x}")
        else:
            made.append(curve)
    if not made:
        columns = {"virtual_hours": "; --devices gives them", "joules": "; --devices gives them"}.get(x, "")
        raise UserError(f"no run has a number of {y} against --x {x}{columns}")
    return made, notes


def differences(made: Sequence[Curve], found: Groups, control: str) -> tuple[list[Curve], list[str]]:
    """Each curve less that of its control, seed by seed and round by round, and a message for each without one.

    Args:
        control: a group's entries or its label; or one entry, which a curve's control has in place of its own.
    """
    labels = {name: curve for curve in made for name in (curve.group.entries, curve.group.label)}
    axes_with = [axis for axis in found.sets if any(c.group.where[axis] == control for c in made)]
    if "method" in made[0].group.where and any(c.group.where.get("method") == control for c in made):
        axes_with = ["method"]
    if control not in labels and len(axes_with) != 1:
        entries = dict.fromkeys(entry for curve in made for entry in curve.group.where.values())
        check_one_of(dict.fromkeys([*labels, *entries]), control, "group", f"--control {control}: ")
        raise UserError(f"--control {control}: the axes {', '.join(axes_with)} have this entry; name a whole group")
    less, notes = [], []
    for curve in made:
        other = labels.get(control) or _control(curve, made, axes_with[0], control)
        if other is curve:
            continue
        paired = _paired(curve, other) if other else None
        if paired is None:
            notes.append(f"{curve.group.label}: left out, it has no seed and round in common with a control")
        else:
            less.append(paired)
    if not less:
        raise UserError(f"--control {control}: no other group has a seed and a round in common with it")
    return less, notes


def _curve(group: Group, runs: Sequence[Run], y: str, x: str) -> Curve:
    length = min(run.length for run in runs)
    values = np.stack([run.rounds[y][:length] for run in runs])
    there = np.isfinite(values).all(axis=0)
    spent = np.mean([axes(run)[AGAINST[x]][:length] for run in runs], axis=0)
    used = Group(group.where, group.label, group.planned, tuple(runs), group.flags, group.told)
    return Curve(used, 1 + np.flatnonzero(there), spent[there], values[:, there])


def _control(curve: Curve, made: Sequence[Curve], axis: str, entry: str) -> Curve | None:
    wanted = curve.group.where | {axis: entry}
    return next((other for other in made if other.group.where == wanted), None)


def _paired(curve: Curve, other: Curve) -> Curve | None:
    """The differences at the rounds that both curves have, of the seeds that both have; None if there are none."""
    own, its = list(curve.group.seeds), list(other.group.seeds)
    seeds = [seed for seed in own if seed in its]
    rounds, at, there = np.intersect1d(curve.rounds, other.rounds, return_indices=True)
    if not seeds or not len(rounds):
        return None
    mine = curve.values[[own.index(seed) for seed in seeds]][:, at]
    theirs = other.values[[its.index(seed) for seed in seeds]][:, there]
    return Curve(curve.group, rounds, curve.x[at], mine - theirs)
