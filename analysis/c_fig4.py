"""[C] figure 4: HERON's test accuracy against the smoothing radius and the number of directions, for two client sizes.

python analysis/c_fig4.py [--grid jobs/c_fig4.toml] [--results DIR] [--out NAME] [--partial]

Two panels: mu, for the cells of the fewest directions; n_p, for the cells of the mu that has several. A line for each
size of the client's part, and a level line for its control, whose client part does not train and on which neither mu
nor n_p has an influence. Prints the accuracies after the last round, HERON's less the control's (seed by seed, then
mean and deviation) and the local loss of the last round; writes NAME.txt, NAME.csv, NAME.pdf and NAME.png.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from shared import command, figures, files, wording
from shared.groups import Group, mean_sd, split
from shared.heron import difference, signed, titled
from shared.reading import read

from zofl_mpi.errors import UserError

AXES = ("data", "size", "cell")
PANELS = {"mu": "smoothing radius μ", "n_p": "directions $n_p$"}
DEFAULTS = {"mu": 1e-3, "n_p": 1}
NOTE = (
    "less frozen: the differences to the last test accuracy of the control of the same seed, in points of per cent. "
    "local loss: what the clients see by the auxiliary head, mean over clients and steps of the last round."
)
LEFT_OUT = ("mu", "gamma", "server_fraction")


def main(words: list[str] | None = None) -> None:
    """Print and write the table, draw the figure; exit status 2 if a result is missing."""
    flags = command.parser("c_fig4", __doc__, ["c_fig4.toml"]).parse_args(words)
    with command.refusals("c_fig4"):
        groups = read("c_fig4", flags, AXES, ("cell",))
        rows = [row(group, control(group, groups)) for group in groups]
        note = f"{NOTE} {wording.caption(groups, LEFT_OUT)}."
        files.publish(flags.out, text(groups), note, rows, draw(groups))


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
    found = [g for g in groups if frozen(g) and size(g) == size(group) and g is not group]
    return None if frozen(group) or not found else found[0]


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
        told = wording.listed(f"{mu:g}" for mu in sorted(base))
        raise UserError(f"several n_p are there for mu = {told}: take one mu")
    found = {
        "mu": [g for g in trained if value(g, "n_p") == least],
        "n_p": [g for g in trained if value(g, "mu") in base],
    }
    return {key: sorted(each, key=ordered(key)) for key, each in found.items() if each}


def ordered(key: str) -> Callable[[Group], float]:
    """A key that sorts by a flag."""
    return lambda group: value(group, key)


# --- table

HEADER = ("client's part", "mu", "n_p", "accuracy (%)", "less frozen", "local loss", "seeds")


def text(groups: Sequence[Group]) -> str:
    """Table with a row per size and cell."""
    return wording.aligned(HEADER, [told_of(g, control(g, groups)) for g in groups])


def told_of(group: Group, other: Group | None) -> list[str]:
    """The cells of a row on screen."""
    found = row(group, other)
    less = "" if other is None else signed(difference(group, other), group.planned)
    what = ["frozen", "frozen"] if frozen(group) else [f"{value(group, key):g}" for key in PANELS]
    count = f"{len(group.runs)} of {group.planned}" if group.note else str(group.planned)
    loss = wording.digits(found["local_loss"])
    return [size(group), *what, wording.percent(*group.accuracy()), less, *loss, count]


def row(group: Group, other: Group | None) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    less = mean_sd(100 * difference(group, other) if other is not None else np.array([]))
    return {
        "data": group.entry("data"),
        "cut": group.config.get("cut", 1),
        "frozen": frozen(group),
        "mu": math.nan if frozen(group) else value(group, "mu"),
        "n_p": math.nan if frozen(group) else value(group, "n_p"),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "less_frozen_mean": less[0],
        "less_frozen_sd": less[1],
        "local_loss": mean_sd(group.last("local_loss"))[0],
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


# --- figure


def draw(groups: Sequence[Group]) -> Any:
    """Draws the panels side by side; a line and a level line for each size."""
    shown = panels_of(groups)
    sizes = list(dict.fromkeys(map(size, groups)))
    with plt.rc_context(figures.STYLE):
        figure, panels = figures.canvas(1, len(shown), figures.PAGE, 2.5, sharey=True)
        for panel, (key, found) in zip(panels.flat, shown.items(), strict=True):
            for k, (word, same) in enumerate(split(found, size).items()):
                line(panel, key, [g for g in same if g.runs], f"HERON, {word}", k)
            for other in [g for g in groups if frozen(g) and g.runs]:
                level(panel, other, len(sizes) + sizes.index(size(other)))
            axis(panel, key, found, groups)
        panels[0, 0].set_ylabel("test accuracy (%)")
        figures.legend(figure, panels, 2)
    return figure


def axis(panel: Any, key: str, each: Sequence[Group], groups: Sequence[Group]) -> None:
    """Sets scale, ticks, label and title."""
    panel.set_xscale("log")
    ticks = sorted({value(g, key) for g in each})
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(PANELS[key])
    lacking = [*each, *(g for g in groups if frozen(g))]
    title = wording.spelled(each[0].entry("data")) if key == "mu" else ""
    titled(panel, title, lacking, lambda g: f"{size(g)}, {'frozen' if frozen(g) else f'{value(g, key):g}'}")


def line(panel: Any, key: str, groups: Sequence[Group], label: str, k: int) -> None:
    """Draws a size's points: mean and range, the range where all points have the same number of seeds."""
    if not groups:
        return
    x = np.array([value(g, key) for g in groups])
    if len({len(g.runs) for g in groups}) == 1:
        figures.band(panel, x, 100 * np.stack([g.last("test_accuracy") for g in groups], axis=1), label, k)
    else:
        figures.band(panel, x, np.array([[100 * float(g.last("test_accuracy").mean()) for g in groups]]), label, k)


def level(panel: Any, group: Group, k: int) -> None:
    """Draws the control: a line over the whole panel, and its range over seeds."""
    values, looks = 100 * group.last("test_accuracy"), figures.look(k) | {"marker": ""}
    panel.axhline(float(values.mean()), label=f"frozen client, {size(group)}", **looks)
    if len(values) > 1:
        panel.axhspan(values.min(), values.max(), color=looks["color"], alpha=0.15, linewidth=0)


if __name__ == "__main__":
    main()
