"""A lower level whose constraint binds: ZO-HFL reaches the known optimum, implicit differentiation ends elsewhere.

python analysis/a_caps.py [--eta 0.3 0.1 0.03] [--rounds 600] [--seeds 3] [--out NAME]

No results needed. Client i solves min_y 1/2 |y - t_i|^2 over y <= x, so y_i(x) = min(t_i, x) (`--problem caps` of
zofl_mpi.zo_hfl, 10 clients, 4 entries); the implicit function F has a kink at each t_i, and its minimiser is one of
them. ZO-HFL runs as it is, with Algorithm 2 for the clients' problems. Beside it the first-order surrogate: descent
along f_1's gradient plus (dy/dx)' grad_y f_2, with dy/dx from the implicit function theorem on h_i, which does not see
the constraint. Prints where both end; draws F with its kinks, and F - F* over rounds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.numerics.schedules import stepsize
from zofl_mpi.problems.analytic.caps import Caps
from zofl_mpi.report import palette
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

CAPS = Caps()
START = 2.5  # beyond all wishes: no constraint binds
GAMMA, SCHEDULE = 0.1, "sqrt"


def report(flags: Any) -> Report:
    """Where the descents end, and the figure."""
    found = {eta: [zeroth_order(eta, flags.rounds, seed + 1) for seed in range(flags.seeds)] for eta in flags.eta}
    first = surrogate(flags.rounds)
    rows = rows_of(found, first)
    return Report(*text(rows), rows, draw(found, first))


FLAGS = {
    "--eta": command.flag([0.3, 0.1, 0.03], "radii"),
    "--rounds": command.flag(600, "of each descent"),
    "--seeds": command.flag(3, "of ZO-HFL"),
}
main = command.script("a_caps", __doc__, report, FLAGS)

# --- the descents


def zeroth_order(eta: float, rounds: int, seed: int) -> Array:
    """(rounds + 1, n) x_0, x_1, ... of ZO-HFL."""
    data = (range(1),) * CAPS.m
    setting = Setting(CAPS, Streams(seed), data, range(1), range(1), None, np.dtype(np.float64))
    flags = {"gamma": GAMMA, "schedule": SCHEDULE, "eta": eta, "tau": (20.0,), "schedule_h": "constant"}
    of = from_flags(ZOHFL, setting, gamma_local=0.5, schedule_local="constant", batch=1, server_batch=1, **flags)
    state, clients = of.start(), LocalClients(list(data), method=of)
    points = [np.full(CAPS.n, START)]
    for r in range(rounds):
        state = of.round(type(state)(points[-1]), r, clients)
        points.append(state.x)
    return np.stack(points)


def surrogate(rounds: int) -> Array:
    """(rounds + 1, n) the same steps along the surrogate, the gradient of f_1 alone: dy_i/dx is taken for 0."""
    points = [np.full(CAPS.n, START)]
    for r in range(rounds):
        points.append(points[-1] - stepsize(SCHEDULE, GAMMA, r) * (CAPS.cost * points[-1]))
    return np.stack(points)


def excess(points: Array) -> Array:
    """(R,) F - F*."""
    least = CAPS.implicit(CAPS.minimiser())
    return np.array([CAPS.implicit(x) - least for x in points])


# --- tables and the figure


def rows_of(found: dict[float, list[Array]], first: Array) -> list[dict[str, Any]]:
    """The rows of the CSV: where each descent ends, means over seeds."""
    best = CAPS.minimiser()
    rows = []
    for name, eta, runs in [
        *(("ZO-HFL", eta, runs) for eta, runs in found.items()),
        ("first-order surrogate", None, [first]),
    ]:
        ends = np.stack([points[-1] for points in runs])
        values = np.array([excess(points[-1:])[0] for points in runs])
        rows.append(
            {
                "method": name,
                "eta": "-" if eta is None else f"{eta:g}",
                "x_mean": float(ends.mean()),
                "distance_mean": float(np.linalg.norm(ends - best, axis=1).mean()),
                "excess_mean": float(values.mean()),
                "excess_sd": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
                "seeds": len(runs),
            }
        )
    return rows


def text(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Table of where the descents end, and its note."""
    best = float(CAPS.minimiser()[0])
    left, right = CAPS.slopes(best)
    columns: dict[str, wording.Cell] = {
        "method": "method",
        "eta": "eta",
        "mean entry of x": wording.numbers(".4f", "x_mean"),
        "|x - x*|": wording.numbers(".4f", "distance_mean"),
        "F - F*": wording.numbers(".2e", "excess_mean"),
        "seeds": "seeds",
    }
    note = (
        f"x* = {best:.4f} in every entry, a kink: F has the slopes {left:.3f} and {right:.3f} there. The surrogate's "
        f"limit is 0, where F has the slope {CAPS.slopes(0.0)[0]:.3f}."
    )
    return wording.table(rows, columns), note


@figures.styled
def draw(found: dict[float, list[Array]], first: Array) -> Any:
    """Draws F along equal entries of x, and F - F* over rounds and, of ZO-HFL, after the last one for each eta."""
    figure, ((left, middle, right),) = figures.canvas(1, 3, figures.PAGE, 2.2)
    zeroth, surrogate = (palette.BLUE, "o"), (palette.ORANGE, "s")
    runs = found[max(found)]
    implicit(left, [("first-order surrogate", first, *surrogate), (f"ZO-HFL, η = {max(found):g}", runs[0], *zeroth)])
    middle.plot(excess(first), color=surrogate[0], linestyle="--")
    for points in runs:
        middle.plot(excess(points), color=zeroth[0], linewidth=0.6)
    middle.set(xlabel="rounds", ylabel="$F(x_r) - F^*$", yscale="log")
    middle.set_title(f"over rounds ({len(runs)} seeds)", loc="left")
    ends = [np.array([excess(points[-1:])[0] for points in each]) for each in found.values()]
    figures.barred(right, list(found), *figures.averaged(ends), color=zeroth[0], marker="o", markersize=4, linestyle="")
    right.set(xlabel="smoothing radius η", ylabel="$F(x_R) - F^*$", xscale="log", ylim=(0, None))
    figures.ticks(right, found)
    right.set_title("ZO-HFL, last round\n(bar: 95 % t interval)", loc="left")
    figures.legend(figure, np.array([[left]]), 3, "")
    return figure


def implicit(panel: Any, ends: Sequence[tuple[str, Array, str, str]]) -> None:
    """Draws F of equal entries of x, its kinks, and where the descents end."""
    x = np.linspace(-0.2, START + 0.1, 541)
    panel.plot(x, [CAPS.implicit(np.full(CAPS.n, point)) for point in x], color="0.2")
    for t in CAPS.wishes:
        panel.axvline(t, color="0.85", linewidth=0.6, zorder=0)
    for name, points, colour, marker in ends:
        at = float(points[-1].mean())
        panel.plot([at], [CAPS.implicit(np.full(CAPS.n, at))], color=colour, marker=marker, linestyle="", label=name)
    panel.set(xlabel=f"each of the {CAPS.n} entries of $x$", ylabel="$F$")
    panel.set_title("F, its kinks, both ends", loc="left")


if __name__ == "__main__":
    main()
