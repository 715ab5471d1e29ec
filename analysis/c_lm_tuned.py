"""Step sizes of [C]'s methods on a language model: validation loss of each that was tried, and the best of a method.

python analysis/c_lm_tuned.py [--grid jobs/c_lm_tuned.toml] [--results DIR] [--out NAME] [--partial]

The axes local (a client's step size), radius (mu of zeroth-order steps) and server (the server's step size) have their
entries in the order of their size. The best is that of the lowest validation loss after the last round, mean over
seeds; the test part is not looked at. Prints a row per method and step, the best with *, one at an edge of the grid
with *!.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from shared import command, edges, wording
from shared.choosing import Choice, choices, place, step, step_axes
from shared.files import Report
from shared.groups import Group
from shared.heron import name
from shared.language import LOSS, caption, start
from shared.reading import read
from shared.study import counts

STEPS = ("local", "radius", "server")
AXES = ("start", "method", *STEPS)
NOTE = (
    "* the lowest validation loss of the method after the last round; a loss that is not finite is none. local: the "
    "client's step; radius: mu; server: the server's step (DeComFL has none)."
)


def report(flags: Any) -> Report:
    """All steps, the best of each method marked."""
    axes = step_axes(flags, STEPS.__contains__)
    groups = read("c_lm_tuned", flags, AXES, ("method",))
    tried = choices(groups, place("start", "method"), lambda same: list(map(loss, same)), axes, lowest=True)
    at_edge = ["{}, {} ({})".format(*called(c.group)) for c in tried if c.at_edge]
    note = f"{NOTE} {caption(groups, ('lr_client', 'lr_server', 'mu'))}."
    return Report(f"{table(tried)}\n\n{edges.told(at_edge)}", note, list(map(row, tried)))


main = command.script("c_lm_tuned", __doc__, report, grids=["c_lm_tuned.toml"])


def row(choice: Choice) -> dict[str, Any]:
    """A row of the CSV."""
    group = choice.group
    return {
        "start": group.entry("start"),
        "method": group.entry("method"),
        "step": step(group, STEPS, "none"),
        "validation_loss": choice.value,
        **choice.row,
        **counts(group),
    }


def called(group: Group) -> tuple[str, str, str]:
    """Its start, method and step, as a reader knows them."""
    return start(group), name(group), step(group, STEPS, "none")


def loss(group: Group) -> float:
    """The validation loss after the last round, mean over seeds; nan where it is not finite, or there is none."""
    values = [float(run.rounds[LOSS][-1]) for run in group.runs]
    return float(np.mean(values)) if values and np.isfinite(values).all() else math.nan


def table(tried: Sequence[Choice]) -> str:
    """A row per start, method and step."""
    cells = []
    for choice in tried:
        value = "-" if math.isnan(choice.value) else f"{choice.value:.4f}"
        cells.append([*called(choice.group), value, edges.star(choice.row).strip()])
    return wording.text_table(["start", "method", "step", "validation loss", ""], cells, left=3)


if __name__ == "__main__":
    main()
