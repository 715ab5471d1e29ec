"""Build a run on every rank from a plan: data, problem, method, devices, clocks, result file.

The command line, grids and scripts all build their runs here. Steps that each rank performs separately, such as reading
data, may fail on one rank only; then all ranks raise its message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from zofl_mpi.engine import device, memory
from zofl_mpi.engine.processes import Process, this_process
from zofl_mpi.engine.setting import Loads, Method, Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.watch import Watch
from zofl_mpi.engine.world import World, at_server, run_or_fail_all
from zofl_mpi.errors import UserError, warn
from zofl_mpi.run import devices
from zofl_mpi.run.command import again, flags, trial
from zofl_mpi.run.command import plan as plans
from zofl_mpi.run.command.family import Family, Site
from zofl_mpi.run.command.plan import Plan
from zofl_mpi.run.loop import evaluation, saving
from zofl_mpi.run.loop.progress import Progress
from zofl_mpi.run.loop.screen import columns, show
from zofl_mpi.run.loop.signals import Stop
from zofl_mpi.run.mpi.binding import RankPlacement, bind, listed, warnings_of
from zofl_mpi.run.mpi.placement import clients_per_rank

if TYPE_CHECKING:
    from zofl_mpi.run.loop.rounds import Restored
    from zofl_mpi.run.records import Recorder

RANKS_LISTED = 512
"""With more ranks, only distinct hosts, devices, ... are stored: an HDF5 attribute holds 64 kB."""


@final
@dataclass(frozen=True)
class Built:
    """A planned run on this rank, before anything is written."""

    world: World
    plan: Plan  # with the values derived from a budget
    method: Method[Any]
    loads: Loads | None  # each client's work, if the method knows it
    placements: list[RankPlacement]  # of all ranks
    attrs: dict[str, Any] = field(repr=False)  # of the result: detected and chosen values

    def expected(self) -> dict[str, Any]:
        """Lines of --dry-run: costs known to the method, and measured seconds; at rank 0."""
        rounds = self.plan.values["rounds"]
        return plans.expected(self.plan, self.method, trial.measured(self.method, rounds))


@final
@dataclass(frozen=True)
class Job:
    """A rank's part of a run before its rounds: rank 0 leads (`session`) and records, the others serve."""

    world: World
    method: Method[Any]
    plan: Plan
    loads: Loads | None
    stop: Stop
    watch: Watch
    recorder: Recorder | None  # at rank 0 only
    resumed: Restored | None  # None for a new run
    bar: Progress  # already waiting

    def serve(self) -> int:
        """Answer rank 0 until the run ends; return its exit status."""
        from zofl_mpi.run.mpi.client import ClientRank
        from zofl_mpi.run.mpi.world import MPIWorld

        assert isinstance(self.world, MPIWorld)
        return ClientRank(self.world, self.method, self.method.setting.data, self.watch, self.loads).serve()


def build(world: World, family: Family, plan: Plan, bar: Progress) -> Built:
    """Build data, problem and method; UserError on all ranks if one of them fails or ranks differ."""
    values = plan.values
    speaks = world.rank == 0 and not (values["quiet"] or values["dry_run"])
    cls = run_or_fail_all(world, lambda: plans.method_of(family, values["method"]))
    choice = run_or_fail_all(world, lambda: plans.problem_of(family, values["problem"]))
    if speaks and plan.beside_the_paper:
        show(plan.beside_the_paper)
    placements = bind(world, values["device"], choice.gpu)
    known = _placements(world, placements)
    bar.step("start: data and model", 4)
    data = build_setting(world, family, plan, placements[world.rank].device)
    fault = "the ranks hold different data or networks; copy the same files to all nodes, draw in torch only"
    _check_equal(world, data.fingerprint, fault)
    if speaks and data.about:
        show(f"samples   {data.about}")
    bar.step("start: method and kernel", 4, 1)
    if ":" in values["method"]:
        run_or_fail_all(world, lambda: plans.check_hooks(flags.instantiate(cls, values, setting=data), plan))
    setting, reason = _with_kernel(world, cls, data, plan)
    method, loads = run_or_fail_all(world, lambda: _build_method(cls, setting, plan))
    derived = world.bcast(at_server(world, lambda: plans.derived_flags(method, plan)))
    if derived:  # derived from a budget and the rounds
        plan = replace(plan, values=values | derived)
        method, loads = run_or_fail_all(world, lambda: _build_method(cls, setting, plan))
    devices.bind(world, method, values["method"], speaks=not values["dry_run"])
    fault = "the ranks compute by different kernels; give all of them a GPU or none, install numba on all nodes, or say"
    _check_equal(world, method.kernel, f"{fault} --kernel numpy")
    _check_server_ranks(world, method, plan)
    attrs: dict[str, Any] = {"command": plan.command, "mpi": world.library, "kernel": method.kernel, **known}
    attrs |= {"kernel_choice": reason} if reason else {}
    attrs |= {"derived_flags": " ".join(derived)} if derived else {}
    attrs |= {"devices": setting.fleet.class_rows()} if setting.fleet is not None else {}
    return Built(world, plan, method, loads, placements, attrs)


