"""Plan of a run: command line, configuration file and resumed run, combined and checked."""

import inspect
import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from typing import Any, TypeVar, final, get_type_hints

from zofl_mpi import clients
from zofl_mpi.engine.fields import check_ranges
from zofl_mpi.engine.roles import program_of
from zofl_mpi.engine.setting import Directions, Loads, Method, Work
from zofl_mpi.engine.world import launched
from zofl_mpi.errors import UserError, mistake, nearest, plain
from zofl_mpi.run.command import flags, stored
from zofl_mpi.run.command.family import Choice, Family
from zofl_mpi.run.command.imported import imported
from zofl_mpi.run.command.run_flags import CHANGEABLE, UNSTORED_FLAGS, RunFlags
from zofl_mpi.run.loop.progress import launcher_words
from zofl_mpi.run.loop.screen import show
from zofl_mpi.run.loop.tracking import tracker

T = TypeVar("T")
Values = Mapping[str, Any]  # {flag: value}


@final
@dataclass(frozen=True)
class Plan:
    """Values of all flags, read by rank 0, for all ranks; plain values only."""

    values: dict[str, Any]  # {flag: value}, including `method` and `problem`
    command: str  # as typed
    kernel_before: str = ""  # kernel of the run in --resume; "" for a new run
    rounds_before: int = 0  # its planned rounds; 0 for a new run
    usual: str = ""  # the method's default problem
    papers: Mapping[str, Any] = field(default_factory=dict)  # {flag: the paper's value, if the run's differs}

    @property
    def beside_the_paper(self) -> str:
        """A line on flags with other values than the paper's; "" if there are none."""
        each = (f"--{flags.flag(k)} {flags.shown(self.values[k])} ({flags.shown(v)})" for k, v in self.papers.items())
        return f"defaults  {', '.join(each)}; in brackets the paper's: --paper" if self.papers else ""

    @property
    def config(self) -> dict[str, Any]:
        """The values stored in the result file."""
        return {k: v for k, v in self.values.items() if k not in UNSTORED_FLAGS}

    def of_problem(self, family: Family) -> dict[str, Any]:
        """Values of the problem's flags, without the method's."""
        groups = groups_of(family, self.values["method"], self.values["problem"])
        del groups["method"]
        return {name: self.values[name] for name in flags.flags_of(groups)}


def parse_plan(family: Family, arguments: Sequence[str]) -> Plan:
    """Plan of a command line: values of the resumed run, overridden by --config, overridden by flags.

    `stored.safe_config` decides what a resumed run may set: the command itself must name the user's classes and files.

    UserError: any invalid value.
    """
    typed = {word: " ".join(values) for word, values in flags.split(arguments)}
    resume, config = typed.get("--resume", ""), typed.get("--config", "")
    given = flags.read_toml(config) if config else {}
    words = ["python", "-m", family.__spec__.name, *arguments]
    command = shlex.join(words)
    before, own, kernel = stored.config_of(resume) if resume else ({}, {}, "")
    kept = _trusted(before, given, typed, resume, own, words) if resume else {}
    table = kept | given
    method = typed.get("--method") or str(table.get("method", next(iter(family.METHODS))))
    papers = vars(family).get("PAPER_PROBLEM", "")
    usual_problem = (papers if "--paper" in typed or table.get("paper") else "") or _usual_problem(family, method)
    problem = typed.get("--problem") or str(table.get("problem") or usual_problem)
    for name, value in (("method", method), ("problem", problem)):
        if before and before[name] != value:
            raise UserError(f"--resume {resume}: that run has --{name} {before[name]}, this command {value}")
    groups = groups_of(family, method, problem)
    try:
        known = flags.flags_of(groups)
    except UserError as exc:
        raise UserError(f"--method {method} on --problem {problem}: {exc}") from exc
    words = [*flags.to_arguments(table, known, config or resume), *arguments]
    program = f"python -m {family.__spec__.name}"
    defaults = problem_of(family, problem).usual
    usual = {"method": next(iter(family.METHODS)), "problem": usual_problem}
    usual |= {**defaults.get("", {}), **defaults.get(method, {})}
    owners = partial(owners_of, family, method=method)
    values = flags.parse(groups, words, program, _opening(family, method), owners, usual)
    flags.check_used(known, values, usual, before)
    check_ranges(RunFlags, values)
    tracker(values["track"], None)
    if not values["quiet"]:
        for name in kept.keys() & stored.PATH_FLAGS:
            show(f"folder    --{flags.flag(name)} {plain(kept[name])}, as your run before named it")
    now = json.loads(json.dumps(values))
    if differing := [k for k in before if k not in CHANGEABLE and now.get(k) != before[k]]:
        changes = flags.changes(differing, before, now)
        raise UserError(f"--resume {resume}: the checkpoint belongs to another configuration: {changes}")
    rounds = int(before.get("rounds", 0))
    other = {name: leaf.paper for name, leaf in known.items() if leaf.paper not in (None, values[name])}
    other |= {"problem": papers} if papers not in ("", problem) and "--problem" not in typed else {}
    return Plan(values, command, kernel, rounds, usual_problem, other)


