"""Accuracy against the share of clients that lie, for each robust mean and each attack.

python analysis/r_robust.py [--grid jobs/r_robust.toml jobs/r_robust_scalars.toml] [--out NAME] [--partial]

Prints, for each method, cell and attack, a table with a row per aggregate and a column per share F, at the step that
was chosen without liars; below it what was tried without liars; writes NAME.txt and NAME.csv, a row per group.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared import choosing, edges, wording
from shared.files import Report
from shared.groups import Group, split
from shared.study import study

COMMON = ("cell", "method", "local", "aggregate", "attack", "share")
VALIDATION = "validation_accuracy"
NAMES = {"fedavg": "FedAvg", "decomfl": "DeComFL's scalars"}
NOTE = (
    "Test accuracy in % after the last round, mean ± sd over seeds. F: share of the clients that lie in every round "
    "that they take part in: sign (the change with the other sign), noise (a Gaussian vector of its norm), scale (ten "
    "times the change); trimmed-0.3 leaves out the 30 % largest and smallest numbers of each coordinate, clip-C cuts "
    "changes to the norm C. Validation: of seed 1, mean of the last evaluations; the step is the mean's best one, * of "
    "the mean's steps."
)

Row = Mapping[str, Any]


def report(groups: Sequence[Group]) -> Report:
    """The tables."""
    at_the_end = choosing.by(lambda run: 100 * choosing.at_the_end(run, VALIDATION))
    rows = choosing.rows(groups, COMMON, "local", at_the_end)
    return Report(text(rows), f"{NOTE} {wording.caption(groups, ('gamma', 'gamma_local'))}.", rows)


main = study("r_robust", __doc__, ["r_robust.toml", "r_robust_scalars.toml"], COMMON, report, needed=COMMON)


def text(rows: Sequence[Row]) -> str:
    """A table of each method, cell and attack, then the choice of steps."""
    honest = [row for row in rows if row["attack"] == "none"]
    step = {place(row): row["local"] for row in honest if row["best"] and row["aggregate"] == "mean"}
    parts = []
    for lies in split([r for r in rows if r["attack"] != "none"], lambda r: f"{place(r)}: {r['attack']}").values():
        where = place(lies[0])
        without = [r for r in honest if place(r) == where and r["local"] == step[where]]
        kept = dict.fromkeys(r["aggregate"] for r in lies)
        shown = {(r["aggregate"], r["share"]): edges.accuracy(r) for r in [*without, *lies]}
        shares = list(dict.fromkeys(r["share"] for r in [*without, *lies]))
        lines = [[aggregate, *(shown.get((aggregate, share), "-") for share in shares)] for aggregate in kept]
        parts.append(f"{where}, {lies[0]['attack']}\n{wording.text_table(['aggregate', *shares], lines)}\n")
    lines = [
        [
            place(r),
            r["aggregate"],
            r["local"],
            f"{r['validation_percent']:.2f}{edges.star(r) if several(r, honest) else ''}",
        ]
        for r in honest
    ]
    tried = wording.text_table(["without liars", "aggregate", "step", "validation (%)"], lines, 3)
    return "\n".join([*parts, tried])


def several(row: Row, rows: Sequence[Row]) -> bool:
    """Whether several steps of this row's aggregate were tried."""
    return len([r for r in rows if place(r) == place(row) and r["aggregate"] == row["aggregate"]]) > 1


def place(row: Row) -> str:
    """A row's method and cell."""
    return f"{NAMES.get(row['method'], row['method'])}, clients {row['cell']}"


if __name__ == "__main__":
    main()
