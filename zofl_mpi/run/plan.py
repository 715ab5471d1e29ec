"""What a command line asks for: flags, configuration file and resumed run, put together and checked."""

from __future__ import annotations

import importlib
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Any, Literal, cast, final, get_type_hints

from zofl_mpi.engine.setting import Loads, Work
from zofl_mpi.errors import UserError, demand
from zofl_mpi.run import flags


@final
@dataclass(frozen=True)
class RunFlags:
    """Flags of a run: its length, its numbers, its files.

    Attributes:
        rounds: R, the number of rounds.
        seed: the run's seed; all random numbers follow from it.
        dtype: of all vectors.
        device: auto (a GPU where there is one and the problem can use it), cpu or cuda.
        out: result file; else METHOD-DATA-sSEED.h5 in this folder, numbered if that exists.
        force: overwrite the result file if it exists.
        checkpoint_every: rounds between checkpoints; 0 for none but the one when a signal ends the run.
        resume: a result file or its checkpoint: continue that run, with its configuration.
        eval_every: rounds between evaluations; the first and the last round are evaluated in any case.
        eval_clients: an evaluation asks all clients up to so many; of more, so many drawn anew each time; 0: all.
        survive: go on with the same bits when client ranks are lost; takes mpirun --with-ft ulfm (Open MPI 5).
        round_timeout: seconds; a round that takes longer ends the job and names the late ranks; 0 for no limit.
        config: a TOML file with flags as keys; flags on the command line come first.
        dry_run: print the configuration and the expected cost, and run nothing.
        quiet: print nothing but the last lines.
        verbose: print the table of ranks first: host, device, cores, threads and clients of each.
    """

    rounds: int = 100
    seed: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    out: str = ""
    force: bool = False
    checkpoint_every: int = 10
    resume: str = ""
    eval_every: int = 10
    eval_clients: int = 100
    survive: bool = False
    round_timeout: float = 0.0
    config: str = ""
    dry_run: bool = False
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("eval_every", 1), ("eval_clients", 0), ("checkpoint_every", 0)):
            value = getattr(self, name)
            demand(value >= least, name, value, f"a whole number, at least {least}")
        limit = self.round_timeout
        demand(0 <= limit < math.inf, "round_timeout", limit, "seconds, more than any round takes, or 0 for no limit")


LOCAL = {"out", "force", "resume", "survive", "round_timeout", "config", "dry_run", "quiet", "verbose"}
"""Flags of one command, not of a run: the result file does not keep them."""
CHANGEABLE = LOCAL | {
    "rounds",
    "checkpoint_every",
    "eval_every",
    "eval_clients",
    "data_dir",
    "device",
    "kernel",
    "convolution",
}
"""What may differ between a run and its continuation: nothing that an iterate depends on (whatever --kernel and
--convolution say must come to the kernel that the result names)."""


@final
@dataclass(frozen=True)
class Plan:
    """What rank 0 understood, for all ranks: plain values only.

    Attributes:
        values: {flag: value} of everything, `method` and `problem` among them.
        command: as it was typed.
        kernel_before: the kernel of the result that --resume names; "" for a new run.
    """

    values: dict[str, Any]
    command: str
    kernel_before: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """The values that the result file keeps."""
        return {k: v for k, v in self.values.items() if k not in LOCAL}

    def of_problem(self, family: Any) -> dict[str, Any]:
        """The values of the problem's flags, without those of the method."""
        groups = groups_of(family, self.values["method"], self.values["problem"])
        del groups["method"]
        return {name: self.values[name] for name in flags.flags_of(groups)}


def understand(family: Any, arguments: Sequence[str]) -> Plan:
    """The plan of a command line: first the resumed run's values, then those of --config, then the flags.

    Raises:
        UserError: whatever is wrong with them.
    """
    resume, config = _peek("resume", arguments), _peek("config", arguments)
    stored = stored_config(resume) if resume else {}
    table = stored | (flags.read_toml(config) if config else {})
    method = _peek("method", arguments) or str(table.get("method", next(iter(family.METHODS))))
    problem = _peek("problem", arguments) or str(table.get("problem") or _usual_problem(family, method))
    for name, value in (("method", method), ("problem", problem)):
        if stored and stored[name] != value:
            raise UserError(f"--resume {resume}: that run has --{name} {stored[name]}, this command {value}")
    groups = groups_of(family, method, problem)
    words = [*flags.to_arguments(table, flags.flags_of(groups), config or resume), *arguments]
    program = f"python -m {family.__spec__.name}"
    values = flags.parse(groups, words, program, family.__doc__ or "", lambda name: owners_of(family, name))
    if stored:
        _check_same(stored, values, resume)
    command = shlex.join(["python", "-m", family.__spec__.name, *arguments])
    return Plan(values, command, stored_kernel(resume) if resume else "")


