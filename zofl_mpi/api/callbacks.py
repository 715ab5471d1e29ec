"""Callbacks that users ask for first: early stopping, pruning of Optuna's trials, TensorBoard.

Each is an object with functions of `simulation.Callback`; one of your own is a class of ten lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from zofl_mpi.api.result import is_smaller_better
from zofl_mpi.errors import UserError, nearest
from zofl_mpi.run.track import Run, TensorBoard

__all__ = ["EarlyStopping", "OptunaPruning", "TensorBoard"]


def value_of(row: Mapping[str, float], column: str) -> float:
    """The value of a column in a row; nan in a round without an evaluation (UserError: an evaluation has none)."""
    evaluated = any(name.startswith(("test_", "validation_")) or name == "objective" for name in row)
    if column not in row and evaluated:
        raise UserError(f"no column {column!r}; there are {', '.join(row)}{nearest(column, row)}")
    return row.get(column, math.nan)


@final
class EarlyStopping:
    """Stops a run whose column has not improved for some evaluations (`--eval-every` rounds apart)."""

    def __init__(self, column: str, *, patience: int = 5, smallest: bool | None = None, min_delta: float = 0.0) -> None:
        """`patience`: evaluations without improvement by more than `min_delta`.

        `smallest`: whether small values are good; None: for losses, objectives and errors.
        """
        self._column, self._patience, self._least = column, patience, min_delta
        self._sign = -1.0 if (is_smaller_better(column) if smallest is None else smallest) else 1.0

    def on_start(self, run: Run) -> None:
        """Forgets an earlier run."""
        self.best, self.round, self._waited = -math.inf, 0, 0

    def on_round(self, run: Run, row: Mapping[str, float]) -> None:
        """Compares the column with its best value so far."""
        value = self._sign * value_of(row, self._column)
        if math.isnan(value):
            return
        if value > self.best + self._least:
            self.best, self.round, self._waited = value, int(row["round"]), 0
            return
        self._waited += 1
        if self._waited >= self._patience:
            run.stop(f"{self._column} has not improved since round {self.round}")


@final
class OptunaPruning:
    """Reports a column to an Optuna trial, and ends the run that its pruner gives up (optuna.TrialPruned)."""

    def __init__(self, trial: Any, column: str) -> None:
        self._trial, self._column, self._pruned = trial, column, False

    def on_round(self, run: Run, row: Mapping[str, float]) -> None:
        """Reports the column of an evaluated round; its step is the round."""
        value = value_of(row, self._column)
        if not math.isnan(value):
            self._trial.report(value, int(row["round"]))
            if self._trial.should_prune():
                self._pruned = True
                run.stop(f"Optuna pruned it by {self._column}")

    def on_end(self, run: Run) -> None:
        """Raises optuna.TrialPruned at rank 0, when the run has ended on all ranks."""
        if self._pruned:
            import optuna

            raise optuna.TrialPruned
