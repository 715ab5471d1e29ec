"""`check_method`: test your own method by small runs.

It finds mistakes that normal runs do not show: one process, 3 ranks, interrupted and resumed in a new process, one
client, a thousand clients, NaN in clients' data, planned against counted bytes. Each check is a `Finding`, with advice
if it fails.
"""

import copy
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, final

import numpy as np

from zofl_mpi.api import isolation, processes
from zofl_mpi.api.arguments import Arguments, word_of
from zofl_mpi.api.findings import ADVICE, Checked, Finding
from zofl_mpi.api.simulation import Simulation
from zofl_mpi.data import Dataset
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.setting import Method
from zofl_mpi.engine.world import launched
from zofl_mpi.errors import ChangedInPlace, HiddenState, RunFailed, UserError, mistake, place_of, root_of
from zofl_mpi.report.same import ELSEWHERE, compared
from zofl_mpi.run.command import flags as flagged
from zofl_mpi.run.command.family import FAMILIES
from zofl_mpi.run.command.plan import method_of, problem_of, role_of
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.records import Run, checkpoint_path, load

ROUNDS, CUT, RANKS, MANY_CLIENTS, TIMEOUT = 4, 2, 3, 1000, 120.0
"""Rounds of a run; rounds before the cut; ranks; clients of the large run; seconds allowed for a round on ranks."""
USUAL = {"eval_every": 1, "m": 5}
"""Flags that the checks set if the user does not and the run has them."""
OWN = {"rounds", "out", "resume", "force", "dry_run", "survive", "server_ranks", "quiet", "verbose"}
"""Flags that only the checks may set."""
WAYS = {way: f"bytes {way}, for each participant and round" for way in ("down", "up")}
"""{way: line of a method's `plan` to compare with the counted bytes}"""
TOTAL = "bytes down and up, all rounds"
"""The same for both ways."""
FEW = {"min_samples": 1, "server_fraction": 0.1, "test_fraction": 0.05, "batch": 1}
"""Upper bounds of flags for which small data suffice for a thousand clients."""


def check_method(method: Any, problem: Any = None, data: Any = None, *, family: str = "", **flags: Any) -> Checked:
    """Test a method by small runs, like scikit-learn's check_estimator; takes some seconds.

    Args:
        method: your class, module:Class, or a name listed by `python -m zofl_mpi`.
        problem, data, family: as for `zofl_mpi.simulate`, preferably small. Default family: the first with a problem
            that fits the method.
        flags: for all runs; m is 5 by default.

    Raises:
        UserError: unknown method, problem or flag, or the class is no method.
    """
    return check_all([Arguments(method, problem, data, family, flags)])[0]


def check_all(calls: Sequence[Arguments]) -> list[Checked]:
    """`check_method` for several methods, with one start of other processes for all."""
    if launched(os.environ) > 1:
        raise UserError("check_method starts its own ranks: run it without mpirun")
    with tempfile.TemporaryDirectory(prefix="zofl-check-") as folder:
        checks = [_Check(call, Path(folder) / str(k)) for k, call in enumerate(calls)]
        for each in checks:
            each.here()
        able = [each for each in checks if each.path("half").exists()]
        resumed = [(each, "cut and resumed", each.continued("resumed")) for each in able]
        _elsewhere(resumed, 1, Path(folder) / "one", "after a cut, in a new process")
        on_ranks = [(each, "3 ranks", each.flags("ranks")) for each in able]
        on_ranks += [(each, "resumed on 3 ranks", each.continued("moved")) for each in able]
        _elsewhere(on_ranks, RANKS, Path(folder) / "three", f"on {RANKS} ranks")
        return [each.result() for each in checks]