def _usual_problem(family: Any, method: str) -> str:
    """The family's first problem that offers what the method needs; its first one if the method does not say."""
    needs = getattr(getattr(method_of(family, method), "needs", None), "__name__", None)
    fitting = (name for name, choice in family.PROBLEMS.items() if needs in (None, *choice.roles))
    return str(next(fitting, next(iter(family.PROBLEMS))))


def groups_of(family: Any, method: str, problem: str) -> dict[str, type[Any]]:
    """The flags of a method on a problem, by title.

    Raises:
        UserError: there is no such method or problem, or they do not fit.
    """
    which = make_dataclass("Which", [("method", str, field(default=method)), ("problem", str, field(default=problem))])
    which.__doc__ = f"""Flags that say which method runs on which problem.

    Attributes:
        method: {", ".join(family.METHODS)}, or module:Class for one of your own.
        problem: {", ".join(family.PROBLEMS)}, or module:Class for one of your own.
    """
    method_class, choice = method_of(family, method), problem_of(family, problem)
    groups = {"choice of method and problem": which, "run": RunFlags, **choice.groups}
    for further in _roles(method, method_class, problem, choice):
        groups |= further
    return {**groups, "method": method_class}


def owners_of(family: Any, name: str) -> list[str]:
    """The family's methods and problems that have a flag of this name, as they are chosen on the command line."""
    methods = [f"--method {method}" for method, cls in family.METHODS.items() if name in flags.fields_of(cls)]
    groups = {problem: [*choice.groups.values()] for problem, choice in family.PROBLEMS.items()}
    for problem, choice in family.PROBLEMS.items():
        groups[problem] += [cls for role in choice.roles.values() for cls in role.values()]
    problems = [f"--problem {p}" for p, parts in groups.items() if any(name in flags.fields_of(cls) for cls in parts)]
    return [*methods, *problems]


def _roles(method: str, method_class: Any, problem: str, choice: Any) -> list[Mapping[str, type[Any]]]:
    """The groups of flags of the role that the problem plays in this method; of all roles if the method does not say.

    Raises:
        UserError: the problem does not offer what the method needs.
    """
    needs = getattr(method_class, "needs", None)
    if needs is None:
        return list(choice.roles.values())
    role = getattr(needs, "__name__", str(needs))
    if role not in choice.roles:
        offered = ", ".join(choice.roles)
        raise UserError(f"--method {method} needs a {role} problem; --problem {problem} offers {offered}")
    return [choice.roles[role]]


def method_of(family: Any, name: str) -> type[Any]:
    """One of the family's METHODS, or a class of a user's own module.

    Raises:
        UserError: there is no such method, module or class.
    """
    if ":" not in name:
        return cast("type[Any]", _named(family.METHODS, name, "--method", ", or module:Class"))
    found = _imported(name, "--method")
    cls = found.__name__
    wanted = ("start", "round", "evaluate")
    missing = [f"the function {part}" for part in wanted if not hasattr(found, part)]
    if not is_dataclass(found) or "setting" not in (f.name for f in fields(found)):
        missing.insert(0, "a field named setting (it must be a dataclass)")
    if missing:
        raise UserError(f"--method {name}: {cls} is no method, it lacks {', '.join(missing)}")
    return cast("type[Any]", found)


def problem_of(family: Any, name: str) -> Any:
    """One of the family's PROBLEMS, or a class of a user's own module.

    Raises:
        UserError: there is no such problem, module or class.
    """
    if ":" not in name:
        return _named(family.PROBLEMS, name, "--problem", ", or module:Class")
    return family.OWN_PROBLEM(name, _imported(name, "--problem"))


