"""[A] figure 2: a loss against rounds for each tau (or mu), one panel per cell; mean and range over seeds.

python analysis/a_fig2.py [--grid jobs/a_fig2.toml] [--column train_loss|objective|f1|test_accuracy] [--log]
python analysis/a_fig2.py --axis mu --grid jobs/a_fig2_mu.toml --out analysis/results/a_fig2_mu

The paper does not define its "global loss"; by default it is the mean loss of the global model on all training samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator
from shared import command, figures, files, wording
from shared.groups import Group, entries, mean_sd, shown, split
from shared.reading import read

COLUMNS = {
    "train_loss": ("training loss (nat)", 1.0),
    "objective": ("$f_1(x) + f_2(x)$", 1.0),
    "f1": ("$f_1(x)$ (nat)", 1.0),
    "test_loss": ("test loss (nat)", 1.0),
    "test_accuracy": ("test accuracy (%)", 100.0),
}
"""Column -> label of its axis, factor."""
GREEK = {"tau": "τ", "mu": "µ", "eta": "η", "gamma": "γ", "lam": "λ"}


def main(words: list[str] | None = None) -> None:
    """Draw the figure, print its last numbers and its path; exit status 2 if a result is missing."""
    made = command.parser("a_fig2", __doc__, ["a_fig2.toml"])
    made.add_argument("--axis", default="tau", help="axis of the grid: a line for each of its entries (default tau)")
    made.add_argument("--column", choices=COLUMNS, default="train_loss", help="what is drawn (default train_loss)")
    made.add_argument("--log", action="store_true", help="a logarithmic vertical axis")
    flags = made.parse_args(words)
    with command.refusals("a_fig2"):
        groups = read("a_fig2", flags, ("data", "problem", "cell", flags.axis), (flags.axis,))
        caption = wording.caption(groups, (flags.axis,))
        print(f"{text(groups, flags.axis, flags.column)}\n\n{wording.paragraph(caption)}\n")
        files.keep(draw(groups, flags.axis, flags.column, flags.log), flags.out)


def text(groups: Sequence[Group], axis: str, column: str) -> str:
    """Table of the last numbers."""
    rows = [
        [wording.data_of(g), g.entry("cell"), g.entry(axis), *wording.digits(mean, sd), str(len(g.runs))]
        for g in groups
        for mean, sd in [mean_sd(g.last(column) * COLUMNS[column][1])]
    ]
    return wording.aligned(("data", "cell", axis, f"last {column}, mean", "sd", "seeds"), rows, left=2)


@figures.styled
def draw(groups: Sequence[Group], axis: str, column: str, log: bool) -> Any:
    """Draws data sets below each other, cells side by side."""
    rows, cells = split(groups, wording.data_of), entries(groups, "cell")
    width = figures.COLUMN if len(cells) == 1 else figures.PAGE
    figure, panels = figures.canvas(len(rows), len(cells), width, 2.0, sharex=True, sharey="row")
    for line, (data, found) in zip(panels, rows.items(), strict=True):
        for panel, cell in zip(line, cells, strict=True):
            block = [g for g in found if g.entry("cell") == cell]
            curves(panel, block, entries(groups, axis), axis, column)
            figures.titled(panel, f"{wording.spelled(data)}, {wording.cell_name(found, cell)}", block, namer(axis))
            scale(panel, log)
        line[0].set_ylabel(COLUMNS[column][0])
    for panel in panels[-1]:
        panel.set(xlabel="rounds", xlim=(0, None))
    figures.legend(figure, panels, 3)
    return figure


def scale(panel: Any, log: bool) -> None:
    """Marks whole rounds, and plain numbers on a logarithmic axis: it may be much less than a decade long."""
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.set_yscale("log" if log else "linear")
    if log:
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.grid(which="minor", axis="y", color="0.9", linewidth=0.5)


def namer(axis: str) -> Callable[[Group], str]:
    """A function that gives the name of a line: τ = 5."""
    return lambda group: f"{GREEK.get(axis, axis)} = {shown(group.config.get(axis, group.entry(axis)))}"


def curves(panel: Any, groups: Sequence[Group], entries: Sequence[str], axis: str, column: str) -> None:
    """Draws a line and a band for each entry of the axis."""
    for group in groups:
        if group.runs:
            rounds, values = group.curve(column)
            k = entries.index(group.entry(axis))
            figures.band(panel, rounds, COLUMNS[column][1] * values, namer(axis)(group), k)


if __name__ == "__main__":
    main()
