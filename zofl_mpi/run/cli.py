"""The command line of a family of methods: every rank from its first line to its exit status.

Rank 0 alone reads the arguments and broadcasts the plan. Steps that every rank takes for itself, such as reading data,
may fail on one rank only; then all end with that rank's sentence. Once the rounds have begun, any failure on one rank
ends all of them at once.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, cast, final

from zofl_mpi.engine import device, memory
from zofl_mpi.engine.processes import Process, this_process
from zofl_mpi.engine.setting import Loads, Method, Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.watch import Watch
from zofl_mpi.engine.world import Ended, World, at_server, launched, run_or_fail_all, speaks_first
from zofl_mpi.errors import UserError, output_fails, refused, warn
from zofl_mpi.run import again, devices, evaluation, flags, saving, trial
from zofl_mpi.run import plan as plans
from zofl_mpi.run.binding import Place, bind, listed, warnings_of
from zofl_mpi.run.family import Family, Site, family_of
from zofl_mpi.run.mpi.placement import placed
from zofl_mpi.run.mpi.world import MPIWorld, connect
from zofl_mpi.run.plan import Plan
from zofl_mpi.run.progress import Progress, announce, progress, say
from zofl_mpi.run.signals import Stop

if TYPE_CHECKING:
    from zofl_mpi.run.loop import Restored
    from zofl_mpi.run.records import Recorder

RANKS_LISTED = 512
"""With more ranks, only the different hosts, devices, ... are kept: an HDF5 attribute holds 64 kB."""


def main(module: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line of a family, a module with METHODS, PROBLEMS and a docstring. Never returns.

    Exit status 0: done; 1: failed; 2: a mistake of the user; 75: stopped by a signal, can be resumed.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (None if the shell closed it)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    atexit.register(gc.freeze)  # else Python's end looks at all of torch's objects once more, for a second
    if speaks_first() and {"--quiet", "--config", "--dry-run", "--help", "-h"}.isdisjoint(given):  # it may be quiet
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
        status = job if isinstance(job, int) else job.run()
    except Ended as exc:  # the failure has been printed
        status = int(exc.code or 1)
    except BaseException as exc:  # SystemExit too: the other ranks would wait for this one
        world.abort(_last_words(exc, world, job))
    sys.stdout.flush()
    world.leave(status, 0.0 if isinstance(job, int) else job.watch.limit)
    sys.exit(status)


def _tell(signal: str, job: Job | int) -> None:
    """Says that a signal has come: at Ctrl-C Open MPI's mpirun passes nothing on and soon kills its ranks."""
    words = "the run ends before its first round; nothing was written"
    if not isinstance(job, int):
        words = f"the run ends after this round; where it is ended before, {job.watch.remedy()}"
    say(f"zofl_mpi: {signal}: {words}")