def opened(built: Built, bar: Progress, stop: Stop) -> Job:
    """Compile the kernel and create the result file; UserError on all ranks if that fails."""
    world, plan, method, placements, attrs = built.world, built.plan, built.method, built.placements, built.attrs
    values = plan.values
    _check_survival(world, plan)
    world.split(values["server_ranks"])
    bar.step("start: compiling", 4, 2)
    compile_kernel(world, method)
    bar.step("start: costs and result file", 4, 3)
    device.keep_freed_memory()
    stop.listen()
    loads = world.bcast(built.loads)  # ranks must agree on placement, or they deadlock
    clients = clients_per_rank(world.size, values["server_ranks"], method.setting.m, loads)
    rows = [place.row(rank, clients[rank], values["server_ranks"]) for rank, place in enumerate(placements)]
    if values["verbose"] and world.rank == 0:
        show(listed(rows, columns()))
    if values["checkpoint_every"] == "auto" and world.rank == 0 and not values["quiet"]:
        show(saving.ANNOUNCEMENT)

    def result() -> tuple[Recorder, Restored | None]:
        from zofl_mpi.run.command.result import opened as file  # HDF5 is for rank 0 only

        costs = plans.costs_of(method)
        return file(world, method, plan, {**attrs, "costs": costs} if costs else attrs, rows)

    recorder, resumed = at_server(world, result) or (None, None)
    watch = _watch(world, plan, [place.host for place in placements], recorder, stop)
    return Job(world, method, plan, loads, stop, watch, recorder, resumed, bar)


def _with_kernel(world: World, cls: type[Method[Any]], setting: Setting[Any], plan: Plan) -> tuple[Setting[Any], str]:
    """The setting with the kernel chosen by rank 0 and tried on every rank, and the reason; one for the whole run.

    The choice depends on a step's sizes, for which rank 0 builds a method. A continued run keeps its kernel.
    """
    problem = setting.problem
    if not problem.kernel:
        return setting, ""
    samples = max(setting.data, key=len)

    def choose() -> tuple[Any, Any]:
        work = flags.instantiate(cls, plan.values, setting=setting).work()
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
    """The method, and its planned work of each client."""
    method: Method[Any] = flags.instantiate(cls, plan.values, setting=setting)
    plans.check_validation(method, plan)
    memory.check_batches(method, method.kernel)
    return method, plans.loads_of(method)


def _check_survival(world: World, plan: Plan) -> None:
    """Refuse --survive without an MPI that survives lost ranks, and vice versa."""
    if plan.values["survive"] and world.missing:
        raise UserError(f"--survive needs {world.missing}; without it, continue by --resume after a lost rank")
    if not plan.values["survive"] and not world.missing:
        raise UserError(
            "mpirun --with-ft ulfm keeps the job alive after a lost rank and needs --survive: add that flag"
        )


def _check_server_ranks(world: World, method: Method[Any], plan: Plan) -> None:
    """Refuse server ranks without uploads, without ranks left for clients, or without replacement when lost."""
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
    """Set this rank's deadlines, and with --survive its reaction to lost ranks."""
    limit, survive = plan.values["round_timeout"], plan.values["survive"]
    path = recorder and str(recorder.path)
    path, resume, begin = world.bcast(path and (path, *again.commands(plan, path, world.size)))
    neighbours = _neighbours(world) if limit else {}
    watch = Watch(world.rank, world.size, limit, world.halt, hosts, path, neighbours, stop, resume, begin)
    if survive:
        world.survive(watch)
    return watch


def _neighbours(world: World) -> dict[int, Process]:
    """Processes of this node's other ranks, if they share a PID namespace."""
    me = this_process()
    _, ranks = world.neighbours((world.rank, me))
    return {rank: each for rank, each in ranks if me and each and each.space == me.space and each.pid != me.pid}


def compile_kernel(world: World, method: Method[Any]) -> None:
    """Compile the kernel before the first round, if necessary.

    One rank of each node compiles first (all at once would each compile); the other client ranks then load the result.
    """
    setting, kernel = method.setting, method.kernel
    place, ranks = world.neighbours(None)
    last = place == len(ranks) - 1  # a client rank: the server does not need the kernel
    run_or_fail_all(world, lambda: setting.problem.prepare(kernel, setting.data[0]) if last else None)
    later = world.rank > 0 and not last
    run_or_fail_all(world, lambda: setting.problem.prepare(kernel, setting.data[0]) if later else None)


def _placements(world: World, placements: list[RankPlacement]) -> dict[str, list[Any]]:
    """Attributes on the ranks' hosts, devices, threads and libraries; warns of shared GPUs and mixed libraries."""
    table: dict[str, list[Any]] = {
        "hosts": [place.host for place in placements],
        "blas": [place.blas for place in placements],
    }
    table |= {"device": [place.device for place in placements], "threads": [place.threads for place in placements]}
    if world.size > RANKS_LISTED:
        table = {name: sorted(set(values)) for name, values in table.items()}
    warnings = list(warnings_of(placements))
    if len(set(table["blas"])) > 1:
        libraries = ", ".join(sorted(set(table["blas"])))
        warnings.append(f"ranks use different BLAS libraries ({libraries}): bits may depend on the number of ranks")
    for sentence in warnings if world.rank == 0 else ():
        warn(sentence)
    return table


def _check_equal(world: World, value: Any, sentence: str) -> None:
    """Refuse ranks that differ in a value that results depend on."""
    values = world.allgather(value)
    if len(set(values)) > 1:
        others = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(values) if other != values[0])
        raise UserError(f"{sentence} (rank 0: {values[0]}; {others})")


def build_setting(world: World, family: Family, plan: Plan, chosen: str) -> Setting[Any]:
    """The setting of a plan, equal on every rank except for the device."""
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
    return evaluation.cap_eval_samples(setting, values["eval_samples"])
