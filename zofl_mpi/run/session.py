"""Rank 0's part of a run: the result file, the clients, the closing lines, and a clear end in every case."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.between import composed
from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.ledger import bytes_in_words
from zofl_mpi.engine.setting import Loads, Method
from zofl_mpi.engine.watch import Watch
from zofl_mpi.engine.world import World
from zofl_mpi.errors import UserError, warn
from zofl_mpi.paths import user_path
from zofl_mpi.run import loop, records, stored
from zofl_mpi.run.divergence import has_diverged
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.mpi.world import MPIWorld
from zofl_mpi.run.plan import Plan
from zofl_mpi.run.progress import Progress
from zofl_mpi.run.records import places
from zofl_mpi.run.records.hdf5 import Attributes
from zofl_mpi.run.signals import STATUS

RESULTS = Path("results")
"""Folder of results whose name is not given, made where a run is started."""
NOTABLE = 0.1
"""Share of a run from which on the closing lines tell that the server waited for one rank."""
STILL = 6
"""Evaluations in a row with the same bits that count as no progress."""


def lead(
    world: World,
    method: Method[Any],
    plan: Plan,
    loads: Loads | None,
    watch: Watch,
    recorder: records.Recorder,
    resumed: loop.Restored | None,
    bar: Progress,
) -> int:
    """Runs the rounds and closes everything; returns the exit status. A failure ends all ranks with one message."""
    flags = plan.values
    if world.size == 1:
        clients: Clients = LocalClients(list(method.setting.data), method, watch)
    else:
        from zofl_mpi.run.mpi.server import MPIClients

        assert isinstance(world, MPIWorld)
        clients = MPIClients(world, method.setting.m, method, watch, loads)
    watch.before = 0 if resumed is None else resumed.round
    schedule = loop.Schedule(flags["rounds"], flags["eval_every"], flags["checkpoint_every"])
    try:
        with bar:
            totals, done = loop.Rounds(method, composed(clients, method), schedule, recorder, bar).run(resumed)
    except UserError as exc:
        remedy = f"; {watch.remedy()}" if watch.has_checkpoint else ""
        if isinstance(exc, records.WriteError) or isinstance(exc.__cause__, records.WriteError):
            recorder.abandon()
        with suppress(UserError):  # the run's own failure is the one to report
            recorder.close("interrupted")
        watch.ends()
        world.abort(f"{exc.trace if isinstance(exc, loop.RunError) else ''}zofl_mpi: {exc}{remedy}")
        return 1
    except BaseException:  # as Ctrl-C: rows may wait
        with suppress(UserError):
            recorder.flush()
        raise
    status = 0 if done else STATUS
    clients.close(status)
    stopped = "" if done else f"(by {watch.stop() or 'a signal to another rank'}); {watch.remedy()}"
    print(closing(totals, recorder.path, stopped, watch.resume), flush=True)
    return status


# --- the result file


def opened(
    world: World, method: Method[Any], plan: Plan, attrs: Attributes, rows: Sequence[Mapping[str, int | str]]
) -> tuple[records.Recorder, loop.Restored | None]:
    """Opens the result file of a run, new or continued, with these attributes and these rows of the table of ranks.

    Returns the checkpoint to start from, too, if there is one. UserError: it exists, or cannot be written or continued.
    """
    flags, m, resumed = plan.values, method.setting.m, None
    known = {"config": plan.config, "seed": flags["seed"], "data": method.setting.fingerprint}
    known |= {"folders": stored.sealed(plan.config)}
    attrs = {**records.provenance(), **attrs, **known}
    create = partial(records.Recorder.create, m=m, ranks=world.size, rounds=flags["rounds"], force=flags["force"])
    if flags["resume"]:
        recorder, resumed = continued(world, method, plan, attrs, create)
    else:
        recorder = create(user_path(flags["out"], "--out") if flags["out"] else free_name(plan), attrs=attrs)
    recorder.places(rows)
    if method.setting.counts is not None:
        recorder.partition(method.setting.counts)
    return recorder, resumed


def continued(
    world: World, method: Method[Any], plan: Plan, attrs: Attributes, create: Callable[..., records.Recorder]
) -> tuple[records.Recorder, loop.Restored]:
    """The result that --resume names, cut back to its checkpoint, in place or at --out; and the checkpoint."""
    flags, rounds = plan.values, plan.values["rounds"]
    source = loop.result_of(flags["resume"])
    checkpoint = records.load_checkpoint(records.checkpoint_path(source))
    if checkpoint.newer:
        warn(checkpoint.newer)
    before, lost = attributes_of(source, checkpoint)
    check_same_run(source, before, checkpoint.attrs, attrs)
    try:
        resumed = loop.restored(checkpoint, method)  # refused before a row of the result is cut off
    except UserError as exc:
        raise UserError(f"--resume {source}: {exc}; take an earlier copy of the two files, or begin again") from exc
    done = resumed.round
    if done > rounds:
        raise UserError(f"--rounds {rounds}: {done} rounds are done already; ask for more: --rounds {done + 100}")
    target = user_path(flags["out"], "--out") if flags["out"] else source
    if target.resolve() == source.resolve():
        target = source
    else:
        places.check_new(target, flags["force"])
    if lost:
        if target == source and (kept := places.set_aside(source)):
            warn(f"the damaged file is {kept} now")
        recorder = create(target, attrs={**attrs, "run": before.get("run", "")}, start=done)
    else:
        if target != source:
            places.copy(source, target)
        m, ranks = method.setting.m, world.size
        recorder = records.Recorder.reopen(target, done, m=m, ranks=ranks, rounds=rounds, attrs=attrs)
    if target != source:
        places.remove_checkpoints(target)
    return recorder, resumed


def attributes_of(source: Path, checkpoint: records.Checkpoint) -> tuple[Attributes, bool]:
    """The attributes of a result (of its checkpoint, if the result is lost), and whether it is lost."""
    try:
        return records.load(source).attrs, False
    except records.LostError as error:
        done = checkpoint.attrs["round"]
        warn(
            f"{error}; the run goes on from its checkpoint into a new file, in which the rows of rounds 1 to {done} "
            "are missing"
        )
    return checkpoint.attrs, True


def check_same_run(source: Path, before: Attributes, checkpoint: Attributes, now: Attributes) -> None:
    """Refuses to continue another run or with another kernel; warns where only bits may change.

    By attributes: of the result, of its checkpoint, and those that this session would write.
    """
    if before.get("run") != checkpoint.get("run"):
        raise UserError(f"--resume {source}: its checkpoint is of another run; one of the two files was replaced")
    if before.get("data") != now["data"]:
        both = f"({before.get('data')} then, {now['data']} now)"
        data = [str(attrs.get("data")).split(", network ")[0] for attrs in (before, now)]
        if data[0] == data[1]:  # the network alone is another
            both += (
                ": where the module is the same, another version of zofl_mpi or torch began it otherwise; continue "
                "with those of the result's attributes git_commit and versions"
            )
        raise UserError(f"--resume {source}: data or network are not those that the run began with {both}")
    if before.get("kernel") != now["kernel"]:
        raise UserError(
            f"--resume {source}: its kernel was {before.get('kernel')}, here it is {now['kernel']}, which gives "
            "other bits: continue with the version of zofl_mpi and in an environment like the first ones (is numba "
            "installed?), or name it by --kernel"
        )
    try:
        words = json.loads(before["blas"])
        blas = [", ".join(sorted(set(each))) for each in (words, now["blas"])]
    except (KeyError, TypeError, ValueError) as exc:
        raise UserError(f"--resume {source}: its attribute blas is missing or damaged") from exc
    if blas[0] != blas[1]:
        warn(f"the run began with another BLAS ({blas[0]} then, {blas[1]} now): bits may differ")


def free_name(plan: Plan) -> Path:
    """results/METHOD-PROBLEM-DATA-sSEED.h5, numbered if it exists; the usual problem and no data go unnamed."""
    flags = plan.values
    data = [Path(str(flags["data"])).stem[:100]] if "data" in flags else []  # a file system allows some 255 in all
    problem = [flags["problem"][:60]] if flags["problem"] != plan.usual or not data else []
    stem = "-".join([flags["method"], *problem, *data, f"s{flags['seed']}"]).replace(":", ".")
    with suppress(OSError):  # what is wrong with the folder is told where the result is made
        RESULTS.mkdir(exist_ok=True)
    names = (RESULTS / f"{stem}{'' if k == 1 else f'-{k}'}.h5" for k in range(1, 1_000_000))
    return next(name for name in names if not name.exists())


def closing(totals: loop.Totals, path: Path, stopped: str = "", resume: str = "") -> str:
    """The last lines of a run: measures reached, times, bytes sent, and the path of the result.

    Args:
        stopped: why the run ends before its last round, and what continues it; "" where it does not.
        resume: the command that continues it.
    """
    lines = [f"stopped after round {totals.round} {stopped}"] if stopped else []
    measures = ("test_accuracy", "personal_accuracy", "test_loss", "objective")
    reached = [f"{k.replace('_', ' ')} {loop.short(v)}" for k, v in totals.last.items() if k in measures]
    if reached:
        lines.append("reached   " + "  ".join(reached))
    if totals.directions:
        lines.append(f"explored  {totals.directions}")
    if not (stopped or totals.rounds):
        lines.append(f"finished  nothing was left to do; for more rounds: {resume} --rounds {totals.round + 100}")
        return "\n".join([*lines, f"result    {path}"])
    lines.append(f"start     {totals.start:.1f} s before the first round")
    seconds, S = totals.seconds.reshape(-1, 3), totals.server_ranks
    servers, clients = seconds[:S], seconds[S:]
    spent = _spent(np.mean(clients if len(clients) else servers, axis=0))
    who = "each client rank on average" if len(clients) else "in one process"
    lines.append(f"time      {totals.wall:.1f} s for {totals.rounds} rounds; {who}: {spent}")
    if len(clients):
        who = f"{S} ranks, each on average: " if S > 1 else ""
        own = _spent(np.mean(servers, axis=0))
        lines.append(f"server    {who}{own}; {totals.both:.1f} s of its computing while clients computed")
    slowest, late = max(totals.late.items(), key=lambda item: item[1], default=(0, 0.0))
    if late > NOTABLE * totals.wall:
        lines.append(
            f"waited    the server {late:.1f} s ({late / totals.wall:.0%} of the run) for client rank {slowest}, which "
            "computes longer than the others on average: give it fewer clients, or a core of its own"
        )
    down, up = bytes_in_words(totals.bytes_down), bytes_in_words(totals.bytes_up)
    lines.append(f"sent      {down} down to clients, {up} up to the server, as the method's protocol has it")
    if totals.transport:
        lines.append(f"moved     {bytes_in_words(totals.transport)} between the ranks, as this run carried it out")
    if totals.losses:
        lost = ", ".join(str(rank) for loss in totals.losses for rank in loss.ranks)
        repeated = sum(loss.repeated for loss in totals.losses)
        lines.append(f"survived  the loss of ranks {lost}; {repeated} rounds begun again")
    lines.append(f"result    {path}")
    if warning := astray(totals.course, "objective" if "objective" in totals.last else "test loss"):
        lines.append(f"warning   {warning}")
    return "\n".join(lines)


def astray(course: Sequence[tuple[int, float]], called: str) -> str:
    """A sentence on a quantity, by its (round, value), that diverges or stands still; else ""."""
    values = [value for _, value in course]
    if len(values) < 2:
        return ""
    first, last = values[0], values[-1]
    if has_diverged(first, last):
        return f"the {called} went from {first:.4g} after its first round to {last:.4g}: smaller steps may help"
    since = next((k for k in range(len(values) - 1, -1, -1) if values[k] != last), -1) + 1
    if len(values) - since < STILL:
        return ""
    rounds = course[-1][0] - course[since][0]
    return f"the {called} is the same to the bit for the last {rounds} rounds: larger steps, or --dtype float64?"


def _spent(seconds: NDArray[np.float64]) -> str:
    compute, wait, comm = seconds
    return f"computing {compute:.1f} s, waiting {wait:.1f} s, sending {comm:.1f} s"