def _last_words(exc: BaseException, world: World, job: Job | int) -> str:
    """The last words of a rank that ends the run: a sentence, or a traceback of an unforeseen error."""
    kept = "" if isinstance(job, int) else f"; {job.watch.remedy()}"
    if isinstance(exc, KeyboardInterrupt):
        return f"zofl_mpi: interrupted{kept or ' before the first round; nothing was written'}"
    if isinstance(exc, BrokenPipeError) or (isinstance(exc, OSError) and output_fails()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python's own last flush would fail, too
        if isinstance(exc, BrokenPipeError):
            return "zofl_mpi: standard output was closed"
        return f"zofl_mpi: standard output cannot be written ({exc.strerror}): send it elsewhere{kept}"
    rank, short = world.rank, memory.shortage(exc)
    if isinstance(job, int) and isinstance(exc, world.faults):
        return (
            f"zofl_mpi: rank {rank} ends, since another rank is lost and --survive takes losses from the first round "
            "on; start the command again"
        )
    if not short:
        return f"zofl_mpi: rank {rank} failed\n{traceback.format_exc()}"
    method, servers = (None, 1) if isinstance(job, int) else (job.method, job.plan.values["server_ranks"])
    return f"zofl_mpi: rank {rank} is {short}; {memory.remedy(method, at_server=rank < servers)}{kept}"


def prepared(world: World, module: str, arguments: Sequence[str], stop: Stop) -> Job | int:
    """Does everything before the first round; an exit status after --help, --dry-run or a mistake of the user.

    A mistake is known to all ranks, so that each may exit by itself.
    """
    try:
        family = family_of(module)
        plan = _read_plan(world, family, arguments)
        if isinstance(plan, int):
            return plan
        silent = world.rank > 0 or plan.values["quiet"] or plan.values["dry_run"]
        with ExitStack() as at_a_failure:
            bar = at_a_failure.enter_context(progress(silent))
            job = _job_of(world, family, plan, bar, stop)
            if isinstance(job, Job):
                at_a_failure.pop_all()  # the bar goes on in the rounds
            return job
    except UserError as exc:
        return refused(exc, world.rank == 0)


@final
@dataclass(frozen=True)
class Job:
    """A rank's part of the run, ready for its rounds."""

    world: World
    method: Method[Any]
    plan: Plan
    loads: Loads | None
    stop: Stop
    watch: Watch
    recorder: Recorder | None  # at rank 0 only
    resumed: Restored | None  # None for a new run
    bar: Progress  # it is on already

    def run(self) -> int:
        """Leads the run at rank 0, serves it elsewhere; returns the exit status."""
        if self.recorder is not None:
            from zofl_mpi.run.session import lead  # HDF5 is for rank 0 only

            given = self.world, self.method, self.plan, self.loads, self.watch
            status = lead(*given, self.recorder, self.resumed, self.bar)
        else:
            from zofl_mpi.run.mpi.client import ClientRank

            assert isinstance(self.world, MPIWorld)
            data = self.method.setting.data
            status = ClientRank(self.world, self.method, data, self.watch, self.loads).serve()
        self.watch.ends()
        self.stop.ignore()
        return status


def _job_of(world: World, family: Family, plan: Plan, bar: Progress, stop: Stop) -> Job | int:
    """Builds the data and the method and opens the result file; 0 after --dry-run."""
    values = plan.values
    cls = run_or_fail_all(world, lambda: plans.method_of(family, values["method"]))
    choice = run_or_fail_all(world, lambda: plans.problem_of(family, values["problem"]))
    if world.rank == 0 and plan.beside_the_paper and not (values["quiet"] or values["dry_run"]):
        print(plan.beside_the_paper, flush=True)
    places = bind(world, values["device"], choice.gpu)
    known = _places(world, places)
    bar.step("start: data and model", 4)
    data = build_setting(world, family, plan, places[world.rank].device)
    fault = "the ranks hold different data or networks; copy the same files to all nodes, draw in torch only"
    _check_equal(world, data.fingerprint, fault)
    if data.about and world.rank == 0 and not (values["quiet"] or values["dry_run"]):
        print(f"samples   {data.about}", flush=True)
    bar.step("start: method and kernel", 4, 1)
    if ":" in values["method"]:
        run_or_fail_all(world, lambda: plans.check_hooks(flags.made(cls, values, setting=data), plan))
    setting, reason = _with_kernel(world, cls, data, plan)
    method, loads = run_or_fail_all(world, lambda: _build_method(cls, setting, plan))
    if values["eval_samples"] == "auto":
        N = plan.eval_samples_before  # those that a continued run began with
        if N is None:
            N = world.bcast(at_server(world, lambda: evaluation.auto(method, values["rounds"], values["eval_every"])))
        if N:
            setting = evaluation.limited(setting, N)
            method, loads = run_or_fail_all(world, lambda: _build_method(cls, setting, plan))
        if N and world.rank == 0 and not (values["quiet"] or values["dry_run"]):
            print(evaluation.line(N, data.test), flush=True)
    settled = world.bcast(at_server(world, lambda: plans.settled(method, plan)))
    if settled:  # follows from a budget and the rounds
        plan = replace(plan, values=values | settled)
        method, loads = run_or_fail_all(world, lambda: _build_method(cls, setting, plan))
    devices.bind(world, method, values["method"], speaks=not values["dry_run"])
    fault = "the ranks compute by different kernels; give all of them a GPU or none, install numba on all nodes, or say"
    _check_equal(world, method.kernel, f"{fault} --kernel numpy")
    _check_server_ranks(world, method, plan)
    if values["dry_run"]:
        _compile_kernel(world, method)
        if world.rank == 0:
            plans.print_plan(plan, method, trial.measured(method, values["rounds"]))
            if setting.fleet is not None:
                print(devices.table(setting.fleet, values["rounds"]))
        return 0
    _check_survival(world, plan)
    world.split(values["server_ranks"])
    bar.step("start: compiling", 4, 2)
    _compile_kernel(world, method)
    bar.step("start: costs and result file", 4, 3)
    device.keep_freed_memory()
    stop.listen()
    attrs: dict[str, Any] = {"command": plan.command, "mpi": world.library, "kernel": method.kernel, **known}
    attrs |= {"eval_samples": setting.eval_samples, **({"kernel_choice": reason} if reason else {})}
    attrs |= {"settled": " ".join(settled)} if settled else {}
    attrs |= {"devices": setting.fleet.lines()} if setting.fleet is not None else {}
    loads = world.bcast(loads)  # rank 0's: ranks that looked for a client on different ones would hang
    clients = _clients_per_rank(world, values["server_ranks"], data.m, loads)
    rows = [place.row(rank, clients[rank], values["server_ranks"]) for rank, place in enumerate(places)]
    if values["verbose"] and world.rank == 0:
        print(listed(rows))
    if values["checkpoint_every"] == "auto" and world.rank == 0 and not values["quiet"]:
        print(saving.LINE, flush=True)

    def open_result() -> tuple[Recorder, Restored | None]:
        from zofl_mpi.run import session

        costs = dict(method.costs())
        return session.opened(world, method, plan, {**attrs, "costs": costs} if costs else attrs, rows)

    recorder, resumed = at_server(world, open_result) or (None, None)
    watch = _watch(world, plan, [place.host for place in places], recorder, stop)
    return Job(world, method, plan, loads, stop, watch, recorder, resumed, bar)


def _with_kernel(world: World, cls: type[Method[Any]], setting: Setting[Any], plan: Plan) -> tuple[Setting[Any], str]:
    """The setting with the kernel that rank 0 chose and every rank has tried, and the reason; one for the whole run.

    It depends on a step's sizes, which a method knows: rank 0 makes one for this. A continued run keeps its kernel.
    """
    problem = setting.problem
    if not problem.kernel:
        return setting, ""
    samples = max(setting.data, key=len)

    def choose() -> tuple[Any, Any]:
        work = plans.work_of(flags.made(cls, plan.values, setting=setting))
        return work, work and problem.kernel_for(work, samples, plan.kernel_before)

    work, choice = world.bcast(at_server(world, choose))
    if work is None:
        return setting, ""
    name, reason, fallback = choice
    obstacles = world.allgather(run_or_fail_all(world, lambda: problem.kernel_obstacle(name, work, samples)))
    rank, obstacle = next(((rank, each) for rank, each in enumerate(obstacles) if each), (0, ""))
    if obstacle and not fallback:
        raise UserError(f"--kernel {name}: {obstacle}, found on rank {rank}; take --kernel auto")
    if obstacle:
        name, reason = fallback, f"{fallback}, not {name}: {obstacle}, found on rank {rank}"
    return replace(setting, problem=run_or_fail_all(world, lambda: problem.with_kernel(name, work))), reason


def _build_method(cls: type[Method[Any]], setting: Setting[Any], plan: Plan) -> tuple[Method[Any], Loads | None]:
    """The method, and the work that it plans for each client."""
    method: Method[Any] = flags.made(cls, plan.values, setting=setting)
    plans.check_validation(method, plan)
    memory.check_batches(method, method.kernel)
    return method, plans.loads_of(method)


def _check_survival(world: World, plan: Plan) -> None:
    """Refuses --survive without an MPI that survives lost ranks, and the other way round."""
    if plan.values["survive"] and world.missing:
        raise UserError(f"--survive needs {world.missing}; else a lost rank ends the job, and --resume continues")
    if not plan.values["survive"] and not world.missing:
        raise UserError("mpirun --with-ft ulfm, under which no lost rank ends the job, is for --survive: add that flag")


def _check_server_ranks(world: World, method: Method[Any], plan: Plan) -> None:
    """Refuses server ranks that would have no upload, leave no rank to the clients, or could not be replaced."""
    ranks, most = plan.values["server_ranks"], method.server_uploads
    if ranks == 1:
        return
    fault, fewer = "", f"take --server-ranks {min(most, max(world.size - 1, 1))}"
    if most == 0:
        fault = f"the server of --method {plan.values['method']} takes no step on uploads that they could share out"
        fewer = "leave the flag out"
    elif ranks > most:
        fault = f"a step of the server is on --merge {most} of the uploads, and each of its ranks needs one"
        fewer += f", or --merge {ranks} or more"
    elif ranks >= world.size and not (world.size == 1 and plan.values["dry_run"]):
        fault = f"no rank is left to the clients (there {'is' if world.size == 1 else 'are'} {world.size} in all)"
        fewer += f", or start mpirun -n {ranks + 1} or more"
    elif plan.values["survive"]:
        fault, fewer = "--survive replaces lost client ranks, none of the server's", "take one of the two"
    if fault:
        raise UserError(f"--server-ranks {ranks}: {fault}; {fewer}")


def _watch(world: World, plan: Plan, hosts: list[str], recorder: Recorder | None, stop: Stop) -> Watch:
    """This rank's deadlines, and with --survive its reaction to lost ranks."""
    limit, survive = plan.values["round_timeout"], plan.values["survive"]
    path = recorder and str(recorder.path)
    path, resume, begin = world.bcast(path and (path, *again.commands(plan, path, world.size)))
    neighbours = _neighbours(world) if limit else {}
    watch = Watch(world.rank, world.size, limit, world.halt, hosts, path, neighbours, stop, resume, begin)
    if survive:
        world.survive(watch)
    return watch


def _neighbours(world: World) -> dict[int, Process]:
    """The processes of the other ranks of this node, where process numbers are the same (one namespace)."""
    me = this_process()
    _, ranks = world.neighbours((world.rank, me))
    return {rank: each for rank, each in ranks if me and each and each.space == me.space and each.pid != me.pid}


def _compile_kernel(world: World, method: Method[Any]) -> None:
    """Compiles the kernel before the first round, if it needs that.

    One rank of each node compiles first (ten would do it ten times); the other client ranks then load the result.
    """
    setting, kernel = method.setting, method.kernel
    place, ranks = world.neighbours(None)
    last = place == len(ranks) - 1  # a client rank, not the server, which does not need it
    run_or_fail_all(world, lambda: setting.problem.prepare(kernel, setting.data[0]) if last else None)
    later = world.rank > 0 and not last
    run_or_fail_all(world, lambda: setting.problem.prepare(kernel, setting.data[0]) if later else None)


def _read_plan(world: World, family: Family, arguments: Sequence[str]) -> Plan | int:
    """The plan that rank 0 reads from the arguments, on all ranks; an exit status if there is nothing to do."""

    def read() -> Plan | int:
        try:
            return plans.understand(family, arguments)
        except SystemExit as exc:  # --help
            return int(exc.code or 0)

    return world.bcast(at_server(world, read))  # type: ignore[no-any-return]


def _places(world: World, places: list[Place]) -> dict[str, list[Any]]:
    """Hosts, devices, threads and libraries of the ranks, for the record; warns of shared cores and mixed libraries."""
    table: dict[str, list[Any]] = {"hosts": [place.host for place in places], "blas": [place.blas for place in places]}
    table |= {"device": [place.device for place in places], "threads": [place.threads for place in places]}
    if world.size > RANKS_LISTED:
        table = {name: sorted(set(values)) for name, values in table.items()}
    warnings = list(warnings_of(places))
    if len(set(table["blas"])) > 1:
        libraries = ", ".join(sorted(set(table["blas"])))
        warnings.append(f"ranks compute with different libraries ({libraries}): bits may depend on their number")
    for sentence in warnings if world.rank == 0 else ():
        warn(sentence)
    return table


def _check_equal(world: World, value: Any, sentence: str) -> None:
    """Refuses ranks that differ in a value on which the numbers depend."""
    values = world.allgather(value)
    if len(set(values)) > 1:
        others = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(values) if other != values[0])
        raise UserError(f"{sentence} (rank 0: {values[0]}; {others})")


