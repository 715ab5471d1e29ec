"""Callbacks that end a run: early stopping and Optuna pruning. TensorBoard: zofl_mpi/run/loop/tracking.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from zofl_mpi.api.result import is_smaller_better
from zofl_mpi.errors import UserError, nearest
from zofl_mpi.run.loop.rounds import Schedule
from zofl_mpi.run.loop.tracking import library

if TYPE_CHECKING:
    from zofl_mpi.api.simulation import Simulation


class _Watching:
    """Base of callbacks that read one column."""

    def __init__(self, column: str) -> None:
        self.column, self._came = column, False

    def _value(self, run: Simulation, row: Mapping[str, float]) -> float | None:
        """The column's value; None in a round without evaluation.

        UserError: the first evaluation lacks the column; it may be missing in later ones.
        """
        r, rounds, every = int(row["round"]), run.plan["rounds"], run.plan["eval_every"]
        self._came = self._came or self.column in row
        if not self._came and Schedule(rounds, every, 0).evaluates(r):
            who, near = type(self).__name__, nearest(self.column, row)
            there = f"has no column {self.column!r}; there are {', '.join(row)}{near}"
            raise UserError(f"{who}: round {r}, the first one evaluated, {there}")
        value = row.get(self.column, math.nan)
        return None if math.isnan(value) else float(value)


@final
class EarlyStopping(_Watching):
    """Ends a run when a column has not improved for `patience` evaluations."""

    def __init__(self, column: str, patience: int = 5, smallest: bool | None = None, min_delta: float = 0.0) -> None:
        """Stop one run, or each of several consecutive runs, early.

        Args:
            column: for example validation_accuracy.
            patience: number of evaluations without improvement that ends the run.
            smallest: True if smaller values are better; None: True for losses, objectives and errors.
            min_delta: minimum difference from the best value that counts as an improvement.
        """
        super().__init__(column)
        if patience < 1 or not 0 <= min_delta < math.inf:
            raise UserError(f"EarlyStopping: patience {patience}, min_delta {min_delta}: must be >= 1, and >= 0")
        self.patience, self.min_delta = patience, min_delta
        self._sign = -1.0 if (is_smaller_better(column) if smallest is None else smallest) else 1.0

    def on_start(self, run: Simulation) -> None:
        """Forget an earlier run."""
        self._best, self._since = -math.inf, 0
        self._came = False

    def on_round(self, run: Simulation, row: Mapping[str, float]) -> None:
        """Compares the value with the best one."""
        value = self._value(run, row)
        if value is None:
            return
        if self._best == -math.inf or self._sign * value > self._best + self.min_delta:
            self._best, self._since = self._sign * value, 0
        else:
            self._since += 1
        if self._since >= self.patience:
            best = self._sign * self._best
            run.stop(f"{self.column} has not been better than {best:.6g} for {self.patience} evaluations")


@final
class OptunaPruning(_Watching):
    """Reports a column to an Optuna trial; ends run and trial if the study's pruner decides so."""

    def __init__(self, trial: Any, column: str) -> None:
        """`trial`: an optuna.Trial; `column`: the quantity that its study optimises."""
        super().__init__(column)
        self.trial, self._pruned = trial, ""
        self._raises = library("optuna", "OptunaPruning").TrialPruned

    def on_round(self, run: Simulation, row: Mapping[str, float]) -> None:
        """Report the value for the round."""
        if (value := self._value(run, row)) is not None:
            self.trial.report(value, int(row["round"]))
            if self.trial.should_prune():
                self._pruned = f"Optuna pruned the trial at {self.column} {value:.6g}"
                run.stop(self._pruned)

    def on_end(self, run: Simulation) -> None:
        """Raise optuna.TrialPruned if the trial was pruned; the result is complete and closed."""
        if self._pruned:
            raise self._raises(self._pruned)
