"""[C] figure 3: HERON's test accuracy against the clients' heterogeneity, their number and their participation.

python analysis/c_fig3.py [--grid jobs/c_fig3.toml] [--results DIR] [--out NAME] [--partial]

Three panels: alpha, for the cells with a finite one; the number of clients m, for iid ones of which all take part; the
participating fraction beta, for the iid cells of the m that has several. Beside HERON its control with a frozen client:
where both are alike, what HERON's line shows is not its zeroth-order client's doing; and HERON with GroupNorm: where it
alone does not fall with m, that is BatchNorm's running statistics, which few local steps of a client hardly move.
Prints the accuracies after the last round and HERON's less the control's (seed by seed, then mean and deviation).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from shared import figures, wording
from shared.groups import Group, split
from shared.heron import LEFT_OUT, band, name, points, signed, titled
from shared.study import ALONE, SEEDS, Column, Study, alike, compared, entry

from zofl_mpi.errors import UserError

PANELS = {"alpha": "Dirichlet α", "m": "clients", "beta": "participating fraction β"}
NOTE = (
    "HERON less frozen: the differences of the last test accuracies of the same seed, in points of per cent. Cells "
    "differ in h so that the clients take as many local steps together in each round."
)


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
    made = {key: sorted(each, key=lambda g: value(g, key)) for key, each in found.items() if each}
    if not made:
        raise UserError("there is no cell to draw")
    return made


def arranged(groups: Sequence[Group]) -> list[Group]:
    """The groups panel by panel, with their panel as a coordinate."""
    return [replace(g, where=g.where | {"panel": key}) for key, each in panels_of(groups).items() for g in each]


def control(group: Group, groups: Sequence[Group]) -> Group | None:
    """The group of the same cell with a frozen client; None where there is none, or for another method."""
    return alike(group, groups, "cell", method="heron-frozen") if group.entry("method") == "heron" else None


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws the panels side by side; a line per method."""
    shown = split(groups, lambda g: g.entry("panel"))
    figure, panels = figures.canvas(1, len(shown), figures.PAGE, 2.3, sharey=True)
    for panel, (key, found) in zip(panels.flat, shown.items(), strict=True):
        for same in split(found, lambda g: g.entry("method")).values():
            if having := [g for g in same if g.runs]:
                band(panel, np.array([value(g, key) for g in having]), figures.points(having), having[0])
        title = wording.spelled(found[0].entry("data")) if panel is panels[0, 0] else ""
        titled(panel, title, found, called, 34)
        panel.set_xlabel(PANELS[key])
        if key != "beta":
            panel.set_xscale("log")
        figures.ticks(panel, (value(g, key) for g in found))
    panels[0, 0].set_ylabel("test accuracy (%)")
    figures.legend(figure, panels, 3, "one seed each" if all(len(g.runs) < 2 for g in groups) else figures.BAND)
    return figure


def called(group: Group) -> str:
    """A point's name: its method and value."""
    return f"{name(group)} {value(group, group.entry('panel')):g}"


STUDY = Study(
    "c_fig3",
    __doc__,
    grids=["c_fig3.toml"],
    axes=("data", "cell", "method"),
    needed=("cell", "method"),
    columns=(
        entry("data"),
        entry("panel", "panel", lambda group: PANELS[group.entry("panel")]),
        Column(
            lambda group, _: {"value": value(group, group.entry("panel"))},
            "value",
            lambda group, _: f"{value(group, group.entry('panel')):g}",
        ),
        entry("method", "method", name),
        ALONE,
        compared("less_frozen", "HERON less frozen", points, signed),
        SEEDS,
    ),
    arrange=arranged,
    control=control,
    note=lambda groups: f"{NOTE} {wording.caption(groups, (*LEFT_OUT, 'm', 'h'))}.",
    draw=draw,
    left=3,
)
main = STUDY.main

if __name__ == "__main__":
    main()
