"""Results of runs from Python: last row, tables, model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from zofl_mpi.api.arguments import IN_MEMORY, Arguments
from zofl_mpi.errors import UserError, nearest
from zofl_mpi.run.command import family as families

if TYPE_CHECKING:
    import pandas as pd

    from zofl_mpi.run import records

SMALLER = ("loss", "objective", "error", "residual", "gap", "distance")
"""Words in names of columns with smaller values that are better."""


@final
@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        path: of the result file, written by rank 0.
        status: done; stopped (by a callback, the script or the method); interrupted (by a signal); running; failed, of
            a run that raised an exception (its file then says interrupted).
        row: columns of the last round, {name: value}.
        config: the resolved configuration, {flag: value}.
        reason: reason of the stop or of the failure; else "".
        rank: of this process; rank 0 has the tables.
    """

    path: str
    status: str
    row: Mapping[str, float] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    reason: str = ""
    rank: int = 0
    built: Arguments | None = field(default=None, repr=False)  # the arguments in this process
    problem: Any = field(default=None, repr=False)  # as in that run

    @cached_property
    def run(self) -> records.Run:
        """The result file, as `zofl_mpi.records.load` reads it; at rank 0 only."""
        if self.rank:
            advice = "ask `result.rank == 0` first, or let rank 0 alone work: zofl_mpi.lead"
            raise UserError(f"rank {self.rank} has no tables, they are at rank 0: {advice}")
        from zofl_mpi.run import records

        return records.load(self.path)

    def __getstate__(self) -> dict[str, Any]:
        """State for other processes, which read the file again."""
        return {name: value for name, value in vars(self).items() if name != "run"}

    def table(self) -> pd.DataFrame:
        """One row per round: bytes_down, bytes_up, messages, and all columns; needs pandas."""
        return self.run.table()

    @property
    def final(self) -> Mapping[str, Any]:
        """Fields of the last state, such as `x`, the model (n,)."""
        return self.run.final

    def best(self, column: str, *, smallest: bool | None = None) -> dict[str, float]:
        """The row with the best value of a column: the largest, or the smallest for losses, objectives and errors.

        `smallest` overrides this rule. UserError: the column is missing or has no value.
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
        """A torch module with the final model's parameters, a copy on the CPU (UserError: the problem has none).

        For a split network: the client's part, then the server's, `module.client` and `module.server`.
        """
        if self.config.get("client_parts") == "own":
            raise UserError("--client-parts own: each client keeps its own part, hence there is no single module")
        module = None if self.problem is None else self.problem.module_of(self.final)
        if module is None:
            what = "is of a file" if self.problem is None else f"is of {type(self.problem).__name__}"
            vectors = ", ".join(name for name in ("x", "theta", "theta_s") if name in self.final)
            raise UserError(f"this result {what}, without a torch module: final has its parameters, flat ({vectors})")
        return module

    def continued(self, problem: Any, data: Any, family: str, flags: Mapping[str, Any]) -> Arguments:
        """Arguments that continue this run; UserError if one was an object that the file cannot store."""
        from zofl_mpi.settings.heron_sfl import SplitProblem
        from zofl_mpi.settings.networks import TorchProblem

        own, method = self.built, self.config["method"]
        # a bound argument is its flag's default, which the run's value would hide
        bound = problem.bound if isinstance(problem, TorchProblem | SplitProblem) else {}
        flags = {**{k: v for k, v in bound.items() if k in self.config}, **flags}
        if own is not None:  # objects of this process
            method, family = own.method, family or own.family
            problem = own.problem if problem is None else problem
            data = own.data if data is None else data
        elif ":" in method:
            raise UserError(f"{self.path} was made by {method}: zofl_mpi.load(path, method=THE CLASS) can be continued")
        elif data is None and IN_MEMORY in self._command:
            raise UserError(f"{self.path} was made with data in memory: simulate(result, problem, data) continues it")
        elif problem is None and not _is_known(self.config["problem"]):
            made = f"{self.path} was made with a problem of a script ({self.config['problem']})"
            raise UserError(f"{made}: simulate(result, problem, data) continues it")
        problem = self.config["problem"] if problem is None else problem
        return Arguments(method, problem, data, family or family_of(self._command), {**flags, "resume": self.path})

    @cached_property
    def _command(self) -> str:
        """The command that created the run."""
        from zofl_mpi.run import records

        return str(records.heading(self.path).attrs["command"])


def _is_known(problem: str) -> bool:
    """True if a name alone leads to the problem."""
    return ":" in problem or any(problem in families.family_of(name).PROBLEMS for name in families.FAMILIES)


def family_of(command: str) -> str:
    """The family of a run's command; "": unknown."""
    words = command.split()
    return words[2].removeprefix("zofl_mpi.") if words[:2] == ["python", "-m"] else ""


def load(path: str | os.PathLike[str], *, method: type[Any] | None = None) -> Result:
    """Load the result of an earlier run, to read or to continue it; `method`: its class, if it is yours.

    UserError: the result is missing or damaged.
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
    vars(result)["run"] = run  # it would be read twice
    return result


def is_smaller_better(column: str) -> bool:
    """True if smaller values of a column are better, by its name."""
    return any(word in column for word in SMALLER)
