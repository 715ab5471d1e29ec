"""The figure of one run for a paper: test accuracy and loss, seconds and bytes of a round, against rounds."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError
from zofl_mpi.report.facts import LOSSES, last
from zofl_mpi.run import records

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
FAR = 3.0
Array = NDArray[Any]


def draw(run: records.Run) -> Any:
    """A matplotlib figure of 3.5 inches, the width of a column.

    UserError: the run has no finished round yet, or matplotlib is not installed.
    """
    if not run.length:
        raise UserError(f"{run.path} has no finished round yet")
    try:
        import matplotlib

        matplotlib.use("Agg")  # before pyplot: a node of a cluster has no display
        import matplotlib.pyplot as plt
    except ImportError as exc:
        raise UserError("the figure needs matplotlib, which is not installed: pip install 'zofl_mpi[report]'") from exc
    with plt.rc_context({"font.size": 8}):
        scored = any(last(run, name) is not None for name in ("test_accuracy", *LOSSES))
        panels = [quality, seconds, sizes] if scored else [seconds, sizes]
        figure, axes = plt.subplots(
            len(panels), 1, figsize=(3.5, 0.5 + 1.45 * len(panels)), sharex=True, layout="constrained", squeeze=False
        )
        for panel, axis in zip(panels, axes[:, 0], strict=True):
            panel(run, axis)
            axis.grid(color="0.9", linewidth=0.5)
            axis.spines["top"].set_visible(False)
        axes[-1, 0].set_xlabel("finished rounds")
        axes[0, 0].set_title(title(run), fontsize=8, loc="left")
    return figure


def quality(run: records.Run, axis: Any) -> None:
    """Draws test accuracy and loss, in the rounds that were evaluated."""
    if last(run, "test_accuracy") is not None:
        axis.plot(*evaluated(run, "test_accuracy", 100.0), color=BLUE, marker=_marker(run), markersize=3)
        axis.set_ylabel("test accuracy (%)", color=BLUE)
    else:
        axis.set_yticks([])
    name = next((name for name in LOSSES if last(run, name) is not None), None)
    if name is None:
        return
    other = axis.twinx()
    other.spines["top"].set_visible(False)
    other.plot(*evaluated(run, name), color=ORANGE, linestyle="--", marker=_marker(run), markersize=3)
    unit = run.units.get(name, "1")
    other.set_ylabel(name.replace("_", " ") + ("" if unit in ("", "1") else f" ({unit})"), color=ORANGE)


def seconds(run: records.Run, axis: Any) -> None:
    """Draws the wall time of a round, and what the busiest rank spent on computing; tells what came before the first.

    A first round that took FAR times as long as any other has loaded what the others use: it is told, not drawn.
    """
    told = [f"start {run.attrs['seconds_start']:.3g} s"] if "seconds_start" in run.attrs else []
    top = None
    if "seconds" in run.rounds:
        wall = evaluated(run, "seconds")[1]
        if len(wall) > 1 and wall[0] > FAR * wall[1:].max():
            top = wall[1:].max()
            told.append(f"round 1 {wall[0]:.3g} s")
        axis.plot(*evaluated(run, "seconds"), color=BLUE, label="whole round")
    busiest = run.ranks["seconds_compute"].sum(1).max(1, initial=0.0)
    axis.fill_between(done(run), busiest, color=GREEN, alpha=0.3, linewidth=0, label="computing, busiest rank")
    axis.set_ylabel("seconds a round")
    axis.set_ylim(0, 1.6 * (top or axis.get_ylim()[1]))  # room for the legend above the curves
    axis.legend(frameon=False, loc="upper left", title=", ".join(told) or None, alignment="left")


def sizes(run: records.Run, axis: Any) -> None:
    """Draws the bytes of a round, all clients together."""
    down, up = (run.clients[name].sum((1, 2)) for name in ("bytes_down", "bytes_up"))
    scale, unit = _unit(max(down.max(initial=0), up.max(initial=0)))
    axis.plot(done(run), down / scale, color=PURPLE, label="to the clients")
    axis.plot(done(run), up / scale, color=ORANGE, linestyle="--", label="to the server")
    axis.set_ylabel(f"{unit} a round")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)


def done(run: records.Run) -> Array:
    """(R,) 1, 2, ..., R."""
    return np.arange(1, run.length + 1)


def evaluated(run: records.Run, name: str, scale: float = 1.0) -> tuple[Array, Array]:
    """The rounds that have the number `name`, and the numbers."""
    values = run.rounds[name]
    there = np.isfinite(values)
    return done(run)[there], scale * values[there]


def title(run: records.Run) -> str:
    """Method, data and ranks of a run, in a line."""
    words = [str(run.config[key]) for key in ("method", "data") if run.config.get(key)]
    ranks = int(run.attrs["ranks"])
    state = "" if run.attrs.get("status") == "done" else f", {run.attrs.get('status')}"
    return f"{', '.join(words) or run.path.stem}, {ranks} rank{'s' if ranks > 1 else ''}{state}"


def _marker(run: records.Run) -> str:
    """The marker of a line: dots where there are few points; a line of hundreds of dots hides itself."""
    points = max(
        int(np.isfinite(run.rounds[name]).sum()) for name in ("test_accuracy", *LOSSES) if last(run, name) is not None
    )
    return "o" if points <= 60 else ""


def _unit(largest: float) -> tuple[float, str]:
    power = min(3, int(math.log(max(largest, 1.0), 1024)))
    return 1024.0**power, ("bytes", "KiB", "MiB", "GiB")[power]
