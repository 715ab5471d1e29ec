"""[C] figure 2: test accuracy against rounds, iid and non-iid clients, of all methods and of HERON's controls.

python analysis/c_fig2.py [--grid jobs/c_fig2.toml] [--results DIR] [--out NAME] [--partial]
python analysis/redraw.py c_fig2_less

Prints, for each setting and method, the accuracy after the last round, HERON's less it (seed by seed, then mean and
deviation), and the local loss in the first and in the last round. The controls decide what HERON's zeroth-order steps
do: with a frozen client they train the auxiliary head alone, which the final classifier does not have.
The second command draws the differences, from the CSV.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from shared import figures, totals, wording
from shared.groups import Group, split
from shared.heron import (
    CELL,
    LEFT_OUT,
    LOCAL_LOSS,
    NAMES,
    band,
    cell_title,
    name,
    place,
    points,
    setting,
    signed,
    titled,
)
from shared.study import COUNTS, Study, alike, compared
from shared.totals import Quantity

NOTE = (
    "HERON less it: the differences of the last test accuracies of the same seed, in points of per cent. local loss: "
    "what the clients themselves see, by the auxiliary head (SplitFed has none), mean over clients and steps of the "
    "first and of the last round."
)

QUANTITIES = (
    Quantity("test accuracy (%)", itemgetter("accuracy_mean_percent"), itemgetter("accuracy_sd_percent")),
    Quantity(
        "less HERON's, seed by seed\n(points)", lambda r: -r["heron_less_it_mean"], itemgetter("heron_less_it_sd")
    ),
)


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws a panel per setting, side by side; a line per method."""
    panels_of = split(groups, setting)
    width = figures.COLUMN if len(panels_of) == 1 else figures.PAGE
    figure, panels = figures.canvas(1, len(panels_of), width, 2.6, sharey=True)
    for panel, (title, found) in zip(panels.flat, panels_of.items(), strict=True):
        for group in sorted(found, key=place):
            if group.runs:
                band(panel, *figures.accuracies(group), group)
        titled(panel, title, found, name)
        panel.set(xlim=(0, None), xlabel="rounds")
    panels[0, 0].set_ylabel("test accuracy (%)")
    figures.legend(figure, panels, 2 if width == figures.COLUMN else 3)
    return figure


def less_heron(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws what each method reaches, and what it is ahead of HERON; of the rows of the CSV."""
    blocks = split([row for row in rows if row["method"] != "heron-still"], cell_title)
    return totals.draw(blocks, lambda row: NAMES[row["method"]], QUANTITIES)


STUDY = Study(
    "c_fig2",
    __doc__,
    grids=["c_fig2.toml"],
    axes=("data", "cell", "method"),
    columns=(
        *CELL,
        compared("heron_less_it", "HERON less it", lambda group, heron: points(heron, group), signed),
        *LOCAL_LOSS,
        COUNTS,
    ),
    control=lambda group, groups: alike(group, groups, "cell", method="heron"),
    note=lambda groups: f"{NOTE} {wording.caption(groups, LEFT_OUT)}.",
    draw=draw,
)
main = STUDY.main

if __name__ == "__main__":
    main()