def _opening(family: Family, method: str) -> str:
    """First lines of --help: the family's text, or a user's method's docstring without its flags."""
    if ":" not in method:
        return family.__doc__ or ""
    cls = method_of(family, method)
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:")[0].strip()
    bare = not text or text.startswith(f"{cls.__name__}(")  # a dataclass's automatic docstring
    return method if bare else f"{method}: {text}"


def _trusted(
    before: Values, given: Values, typed: Mapping[str, str], resume: str, own: Mapping[str, str], words: Sequence[str]
) -> dict[str, Any]:
    """Configuration taken from the run that this command continues."""
    names = {name: flags.flag(name) for name in (*stored.CLASSES, *stored.KNOWN, *stored.PATH_FLAGS)}
    named = {name: typed.get(f"--{own}") or given.get(name) or given.get(own) for name, own in names.items()}
    command = shlex.join([*launcher_words(words[3:], launched(os.environ)), *words])
    return stored.safe_config(before, named, f"--resume {resume}: the run", own=own, command=command)


def _usual_problem(family: Family, method: str) -> str:
    """The family's first problem with the role that the method needs; its first one if the method names no role."""
    role = role_of(method_of(family, method))
    fitting = (name for name, choice in family.PROBLEMS.items() if role in (None, *choice.roles))
    return str(next(fitting, next(iter(family.PROBLEMS))))


def groups_of(family: Family, method: str, problem: str) -> dict[str, type[Any]]:
    """Flags of a method on a problem, by title; UserError: one does not exist, or they do not fit."""
    which = _which(method, problem, ", ".join(family.METHODS), ", ".join(family.PROBLEMS))
    method_class, choice = method_of(family, method), problem_of(family, problem)
    groups = {"choice of method and problem": which, "run": RunFlags, **choice.groups}
    for further in _roles(family, method, problem, choice):
        groups |= further
    return {**groups, **clients.groups_for(method_class), "method": method_class}


@cache
def _which(method: str, problem: str, methods: str, problems: str) -> type[Any]:
    """Flags of the choice of method and problem."""
    which = make_dataclass("Which", [("method", str, field(default=method)), ("problem", str, field(default=problem))])
    which.__doc__ = f"""Choice of method and problem.

    Attributes:
        method: {methods}, or module:Class for one of your own.
        problem: {problems}, or module:Class for one of your own.
    """
    return which


