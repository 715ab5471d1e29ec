"""Opens the result file of a run, new or continued, at rank 0 before the first round."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zofl_mpi.engine.setting import Method
from zofl_mpi.engine.world import World
from zofl_mpi.errors import UserError, warn
from zofl_mpi.paths import user_path
from zofl_mpi.run import records
from zofl_mpi.run.command import stored
from zofl_mpi.run.command.plan import Plan
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.run.records import output_path
from zofl_mpi.run.records.hdf5 import Attributes

RESULTS = Path("results")
"""Default folder of results, created in the current folder."""


def opened(
    world: World, method: Method[Any], plan: Plan, attrs: Attributes, rows: Sequence[Mapping[str, int | str]]
) -> tuple[records.Recorder, loop.Restored | None]:
    """Open the result file of a run, new or continued, with these attributes and rows of the table of ranks.

    Returns it and the checkpoint to start from, if any. UserError: it exists, or cannot be written or continued.
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
    recorder.placements(rows)
    if method.setting.counts is not None:
        recorder.partition(method.setting.counts)
    return recorder, resumed


def continued(
    world: World, method: Method[Any], plan: Plan, attrs: Attributes, create: Callable[..., records.Recorder]
) -> tuple[records.Recorder, loop.Restored]:
    """The result in --resume, cut back to its checkpoint, in place or at --out; and the checkpoint."""
    flags, rounds = plan.values, plan.values["rounds"]
    source = loop.result_of(flags["resume"])
    checkpoint = records.load_checkpoint(records.checkpoint_path(source))
    if checkpoint.newer:
        warn(checkpoint.newer)
    before, lost = attributes_of(source, checkpoint)
    check_same_run(source, before, checkpoint.attrs, attrs)
    try:
        resumed = loop.restored(checkpoint, method)  # refused before any row is removed
    except UserError as exc:
        raise UserError(f"--resume {source}: {exc}; take an earlier copy of the two files, or begin again") from exc
    done = resumed.round
    if done > rounds:
        raise UserError(f"--rounds {rounds}: {done} rounds are done already; ask for more: --rounds {done + 100}")
    target = user_path(flags["out"], "--out") if flags["out"] else source
    if target.resolve() == source.resolve():
        target = source
    else:
        output_path.check_new(target, flags["force"])
    if lost:
        if target == source and (kept := output_path.set_aside(source)):
            warn(f"the damaged file is {kept} now")
        recorder = create(target, attrs={**attrs, "run": before.get("run", "")}, start=done)
    else:
        if target != source:
            output_path.copy(source, target)
        m, ranks = method.setting.m, world.size
        recorder = records.Recorder.reopen(target, done, m=m, ranks=ranks, rounds=rounds, attrs=attrs)
    if target != source:
        output_path.remove_checkpoints(target)
    return recorder, resumed


def attributes_of(source: Path, checkpoint: records.Checkpoint) -> tuple[Attributes, bool]:
    """Attributes of a result (of its checkpoint if the result is lost), and True if it is lost."""
    try:
        return records.heading(source).attrs, False
    except records.LostError as error:
        done = checkpoint.attrs["round"]
        warn(
            f"{error}; the run continues from its checkpoint in a new file, in which the rows of rounds 1 to {done} "
            "are missing"
        )
    return checkpoint.attrs, True


def check_same_run(source: Path, before: Attributes, checkpoint: Attributes, now: Attributes) -> None:
    """Refuse to continue another run or with another kernel; warn if only bits may change.

    Compares attributes of the result, of its checkpoint, and of this session.
    """
    if before.get("run") != checkpoint.get("run"):
        raise UserError(f"--resume {source}: its checkpoint belongs to another run: one of the two files was replaced")
    if before.get("data") != now["data"]:
        both = f"({before.get('data')} then, {now['data']} now)"
        data = [str(attrs.get("data")).split(", network ")[0] for attrs in (before, now)]
        if data[0] == data[1]:  # only the network differs
            both += (
                ": if the module is unchanged, another version of zofl_mpi or torch initialised it; continue with the "
                "versions in the result's attributes git_commit and versions"
            )
        raise UserError(f"--resume {source}: data or network are not those that the run began with {both}")
    if before.get("kernel") != now["kernel"]:
        raise UserError(
            f"--resume {source}: its kernel was {before.get('kernel')}, here it is {now['kernel']}, which gives "
            "other bits: name the kernel by --kernel, or use the run's version of zofl_mpi and environment (is numba "
            "installed?)"
        )
    try:
        words = json.loads(before["blas"])
        blas = [", ".join(sorted(set(each))) for each in (words, now["blas"])]
    except (KeyError, TypeError, ValueError) as exc:
        raise UserError(f"--resume {source}: its attribute blas is missing or damaged") from exc
    if blas[0] != blas[1]:
        warn(f"the run began with another BLAS ({blas[0]} then, {blas[1]} now): bits may differ")


def free_name(plan: Plan) -> Path:
    """results/METHOD-PROBLEM-DATA-sSEED.h5, numbered if it exists; without default problem and without missing data."""
    flags = plan.values
    data = [Path(str(flags["data"])).stem[:100]] if "data" in flags else []  # a file system allows about 255 in all
    problem = [flags["problem"][:60]] if flags["problem"] != plan.usual or not data else []
    stem = "-".join([flags["method"], *problem, *data, f"s{flags['seed']}"]).replace(":", ".")
    with suppress(OSError):  # opening the result reports problems with the folder
        RESULTS.mkdir(exist_ok=True)
    names = (RESULTS / f"{stem}{'' if k == 1 else f'-{k}'}.h5" for k in range(1, 1_000_000))
    return next(name for name in names if not name.exists())