@final
@dataclass
class _Check:
    """The checks of one method."""

    call: Arguments
    folder: Path
    found: dict[str, Finding] = field(default_factory=dict)
    whole: Run | None = None  # the result in one process

    def __post_init__(self) -> None:
        self.folder.mkdir()
        given = self.call
        known = {flagged.field_of(name) for name in given.flags}
        if own := sorted(known & OWN):
            raise UserError(f"{own[0]}: check_method sets this flag; leave it out")
        family = given.family or _family(given)
        with isolation.alone(), isolation.put_back():
            arguments = replace(given, family=family, flags={**given.flags, "quiet": True})
            self.family = arguments.chosen()
            self.plan = arguments.planned(self.family)
        usual = {name: value for name, value in USUAL.items() if name in self.plan.values and name not in known}
        self.call = replace(
            given, family=family, flags={"rounds": ROUNDS, "checkpoint_every": CUT, **usual, **given.flags}
        )
        self.plan = replace(self.plan, values={**self.plan.values, **usual, "rounds": ROUNDS})

    def passed(self, name: str, detail: str) -> None:
        self.found[name] = Finding(name, "passed", detail)

    def failed(self, name: str, detail: str) -> None:
        self.found[name] = Finding(name, "failed", detail, ADVICE[name])

    def skipped(self, name: str, reason: str) -> None:
        self.found[name] = Finding(name, "not checked", reason)

    def result(self) -> Checked:
        """All findings, in the order of `ADVICE`."""
        why = "the run in one process has to end first"
        findings = [self.found.get(name) or Finding(name, "not checked", why) for name in ADVICE]
        return Checked(str(self.plan.values["method"]), str(self.plan.values["problem"]), findings)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.h5"

    def flags(self, name: str, **more: Any) -> dict[str, Any]:
        """The flags of the run with this result."""
        return {**self.call.flags, "out": str(self.path(name)), **more}

    def continued(self, name: str) -> dict[str, Any]:
        """Flags that resume the interrupted run in a new file."""
        half, new = self.path("half"), self.path(name)
        shutil.copy(half, new)
        shutil.copy(checkpoint_path(half), checkpoint_path(new))
        return {**self.call.flags, "resume": str(new)}

    def run(self, flags: Mapping[str, Any]) -> Method[Any]:
        """Run the method in this process; return the built method."""
        call = self.call
        with Simulation(call.method, call.problem, call.data, family=call.family, mpi=False, **flags) as run:
            for _ in run:
                pass
        return cast("Method[Any]", run.method)

    def here(self) -> None:
        """The checks in this process."""
        try:
            method = self.run(self.flags("whole"))
        except Exception as exc:  # a user's method
            if isinstance(exc, UserError) and not isinstance(exc, RunFailed):
                raise
            return self.failed(_kind(exc), _said(exc))
        self.whole = load(self.path("whole"))
        self.passed("one process", f"{ROUNDS} rounds, m = {method.setting.m}")
        self.passed("messages", "no step changed one in place")
        self.passed("hidden state", "no round changed an attribute of the method or of its module")
        self.passed("random numbers", "no round drew from Python's, NumPy's or torch's own generator")
        try:
            self.run(self.flags("again"))
        except Exception as exc:  # a user's method
            self.failed("a second run", _said(exc))
        else:
            self.compare("a second run", "again", "in the same process")
        self.bytes(method, self.whole)
        self.not_numbers(method, self.whole)
        self.clients("m = 1", 1, CUT)
        self.clients("m = 1,000", MANY_CLIENTS, 1)
        self.run(self.flags("half", rounds=CUT))

    def compare(self, name: str, run: str, where: str) -> None:
        """Compare a run's result with that of one process, bit by bit."""
        assert self.whole is not None
        if names := [each for each in compared(self.whole, load(self.path(run))) if not each.endswith(ELSEWHERE)]:
            self.failed(name, f"other bits {where}: {_few(names)}")
        else:
            self.passed(name, f"the same bits {where}")

    def bytes(self, method: Method[Any], run: Run) -> None:
        """Compare the method's planned bytes with the ledger's."""
        faults = list[str]()
        lines = method.plan(run.length)
        counted = {way: run.clients[f"bytes_{way}"].sum(1) for way in WAYS}  # (R, m) each
        asked = run.clients["messages"].sum(1) > 0
        planned = [(line, counted[way][asked]) for way, line in WAYS.items()]
        planned.append((TOTAL, np.array([counted["down"].sum() + counted["up"].sum()])))
        planned = [(line, values) for line, values in planned if isinstance(lines.get(line), int | float)]
        for line, values in planned:
            if other := sorted(set(values.tolist()) - {lines[line]}):
                faults.append(f"plan has {lines[line]:,} {line}; counted were {_few(other)}")
        try:
            works = [method.round_work(r) for r in range(run.length)]
        except NotImplementedError:
            works = []
        for r, work in enumerate(works):
            for way, bytes_ in (("down", work.down), ("up", work.up)):
                wanted = np.zeros(method.setting.m)
                wanted[list(work.clients)] = bytes_
                for i in np.flatnonzero(wanted != counted[way][r])[:1]:
                    words = f"round_work has {wanted[i]:,.0f} bytes {way} for client {i} in round {r + 1}"
                    faults.append(f"{words}; counted were {counted[way][r, i]:,}")
        if faults:
            self.failed("planned bytes", _few(faults))
        elif planned or works:
            down, up = (int(counted[way].sum()) for way in WAYS)
            self.passed("planned bytes", f"{down:,} down and {up:,} up in {run.length} rounds, as counted")
        else:
            self.skipped("planned bytes", f"no line of its plan is called {WAYS['up']!r}")

    def not_numbers(self, method: Method[Any], run: Run) -> None:
        """Run rounds with NaN in the clients' data: the run must end, or its state must contain NaN."""
        name, setting = "NaN", method.setting
        data = [_poisoned(each) for each in setting.data]
        if any(each is None for each in data):
            return self.skipped(name, "the clients' data hold no floating-point numbers")
        if not run.clients["bytes_up"].any():
            return self.skipped(name, "no client sends anything")
        try:
            with isolation.alone(), isolation.put_back(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sick = flagged.instantiate(type(method), self.plan.values, setting=replace(setting, data=tuple(data)))
                clients = LocalClients(list(data), sick)
                state = sick.start()
                for r in range(CUT):
                    state = loop.finite_round(sick, state, r, clients)
                    clients.account()
                loop.check_arrays(state)
        except Exception as exc:  # any kind: the run would have ended
            return self.passed(name, f"ends the run: {_said(exc)}")
        self.failed(name, f"{CUT} rounds went on, although all numbers of the clients' data were NaN")

    def clients(self, name: str, m: int, rounds: int) -> None:
        """A short run with m clients."""
        if "m" not in self.plan.values:
            return self.skipped(name, "the data say how many clients there are")
        values, few = self.plan.values, {}
        if m == MANY_CLIENTS:
            few = {key: value for key, value in FEW.items() if key in values and values[key] > value}
        try:
            method = self.run(self.flags(f"m{m}", m=m, rounds=rounds, eval_clients=CUT, **few))
        except Exception as exc:  # a user's method
            if isinstance(exc, UserError) and not isinstance(exc, RunFailed):
                return self.skipped(name, f"there is no run of it: {exc}")
            return self.failed(name, _said(exc))
        found = load(self.path(f"m{m}"))
        asked = int((found.clients["messages"].sum((0, 1)) > 0).sum())
        self.passed(name, f"{asked:,} of {method.setting.m:,} client{'s' * (m > 1)} asked")


Job = tuple[_Check, str, Mapping[str, Any]]
"""A check, the name of the finding, and the flags of the run."""


def _elsewhere(jobs: Sequence[Job], count: int, folder: Path, where: str) -> None:
    """Run the methods in `count` other processes, and compare their results with this one's."""
    if count > 1 and processes.mpirun() is None:
        for check, name, _ in jobs:
            check.skipped(name, "no mpirun")
        return
    folder.mkdir()
    timeout = {"round_timeout": TIMEOUT}
    calls = [replace(check.call, flags={**timeout, **flags}) for check, _, flags in jobs]
    for (check, name, flags), outcome in zip(jobs, processes.run_all(calls, count, folder), strict=True):
        if outcome.unsent:
            check.skipped(name, outcome.fault)
        elif outcome.fault:
            check.failed(name, outcome.fault)
        else:
            check.compare(name, Path(flags.get("resume") or flags["out"]).stem, where)


def _family(call: Arguments) -> str:
    """The first family with a problem for the method, and among equals with the earliest one; UserError if none."""
    word, places, having, fault = word_of(call.method), dict[str, int](), list[str](), None
    for name in FAMILIES:
        family = replace(call, family=name).chosen()
        if ":" not in word and word not in family.METHODS:
            continue
        role = role_of(method_of(family, word))
        try:
            problems = list(family.PROBLEMS) if call.problem is None else [word_of(call.problem)]
            choices = [problem_of(family, each) for each in problems]
        except UserError as exc:
            fault = fault or exc
            continue
        having.append(name)
        fitting = [k for k, choice in enumerate(choices) if role in (None, *choice.roles)]
        places |= {name: fitting[0]} if fitting else {}
    if not having:
        if fault is None or ":" not in word_of(call.problem):
            call.chosen()  # UserError for unknown names
        assert fault is not None
        raise fault
    return min(places, key=lambda name: places[name], default=having[0])  # a single family explains why they do not fit


def _kind(exc: Exception) -> str:
    """Name of the finding for a failure in one process."""
    root = root_of(exc)
    if isinstance(root, ChangedInPlace) or (isinstance(root, ValueError) and "read-only" in str(root)):
        return "messages"
    if isinstance(root, HiddenState):
        return "random numbers" if root.random else "hidden state"
    return "one process"


def _said(exc: Exception) -> str:
    """A failure in a sentence, with file and line unless it is a UserError."""
    root = root_of(exc)
    said = exc.cause if isinstance(exc, RunFailed) else str(exc) if isinstance(exc, UserError | ClientError) else ""
    where = "" if isinstance(root, UserError) else place_of(root)
    return f"{said} ({where})" if said and where else said or mistake(exc)


def _few(words: Sequence[Any]) -> str:
    """The first words, and the number of further ones."""
    shown = ", ".join(f"{word:,}" if isinstance(word, int) else str(word) for word in words[:3])
    return f"{shown} and {len(words) - 3} more" if len(words) > 3 else shown


def _poisoned(data: Any) -> Any:
    """A copy of a client's data with NaN in all numbers; None if there are no floating-point numbers."""
    if isinstance(data, Dataset):
        return replace(data, shift=np.nan)
    if isinstance(data, np.ndarray):
        return np.full_like(data, np.nan) if data.dtype.kind == "f" else None
    bad = {name: _poisoned(value) for name, value in getattr(data, "__dict__", {}).items()}
    bad = {name: value for name, value in bad.items() if value is not None}
    if not bad:
        return None
    new = copy.copy(data)
    vars(new).update(bad)
    return new