def owners_of(family: Family, name: str, method: str) -> list[str]:
    """The family's methods and problems with a flag of this name; last, the reason why `method` has none."""

    def has(classes: Iterable[type[Any]]) -> bool:
        return any(leaf.name == name for cls in classes for leaf in flags.leaves(cls))

    every = {method: [cls, *clients.groups_for(cls).values()] for method, cls in family.METHODS.items()}
    methods = [f"--method {method}" for method, classes in every.items() if has(classes)]
    groups = {problem: (choice.groups, *choice.roles.values()) for problem, choice in family.PROBLEMS.items()}
    problems = [f"--problem {problem}" for problem, all_of in groups.items() if any(has(g.values()) for g in all_of)]
    why = clients.why_without(method_of(family, method), name, ":" in method)
    return [*methods[:-1], *("; ".join([last, *why]) for last in methods[-1:]), *problems]


def role_of(method_class: type[Method[Any]]) -> str | None:
    """Name of the role that the method needs; None: any."""
    needs = method_class.needs
    return needs if needs is None or isinstance(needs, str) else needs.__name__


def _roles(family: Family, method: str, problem: str, choice: Choice) -> list[flags.Groups]:
    """Flag groups of the problem's role in this method; of all roles if the method names none.

    UserError: the problem lacks members of that role, or of every role.
    """
    role = role_of(method_of(family, method))
    if role is None and not choice.roles:
        near = min(choice.lacks, key=lambda each: len(choice.lacks[each]))
        lacking = ", ".join(choice.lacks[near])
        raise UserError(f"--problem {problem}: to be a {near} problem, the nearest, it lacks {lacking}")
    if role is None:
        return list(choice.roles.values())
    if role in choice.roles:
        return [choice.roles[role]]
    found = [f"lacks {', '.join(choice.lacks[role])}"] if role in choice.lacks else []
    if choice.roles:
        found.append(f"offers {', '.join(choice.roles)}")
    fitting = (f"; --method {name} takes it" for name, cls in family.METHODS.items() if role_of(cls) in choice.roles)
    remedy = next(fitting, "") if choice.lacks else ""
    raise UserError(f"--method {method} needs a {role} problem; --problem {problem} {' and '.join(found)}{remedy}")


def method_of(family: Family, name: str) -> type[Method[Any]]:
    """A method of the family's METHODS, or a user's class with all members; UserError otherwise."""
    if ":" not in name:
        return _named(family.METHODS, name, "--method")
    found = family.METHODS.get(name) or imported(name, "--method")
    members = {name for base in found.__mro__ if base not in Method.__mro__ for name in vars(base)}
    missing = [f"the function {part}" for part in ("start", "round", "evaluate") if part not in members]
    if not is_dataclass(found) or "setting" not in (f.name for f in fields(found)):
        missing.insert(0, "a field named setting (it must be a dataclass)")
    if Method not in found.__mro__:
        missing.insert(0, f"the base class, as in class {found.__name__}(zofl_mpi.Method)")
    if missing:
        raise UserError(f"--method {name}: {found.__name__} is no method, it lacks {', '.join(missing)}")
    return found


def problem_of(family: Family, name: str) -> Choice:
    """A problem of the family's PROBLEMS, or from a user's module; UserError if it does not exist."""
    if ":" not in name or name in family.PROBLEMS:
        return _named(family.PROBLEMS, name, "--problem")
    return family.OWN_PROBLEM(name, imported(name, "--problem"))


def _named(table: Mapping[str, T], name: str, flag: str) -> T:
    if name not in table:
        one_of = f"must be one of {', '.join(table)}, or module:Class"
        raise UserError(f"{flag} {name}: {one_of}{nearest(name, table)}")
    return table[name]


def check_validation(method: Method[Any], plan: Plan) -> None:
    """Refuse a validation part if the method reports no accuracy on it."""
    if method.setting.validation is None or "validation" not in plan.values:  # or in memory: a script's own affair
        return
    try:
        report = get_type_hints(type(method).evaluate).get("return")
    except NameError:  # a name imported for type checkers only
        report = None
    columns = [f.name for f in fields(report)] if is_dataclass(report) else []
    if "validation_accuracy" not in columns:
        name, fraction = plan.values["method"], plan.values["validation"]
        raise UserError(f"--validation {fraction}: --method {name} reports no validation_accuracy; leave the flag out")


