"""The command line of a family of methods: flags, then the same setting on every rank, then the run.

Rank 0 alone reads the arguments and tells the others what it understood. What every rank does for itself (data above
all) may fail on one rank only; then all end with that rank's sentence.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, final

from zofl_mpi.errors import UserError
from zofl_mpi.run import device, flags
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.signals import Stop
from zofl_mpi.run.streams import Streams
from zofl_mpi.run.world import World, connect, speaks_first, together


@final
@dataclass(frozen=True)
class RunFlags:
    """How long, with which numbers, where to.

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
        config: a TOML file with flags as keys; flags on the command line come first.
        dry_run: print the configuration and the expected cost, and run nothing.
        quiet: print nothing but the last lines.
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
    config: str = ""
    dry_run: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("eval_every", 1), ("checkpoint_every", 0)):
            if (value := getattr(self, name)) < least:
                raise UserError(f"--{flags.flag(name)} {value}: must be a whole number, at least {least}")


RANKS_LISTED = 512
"""With more ranks, only the different hosts, devices, ... are kept: an HDF5 attribute holds 64 kB."""
LOCAL = {"out", "force", "resume", "config", "dry_run", "quiet"}
"""Flags of one command, not of a run: the result file does not keep them."""
CHANGEABLE = LOCAL | {"rounds", "checkpoint_every", "eval_every", "data_dir", "device"}
"""What may differ between a run and its continuation: nothing that an iterate depends on."""


@final
@dataclass(frozen=True)
class Plan:
    """What rank 0 understood, for all ranks: plain values only.

    Attributes:
        values: {flag: value} of everything, `method` and `problem` among them.
        command: as it was typed.
    """

    values: dict[str, Any]
    command: str

    @property
    def config(self) -> dict[str, Any]:
        """As the result file keeps it."""
        return {k: v for k, v in self.values.items() if k not in LOCAL}

    def part(self, cls: type[Any]) -> dict[str, Any]:
        """The fields of one class."""
        return {name: self.values[name] for name in flags.fields_of(cls)}


