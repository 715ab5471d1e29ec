"""[C]: test accuracy against what was sent and against what the clients computed, of all methods and HERON's controls.

python analysis/c_budget.py [--grid jobs/c_fig2.toml] [--results DIR] [--out NAME] [--partial]

Bytes are those down and up of all clients, labels too; work is the multiply-accumulates of all clients' local steps, a
backward pass as two forward passes. A frozen client's directions are in the auxiliary head alone, its passes are as
many. Prints the totals; writes NAME.txt, NAME.csv, NAME.pdf and NAME.png, a row of panels per setting.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from shared import totals, wording
from shared.budgets import sent
from shared.groups import Group, split
from shared.heron import CELL, LEFT_OUT, NAMES, cell_title, name
from shared.split_costs import client_macs, label_bytes, step
from shared.study import COUNTS, Study, last, number
from shared.totals import Quantity

NOTE = (
    "MiB: sent down and up by all clients in all rounds; labels apart, which [C] does not count. G MAC: "
    "multiply-accumulates of all clients' local steps, and of one. peak: bytes live at once in a "
    "client's step beyond its model, as tensors are counted."
)


def again(groups: Sequence[Group]) -> str:
    """A sentence, where results do not tell what a step costs."""
    found = [name(g) for g in groups if not step(g).recorded]
    return f"Steps counted here, as the results do not tell: {wording.listed(found)}. " if found else ""


QUANTITIES = (
    Quantity("test accuracy (%)", itemgetter("accuracy_mean_percent"), itemgetter("accuracy_sd_percent")),
    Quantity(
        "sent down and up,\nwith labels (GiB)",
        lambda r: (r["bytes_without_labels"] + r["bytes_of_labels"]) / 2**30,
    ),
    Quantity("multiply-accumulates\nof all clients ($10^9$)", lambda row: row["client_macs"] / 1e9),
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws a row of panels per setting: accuracy, bytes, and the clients' work; `rows`: of the CSV."""
    return totals.draw(split(rows, cell_title), lambda row: NAMES.get(row["method"], row["method"]), QUANTITIES)


STUDY: Study = Study(
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
    draw=lambda groups: draw(STUDY.rows(groups)),
)
main = STUDY.main

if __name__ == "__main__":
    main()
