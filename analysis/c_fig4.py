"""[C] figure 4: HERON's test accuracy against the smoothing radius and the number of directions, for two client sizes.

python analysis/c_fig4.py [--grid jobs/c_fig4.toml] [--results DIR] [--out NAME] [--partial]

Two panels: mu, for the cells of the fewest directions; n_p, for the cells of the mu that has several. A line for each
size of the client's part: the accuracy less that of its control, whose client part does not train and on which neither
mu nor n_p has an influence. Prints the accuracies after the last round, HERON's less the control's (seed by seed, then
mean and deviation) and the local loss of the last round.
"""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from shared import figures, wording
from shared.groups import Group, mean_sd, split
from shared.heron import LEFT_OUT, points, signed
from shared.study import ALONE, SEEDS, Column, Study, compared, entry, number, word

from zofl_mpi.errors import UserError
from zofl_mpi.report.groups import t_half_width

PANELS = {"mu": "smoothing radius μ", "n_p": "directions $n_p$"}
DEFAULTS = {"mu": 1e-3, "n_p": 1}
Row = Mapping[str, Any]
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


def panels_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """{flag: the rows of its panel}, by its value.

    Raises:
        UserError: there is nothing but controls, or several mu have several n_p.
    """
    trained = [r for r in rows if not r["frozen"]]
    if not trained:
        raise UserError("there is no cell with a client that trains")
    least = min(r["n_p"] for r in trained)
    base = {r["mu"] for r in trained if r["n_p"] > least}
    if len(base) > 1:
        several = wording.listed(f"{mu:g}" for mu in sorted(base))
        raise UserError(f"several n_p are there for mu = {several}: take one mu")
    found = {"mu": [r for r in trained if r["n_p"] == least], "n_p": [r for r in trained if r["mu"] in base]}
    return {key: sorted(each, key=itemgetter(key)) for key, each in found.items() if each}


def told(key: str, group: Group) -> str:
    """A group's mu or n_p in words."""
    return "frozen" if frozen(group) else f"{value(group, key):g}"


def flag(key: str) -> Column:
    """The column of mu or n_p."""
    return Column(
        lambda group, _: {key: math.nan if frozen(group) else value(group, key)},
        key,
        lambda group, _: told(key, group),
    )


# --- figure


@figures.styled
def draw(rows: Sequence[Row]) -> Any:
    """Draws HERON less its control, of the rows of the CSV: a panel for mu and one for n_p, a line for each size."""
    shown, note = panels_of(rows), wording.listed(filter(None, map(wording.seeds_of, rows)))
    figure, panels = figures.canvas(1, len(shown), figures.PAGE, 2.2, sharey=True)
    for panel, (key, found) in zip(panels.flat, shown.items(), strict=True):
        for k, (cut, line) in enumerate(split(found, lambda r: f"{r['cut']:g}").items()):
            x = [r[key] * (0.93, 1.07)[k % 2] for r in line]  # side by side
            halves = [t_half_width(r["less_frozen_sd"], int(r["seeds"])) for r in line]
            label = f"{cut} block{'s' * (cut != '1')} at the client"
            figures.barred(panel, x, [r["less_frozen_mean"] for r in line], halves, label=label, **figures.look(k))
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set(xscale="log", xlabel=PANELS[key])
        figures.ticks(panel, (r[key] for r in found))
    panels[0, 0].set_title(f"{wording.spelled(rows[0]['data'])} {note}".strip(), loc="left")
    panels[0, 0].set_ylabel("HERON less a frozen client\n(points of test accuracy)")
    figures.legend(figure, panels, 2, "mean over seeds of the difference seed by seed; bar: its 95 % t interval")
    return figure


STUDY: Study = Study(
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
    draw=lambda groups: draw(STUDY.rows(groups)),
    left=1,
)
main = STUDY.main

if __name__ == "__main__":
    main()
