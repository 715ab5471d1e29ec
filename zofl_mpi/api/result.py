"""Results of runs from Python: what a run reached, its tables, its model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from zofl_mpi.api.arguments import IN_MEMORY, Arguments
from zofl_mpi.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from zofl_mpi.run import records

SMALLER = ("loss", "objective", "error", "residual", "gap", "distance")
"""Words of columns whose smaller values are better."""


@final
@dataclass(frozen=True)
class Result:
    """What a run has left.

    Attributes:
        path: of the result file, which rank 0 has written.
        status: done; stopped (by a callback, the script or the method); interrupted (by a signal); running.
        row: columns of the last round, {name: value}.
        config: the resolved configuration, {flag: value}.
        reason: why the run was stopped; "" where it was not.
        rank: of this process; the tables are at rank 0.
    """

    path: str
    status: str
    row: Mapping[str, float] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    reason: str = ""
    rank: int = 0
    built: Arguments | None = field(default=None, repr=False)  # by which this process ran it
    problem: Any = field(default=None, repr=False)  # as that run had it

    @cached_property
    def run(self) -> records.Run:
        """The result file, as `zofl_mpi.records.load` reads it; at rank 0."""
        if self.rank:
            advice = "ask `result.rank == 0` first, or let rank 0 alone work: zofl_mpi.lead"
            raise UserError(f"rank {self.rank} has no tables, they are at rank 0: {advice}")
        from zofl_mpi.run import records

        return records.load(self.path)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to other processes: the file is read again there."""
        return {name: value for name, value in vars(self).items() if name != "run"}

    def table(self) -> pd.DataFrame:
        """One row a round: bytes_down, bytes_up, messages, and all columns; needs pandas."""
        return self.run.table()

    @property
    def final(self) -> Mapping[str, Any]:
        """Fields of the last state, such as `x`, the model (n,)."""
        return self.run.final

    def best(self, column: str, *, smallest: bool | None = None) -> dict[str, float]:
        """The row with the best value of a column: the largest, or the smallest of losses, objectives and errors.

        `smallest` says which, where the name does not (UserError: no such column, or it has no value).
        """
        rounds = self.run.rounds
        if column not in rounds:
            raise UserError(f"no column {column!r}; there are {', '.join(rounds)}{nearest(column, rounds)}")
        values = {k: value for k, value in enumerate(rounds[column]) if not math.isnan(value)}
        if not values:
            raise UserError(f"column {column!r} has no value in {self.path}")
        wants = is_smaller_better(column) if smallest is None else smallest
        k = (min if wants else max)(values, key=lambda k: values[k])
        return {name: float(each[k]) for name, each in rounds.items()}

    def module(self) -> Any:
        """The torch module with the final model's parameters, a copy on the CPU (UserError: the problem has none).

        Of a network cut in two: the client's part, then the server's, `module.client` and `module.server`.
        """
        if self.config.get("client_parts") == "own":
            raise UserError("--client-parts own: each client keeps a part of its own; there is no one module")
        module = None if self.problem is None else self.problem.module_of(self.final)
        if module is None:
            what = "is of a file" if self.problem is None else f"is of {type(self.problem).__name__}"
            vectors = ", ".join(name for name in ("x", "theta", "theta_s") if name in self.final)
            raise UserError(f"this result {what}, without a torch module: final has its parameters, flat ({vectors})")
        return module

    def continued(self, problem: Any, data: Any, family: str, flags: Mapping[str, Any]) -> Arguments:
        """The arguments that continue this run (UserError: what its file does not record is not given)."""
        own, method = self.built, self.config["method"]
        if own is not None:  # what this process has at hand
            method, family = own.method, family or own.family
            problem = own.problem if problem is None else problem
            data = own.data if data is None else data
        elif ":" in method:
            raise UserError(f"{self.path} was made by {method}: zofl_mpi.load(path, method=THE CLASS) can be continued")
        elif data is None and IN_MEMORY in self._command:
            raise UserError(f"{self.path} was made with data in memory: simulate(result, problem, data) continues it")
        problem = self.config["problem"] if problem is None else problem
        return Arguments(method, problem, data, family or family_of(self._command), {**flags, "resume": self.path})

    @cached_property
    def _command(self) -> str:
        """The command that made the run, of which its tables are no part."""
        from zofl_mpi.run import records

        return str(records.heading(self.path).attrs["command"])


def family_of(command: str) -> str:
    """The family of methods by whose command a run was made; "" where it does not say."""
    words = command.split()
    return words[2].removeprefix("zofl_mpi.") if words[:2] == ["python", "-m"] else ""


def load(path: str | os.PathLike[str], *, method: type[Any] | None = None) -> Result:
    """A result of an earlier run, to look at or to continue; `method`: its class, where that is your own.

    UserError: there is no such result, or it is damaged.
    """
    from zofl_mpi.run import records

    run = records.load(path)
    row = {name: float(values[-1]) for name, values in run.rounds.items() if len(values)}
    status, reason = str(run.attrs["status"]), str(run.attrs.get("stopped", ""))
    result = Result(os.fspath(path), status, row, run.config, reason)
    if method is not None:
        data = None if IN_MEMORY in run.attrs["command"] else run.config.get("data")
        own = Arguments(method, run.config["problem"], data, family_of(run.attrs["command"]), {})
        result = replace(result, built=own)
    vars(result)["run"] = run  # which it would read once more
    return result


def is_smaller_better(column: str) -> bool:
    """Whether a column's smaller values are better, by its name."""
    return any(word in column for word in SMALLER)
