"""[A] figure 2: a loss against rounds for each tau (or mu), one panel per cell; mean and range over seeds.

python analysis/a_fig2.py [--grid jobs/a_fig2.toml] [--results DIR] [--out NAME] [--partial]
python analysis/a_fig2.py --axis mu --grid jobs/a_fig2_mu.toml --out analysis/results/a_fig2_mu

The paper does not define its "global loss"; here it is the mean loss of the global model on all training samples.
"""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Group, entries, mean_sd, shown, split
from shared.reading import read

COLUMN = "train_loss"
GREEK = {"tau": "τ", "mu": "µ", "eta": "η", "gamma": "γ", "lam": "λ"}


def report(flags: Any) -> Report:
    """The last numbers and the figure."""
    axis = flags.axis
    groups = read("a_fig2", flags, ("data", "problem", "cell", axis), (axis,))
    return Report(text(groups, axis), wording.caption(groups, (axis,)), figure=draw(groups, axis))


FLAGS = {"--axis": command.flag("tau", "axis of the grid: a line for each of its entries")}
main = command.script("a_fig2", __doc__, report, FLAGS, ["a_fig2.toml"])


def text(groups: Sequence[Group], axis: str) -> str:
    """Table of the last numbers."""
    rows = [
        [
            wording.data_of(g),
            g.entry("cell"),
            g.entry(axis),
            *wording.digits(*mean_sd(g.last(COLUMN))),
            str(len(g.runs)),
        ]
        for g in groups
    ]
    return wording.text_table(("data", "cell", axis, f"last {COLUMN}, mean", "sd", "seeds"), rows, left=2)


@figures.styled
def draw(groups: Sequence[Group], axis: str) -> Any:
    """Draws data sets below each other, cells side by side; a line and a band for each entry of the axis."""
    rows, cells, lines = split(groups, wording.data_of), entries(groups, "cell"), entries(groups, axis)
    width = figures.COLUMN if len(cells) == 1 else figures.PAGE
    figure, panels = figures.canvas(len(rows), len(cells), width, 2.0, sharex=True, sharey="row")
    for line, (data, found) in zip(panels, rows.items(), strict=True):
        for panel, cell in zip(line, cells, strict=True):
            block = [g for g in found if g.entry("cell") == cell]
            for group in (g for g in block if g.runs):
                figures.band(panel, *group.curve(COLUMN), namer(axis)(group), lines.index(group.entry(axis)))
            figures.titled(panel, f"{wording.spelled(data)}, {wording.cell_name(found, cell)}", block, namer(axis))
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        line[0].set_ylabel("training loss (nat)")
    for panel in panels[-1]:
        panel.set(xlabel="rounds", xlim=(0, None))
    figures.legend(figure, panels, 3)
    return figure


def namer(axis: str) -> Callable[[Group], str]:
    """A function that gives the name of a line: τ = 5."""
    return lambda group: f"{GREEK.get(axis, axis)} = {shown(group.config.get(axis, group.entry(axis)))}"


if __name__ == "__main__":
    main()
