"""Command line of a family of methods, for every rank, from start to exit status.

Rank 0 alone reads the arguments and broadcasts the plan. During rounds, a failure on one rank ends all at once.
"""

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn, cast

from zofl_mpi.engine import memory
from zofl_mpi.engine.world import Ended, World, at_server, launched, speaks_first
from zofl_mpi.errors import UserError, end_start, output_fails, refused
from zofl_mpi.run import devices
from zofl_mpi.run.command import plan as plans
from zofl_mpi.run.command.build import Built, Job, build, compile_kernel, opened
from zofl_mpi.run.command.family import Family, family_of
from zofl_mpi.run.command.plan import Plan
from zofl_mpi.run.loop.progress import announce, progress, say
from zofl_mpi.run.loop.screen import columns, show
from zofl_mpi.run.loop.signals import Stop
from zofl_mpi.run.mpi.survival import LOST_EARLY
from zofl_mpi.run.mpi.world import connect


def main(module: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line of a family, a module with METHODS, PROBLEMS and a docstring. Never returns.

    Exit status 0: done; 1: failed; 2: invalid input; 75: stopped by a signal, can be resumed.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (None if the shell closed it)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    atexit.register(gc.freeze)  # or Python would traverse torch's objects once more at exit, for a second
    silencing = {"--quiet", "--config", "--dry-run", "--help", "-h"}  # a configuration may be quiet, too
    if speaks_first() and silencing.isdisjoint(given):
        announce(launched(os.environ))
    stop, job = Stop(), cast("Job | int", 0)
    if launched(os.environ) and speaks_first():
        stop.tell(lambda signal: _tell(signal, job))
    try:
        world = connect()
    except UserError as exc:
        sys.exit(refused(exc, speaks_first()))
    try:
        job = prepared(world, module, given, stop)
        status = job if isinstance(job, int) else _run(job)
    except Ended as exc:  # the failure is already printed
        status = int(exc.code or 1)
    except BaseException as exc:  # SystemExit too: the other ranks would wait for this one
        world.abort(_last_words(exc, world, job))
    sys.stdout.flush()
    world.leave(status, 0.0 if isinstance(job, int) else job.watch.limit)
    sys.exit(status)


def _tell(signal: str, job: Job | int) -> None:
    """Report a signal: after Ctrl-C Open MPI's mpirun forwards nothing and soon kills its ranks."""
    words = "the run ends before its first round; nothing was written"
    if not isinstance(job, int):
        words = f"the run ends after this round; where it is ended before, {job.watch.remedy()}"
    say(f"zofl_mpi: {signal}: {words}")


def _last_words(exc: BaseException, world: World, job: Job | int) -> str:
    """Final output of a rank that ends the run: a message, or a traceback of an unexpected error."""
    kept = "" if isinstance(job, int) else f"; {job.watch.remedy()}"
    if isinstance(exc, KeyboardInterrupt):
        return f"zofl_mpi: interrupted{kept or ' before the first round; nothing was written'}"
    if isinstance(exc, BrokenPipeError) or (isinstance(exc, OSError) and output_fails()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python's last flush would fail, too
        if isinstance(exc, BrokenPipeError):
            return "zofl_mpi: standard output was closed"
        return f"zofl_mpi: standard output cannot be written ({exc.strerror}): send it elsewhere{kept}"
    rank, short = world.rank, memory.shortage(exc)
    if isinstance(job, int) and isinstance(exc, world.faults):
        return f"zofl_mpi: rank {rank} ends, since {LOST_EARLY}"
    if not short:
        return f"zofl_mpi: rank {rank} failed\n{traceback.format_exc()}"
    method = None if isinstance(job, int) else job.method
    return f"zofl_mpi: rank {rank} is {short}; {memory.remedy(method, at_server=world.is_server)}{kept}"


def prepared(world: World, module: str, arguments: Sequence[str], stop: Stop) -> Job | int:
    """Everything before the first round; returns an exit status after --help, --dry-run or invalid input.

    All ranks know of a mistake, hence each can exit by itself.
    """
    try:
        family = family_of(module)
        plan = _read_plan(world, family, arguments)
        if isinstance(plan, int):
            return plan
        silent = world.rank > 0 or plan.values["quiet"] or plan.values["dry_run"]
        with ExitStack() as at_a_failure:
            bar = at_a_failure.enter_context(progress(silent))
            built = build(world, family, plan, bar)
            if plan.values["dry_run"]:
                _print_plan(built)
                return 0
            job = opened(built, bar, stop)
            at_a_failure.pop_all()  # the bar continues during the rounds
            return job
    except UserError as exc:
        return refused(exc, world.rank == 0)


def _print_plan(built: Built) -> None:
    """--dry-run: print the configuration, the expected cost, and the clients' devices."""
    compile_kernel(built.world, built.method)
    if built.world.rank == 0:
        show(plans.in_words(built.plan.config, built.expected()))
        if (fleet := built.method.setting.fleet) is not None:
            show(devices.table(fleet, built.plan.values["rounds"], columns()))


def _run(job: Job) -> int:
    """Lead the run at rank 0, serve it elsewhere; return the exit status."""
    end_start()
    if job.recorder is not None:
        from zofl_mpi.run.loop.session import lead  # HDF5 is for rank 0 only

        status = lead(job)
    else:
        status = job.serve()
    job.watch.ends()
    job.stop.ignore()
    return status


def _read_plan(world: World, family: Family, arguments: Sequence[str]) -> Plan | int:
    """The plan that rank 0 reads from the arguments, on all ranks; an exit status if nothing is to be done."""

    def read() -> Plan | int:
        try:
            return plans.parse_plan(family, arguments)
        except SystemExit as exc:  # --help
            return int(exc.code or 0)

    return world.bcast(at_server(world, read))  # type: ignore[no-any-return]
