"""ZO-HFL beside its server alone: how far it is ahead against the server's share of the data and the model's length n.

python analysis/a_shares.py [--grid jobs/a_shares.toml] [--results DIR] [--out NAME] [--partial]

An axis `cell` tells the server's share, n and the classes that the server lacks, as share-0.01+n-170+lacks-3. The best
steps of a method in a cell are those of the highest accuracy on the validation part, mean of the last evaluations, over
the seeds that all that were tried have. A gain is the test accuracy less that of the server alone, seed by seed, both
with their best steps; deviations are those of this difference over seeds. Prints a row per cell and method; writes
NAME.txt, NAME.csv (with all steps that were tried), NAME.pdf and NAME.png.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from shared import choosing, edges, figures, wording
from shared.choosing import Choice, named_step, size
from shared.files import Report
from shared.groups import Group, ahead, mean_sd
from shared.study import accuracy, counts, spread, study

from zofl_mpi.report.groups import t_half_width

STEPS = ("lam", "local", "server")
PLACE = ("share", "n", "lacks")
CONTROL = "server_sgd"
Row = dict[str, Any]


def report(groups: Sequence[Group]) -> Report:
    """The table and the figure."""
    rows = rows_of(placed(groups))
    best = [row for row in rows if row["best"]]
    marked = [f"{wording.method_name(r['method'])} ({cell(r)}: {r['step']})" for r in best if r["at_edge"]]
    return Report(f"{table(best)}\n\n{edges.told(marked)}", NOTE, rows, draw(best))


main = study("a_shares", __doc__, ["a_shares.toml"], ("cell", "method", *STEPS), report, needed=("cell", "method"))

NOTE = (
    "Test accuracy in %, mean ± deviation over seeds; gain: over the server alone, seed by seed. Best steps by the "
    "accuracy on the validation part, chosen on seed 1; FedAvg's are those of another share with the same n where no "
    "others were tried. Bytes up: of all clients and rounds. Directions: drawn in the run, per parameter."
)


# --- the choice of steps


def placed(groups: Sequence[Group]) -> list[Group]:
    """The groups with results, with what their axis `cell` tells as coordinates of their own."""
    found = []
    for group in groups:
        told = {word.partition("-")[0]: word for word in group.where["cell"].split("+")}
        method = group.where["method"].replace("-", "+")  # fedavg-server
        where = {"lacks": "lacks-0"} | group.where | told | {"method": method}
        found += [replace(group, where=where)] if group.runs else []
    return found


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """The rows of the CSV: all steps of a method in a cell, the best of them marked."""
    cells, methods = list(dict.fromkeys(map(place, groups))), list(wording.METHODS)
    groups = sorted(groups, key=lambda g: (cells.index(place(g)), methods.index(g.where["method"])))
    chosen_by = choosing.by(lambda run: 100 * choosing.at_the_end(run, "validation_accuracy"))
    tried = choosing.choices(groups, choosing.place(*PLACE, "method"), chosen_by, choosing.by_size(STEPS))
    best = [choice.group for choice in tried if choice.best]
    controls = {place(g): g for g in best if g.where["method"] == CONTROL}
    return [row(choice, controls[place(choice.group)]) for choice in tried]


def place(group: Group) -> str:
    """A group's cell."""
    return " ".join(group.where[axis] for axis in PLACE)


def row(choice: Choice, control: Group) -> Row:
    """A row of the CSV; `control`: the server alone at its best step."""
    group, gains = choice.group, ahead(choice.group, control, "test_accuracy")
    mean, sd = mean_sd(gains)
    return {
        **{axis: size(group.where[axis]) for axis in PLACE},
        "method": group.where["method"],
        "step": named_step(group, STEPS),
        **accuracy(group),
        "accuracy_by_seed_percent": " ".join(f"{a:.4f}" for a in 100 * group.last("test_accuracy")),
        **spread("gain", gains),
        "gain_in_deviations": mean / sd if sd else math.nan,
        "seeds_ahead": int((gains > 0).sum()),
        "personal_mean_percent": mean_sd(100 * group.last("personal_accuracy"))[0],
        "bytes_up": float(np.mean([run.clients["bytes_up"].sum() for run in group.runs])),
        "directions_per_parameter": float(group.runs[0].attrs.get("directions_per_parameter", math.nan)),
        "chosen_by_percent": choice.value,
        **choice.row,
        **counts(group),
    }


# --- table and figure


def cell(row: Row) -> str:
    """Share, n and what the server lacks, in words."""
    lacks = f", lacks {row['lacks']:g} classes" if row["lacks"] else ""
    return f"{100 * row['share']:g} %, n = {row['n']:g}{lacks}"


def table(best: Sequence[Row]) -> str:
    """A row per cell and method at its best steps."""
    lines = []
    for r in best:
        control = r["method"] == CONTROL
        ahead = "-" if control else f"{r['gain_mean']:+.2f} ± {r['gain_sd']:.2f}"
        times = "-" if control else f"{r['gain_in_deviations']:.1f}"
        numbers = (wording.mean_of(r, "accuracy"), ahead, times)
        personal, count = f"{r['personal_mean_percent']:.2f}", f"{r['bytes_up']:,.0f}"
        drawn = "-" if math.isnan(r["directions_per_parameter"]) else f"{r['directions_per_parameter']:.3g}"
        where = (cell(r), wording.method_name(r["method"]), edges.step(r))
        lines.append([*where, str(r["seeds"]), *numbers, personal, count, drawn])
    header = ["server's data", "method", "steps", "seeds", "accuracy", "gain", "gain / deviation", "personal"]
    return wording.text_table([*header, "bytes up", "directions"], lines, left=3)


@figures.styled
def draw(best: Sequence[Row]) -> Any:
    """Draws the gain of ZO-HFL and of FedAvg over the server alone against the server's share, a panel per model."""
    sizes = sorted({(r["lacks"], r["n"]) for r in best})
    figure, panels = figures.canvas(1, len(sizes), figures.PAGE, 2.2, sharex=True, sharey=True)
    for panel, (lacks, n) in zip(panels.flat, sizes, strict=True):
        for k, method in enumerate(("zo_hfl", "fedavg")):
            of = sorted((r for r in best if (r["method"], r["lacks"], r["n"]) == (method, lacks, n)), key=share)
            panel.errorbar(
                [100 * share(r) for r in of],
                [r["gain_mean"] for r in of],
                [float(t_half_width(r["gain_sd"], int(r["seeds"]))) for r in of],
                **figures.look(k),
                capsize=2,
                label=wording.method_name(method),
            )
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set_title(f"n = {n:g}" + f"\nserver lacks {lacks:g} classes" * bool(lacks), loc="left")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
    figure.supxlabel("server's share of the training data (%)", fontsize=8)
    panels[0, 0].set_ylabel("gain over the server alone\n(points of test accuracy)")
    figures.legend(figure, panels, 2, "mean over seeds of the difference seed by seed; bar: its 95 % t interval")
    return figure


def share(row: Row) -> float:
    """The server's share of the training data, of 1."""
    return float(row["share"])


if __name__ == "__main__":
    main()