def main(module: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point of a family: a module with METHODS, PROBLEMS and a docstring. Never returns.

    Exit status 0: done; 1: failed; 2: a mistake of the user; 75: told to stop, can be resumed.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        world = connect()
    except UserError as exc:
        sys.exit(_said(exc, speaks_first()))
    try:
        status = _status(world, module, given)
    except UserError as exc:  # all ranks have agreed on it
        status = _said(exc, world.rank == 0)
    except SystemExit as exc:
        status = int(exc.code or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python's own last flush would fail, too
        world.abort("zofl_mpi: standard output was closed")
    except KeyboardInterrupt:
        world.abort("zofl_mpi: interrupted; the finished rounds are in the result file")
    except BaseException:
        world.abort(f"zofl_mpi: rank {world.rank} failed\n{traceback.format_exc()}")
    sys.stdout.flush()
    sys.exit(status)


def _said(problem: UserError, speaks: bool) -> int:
    if speaks:
        print(f"zofl_mpi: {problem}", file=sys.stderr, flush=True)
    return 2


def _status(world: World, module: str, arguments: Sequence[str]) -> int:
    family = importlib.import_module(module)
    plan = _understood(world, family, arguments)
    if isinstance(plan, int):
        return plan
    places = _places(world, plan.values["device"], problem_of(family, plan.values["problem"]))
    setting = build_setting(world, family, plan)
    method_class = together(world, lambda: method_of(family, plan.values["method"]))
    method = together(world, lambda: method_class(setting=setting, **plan.part(method_class)))
    _same_kernel(world, method.plan(1).get("kernel"))
    if plan.values["dry_run"]:
        return _print_plan(plan, method) if world.rank == 0 else 0
    stop = Stop()
    stop.listen()
    if world.rank:
        together(world, lambda: None)  # rank 0 may fail to open the result
        return _serve(world, method, setting, stop)
    from zofl_mpi.run.session import Order, lead

    attrs = {"command": plan.command, "mpi": world.library, **places}
    return lead(world, method, Order(plan.values, plan.config, attrs), stop)


def _understood(world: World, family: Any, arguments: Sequence[str]) -> Plan | int:
    """Rank 0's reading of the arguments, on all ranks; an exit status if there is nothing to do."""
    told: UserError | Plan | int = 0
    if world.rank == 0:
        try:
            told = understand(family, arguments)
            RunFlags(**told.part(RunFlags))
        except UserError as exc:
            told = exc
        except SystemExit as exc:
            told = int(exc.code or 0)
    told = world.share(told)
    if isinstance(told, UserError):
        raise told
    return told


def understand(family: Any, arguments: Sequence[str]) -> Plan:
    """The plan of a command line: first the resumed run's values, then those of --config, then the flags.

    Raises:
        UserError: whatever is wrong with them.
    """
    resume, config = _peek("resume", arguments), _peek("config", arguments)
    stored = stored_config(resume) if resume else {}
    table = stored | (flags.read_toml(config) if config else {})
    method = _peek("method", arguments) or table.get("method", next(iter(family.METHODS)))
    problem = _peek("problem", arguments) or table.get("problem", next(iter(family.PROBLEMS)))
    for name, value in (("method", method), ("problem", problem)):
        if stored and stored[name] != value:
            raise UserError(f"--resume {resume}: that run has --{name} {stored[name]}, this command {value}")
    groups = groups_of(family, method, problem)
    words = [*flags.to_arguments(table, flags.flags_of(groups), config or resume), *arguments]
    values = flags.parse(groups, words, f"python -m {family.__spec__.name}", family.__doc__ or "")
    if stored:
        _check_same(stored, values, resume)
    return Plan(values, shlex.join(["python", "-m", family.__spec__.name, *arguments]))


def groups_of(family: Any, method: str, problem: str) -> dict[str, type[Any]]:
    """The flags of a method on a problem, by title.

    Raises:
        UserError: there is no such method or problem.
    """
    which = make_dataclass("Which", [("method", str, field(default=method)), ("problem", str, field(default=problem))])
    which.__doc__ = f"""Which.

    Attributes:
        method: {", ".join(family.METHODS)}, or module:Class for one of your own.
        problem: {", ".join(family.PROBLEMS)}.
    """
    problem_groups = problem_of(family, problem).groups
    what = "choice of method and problem"
    return {what: which, "run": RunFlags, **problem_groups, "method": method_of(family, method)}


def method_of(family: Any, name: str) -> type[Any]:
    """One of the family's METHODS, or a class of a user's own module.

    Raises:
        UserError: there is no such method, module or class.
    """
    if ":" not in name:
        return cast("type[Any]", _named(family.METHODS, name, "--method", ", or module:Class"))
    module, _, cls = name.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` would find it
    try:
        return cast("type[Any]", getattr(importlib.import_module(module), cls))
    except (ImportError, AttributeError) as exc:
        raise UserError(f"--method {name}: {exc}; the module must be importable from this folder") from exc
    finally:
        sys.path.pop(0)


def problem_of(family: Any, name: str) -> Any:
    """One of the family's PROBLEMS.

    Raises:
        UserError: there is no such problem.
    """
    return _named(family.PROBLEMS, name, "--problem", "")


def _named(table: Mapping[str, Any], name: str, flag: str, more: str) -> Any:
    if name not in table:
        near = difflib.get_close_matches(name, table, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{flag} {name}: must be one of {', '.join(table)}{more}{hint}")
    return table[name]


def _places(world: World, requested: str, choice: Any) -> dict[str, list[Any]]:
    """Binds this rank to a device and to its threads; what every rank got, for the record.

    A NumPy problem runs on one thread: its matrices are too small for more, and its bits may depend on their number.
    """
    view = (world.rank > 0 or world.size == 1, device.visible(requested))
    cores = device.cores()
    me, node = world.neighbours((view, cores))
    chosen = together(world, lambda: device.select(requested, [seen for seen, _ in node], me))
    if not choice.gpu:
        together(world, lambda: _refuse_gpu(requested))
        chosen, threads = "cpu", 1
    else:
        threads = device.threads([mask for _, mask in node], me, device.cpus_per_task())
    device.limit_threads(threads)
    names = ("hosts", "device", "threads", "blas")
    ranks = world.collect((platform.node(), chosen, threads, device.blas()))
    found = {name: list(values) for name, values in zip(names, zip(*ranks, strict=True), strict=True)}
    if world.size > RANKS_LISTED:
        found = {name: sorted(set(values)) for name, values in found.items()}
    if world.rank == 0 and len(set(found["blas"])) > 1:
        told = ", ".join(sorted(set(found["blas"])))
        print(
            f"zofl_mpi: warning: ranks compute with different libraries ({told}): bits may depend on their number",
            file=sys.stderr,
        )
    return found


def _refuse_gpu(requested: str) -> None:
    if requested == "cuda":
        raise UserError("--device cuda: this problem runs in NumPy on the CPU; use --device auto or cpu")


def _same_kernel(world: World, kernel: Any) -> None:
    """Refuses ranks whose environments differ in what "auto" chooses: kernels agree to rounding only."""
    kernels = world.collect(kernel)
    if len(set(kernels)) > 1:
        told = ", ".join(f"rank {rank}: {name}" for rank, name in enumerate(kernels))
        raise UserError(
            f"--kernel auto chose different kernels ({told}): install numba on all nodes, or say --kernel numpy"
        )


def build_setting(world: World, family: Any, plan: Plan) -> Setting:
    """The setting of a plan, on every rank alike."""
    choice = problem_of(family, plan.values["problem"])
    groups = together(world, lambda: {title: cls(**plan.part(cls)) for title, cls in choice.groups.items()})
    streams = together(world, lambda: Streams(plan.values["seed"]))
    return together(world, lambda: choice.build(groups, world, streams, plan.values["dtype"]))  # type: ignore[no-any-return]


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
    return json.loads(checkpoint.attrs["config"])  # type: ignore[no-any-return]


def _check_same(stored: Mapping[str, Any], values: Mapping[str, Any], path: str) -> None:
    now = json.loads(json.dumps(dict(values)))
    differing = [k for k in stored if k not in CHANGEABLE and now.get(k) != stored[k]]
    if differing:
        listed = "; ".join(f"--{flags.flag(k)} was {_shown(stored[k])}, is now {_shown(now.get(k))}" for k in differing)
        raise UserError(f"--resume {path}: the checkpoint is of another configuration: {listed}")


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


def _print_plan(plan: Plan, method: Any) -> int:
    """--dry-run: the configuration, then what the run will cost."""
    for name, value in plan.config.items():
        print(f"{flags.flag(name):20} {_shown(value)}")
    print()
    for name, value in method.plan(plan.values["rounds"]).items():
        print(f"{name:46} {value:,}" if isinstance(value, int) else f"{name:46} {value}")
    return 0


def _serve(world: World, method: Any, setting: Setting, stop: Stop) -> int:
    """A client rank's whole life."""
    from zofl_mpi.run.answering import ClientRank
    from zofl_mpi.run.mpi import MPIWorld

    assert isinstance(world, MPIWorld)
    own = {i: data for i, data in enumerate(setting.data) if 1 + i % (world.size - 1) == world.rank}
    return ClientRank(world, method, own, stop).serve()