HOOKS = {"plan": Mapping, "directions": Directions, "costs": Mapping, "work": Work, "loads": Loads}
"""{function that the engine calls if a method has it: its return type}."""


def check_hooks(method: Method[Any], plan: Plan) -> None:
    """Refuse a user's class with such a function that returns another type."""
    name, rounds = plan.values["method"], plan.values["rounds"]
    own = [base for base in type(method).__mro__ if base not in Method.__mro__]
    for hook, kind in HOOKS.items():
        if not any(hook in vars(base) for base in own):
            continue
        called = f"{hook}()" if hook in ("costs", "work", "loads") else f"{hook}(rounds)"
        try:
            answer = getattr(method, hook)(*([] if "()" in called else [rounds]))
            fault = "" if answer is None or isinstance(answer, kind) else f"gave a {type(answer).__name__}"
        except (UserError, MemoryError):
            raise
        except Exception as exc:  # a user's function may raise anything
            fault = f"failed ({mistake(exc)})"
        if fault:
            wanted = f"a run calls {called} of a method and takes a {kind.__name__}, or None"
            raise UserError(f"--method {name}: its function {hook} {fault}; {wanted}: give yours another name")


def expected(plan: Plan, method: Method[Any], seconds: Mapping[str, str]) -> dict[str, Any]:
    """Expected cost of the run as known to the method, {description: value}, and measured `seconds`."""
    rounds = plan.values["rounds"]
    directions = method.directions(rounds)
    drawn = {"drawn": str(directions)} if directions else {}
    about = {"samples": method.setting.about} if method.setting.about else {}
    evaluated = {"samples of each part that an evaluation reads": method.setting.eval_samples or "all"}
    S, uploads = plan.values["server_ranks"], method.server_uploads
    shared = {f"uploads of a step on each of {S} server ranks, at most": -(-uploads // S)} if S > 1 else {}
    accounts = {k: v for each in program_of(method).between for k, v in each.plan_lines(rounds).items()}
    lines = {**about, **method.plan(rounds), **accounts, **shared, **drawn, **evaluated}
    return {**lines, **costs_of(method), **seconds}


def costs_of(method: Method[Any]) -> dict[str, Any]:
    """Measured costs of a client's step; with --devices, its memory too."""
    fleet = method.setting.fleet
    return {**method.costs(), **(fleet.costs() if fleet is not None else {})}


def in_words(config: Values, lines: Mapping[str, Any]) -> str:
    """A configuration and the `expected` lines, as --dry-run prints them."""
    flags_shown = [f"{flags.flag(name):20} {flags.shown(value)}" for name, value in config.items()]
    costs = (
        f"{name:46} {value:,}" if isinstance(value, int) else f"{name:46} {value}" for name, value in lines.items()
    )
    return "\n".join([*flags_shown, "", *costs])


def derived_flags(method: Method[Any], plan: Plan) -> dict[str, Any]:
    """{flag: value} derived from the planned rounds, such as fewer rounds within a privacy budget."""
    rounds, before = plan.values["rounds"], plan.rounds_before
    each_of = (each.derived_flags(rounds, before) for each in program_of(method).between)
    return {name: value for own in each_of for name, value in own.items()}


def loads_of(method: Method[Any]) -> Loads | None:
    """Each client's work, as planned by the method; None: unknown. UserError: not m numbers."""
    loads, m = method.loads(), method.setting.m
    if loads is not None and not (len(loads.work) == m and all(0 <= work < math.inf for work in loads.work)):
        name = type(method).__name__
        raise UserError(f"{name}.loads(): work must be {m} finite numbers, one for each client, at least 0")
    return loads
