"""[C] figure 3: HERON's test accuracy against the clients' heterogeneity, their number and their participation.

python analysis/c_fig3.py [--grid jobs/c_fig3.toml] [--results DIR] [--out NAME] [--partial]

Three panels: alpha, for the cells with a finite one; the number of clients m, for iid ones of which all take part; the
participating fraction beta, for the iid cells of the m that has several. Beside HERON its control with a frozen client:
where both are alike, what HERON's line shows is not its zeroth-order client's doing; and HERON with GroupNorm: where it
alone does not fall with m, that is BatchNorm's running statistics, which few local steps of a client hardly move.
Prints the accuracies after the last round and HERON's less the control's (seed by seed, then mean and deviation);
writes NAME.txt, NAME.csv, NAME.pdf and NAME.png.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from shared import command, figures, files, wording
from shared.groups import Group, mean_sd, split
from shared.heron import band, difference, name, signed, titled
from shared.reading import read

from zofl_mpi.errors import UserError

AXES = ("data", "cell", "method")
PANELS = {"alpha": "Dirichlet α", "m": "clients", "beta": "participating fraction β"}
NOTE = (
    "HERON less frozen: the differences of the last test accuracies of the same seed, in points of per cent. Cells "
    "differ in h so that the clients take as many local steps together in each round."
)
LEFT_OUT = ("mu", "gamma", "server_fraction", "m", "h")


def main(words: list[str] | None = None) -> None:
    """Print and write the table, draw the figure; exit status 2 if a result is missing."""
    flags = command.parser("c_fig3", __doc__, ["c_fig3.toml"]).parse_args(words)
    with command.refusals("c_fig3"):
        groups = read("c_fig3", flags, AXES, ("cell", "method"))
        panels = panels_of(groups)
        rows = [row(key, g, panels[key]) for key in panels for g in panels[key]]
        note = f"{NOTE} {wording.caption(groups, LEFT_OUT)}."
        files.publish(flags.out, text(panels), note, rows, draw(panels))


# --- which cell is a point of which panel


def value(group: Group, key: str) -> float:
    """A flag's value; where the grid leaves it out, its default: iid, and all clients."""
    return float(group.config.get(key, {"alpha": math.inf, "beta": 1.0}.get(key, math.nan)))


def panels_of(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """{flag: the groups of its panel}, by the flag's value; panels without groups are left out.

    Raises:
        UserError: no cell is a point of any panel, or several m have a beta below 1.
    """
    iid = [g for g in groups if math.isinf(value(g, "alpha"))]
    some = {value(g, "m") for g in iid if value(g, "beta") < 1}
    if len(some) > 1:
        told = wording.listed(f"{m:g}" for m in sorted(some))
        raise UserError(f"cells with beta below 1 have m = {told}: take one m")
    found = {
        "alpha": [g for g in groups if math.isfinite(value(g, "alpha"))],
        "m": [g for g in iid if value(g, "beta") == 1],
        "beta": [g for g in iid if value(g, "m") in some],
    }
    made = {key: sorted(each, key=ordered(key)) for key, each in found.items() if each}
    if not made:
        raise UserError("there is no cell to draw")
    return made


def ordered(key: str) -> Callable[[Group], float]:
    """A key that sorts by a flag; sorting is stable, so that methods stay in the grid's order."""
    return lambda group: value(group, key)


def control(group: Group, groups: Sequence[Group]) -> Group | None:
    """The group of the same cell with a frozen client; None where there is none, or for another method."""
    if group.entry("method") != "heron":
        return None
    cell = group.entry("cell")
    found = [g for g in groups if g.entry("cell") == cell and g.entry("method") == "heron-frozen"]
    return found[0] if found else None


# --- table

HEADER = ("panel", "value", "method", "accuracy (%)", "HERON less frozen", "seeds")


def text(panels: Mapping[str, Sequence[Group]]) -> str:
    """Table with a row per panel, value and method."""
    rows = [told_of(key, group, groups) for key, groups in panels.items() for group in groups]
    return wording.aligned(HEADER, rows, left=3)


def told_of(key: str, group: Group, groups: Sequence[Group]) -> list[str]:
    """The cells of a row on screen."""
    frozen = control(group, groups)
    less = "" if frozen is None else signed(difference(group, frozen), group.planned)
    accuracy = wording.percent(*group.accuracy())
    count = f"{len(group.runs)} of {group.planned}" if group.note else str(group.planned)
    return [PANELS[key], f"{value(group, key):g}", name(group), accuracy, less, count]


def row(key: str, group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    frozen = control(group, groups)
    less = mean_sd(100 * difference(group, frozen) if frozen is not None else np.array([]))
    return {
        "data": group.entry("data"),
        "panel": key,
        "value": value(group, key),
        "method": group.entry("method"),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "less_frozen_mean": less[0],
        "less_frozen_sd": less[1],
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


# --- figure


def draw(panels_shown: Mapping[str, Sequence[Group]]) -> Any:
    """Draws the panels side by side; a line per method."""
    with plt.rc_context(figures.STYLE):
        figure, panels = figures.canvas(1, len(panels_shown), figures.PAGE, 2.3, sharey=True)
        for panel, (key, groups) in zip(panels.flat, panels_shown.items(), strict=True):
            for same in split(groups, lambda g: g.entry("method")).values():
                line(panel, key, [g for g in same if g.runs])
            title = wording.spelled(groups[0].entry("data")) if panel is panels[0, 0] else ""
            titled(panel, title, groups, called(key), 34)
            panel.set_xlabel(PANELS[key])
            if key != "beta":
                panel.set_xscale("log")
            ticks = sorted({value(g, key) for g in groups})
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.minorticks_off()
        panels[0, 0].set_ylabel("test accuracy (%)")
        figures.legend(figure, panels, 2)
    return figure


def called(key: str) -> Callable[[Group], str]:
    """A point's name: its method and value."""
    return lambda group: f"{name(group)} {value(group, key):g}"


def line(panel: Any, key: str, groups: Sequence[Group]) -> None:
    """Draws a method's points: mean and range, the range where all points have the same number of seeds."""
    if not groups:
        return
    x = np.array([value(g, key) for g in groups])
    counts = {len(g.runs) for g in groups}
    if len(counts) == 1:
        band(panel, x, 100 * np.stack([g.last("test_accuracy") for g in groups], axis=1), groups[0])
        return
    means = [100 * float(g.last("test_accuracy").mean()) for g in groups]
    band(panel, x, np.array([means]), groups[0])


if __name__ == "__main__":
    main()