def build_setting(world: World, family: Family, plan: Plan, chosen: str) -> Setting[Any]:
    """The setting of a plan, on every rank alike but for the device."""
    values, choice = plan.values, plans.problem_of(family, plan.values["problem"])
    holds_all = plans.method_of(family, values["method"]).holds_all
    site = Site(plan.of_problem(family), world, Streams(values["seed"]), values["dtype"], chosen, holds_all)

    def make() -> Setting[Any]:
        try:
            return choice.make(site)
        except ModuleNotFoundError as exc:
            if exc.name != "torch":
                raise
            needed = f"--problem {values['problem']} needs torch, which is not installed"
            raise UserError(f"{needed}: pip install 'zofl_mpi[torch]'") from exc

    setting = replace(run_or_fail_all(world, make), eval_clients=values["eval_clients"])
    setting = devices.equipped(world, setting, values["devices"], values["deadline"], values["over_select"])
    return evaluation.limited(setting, 0 if values["eval_samples"] == "auto" else values["eval_samples"])


def _clients_per_rank(world: World, servers: int, m: int, loads: Loads | None) -> list[int]:
    """The number of clients, of m, on each rank."""
    if world.size == 1:
        return [m]
    clients = Counter(placed(m, world.size - servers, loads))
    return [clients[rank - servers + 1] for rank in range(world.size)]
