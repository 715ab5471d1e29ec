"""Numbers and messages about a result, for the page and the terminal."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from zofl_mpi.engine.ledger import bytes_in_words
from zofl_mpi.errors import plain
from zofl_mpi.run.command.family import FAMILIES
from zofl_mpi.run.grid.state import held
from zofl_mpi.run.records import Run, checkpoint_path

Facts = dict[str, str]
LOSSES = ("test_loss", "objective", "loss")
"""Columns that fall during training; the first one in a run is its loss."""
CELL = 200
"""Characters of a text in a table."""
UNTOLD = {"method", "rounds", "out", "resume", "force", "data_dir", "checkpoint_every"}
"""Flags that do not distinguish runs: they change no number, or have a column."""


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its method, and at most three distinguishing flags."""
    named = [run.config for run in runs]
    shared = [key for key in named[0] if key not in UNTOLD and all(key in config for config in named)]
    differ = [key for key in shared if len({repr(config[key]) for config in named}) > 1][:3]
    made = []
    for run, config in zip(runs, named, strict=True):
        words = [f"{key} {config[key]}" for key in differ]
        made.append(plain(", ".join([str(config.get("method", run.path.stem)), *words]), CELL))
    return [
        name if made.count(name) == 1 else f"{name} ({run.path.name})" for name, run in zip(made, runs, strict=True)
    ]


def state(run: Run) -> str:
    """State of a run: done, running or ended; a killed run's file says "running", but no process holds its lock."""
    status = str(run.attrs.get("status"))
    if status == "running" and not held(run.path):
        return "killed, or running where the file system has no locks"
    return plain(status, CELL)


def summary(run: Run) -> Facts:
    """Row of a run in a comparison of runs."""
    down, up = (int(run.clients[name].sum()) for name in ("bytes_down", "bytes_up"))
    seconds = run.rounds.get("seconds", np.full(run.length, np.nan))
    loss = next((name for name in LOSSES if last(run, name) is not None), "")
    each = run.attrs.get("directions_per_parameter")
    return {
        "state": state(run),
        "rounds": plain(f"{run.length} of {run.config.get('rounds', '?')}", CELL),
        "test accuracy": _percent(last(run, "test_accuracy")),
        "personal accuracy": _percent(last(run, "personal_accuracy")),
        "loss": f"{last(run, loss):.4g} ({loss.replace('_', ' ')})" if loss else "",
        "seconds": f"{float(np.nansum(seconds)):.1f}",
        "seconds a round": f"{float(np.nanmedian(seconds)):.3g}" if np.isfinite(seconds).any() else "",
        "down to clients": bytes_in_words(down),
        "up to the server": bytes_in_words(up),
        "between ranks": bytes_in_words(moved) if (moved := _moved(run)) else "",
        "directions per parameter": "" if each is None else f"{float(each):.3g}",
        "ranks": str(int(run.attrs["ranks"])),
    }


def table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Names and cells of the comparison's columns; a column that is empty in all runs is left out."""
    rows = [summary(run) for run in runs]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    return names, [[row[name] for name in names] for row in rows]


def origin(run: Run) -> Facts:
    """Origin of a run: command, code, machines, libraries."""
    attrs = run.attrs
    dirty = ", with uncommitted changes" if attrs.get("git_dirty") else ""
    sessions, versions = _stored(run, "sessions"), dict(_stored(run, "versions"))
    begun = ", ".join(str(session["from_round"]) for session in sessions)
    facts = {
        "file": run.path.name,
        "command": str(attrs.get("command", "")),
        "started": str(attrs.get("started", "")),
        "ended": str(attrs.get("ended", "")),
        "sessions": f"{len(sessions)}, from round {begun}" if len(sessions) > 1 else "",
        "code": f"commit {attrs['git_commit']}{dirty}" if attrs.get("git_commit") else "",
        "data": str(attrs.get("data", "")),
        "hosts": _counted(_stored(run, "hosts")),
        "devices": _counted(_stored(run, "device")),
        "threads": _counted(_stored(run, "threads"), "{} a rank"),
        "MPI": str(attrs.get("mpi", "")),
        "kernel": str(attrs.get("kernel_choice", attrs.get("kernel", ""))),
        "libraries": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return {name: plain(text) for name, text in facts.items() if text}


def resumed_by(run: Run) -> str:
    """Command that continues an unfinished run; "" without a checkpoint, or if it is done."""
    module = str(run.attrs.get("command", "")).removeprefix("python -m ").partition(" ")[0]
    over = state(run) == "interrupted" or state(run).startswith("killed")
    if not over or module not in FAMILIES or not checkpoint_path(run.path).exists():
        return ""
    ranks = int(run.attrs["ranks"])
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return shlex.join([*launcher, "python", "-m", module, "--resume", str(run.path)])


def sentences(run: Run) -> list[str]:
    """Start, times and bytes of a run, as in its closing lines, and how to continue it."""
    lines = [f"This command continues it: {command}"] if (command := resumed_by(run)) else []
    if "seconds_start" in run.attrs:
        lines.append(f"Start: {float(run.attrs['seconds_start']):.1f} s from the command to the first round.")
    if run.length:
        compute, wait, comm = (run.ranks[f"seconds_{kind}"].sum((0, 1)) for kind in ("compute", "wait", "comm"))
        S = run.server_ranks
        several = compute.size > 1
        who, of = ("On average a client rank", slice(S, None)) if several else ("The one process", slice(None))
        means = [float(np.mean(values[of])) for values in (compute, wait, comm)]
        lines.append("{} spent {:.1f} s computing, {:.1f} s waiting and {:.1f} s sending.".format(who, *means))
        if several:
            slowest = S + int(np.argmax(compute[S:]))
            who, both = "The server" if S == 1 else f"Each of {S} server ranks", float(run.overlap().both.sum())
            lines.append(
                f"{who} spent {compute[:S].mean():.1f} s computing, {both:.1f} s of them while clients computed; "
                f"client rank {slowest} computed longest, {compute[slowest]:.1f} s."
            )
    if moved := _moved(run):
        lines.append(
            f"Its ranks moved {bytes_in_words(moved)} to carry it out (transport); a client's bytes are those of the "
            "method's protocol."
        )
    each = run.attrs.get("directions_per_parameter")
    if each is not None:
        lines.append(f"The run drew {float(each):.3g} directions per parameter.")
    if missing := _stored(run, "missing_rounds"):
        lines.append(f"Rows of rounds {missing} are lost.")
    return lines


def last(run: Run, name: str) -> float | None:
    """The latest number of a column, or None."""
    values = run.rounds.get(name, np.empty(0))
    values = values[np.isfinite(values)]
    return float(values[-1]) if values.size else None


def _moved(run: Run) -> int:
    """Transport bytes of the run, each once: those that ranks received."""
    return int(run.ranks["transport_received"].sum())


def _stored(run: Run, name: str) -> Any:
    """Value of a JSON attribute, with the type checked by `records.layout`; empty if missing."""
    return json.loads(run.attrs.get(name) or "[]")


def _counted(values: Sequence[Any], form: str = "{}") -> str:
    """Equal values once, with their number: "node1 (4 ranks), node2 (4 ranks)"."""
    counts = Counter(form.format(value) for value in values)
    shown = [f"{text} ({n} rank{'s' if n > 1 else ''})" for text, n in list(counts.items())[:8]]
    return ", ".join(shown + [f"and {len(counts) - 8} more"] * (len(counts) > 8))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"
