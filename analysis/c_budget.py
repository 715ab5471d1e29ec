"""[C]: test accuracy against what was sent and against what the clients computed, of all methods and HERON's controls.

python analysis/c_budget.py [--grid jobs/c_fig2.toml] [--results DIR] [--out NAME] [--partial]

Bytes are those down and up of all clients, labels too; work is the multiply-accumulates of all clients' local steps, a
backward pass as two forward passes. A frozen client's directions are in the auxiliary head alone, its passes are as
many. Prints the totals; writes NAME.txt, NAME.csv, NAME.pdf and NAME.png, a row of panels per setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import NullFormatter
from shared import figures, wording
from shared.budgets import sent, unit_of
from shared.groups import Group, split
from shared.heron import CELL, LEFT_OUT, band, name, place, setting, titled
from shared.split_costs import all_bytes, client_macs, label_bytes, step
from shared.study import COUNTS, Study, last, number

NOTE = (
    "MiB: sent down and up by all clients in all rounds; labels apart, which [C] does not count. G MAC: "
    "multiply-accumulates of all clients' local steps, and of one. peak: bytes live at once in a "
    "client's step beyond its model, as tensors are counted."
)


def again(groups: Sequence[Group]) -> str:
    """A sentence, where results do not tell what a step costs."""
    found = [name(g) for g in groups if not step(g).recorded]
    return f"Steps counted here, as the results do not tell: {wording.listed(found)}. " if found else ""


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws a row of panels per setting: bytes, and the clients' work."""
    scale, unit = unit_of(max(float(all_bytes(g)[-1]) for g in groups if g.runs))
    budgets = {
        f"sent down and up, with labels ({unit})": lambda group: all_bytes(group) / scale,
        "multiply-accumulates of all clients ($10^9$)": lambda group: client_macs(group) / 1e9,
    }
    rows = split(sorted(groups, key=place), setting)
    rows = {title: rows[title] for title in split(groups, setting)}
    figure, panels = figures.against(rows, budgets, figures.accuracies, band, 2.3, sharex="col", sharey=True)
    for line, (title, found) in zip(panels, split(groups, setting).items(), strict=True):
        titled(line[0], title, found, name)
        line[0].set_ylabel("test accuracy (%)")
    for panel in panels.flat:
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter(NullFormatter())
    figures.legend(figure, panels, 3)
    return figure


STUDY = Study(
    "c_budget",
    __doc__,
    grids=["c_fig2.toml"],
    axes=("data", "cell", "method"),
    columns=(
        *CELL,
        number("bytes_without_labels", last(sent), "MiB", 2**20),
        number("bytes_of_labels", last(label_bytes), "labels, MiB", 2**20),
        number("client_macs", last(client_macs), "G MAC", 1e9),
        number("client_macs_a_step", lambda group, _: step(group).macs, "a step", 1e9),
        number("client_peak_bytes", lambda group, _: step(group).peak, "peak, MiB", 2**20),
        COUNTS,
    ),
    note=lambda groups: f"{NOTE} {again(groups)}{wording.caption(groups, LEFT_OUT)}.",
    draw=draw,
)
main = STUDY.main

if __name__ == "__main__":
    main()
