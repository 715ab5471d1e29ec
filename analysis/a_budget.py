"""Test accuracy, and what it took: bytes sent, and samples whose gradients the clients computed.

python analysis/a_budget.py [--grid jobs/a_table1.toml] [--results DIR] [--out NAME] [--partial]

A figure NAME_DATA per data set, a row of panels per cell, a row per method. Bytes are those down and up of all clients,
samples the local steps of all participants times the batch (ZO-HFL: both solves; its evaluations and the server's own
gradients do not count).
"""

import math
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from shared import totals, wording
from shared.budgets import sent
from shared.files import Report
from shared.groups import Array, Group, series, split
from shared.study import counts, study
from shared.totals import Quantity

from zofl_mpi.errors import UserError


def report(groups: Sequence[Group]) -> Report:
    """The totals, and a figure for each data set."""
    rows = [row(group) for group in groups]
    blocks = split(rows, lambda r: "_" + r["data"].replace(" (", "-").replace(")", ""))
    return Report(text(rows), wording.caption(groups), more={name: draw(block) for name, block in blocks.items()})


main = study("a_budget", __doc__, ["a_table1.toml"], ("data", "problem", "cell", "method"), report)

# --- rows


def samples(group: Group) -> Array:
    """(R,) samples of all local steps so far, mean over seeds.

    Raises:
        UserError: a result does not tell its local steps.
    """
    if "batch" not in group.config:  # the method has no local steps at all
        return np.zeros(group.rounds)
    steps = np.stack([series(run, "local_steps") for run in group.runs])
    if np.isnan(steps).any():
        raise UserError(f"{group.runs[0].path} or another seed has rounds without local_steps")
    return np.asarray(np.cumsum(steps, axis=1).mean(axis=0)) * float(group.config["batch"])


def row(group: Group) -> dict[str, Any]:
    """What a group reaches, and what it took in all."""
    mean, sd = group.accuracy()
    used = (sent(group)[-1] / 2**20, samples(group)[-1] / 1e6) if group.runs else (math.nan, math.nan)
    return {
        "data": wording.data_of(group),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "accuracy": mean,
        "sd": sd,
        "mib": used[0],
        "samples": used[1],
        **counts(group),
    }


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Table of what each method ends with, and what it took."""
    columns: dict[str, wording.Cell] = {
        "data": "data",
        "cell": "cell",
        "method": "method",
        "accuracy (%)": lambda r: wording.percent(r["accuracy"], r["sd"], wording.seeds_of(r)),
        "rounds": lambda r: r["rounds"] if r["seeds"] else "-",
        "MiB": wording.four("mib"),
        "10^6 samples": wording.four("samples"),
    }
    return wording.table(rows, columns, left=3)


# --- figure

QUANTITIES = (
    Quantity("test accuracy (%)", itemgetter("accuracy"), itemgetter("sd")),
    Quantity("sent down and up (MiB)", itemgetter("mib"), log=True),
    Quantity("client gradients ($10^6$ samples)", itemgetter("samples"), log=True),
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws cells below each other; accuracy, bytes and samples side by side."""
    blocks = split(rows, lambda r: f"{wording.spelled(r['data'])}, {alike(r['cell'])}")
    return totals.draw(blocks, lambda r: wording.method_name(r["method"]), QUANTITIES)


def alike(cell: str) -> str:
    """α and β of a cell's name, a0.1-b0.1; else the name."""
    found = re.fullmatch(r"a([\d.]+)-b([\d.]+)", cell)
    return f"α = {found[1]}, β = {found[2]}" if found else cell


if __name__ == "__main__":
    main()
