"""Overview of three runs: what they reach, what they send, and where each rank's time goes.

    for run in "zo_hfl --gamma 1 --beta 0.5" "fedavg --beta 0.5" "server_sgd --gamma 1"; do
      mpirun -n 3 python -m zofl_mpi.zo_hfl --method $run --data mnist --data-dir data \\
        --m 10 --alpha 0.1 --rounds 500 --out results/overview/${run%% *}.h5
    done
    python analysis/a_overview.py results/overview/{zo_hfl,fedavg,server_sgd}.h5

OUT.png and OUT.csv, the numbers in it. Left: the test accuracy of every run's x, and the first run's
`personal_accuracy`, that of its clients' y_i on test samples weighted to the client's own classes. Middle: the bytes of
the runs that send any. Right: the seconds of the first run's ranks.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from shared import command
from shared.budgets import unit_of
from shared.files import Report
from shared.groups import split
from shared.wording import METHODS

from zofl_mpi.errors import UserError
from zofl_mpi.report.palette import BLUE, BYTES, GREEN, ORANGE, SECONDS
from zofl_mpi.run import records

NAMES = METHODS | {"server_sgd": "server alone"}
LINES = ((BLUE, "-"), (ORANGE, "-"), ("0.35", ":"), (GREEN, "-."))
PERSONAL = (BLUE, "--")
WAYS = {"down": "to the clients", "up": "to the server"}
MIB = 2.0**20
PARTS = {"compute": "computing", "wait": "waiting", "comm": "sending"}
Row = dict[str, Any]
"""A number of the figure: panel (accuracy, bytes, seconds), run (the method), what (x or y_i; down or up; compute, wait
or comm), where (the finished rounds, all for a whole run; or the rank), value and unit."""


def report(flags: Any) -> Report:
    """Numbers and figure, and what they end with."""
    runs = [records.load(path) for path in flags.result]
    for run in runs:
        if not np.isfinite(run.rounds.get("test_accuracy", np.nan)).any():
            raise UserError(f"{run.path} has no test accuracy")
    rows = numbers(runs)
    return Report("\n".join(summary(rows)), rows=rows, figure=drawn(rows, title(runs[0])))


FLAGS = {"result": {"type": Path, "nargs": "+", "help": "HDF5 results; y_i and seconds are the first one's"}}
main = command.script("a_overview", __doc__, report, FLAGS)


def numbers(runs: Sequence[records.Run]) -> list[Row]:
    """Everything that the figure shows, in its order."""
    first = runs[0]
    told: list[tuple[Any, ...]] = []
    for run, what, column in (*((run, "x", "test_accuracy") for run in runs), (first, "y_i", "personal_accuracy")):
        values = run.rounds.get(column, np.full(run.length, np.nan))
        told += [("accuracy", run, what, r + 1, 100 * values[r], "%") for r in np.flatnonzero(np.isfinite(values))]
    told += [("bytes", run, what, "all", run.clients[f"bytes_{what}"].sum(), "B") for run in runs for what in WAYS]
    for what in PARTS:
        spent = first.ranks[f"seconds_{what}"].sum((0, 1))
        told += [("seconds", first, what, f"rank {rank}", seconds, "s") for rank, seconds in enumerate(spent)]
    return [
        {"panel": panel, "run": str(run.config["method"]), "what": what, "where": str(where)}
        | {"value": float(value), "unit": unit}
        for panel, run, what, where, value, unit in told
    ]


def drawn(rows: Sequence[Row], heading: str) -> Any:
    """The figure, of 1000 x 400 pixels."""
    with plt.rc_context({"font.size": 8.5, "axes.titlesize": 9}):
        figure, axes = plt.subplots(1, 3, figsize=(8, 3.2), dpi=125, layout="constrained", width_ratios=(1.45, 1, 1))
        for axis, (panel, draw) in zip(axes, PANELS.items(), strict=True):
            draw(axis, [row for row in rows if row["panel"] == panel])
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(heading, fontsize=9, color="0.25")
    return figure


def accuracy(axis: Any, found: Sequence[Row]) -> None:
    """Draws test accuracy in % over finished rounds, a line for every run and one for the y_i."""
    lines = dict.fromkeys((n["run"], n["what"]) for n in found)
    styles = dict(zip(dict.fromkeys(run for run, _ in lines), LINES, strict=False))
    for run, what in sorted(lines, key=lambda line: line[1] == "x"):  # the y_i first
        points = [(int(n["where"]), n["value"]) for n in found if (n["run"], n["what"]) == (run, what)]
        color, style = styles[run] if what == "x" else PERSONAL
        label = f"$x$, {_name(run)}" if what == "x" else "$y_i$ on client i's classes"
        axis.plot(*zip(*points, strict=True), color=color, linestyle=style, linewidth=1.5, label=label)
    axis.set_title("what it reaches", loc="left")
    axis.set_xlabel("finished rounds")
    later = [n["value"] for n in found if int(n["where"]) > 1] or [0.0]  # the first round is far below the others
    least = max(0, 10 * math.floor(min(later) / 10) - 10)
    axis.set_ylim(least, 100)
    axis.set_ylabel("test accuracy (%)" + f", from {least} on" * bool(least))
    axis.set_xlim(left=0)
    axis.grid(axis="y", color="0.9", linewidth=0.6)
    axis.legend(frameon=False, loc="lower right", handlelength=1.8, labelspacing=0.3, borderaxespad=0.1)


def bytes_sent(axis: Any, found: Sequence[Row]) -> None:
    """Draws bytes to the clients and to the server, a pair of bars for every run that sends any."""
    runs = split(found, lambda n: n["run"]).values()
    bars = [n for both in runs if any(n["value"] for n in both) for n in both]
    for place, bar in enumerate(bars):
        axis.barh(place, bar["value"] / MIB, height=0.55, color=BYTES[bar["what"]])
        axis.annotate(_size(bar["value"]), (bar["value"] / MIB, place), (4, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(bars)), [f"{_name(bar['run'])}\n{WAYS[bar['what']]}" for bar in bars])
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set_xlim(right=1.45 * max((bar["value"] for bar in bars), default=MIB) / MIB)
    axis.set_title("what it sends", loc="left")
    axis.set_xlabel("MiB in the whole run")


def seconds(axis: Any, found: Sequence[Row]) -> None:
    """Draws the seconds of every rank, in three parts."""
    ranks = list(dict.fromkeys(n["where"] for n in found))
    start = np.zeros(len(ranks))
    for what, label in PARTS.items():
        values = np.array([n["value"] for n in found if n["what"] == what])
        axis.barh(range(len(ranks)), values, left=start, height=0.55, color=SECONDS[what], label=label)
        start += values
    names = ["rank 0\nserver", *(f"{rank}\nclients" for rank in ranks[1:])] if len(ranks) > 1 else ["rank 0"]
    axis.set_yticks(range(len(ranks)), names)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(ranks) - 0.5, -1.0)  # room for the legend above the bars
    axis.set_title(f"where {_name(found[0]['run'])}'s time goes" if found else "", loc="left")
    axis.set_xlabel("seconds")
    axis.legend(frameon=False, loc="upper left", ncols=3, handlelength=0.9, columnspacing=0.9, borderaxespad=0)


PANELS = {"accuracy": accuracy, "bytes": bytes_sent, "seconds": seconds}


def summary(found: Sequence[Row]) -> list[str]:
    """The last accuracy of every line, and the bytes of every run."""
    last = {(n["run"], n["what"]): n for n in found if n["panel"] == "accuracy"}
    lines = [f"{_name(run)}, {what}: {n['value']:.1f} % after {n['where']} rounds" for (run, what), n in last.items()]
    return lines + [f"{_name(n['run'])}, {n['what']}: {_size(n['value'])}" for n in found if n["panel"] == "bytes"]


def title(run: records.Run) -> str:
    """The setting of a run, in a line."""
    flags = run.config
    words = [
        str(flags.get("data", "")).upper(),
        f"{flags['m']} clients",
        f"{100 * flags['beta']:g} % of them in a round" if "beta" in flags else "",
        f"classes shared out by Dirichlet({flags['alpha']:g})" if "alpha" in flags else "",
        f"{run.attrs['ranks']} MPI ranks",
    ]
    return ", ".join(word for word in words if word)


def _name(method: str) -> str:
    return NAMES.get(method, method)


def _size(count: float) -> str:
    """Three digits and a unit of 1024's powers, as the command line writes sizes."""
    scale, unit = unit_of(count)
    return f"{count / scale:.3g} {unit}"


if __name__ == "__main__":
    main()
