"""Arguments of a run from Python: objects, and flags with the command line's rules."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast, final

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.errors import UserError, nearest
from zofl_mpi.run.command import flags
from zofl_mpi.run.command import plan as plans
from zofl_mpi.run.command.family import FAMILIES, Choice, Family, Site, family_of
from zofl_mpi.run.command.plan import Plan
from zofl_mpi.settings.samples import Samples

PACKAGE = "zofl_mpi."
IN_MEMORY = "data in memory"
"""Name for data without a flag, in a result's command."""


@final
@dataclass(frozen=True)
class Arguments:
    """A run as a script requests it."""

    method: Any  # a name of the command line, or a class
    problem: Any  # a name, a class, or an object with `choice()`, such as a `TorchProblem`; None: the method's default
    data: Any  # a name or a path, as for --data, or a `Federation` in memory; None: the default
    family: str  # zo_hfl, fedrzo or heron_sfl, needed if method and problem belong to several; "": determined by them
    flags: Mapping[str, Any]  # {flag, with underscores: value}

    def words(self) -> list[str]:
        """The flags as words of a command line; UserError for an impossible value."""
        named = {"method": word_of(self.method)}
        if self.problem is not None:
            named["problem"] = word_of(self.problem)
        if isinstance(self.data, str | os.PathLike):
            named["data"] = os.fspath(self.data)
        known = {flags.field_of(name): _plain(name, value) for name, value in self.flags.items()}
        values = {name: value for name, value in (named | known).items() if value is not None}
        return flags.to_arguments(values, values, "simulate")

    def planned(self, family: Family) -> Plan:
        """The plan, within the `chosen` family; UserError for any mistake."""
        words = self.words()
        plan = plans.parse_plan(family, words)
        if all(isinstance(each, str | os.PathLike | None) for each in (self.method, self.problem, self.data)):
            return plan
        shown = [word_of(each) for each in (self.method, self.problem) if each is not None]
        shown += [IN_MEMORY] * isinstance(self.data, Federation)
        return replace(plan, command=f"zofl_mpi.simulate({', '.join([*shown, *words])})")

    def chosen(self) -> Family:
        """The family, extended by this script's objects; UserError if none or several fit."""
        if not (self.data is None or isinstance(self.data, str | os.PathLike | Federation)):
            allowed = "a data set's word, a file's path, or a zofl_mpi.Federation.of_clients(...)"
            raise UserError(f"data is a {type(self.data).__name__}; it must be {allowed}")
        if not (self.problem is None or isinstance(self.problem, str | type) or hasattr(self.problem, "choice")):
            allowed = "a problem's word, a class, or a zofl_mpi.TorchProblem or SplitProblem"
            raise UserError(f"problem is a {type(self.problem).__name__}; it must be {allowed}")
        if self.family:
            name = f"{PACKAGE}{str(self.family).removeprefix(PACKAGE)}"
            if name not in FAMILIES:
                allowed = ", ".join(each.removeprefix(PACKAGE) for each in FAMILIES)
                raise UserError(f"family {self.family!r}: must be one of {allowed}")
            return self._extended(family_of(name))
        method = self.method if isinstance(self.method, str) and ":" not in self.method else None
        problem = self.problem if isinstance(self.problem, str) and ":" not in self.problem else None
        fits = [name for name in FAMILIES if method is None or method in family_of(name).METHODS]
        if not fits:
            every = list(dict.fromkeys(word for name in FAMILIES for word in family_of(name).METHODS))
            raise UserError(
                f"method {method}: must be one of {', '.join(every)}, or a class{nearest(str(method), every)}"
            )
        both = [name for name in fits if problem is None or problem in family_of(name).PROBLEMS]
        if not both:
            offered = list(dict.fromkeys(word for name in fits for word in family_of(name).PROBLEMS))
            raise UserError(f"problem {problem}: must be one of {', '.join(offered)}{nearest(str(problem), offered)}")
        in_memory = isinstance(self.data, Federation) and problem is None and self.problem is not None
        same = {None if method is None else family_of(name).METHODS[method] for name in both}
        if len(both) > 1 and not (in_memory and len(same) == 1):  # any of these families gives the same run
            words = [each.removeprefix(PACKAGE) for each in both]
            raise UserError(f"method and problem belong to {' and '.join(words)}: choose one by family='{words[0]}'")
        return self._extended(family_of(both[0]))

    def _extended(self, family: Family) -> Family:
        """The family with the script's own classes, problem and data under their names."""
        methods, problems = dict(family.METHODS), dict(family.PROBLEMS)
        if isinstance(self.method, type):
            methods[word_of(self.method)] = self.method
        if self.problem is not None and not isinstance(self.problem, str):
            name = word_of(self.problem)
            is_class = isinstance(self.problem, type)
            problems[name] = family.OWN_PROBLEM(name, self.problem) if is_class else self.problem.choice()
        if isinstance(self.data, Federation):
            problems = {name: in_memory(name, choice, self.data) for name, choice in problems.items()}
        own = {**vars(family), "METHODS": methods, "PROBLEMS": problems}
        return cast("Family", SimpleNamespace(**own))


def in_memory(name: str, choice: Choice, data: Federation) -> Choice:
    """A problem on these data, without the flags of a data set."""
    groups = {title: cls for title, cls in choice.groups.items() if not issubclass(cls, Samples)}
    takes = len(groups) < len(choice.groups)

    def make(site: Site) -> Any:
        if not takes:
            raise UserError(f"problem {name} takes texts or no data, not data in memory")
        return choice.make(replace(site, federation=data))

    return replace(choice, groups=groups, make=make)


def word_of(given: Any) -> str:
    """Name under which a result stores a method, a problem or a class."""
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    if isinstance(given, type):
        return f"{given.__module__}:{given.__name__}"
    return str(getattr(given, "name", "") or type(given).__name__)


def _plain(name: str, value: Any) -> Any:
    """A value as a command line could give it."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(name, each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str) and value.startswith("-"):
        raise UserError(f"{name}={value!r} is not a valid flag value: give a number, a word, True or False, or a list")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{name} is a {type(value).__name__}; a flag's value is a number, a word, True or False, or a list")
