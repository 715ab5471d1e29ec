"""[C] figure 2: test accuracy against rounds, iid and non-iid clients, of all methods and of HERON's controls.

python analysis/c_fig2.py [--grid jobs/c_fig2.toml] [--results DIR] [--out NAME] [--partial]

Prints, for each setting and method, the accuracy after the last round, HERON's less it (seed by seed, then mean and
deviation), and the local loss in the first and in the last round; writes NAME.txt, NAME.csv, NAME.pdf and NAME.png. The
controls decide what HERON's zeroth-order steps do: with a frozen client they train the auxiliary head alone, which the
final classifier does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from shared import command, figures, files, wording
from shared.groups import Group, mean_sd, series, split
from shared.heron import band, difference, name, place, setting, signed, titled
from shared.reading import read

AXES = ("data", "cell", "method")
NOTE = (
    "HERON less it: the differences of the last test accuracies of the same seed, in points of per cent. local loss: "
    "what the clients themselves see, by the auxiliary head (SplitFed has none), mean over clients and steps of the "
    "first and of the last round."
)
LEFT_OUT = ("mu", "gamma", "server_fraction")


def main(words: list[str] | None = None) -> None:
    """Print and write the table, draw the figure; exit status 2 if a result is missing."""
    flags = command.parser("c_fig2", __doc__, ["c_fig2.toml"]).parse_args(words)
    with command.refusals("c_fig2"):
        groups = read("c_fig2", flags, AXES, ("method",))
        rows = [row(group, heron_of(group, groups)) for group in groups]
        note = f"{NOTE} {wording.caption(groups, LEFT_OUT)}."
        files.publish(flags.out, text(groups), note, rows, draw(groups))


def heron_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """HERON in the same setting; None where the grid has none."""
    found = [g for g in groups if g.entry("method") == "heron" and g.entry("cell") == group.entry("cell")]
    return found[0] if found else None


# --- table

HEADER = ("setting", "method", "accuracy (%)", "HERON less it", "local loss, first", "last")


def text(groups: Sequence[Group]) -> str:
    """Table with a row per setting and method."""
    return wording.aligned(HEADER, [told_of(g, heron_of(g, groups)) for g in groups], left=2)


def told_of(group: Group, heron: Group | None) -> list[str]:
    """The cells of a row on screen."""
    found = row(group, heron)
    less = "" if heron is None or heron is group else signed(difference(heron, group), group.planned)
    losses = wording.digits(found["local_loss_first"], found["local_loss_last"])
    return [setting(group), name(group), wording.percent(*group.accuracy(), group.note), less, *losses]


def row(group: Group, heron: Group | None) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    losses = np.array([series(run, "local_loss")[[0, -1]] for run in group.runs]).reshape(-1, 2)
    less = mean_sd(100 * difference(heron, group) if heron is not None else np.array([]))
    return {
        "data": group.entry("data"),
        "setting": group.entry("cell"),
        "method": group.entry("method"),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "heron_less_it_mean": less[0],
        "heron_less_it_sd": less[1],
        "local_loss_first": mean_sd(losses[:, 0])[0],
        "local_loss_last": mean_sd(losses[:, 1])[0],
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


# --- figure


def draw(groups: Sequence[Group]) -> Any:
    """Draws a panel per setting, side by side; a line per method."""
    panels_of = split(groups, setting)
    width = figures.COLUMN if len(panels_of) == 1 else figures.PAGE
    with plt.rc_context(figures.STYLE):
        figure, panels = figures.canvas(1, len(panels_of), width, 2.6, sharey=True)
        for panel, (title, found) in zip(panels.flat, panels_of.items(), strict=True):
            for group in sorted(found, key=place):
                if group.runs:
                    at, values = group.curve("test_accuracy")
                    band(panel, at, 100 * values, group)
            titled(panel, title, found, name)
            panel.set(xlim=(0, None), xlabel="rounds")
        panels[0, 0].set_ylabel("test accuracy (%)")
        figures.legend(figure, panels, 2 if width == figures.COLUMN else 3)
    return figure


if __name__ == "__main__":
    main()
