"""[C] Table II: rounds and communication until a test accuracy, a client's memory and work, beside the paper's numbers.

python analysis/c_table2.py [--grid jobs/c_fig2.toml] [--cell iid] [--target 0.8] [--results DIR] [--out NAME]
                            [--partial]

A run reaches the target in the first evaluated round whose test accuracy is at least it; one that does not is told as
">60" (more than its 60 rounds), and then no communication is: nothing is extrapolated. Communication is that of all
clients in GiB, as measured; the mean over seeds where all of them reach the target. Beside the measured rows: the
numbers that [C] prints, and what the function `formula` gives in [C]'s setting for [C]'s rounds. Prints both
tables; writes NAME.txt and NAME.csv.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from shared import command, files, wording
from shared.groups import Group, mean_sd, series
from shared.heron import NAMES, name, setting
from shared.reading import read
from shared.split_costs import STEPS, counted, head_bytes, network, step
from shared.study import SEEDS, Column, Told, entry, number, row, table, word

from zofl_mpi.errors import UserError, demand
from zofl_mpi.run import records

AXES = ("data", "cell", "method")
GIB, MIB = 2**30, 2**20
NOTE = (
    "rounds: the first evaluated round at the target, seed by seed; evaluated are round 1, every {every} rounds and "
    "the last. GiB: down and up, all clients, until then; with auxiliary heads and without labels, unless the column "
    "says so. peak: bytes live at once in a client's step beyond its model, tensors counted; G MAC: "
    "multiply-accumulates of a client's step, {recorded}."
)
PAPER_NOTE = (
    "Ours in [C]'s setting: 5 clients, 50,000 samples, batch 256, one pass a round, k = 1, every mini-batch uploaded, "
    "[C]'s rounds; GiB without labels and BatchNorm's statistics. SFLV1's printed number has the exchange of the "
    "server's replicas, CSE-FSL's is not reproduced. [C]'s SplitFed step counts the head's forward pass, 3 F_c + F_a = "
    "59.51; ours has no head in it. [C]'s peaks match activations out of place; ours work in place."
)
LEFT_OUT = ("mu", "gamma", "server_fraction")


def main(words: list[str] | None = None) -> None:
    """Print and write the tables; exit status 2 if a result is missing."""
    made = command.parser("c_table2", __doc__, ["c_fig2.toml"])
    made.add_argument("--target", type=float, default=0.8, help="a test accuracy, above 0 and at most 1 (default: 0.8)")
    made.add_argument("--cell", default="iid", help="of a grid that has several settings, which (default: iid)")
    flags = made.parse_args(words)
    with command.refusals("c_table2"):
        demand(0 < flags.target <= 1, "target", flags.target, "a test accuracy, above 0 and at most 1")
        groups = of_cell(read("c_table2", flags, AXES, ("method",)), flags.cell)
        told = columns(flags.target)
        text = f"{measured(groups, flags.target)}\n\n{printed()}"
        files.publish(flags.out, text, rows=[row(told, group) for group in groups])


def of_cell(groups: Sequence[Group], cell: str) -> list[Group]:
    """The groups of one setting, or all where the grid has one only.

    Raises:
        UserError: there is no such setting.
    """
    cells = [g.where["cell"] for g in groups if "cell" in g.where]
    if not cells:
        return list(groups)
    if cell not in cells:
        raise UserError(f"--cell {cell}: must be one of {', '.join(dict.fromkeys(cells))}")
    return [g for g in groups if g.where.get("cell") == cell]


# --- what is measured


@final
@dataclass(frozen=True)
class Reach:
    """What a run needed until the target.

    Attributes:
        round: the first evaluated round at the target; nan if it is never there.
        bytes, labels, heads: down and up until then; `bytes` has the heads, and not the labels. nan if never.
    """

    round: float
    bytes: float
    labels: float
    heads: float


def reach(run: records.Run, target: float) -> Reach:
    """What one result needed until the target."""
    there = np.flatnonzero(series(run, "test_accuracy") >= target)  # nan, where it was not evaluated, is not
    if not len(there):
        return Reach(*[math.nan] * 4)
    end = int(there[0]) + 1
    sent = sum(float(run.clients[way][:end].sum()) for way in ("bytes_down", "bytes_up"))
    return Reach(float(end), sent, float(series(run, "label_bytes")[:end].sum()), float(head_bytes(run)[end - 1]))


def reached(group: Group, target: float) -> list[Reach]:
    """What the seeds of a group needed, in ascending order of the seeds."""
    return [reach(run, target) for _, run in sorted(group.seeds.items())]


def measured(groups: Sequence[Group], target: float) -> str:
    """The first table, with its title and its note."""
    title = f"Until {100 * target:g} % of {setting(groups[0])}: measured"
    every = wording.listed(g.config["eval_every"] for g in groups if "eval_every" in g.config)
    again = [name(g) for g in groups if not step(g).recorded]
    recorded = f"counted here for {wording.listed(again)}" if again else "as the results tell"
    note = NOTE.format(every=every, recorded=recorded)
    caption = wording.caption(groups, LEFT_OUT)
    return f"{title}\n{table(columns(target), groups)}\n\n{wording.paragraph(f'{note} {caption}.')}"


def columns(target: float) -> tuple[Column, ...]:
    """The columns of CSV and table."""

    def mean(what: str) -> Told:
        return lambda group, _: mean_sd(np.array([getattr(r, what) for r in reached(group, target)]))[0]

    def gib(what: str) -> Told:
        return lambda group, _: mean_sd(np.array([getattr(r, what) / GIB for r in reached(group, target)]))[0]

    def rounds(group: Group) -> str:
        found = (r.round for r in reached(group, target))
        return ", ".join(f">{group.rounds}" if math.isnan(r) else f"{r:g}" for r in found)

    def of_all(sign: int, part: str) -> Callable[[Group], str]:
        return lambda group: wording.digits(gib("bytes")(group, None) + sign * gib(part)(group, None))[0]

    return (
        entry("data"),
        entry("method", "method", name),
        Column(lambda group, _: {"target": target}),
        Column(lambda g, _: {"rounds_to_target": rounds(g)}, "rounds", lambda g, _: rounds(g) or "-"),
        number("seeds_that_reach", lambda g, _: sum(not math.isnan(r.round) for r in reached(g, target))),
        number("rounds_to_target_mean", mean("round")),
        number("gib", gib("bytes"), "GiB"),
        number("gib_of_labels", gib("labels")),
        number("gib_of_heads", gib("heads")),
        word("with labels", of_all(1, "labels")),
        word("without heads", of_all(-1, "heads")),
        number("client_peak_bytes", lambda group, _: step(group).peak, "peak, MiB", MIB),
        number("client_macs_a_step", lambda group, _: step(group).macs, "G MAC", 1e9),
        SEEDS,
    )


# --- [C]'s setting

SETTING: dict[str, Any] = {
    "problem": "split_resnet",
    "data": "cifar10",
    "width": 64,
    "stages": (2, 2, 2, 2),
    "cut": 1,
    "head": "linear",
    "dtype": "float32",
    "bf16": False,
    "batch": 256,
}
M, SAMPLES, PERIOD = 5, 50_000, 5
"""Clients, all their samples, rounds from one alignment of FSL-SAGE's heads to the next."""


