"""Figures drawn again from the tables kept in analysis/results; no result is read, and no table is written.

python analysis/redraw.py               # all of them
python analysis/redraw.py scaling       # those whose names begin so

Curves over rounds need results: their scripts draw them, where the runs have been made again.
"""

import argparse
import csv
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import a_budget
import a_overview
import a_personal
import a_shares
import b_methods
import c_budget
import c_fig2
import c_fig3
import c_fig4
import c_fig6
import d_lean
import numpy as np
import p_privacy
import scaling
import scaling_model
from shared import command, files, pays_figures
from shared.groups import Group
from shared.lean import Place
from shared.scaling import read

from zofl_mpi.run import records
from zofl_mpi.run.records.result import Final

KEPT = command.ANALYSIS / "results"
SETTING = "MNIST, 10 clients, 50 % of them in a round, classes shared out by Dirichlet(0.1), 3 MPI ranks"
"""Of a_overview, as its figure's head tells it."""
STUDY = KEPT / "scaling/scaling.json"


def table(name: str) -> list[dict[str, Any]]:
    """The rows of a kept CSV: numbers where a cell is one."""
    with (KEPT / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def _value(cell: str) -> Any:
    try:
        return float(cell or "nan")
    except ValueError:
        return cell


def first_budget(data: str) -> Any:
    """The budgets of [A] on a data set, from the table in a_budget.txt."""
    cells = [re.split(r"\s{2,}", line) for line in (KEPT / "a_budget.txt").read_text(encoding="utf-8").splitlines()]
    rows = []
    for place, cell, method, accuracy, _, mib, samples in (line for line in cells if line[0] == data):
        mean, sd = map(float, accuracy.split(" ± "))
        told = {"data": place, "cell": cell, "method": method, "accuracy": mean, "sd": sd}
        rows.append({**told, "mib": float(mib), "samples": float(samples), "seeds": 3, "seeds_planned": 3})
    return a_budget.draw(rows)


def lean(data: str) -> Any:
    """Accuracy and virtual minutes on a data set, from d_lean.csv and d_lean_virtual.csv."""
    return d_lean.draw(table("d_lean"), table("d_lean_virtual"), data)


def lean_map(data: str) -> Any:
    """The map of a data set, from d_lean_map.csv."""
    rows = [{**row, "small": int(row["small"])} for row in table("d_lean_map")]
    place = ("data", "classes", "small")
    cells = [d_lean.Cell(Place(*(row.pop(key) for key in place)), **row) for row in rows]
    return d_lean.draw_map(cells, data)


def heterogeneity() -> Any:
    """Figure 3 of [C], from c_fig3.csv: of one seed each, so that a mean is the number of its run."""
    groups, none = [], dict[str, Any]()
    for row in table("c_fig3"):
        last = {"test_accuracy": np.array([row["accuracy_mean_percent"] / 100])}
        run = records.Run(Path(), none, none, last, none, none, (), None, Final(none, Path(), None), none, none)
        where = {key: row[key] for key in ("data", "panel", "method")}
        groups.append(Group(where, int(row["seeds_planned"]), {row["panel"]: row["value"]}, (run,)))
    return c_fig3.draw(groups)


DRAWN: Mapping[str, Callable[[], Any]] = {
    "a_overview": lambda: a_overview.drawn(table("a_overview"), SETTING),
    "scaling/scaling": lambda: scaling.figure(read([STUDY])),
    "scaling/scaling_model": lambda: scaling_model.figure(*scaling_model.modelled(read([STUDY]), scaling_model.RATE)),
    "a_personal": lambda: a_personal.draw(table("a_personal")),
    "a_shares": lambda: a_shares.draw([row for row in table("a_shares") if row["best"] == "True"]),
    "c_fig2_less": lambda: c_fig2.less_heron(table("c_fig2")),
    "c_fig3": heterogeneity,
    "c_fig4": lambda: c_fig4.draw([{**row, "frozen": row["frozen"] == "True"} for row in table("c_fig4")]),
    "c_fig6": lambda: c_fig6.draw(table("c_fig6")),
    "c_pays_memory": lambda: pays_figures.memory(table("c_pays")),
    "c_pays_estimates": lambda: pays_figures.estimates(table("c_pays")),
    "c_budget": lambda: c_budget.draw(table("c_budget")),
    "b_methods": lambda: b_methods.draw([row for row in table("b_methods") if row["best"] == "True"]),
    "p_privacy": lambda: p_privacy.draw(
        [{**row, "epsilon": str(row["epsilon"])} for row in table("p_privacy") if row["best"] == "True"]
    ),
    **{f"a_budget_{data}": partial(first_budget, data) for data in ("mnist", "fashion-mnist")},
    **{f"d_lean_{data}": partial(lean, data) for data in ("mnist", "fashion-mnist", "cifar10")},
    **{f"d_lean_map_{data}": partial(lean_map, data) for data in ("mnist", "fashion-mnist", "cifar10")},
}
"""Name of a figure, and what draws it."""


def main(words: list[str] | None = None) -> None:
    """Draws the figures and prints their paths."""
    parser = argparse.ArgumentParser(prog="redraw", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="*", default=[""], help="how the figures' names begin")
    parser.add_argument("--out", type=Path, default=KEPT, help="the folder to draw into")
    flags = parser.parse_args(words)
    with command.refusals("redraw"):
        for name, draw in DRAWN.items():
            if Path(name).name.startswith(tuple(flags.name)):
                files.keep(draw(), flags.out / name)


if __name__ == "__main__":
    main()