def _imported(name: str, flag: str) -> Any:
    """The class that module:Class names."""
    module, _, cls = name.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` would find it
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError, ValueError, TypeError) as exc:
        raise UserError(f"{flag} {name}: {exc}; it must be MODULE:CLASS, importable from this folder") from exc
    finally:
        sys.path.pop(0)
    if not isinstance(found, type):
        raise UserError(f"{flag} {name}: {cls} is a {type(found).__name__}; it must be a class")
    return found


def _named(table: Mapping[str, Any], name: str, flag: str, more: str) -> Any:
    if name not in table:
        import difflib

        near = difflib.get_close_matches(name, table, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{flag} {name}: must be one of {', '.join(table)}{more}{hint}")
    return table[name]


def stored_config(path: str) -> dict[str, Any]:
    """The configuration of the run that --resume names.

    Raises:
        UserError: there is no checkpoint, or it cannot be read.
    """
    from zofl_mpi.run import loop, records

    try:
        checkpoint = records.load_checkpoint(records.checkpoint_path(loop.result_of(Path(path))))
    except UserError as exc:
        raise UserError(f"--resume {path}: {exc}; name the result of a run that has written a checkpoint") from exc
    return flags.current(json.loads(checkpoint.attrs["config"]))


def stored_kernel(path: str) -> str:
    """The kernel of the run that --resume names.

    Raises:
        UserError: there is no result, or it cannot be read.
    """
    from zofl_mpi.run import loop, records

    return str(records.load(loop.result_of(Path(path))).attrs.get("kernel", ""))


def _check_same(stored: Mapping[str, Any], values: Mapping[str, Any], path: str) -> None:
    now = json.loads(json.dumps(dict(values)))
    differing = [k for k in stored if k not in CHANGEABLE and now.get(k) != stored[k]]
    if differing:
        listed = "; ".join(f"--{flags.flag(k)} was {_shown(stored[k])}, is now {_shown(now.get(k))}" for k in differing)
        raise UserError(f"--resume {path}: the checkpoint is of another configuration: {listed}")


def check_validation(method: Any, plan: Plan) -> None:
    """Refuses a validation part that the method's reports say nothing of.

    Raises:
        UserError: what `evaluate` says that it returns has no field `validation_accuracy`.
    """
    if method.setting.validation is None:
        return
    try:
        report = get_type_hints(type(method).evaluate).get("return")
    except NameError:  # a name that only type checkers import
        report = None
    if "validation_accuracy" not in getattr(report, "__dataclass_fields__", {}):
        name, fraction = plan.values["method"], plan.values["validation"]
        raise UserError(f"--validation {fraction}: --method {name} reports no validation_accuracy; leave the flag out")


def print_plan(plan: Plan, method: Any) -> None:
    """--dry-run: the configuration, then what the run will cost, as far as the method tells it."""
    for name, value in plan.config.items():
        print(f"{flags.flag(name):20} {_shown(value)}")
    print()
    lines = method.plan(plan.values["rounds"]) if hasattr(method, "plan") else {}
    for name, value in {**lines, **costs_of(method)}.items():
        print(f"{name:46} {value:,}" if isinstance(value, int) else f"{name:46} {value}")


def work_of(method: Any, rounds: int) -> Work | None:
    """The local steps that the method, or a part of it, plans; None where none tells."""
    told = _telling(method, "work")
    return None if told is None else cast("Work", told.work(rounds))


def loads_of(method: Any) -> Loads | None:
    """The work of each client that the method, or a part of it, plans; None where none tells.

    Raises:
        UserError: it is not one number, at least 0, of each client.
    """
    told = _telling(method, "loads")
    if told is None:
        return None
    loads, m = cast("Loads", told.loads()), method.setting.m
    if len(loads.work) != m or not all(0 <= each < math.inf for each in loads.work):
        raise UserError(
            f"{type(told).__name__}.loads(): work must be {m} finite numbers, one for each client, at least 0"
        )
    return loads


def _telling(method: Any, name: str) -> Any:
    """The method, or else the first of its parts, that has a member of that name; None where none has."""
    parts = (getattr(method, f.name) for f in fields(method))
    return next((part for part in (method, *parts) if hasattr(part, name)), None)


def costs_of(method: Any) -> dict[str, Any]:
    """What a step of the method costs, measured; empty where the method does not tell."""
    return dict(method.costs()) if hasattr(method, "costs") else {}


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value) or '""'


def _peek(name: str, arguments: Sequence[str]) -> str:
    """The last value of a flag, before all flags are known."""
    found = ""
    for k, word in enumerate(arguments):
        if word == f"--{name}" and k + 1 < len(arguments):
            found = arguments[k + 1]
        elif word.startswith(f"--{name}="):
            found = word.split("=", 1)[1]
    return found