@final
@dataclass(frozen=True)
class Printed:
    """A row of Table II."""

    rounds: int
    gib: float
    peak_mib: float
    gmac: float


PAPER = {
    "sflv1": Printed(49, 1216.00, 709.93, 59.51),
    "sflv2": Printed(16, 390.67, 709.93, 59.51),
    "cse_fsl": Printed(21, 258.55, 726.46, 59.85),
    "fsl_sage": Printed(20, 244.24, 726.46, 59.85),
    "heron": Printed(20, 244.19, 259.44, 39.90),
}


def formula(method: str, rounds: int) -> tuple[float, float]:
    """GiB of so many rounds in [C]'s setting, without labels: without and with the auxiliary heads' exchange."""
    problem = network(SETTING)
    client, head = (4 * n for n in problem.client_side.sizes())
    ways = 2 if method in ("sflv1", "sflv2") else 1
    bare = rounds * (ways * SAMPLES * problem.smashed_bytes + 2 * M * client)
    heads = {"heron": rounds * 2 * M, "cse_fsl": rounds * 2 * M, "fsl_sage": -(-rounds // PERIOD) * M}.get(method, 0)
    return bare / GIB, (bare + heads * head) / GIB


def printed() -> str:
    """The second table, with its title and its note."""
    header = ("method", "rounds", "GiB: [C]", "ours", "with heads", "peak: [C]", "ours", "G MAC: [C]", "ours")
    rows = []
    for method, paper in PAPER.items():
        loss, rule = STEPS[method]
        ours = counted(SETTING, loss, rule, 2 if method == "heron" else 3)
        gib = (f"{paper.gib:.2f}", *(f"{size:.3f}" for size in formula(method, paper.rounds)))
        peak, macs = f"{ours.peak / MIB:.2f}", f"{ours.macs / 1e9:.3f}"
        rows.append([NAMES[method], str(paper.rounds), *gib, f"{paper.peak_mib:.2f}", peak, f"{paper.gmac:.2f}", macs])
    title = "Until 80 % in [C]'s setting: printed, and by our formulas"
    return f"{title}\n{wording.aligned(header, rows)}\n\n{wording.paragraph(PAPER_NOTE)}"


if __name__ == "__main__":
    main()
