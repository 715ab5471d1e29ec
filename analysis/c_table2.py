"""[C] Table II: rounds and communication until a test accuracy, a client's memory and work, beside the paper's numbers.

python analysis/c_table2.py [--grid jobs/c_fig2.toml] [--results DIR] [--out NAME] [--partial]

A run reaches the target in the first evaluated round whose test accuracy is at least it; one that does not is told as
">60" (more than its 60 rounds), and then no communication is: nothing is extrapolated. Communication is that of all
clients in GiB, as measured; the mean over seeds where all of them reach the target. Beside the measured rows: the
numbers that [C] prints, and what the function `formula` gives in [C]'s setting for [C]'s rounds. Prints both tables.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from shared import wording
from shared.files import Report
from shared.groups import Group, mean_sd, series
from shared.heron import NAMES, name, setting
from shared.split_costs import STEPS, counted, head_bytes, network, step
from shared.study import SEEDS, Column, Told, entry, number, row, study, table, word

from zofl_mpi.run import records

TARGET = 0.8
"""Test accuracy until which rounds and bytes are counted."""
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


def report(groups: Sequence[Group]) -> Report:
    """Both tables, of the iid setting where the grid has several."""
    groups = [g for g in groups if g.where.get("cell", "iid") == "iid"]
    return Report(f"{measured(groups)}\n\n{printed()}", rows=[row(COLUMNS, group) for group in groups])


# --- what is measured


class Reach(NamedTuple):
    """What a run needed until the target.

    Attributes:
        round: the first evaluated round at the target; nan if it is never there.
        bytes, labels, heads: down and up until then; `bytes` has the heads, and not the labels. nan if never.
    """

    round: float
    bytes: float
    labels: float
    heads: float


def reach(run: records.Run) -> Reach:
    """What one result needed until the target."""
    there = np.flatnonzero(series(run, "test_accuracy") >= TARGET)  # nan, where it was not evaluated, is not
    if not len(there):
        return Reach(*[math.nan] * 4)
    end = int(there[0]) + 1
    sent = sum(float(run.clients[way][:end].sum()) for way in ("bytes_down", "bytes_up"))
    return Reach(float(end), sent, float(series(run, "label_bytes")[:end].sum()), float(head_bytes(run)[end - 1]))


def reached(group: Group) -> list[Reach]:
    """What the seeds of a group needed, in ascending order of the seeds."""
    return [reach(run) for _, run in sorted(group.seeds.items())]


def measured(groups: Sequence[Group]) -> str:
    """The first table, with its title and its note."""
    title = f"Until {100 * TARGET:g} % of {setting(groups[0])}: measured"
    every = wording.listed(g.config["eval_every"] for g in groups if "eval_every" in g.config)
    again = [name(g) for g in groups if not step(g).recorded]
    recorded = f"counted here for {wording.listed(again)}" if again else "as the results tell"
    note = NOTE.format(every=every, recorded=recorded)
    caption = wording.caption(groups, LEFT_OUT)
    return f"{title}\n{table(COLUMNS, groups)}\n\n{wording.paragraph(f'{note} {caption}.')}"


def mean(what: str, unit: float = 1) -> Told:
    """The mean over seeds of what they needed."""
    return lambda group, _: mean_sd(np.array([getattr(r, what) / unit for r in reached(group)]))[0]


def rounds(group: Group) -> str:
    """The rounds of each seed."""
    return ", ".join(f">{group.rounds}" if math.isnan(r.round) else f"{r.round:g}" for r in reached(group))


def bytes_and(sign: int, part: str) -> Callable[[Group], str]:
    """All bytes, with a part that they lack, or without one that they have."""
    return lambda g: wording.digits(mean("bytes", GIB)(g, None) + sign * mean(part, GIB)(g, None))[0]


COLUMNS = (
    entry("data"),
    entry("method", "method", name),
    Column(lambda group, _: {"target": TARGET}),
    Column(lambda g, _: {"rounds_to_target": rounds(g)}, "rounds", lambda g, _: rounds(g) or "-"),
    number("seeds_that_reach", lambda g, _: sum(not math.isnan(r.round) for r in reached(g))),
    number("rounds_to_target_mean", mean("round")),
    number("gib", mean("bytes", GIB), "GiB"),
    number("gib_of_labels", mean("labels", GIB)),
    number("gib_of_heads", mean("heads", GIB)),
    word("with labels", bytes_and(1, "labels")),
    word("without heads", bytes_and(-1, "heads")),
    number("client_peak_bytes", lambda group, _: step(group).peak, "peak, MiB", MIB),
    number("client_macs_a_step", lambda group, _: step(group).macs, "G MAC", 1e9),
    SEEDS,
)
main = study("c_table2", __doc__, ["c_fig2.toml"], ("data", "cell", "method"), report)

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


class Printed(NamedTuple):
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
    return f"{title}\n{wording.text_table(header, rows)}\n\n{wording.paragraph(PAPER_NOTE)}"


if __name__ == "__main__":
    main()
