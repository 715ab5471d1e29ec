"""[C] figure 4: HERON's test accuracy against the smoothing radius and the number of directions, for two client sizes.

python analysis/c_fig4.py [--grid jobs/c_fig4.toml] [--results DIR] [--out NAME] [--partial]

Two panels: mu, for the cells of the fewest directions; n_p, for the cells of the mu that has several. A line for each
size of the client's part, and a level line for its control, whose client part does not train and on which neither mu
nor n_p has an influence. Prints the accuracies after the last round, HERON's less the control's (seed by seed, then
mean and deviation) and the local loss of the last round.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from shared import figures, wording
from shared.groups import Group, mean_sd, split
from shared.heron import LEFT_OUT, points, signed, titled
from shared.study import ALONE, SEEDS, Column, Study, compared, entry, number, word

from zofl_mpi.errors import UserError

PANELS = {"mu": "smoothing radius μ", "n_p": "directions $n_p$"}
DEFAULTS = {"mu": 1e-3, "n_p": 1}
NOTE = (
    "less frozen: the differences to the last test accuracy of the control of the same seed, in points of per cent. "
    "local loss: what the clients see by the auxiliary head, mean over clients and steps of the last round."
)


# --- which cell is a point of which panel


def frozen(group: Group) -> bool:
    """Whether a group is the control."""
    return str(group.config.get("freeze")) == "client"


def value(group: Group, key: str) -> float:
    """The value of mu or n_p; the grid's flags may leave them out."""
    return float(group.config.get(key, DEFAULTS[key]))


def size(group: Group) -> str:
    """Size of the client's part: 1 block at the client."""
    cut = int(group.config.get("cut", 1))
    return f"{cut} block{'' if cut == 1 else 's'} at the client"


def control(group: Group, groups: Sequence[Group]) -> Group | None:
    """The control of the same size; None where there is none, or the group is it."""
    return next((g for g in groups if frozen(g) and size(g) == size(group)), None) if not frozen(group) else None


def panels_of(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """{flag: the groups of its panel}, by its value.

    Raises:
        UserError: there is nothing but controls, or several mu have several n_p.
    """
    trained = [g for g in groups if not frozen(g)]
    if not trained:
        raise UserError("there is no cell with a client that trains")
    least = min(value(g, "n_p") for g in trained)
    base = {value(g, "mu") for g in trained if value(g, "n_p") > least}
    if len(base) > 1:
        several = wording.listed(f"{mu:g}" for mu in sorted(base))
        raise UserError(f"several n_p are there for mu = {several}: take one mu")
    found = {
        "mu": [g for g in trained if value(g, "n_p") == least],
        "n_p": [g for g in trained if value(g, "mu") in base],
    }
    return {key: sorted(each, key=lambda g: value(g, key)) for key, each in found.items() if each}


def told(key: str, group: Group) -> str:
    """A group's mu or n_p in words."""
    return "frozen" if frozen(group) else f"{value(group, key):g}"


def called(key: str, group: Group) -> str:
    """A point's name: its size and value."""
    return f"{size(group)}, {told(key, group)}"


def flag(key: str) -> Column:
    """The column of mu or n_p."""
    return Column(
        lambda group, _: {key: math.nan if frozen(group) else value(group, key)},
        key,
        lambda group, _: told(key, group),
    )


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws the panels side by side; a line and a level line for each size."""
    shown = panels_of(groups)
    sizes = list(dict.fromkeys(map(size, groups)))
    controls = [g for g in groups if frozen(g)]
    figure, panels = figures.canvas(1, len(shown), figures.PAGE, 2.5, sharey=True)
    for panel, (key, found) in zip(panels.flat, shown.items(), strict=True):
        for k, (part, same) in enumerate(split(found, size).items()):
            if having := [g for g in same if g.runs]:
                x = np.array([value(g, key) for g in having])
                figures.band(panel, x, figures.points(having), f"HERON, {part}", k)
        for other in controls:
            if other.runs:
                level(panel, other, len(sizes) + sizes.index(size(other)))
        panel.set(xscale="log", xlabel=PANELS[key])
        figures.ticks(panel, (value(g, key) for g in found))
        title = wording.spelled(found[0].entry("data")) if key == "mu" else ""
        titled(panel, title, [*found, *controls], partial(called, key))
    panels[0, 0].set_ylabel("test accuracy (%)")
    figures.legend(figure, panels, 2)
    return figure


def level(panel: Any, group: Group, k: int) -> None:
    """Draws the control: a line over the whole panel, and its range over seeds."""
    values, looks = 100 * group.last("test_accuracy"), figures.look(k) | {"marker": ""}
    panel.axhline(float(values.mean()), label=f"frozen client, {size(group)}", **looks)
    if len(values) > 1:
        panel.axhspan(values.min(), values.max(), color=looks["color"], alpha=0.15, linewidth=0)


STUDY = Study(
    "c_fig4",
    __doc__,
    grids=["c_fig4.toml"],
    axes=("data", "size", "cell"),
    needed=("cell",),
    columns=(
        entry("data"),
        Column(lambda group, _: {"cut": group.config.get("cut", 1), "frozen": frozen(group)}),
        word("client's part", size),
        flag("mu"),
        flag("n_p"),
        ALONE,
        compared("less_frozen", "less frozen", points, signed),
        number("local_loss", lambda group, _: mean_sd(group.last("local_loss"))[0], "local loss"),
        SEEDS,
    ),
    control=control,
    note=lambda groups: f"{NOTE} {wording.caption(groups, LEFT_OUT)}.",
    draw=draw,
    left=1,
)
main = STUDY.main

if __name__ == "__main__":
    main()
