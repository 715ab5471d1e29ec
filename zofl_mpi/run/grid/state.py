"""State of a grid's runs: progress, completing command, and running process."""

import fcntl
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.command import flags
from zofl_mpi.run.grid.file import Grid, GridRun, arguments, resolved

FREE_FLAGS = {"data_dir", "device", "checkpoint_every"}
"""Flags that a finished result may have otherwise: neither an iterate nor a column depends on them."""


def state_of(grid: Grid, run: GridRun) -> tuple[str, str]:
    """State of a run, as a word and a message.

    missing; running; interrupted (can be resumed); begun (ended before its first checkpoint; starts over); finished;
    broken (cut off during a write; starts over, the file is renamed). other: left alone.
    """
    if held(run.log):
        return "running", f"whoever runs it holds the lock of {run.log}"
    return judged(grid, run)


def judged(grid: Grid, run: GridRun) -> tuple[str, str]:
    """State of a run from its result alone, as a word and a message."""
    if not os.path.lexists(run.out):
        return "missing", f"there is no result {run.out}"
    try:
        result = records.heading(run.out)
    except UserError as exc:
        cut_off = isinstance(exc, records.LostError) and os.path.isfile(run.out)
        return ("broken" if cut_off else "other"), str(exc)
    if result.attrs["status"] == "running" and held(run.out):  # HDF5 locks a file that it writes
        return "running", f"{run.out} is being written"
    planned = resolved(grid.module, run.flags)
    before = result.config
    kept = {k: v for k, v in planned.items() if k in before or k in run.flags}  # a later 1.x may have more flags
    derived = str(result.attrs.get("derived_flags", "")).split()  # what follows from a budget is no choice
    free = FREE_FLAGS | {"rounds", *derived}
    names = [k for k in {**before, **kept} if k not in free and before.get(k) != kept.get(k)]
    if names:
        return "other", _other(flags.changes(names, before, kept))
    return _how_far(result, planned["rounds"], "rounds" in derived)


def _how_far(result: records.Heading, rounds: int, budget: bool) -> tuple[str, str]:
    done, saved = result.attrs["status"] == "done", None
    if done and budget and result.length < rounds:
        return "finished", f"{result.length} of {rounds} rounds are done: its budget ended it"
    if done and result.length == rounds:
        return "finished", f"{rounds} rounds are done"
    with suppress(UserError):
        saved = int(records.load_checkpoint(records.checkpoint_path(result.path), whole=False).attrs["round"])
    if (done and result.length > rounds) or (saved or 0) > rounds:
        return "other", _other(f"--rounds was {result.config['rounds']}, is now {rounds}")
    if saved is not None:
        return "interrupted", f"{result.length} of {rounds} rounds are done, {saved} of them in the checkpoint"
    if done:
        return "other", _other(f"--rounds was {result.length}, is now {rounds}, and it has no checkpoint")
    return "begun", f"ended after {result.length} of {rounds} rounds, before its first checkpoint"


def _other(difference: str) -> str:
    return f"result of another configuration: {difference}; remove it or give another --results"


def finished(grid: Grid, run: GridRun) -> records.Run | str:
    """The result of a run of a grid, or the reason why there is none."""
    try:
        word, sentence = state_of(grid, run)
        if word == "finished":
            return records.load(run.out)
    except UserError as error:
        return f"{run.name}: {error}"
    return f"{run.name}: {sentence}{_last_words(run.log) if word in ('missing', 'begun', 'interrupted') else ''}"


def _last_words(log: Path) -> str:
    """Last line that a run printed: the reason, if it failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f"; its log ends: {lines[-1].strip()[:200]}" if lines else ""


def command(grid: Grid, run: GridRun, word: str, launcher: Sequence[str]) -> list[str]:
    """Command that completes a run in the state `word`."""
    out = str(run.out)
    target = {"interrupted": ["--resume", out], "begun": ["--out", out, "--force"]}.get(word, ["--out", out])
    return [*launcher, sys.executable, "-m", grid.module, *arguments(grid.module, run.flags), *target]


def typed(words: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join("python" if word == sys.executable else word for word in words)


def held(path: Path) -> bool:
    """True if a process holds the lock of a file; never where the file system has no locks."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe that nobody writes waits for ever
        try:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(number)
        return False
    except OSError as exc:
        return isinstance(exc, BlockingIOError)
