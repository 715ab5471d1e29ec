"""FedRZO beside first-order methods on [B] 5.1's network, each with its best constant step, on three budgets.

python analysis/b_methods.py [--grid jobs/b_methods.toml] [--results DIR] [--out NAME] [--partial]

All are measured on the nonsmooth objective of the clients' samples. FedRZO descends on it; the others descend on its
smooth twin, whose sharpness is --rectifier. The best step of a method (for each sharpness) is that of the lowest
nonsmooth loss on the validation part, mean of the last evaluations, where the runs have one (--validation), else of the
lowest nonsmooth objective after the last round; over the seeds that all of its steps have; *! where it is at an edge of
the grid, which lists steps in the order of their size. Prints all steps and the methods at their best; writes NAME.csv,
and NAME.pdf and NAME.png: the nonsmooth objective, test accuracy, and evaluations of a sample's loss by the clients,
where a gradient counts as 2 (two products with the inputs, not one).
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from shared import choosing, edges, totals, wording
from shared.budgets import sent
from shared.choosing import Choice
from shared.files import Report
from shared.groups import Array, Group, entries, mean_sd, series, split
from shared.study import accuracy, counts, last, spread, study
from shared.totals import Quantity

from zofl_mpi.run.grid.tune import LAST_EVALUATIONS

AXES = ("data", "rectifier", "method", "step")
GRADIENT = 2
"""Evaluations that one gradient is counted as."""
NAMES = {
    "fedrzo": "FedRZO",
    "fedrzo-16": "FedRZO, 16 directions",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedmspp": "FedMSPP",
    "scaffnew": "Scaffnew",
}
"""How they are spelled, in the order of their looks."""


def report(groups: Sequence[Group]) -> Report:
    """The tables and the figure."""
    rows = [row(choice) for choice in choices(groups)]
    note = f"{MEASURED} {CHOSEN[choosing.validated(groups, VALIDATION)]} {wording.caption(groups, LEFT_OUT)}."
    return Report(tables(rows), note, rows, draw([row for row in rows if row["best"]]))


main = study("b_methods", __doc__, ["b_methods.toml"], AXES, report, needed=("method", "step"))


MEASURED = (
    "nonsmooth: mean loss + ridge with the true rectifier on all of the clients' samples, after the last round; "
    "smooth: the same of the smooth twin (FedRZO's, which it does not use, of the sharpness in its row) on the test "
    "samples."
)
CHOSEN = {
    True: (
        "The best step is that of the lowest nonsmooth loss on the validation part, mean of the last "
        f"{LAST_EVALUATIONS} evaluations, over the seeds that all of a method's steps have."
    ),
    False: (
        "The best step is that of the lowest mean nonsmooth objective over the seeds that all of a method's steps have."
    ),
}
"""How the best step is chosen, with a validation part and without."""
VALIDATION = "validation_loss"
LEFT_OUT = ("gamma", "gamma_local", "schedule", "server_batch", "mu", "split")


# --- what is measured


def nonsmooth(group: Group) -> str:
    """The column of the nonsmooth objective: what FedRZO minimises; the others report it beside theirs."""
    return "objective" if zeroth_order(group) else "objective_nonsmooth"


def zeroth_order(group: Group) -> bool:
    """Whether a group's method evaluates losses and no gradients."""
    return str(group.config.get("method")) == "fedrzo_nn"


def evaluations(group: Group) -> Array:
    """(R,) evaluations of a sample's loss by all clients in all rounds so far, a gradient as 2; mean over seeds."""
    config = group.config
    if zeroth_order(group):  # `steps` is each client's, so far; the point of a step is evaluated beside its directions
        points = config["n_p"] * (2 if config["estimate"] == "central" else 1) + (config["estimate"] == "one-sided")
        steps = [config["m"] * series(run, "steps") for run in group.runs]
    else:
        points, steps = GRADIENT, [np.cumsum(series(run, "local_steps")) for run in group.runs]
    return np.asarray(points * float(config["batch"]) * np.mean(steps, axis=0))


def choices(groups: Sequence[Group]) -> list[Choice]:
    """The choice of each group among the steps of its data set, sharpness and method."""
    by_validation = choosing.validated(groups, VALIDATION)

    def values(same: Sequence[Group]) -> list[float]:
        if by_validation:
            return choosing.means(same, lambda run: choosing.at_the_end(run, VALIDATION))
        return choosing.means(same, lambda run: float(series(run, nonsmooth(same[0]))[-1]))

    whose = choosing.place("data", "rectifier", "method")
    return choosing.choices(groups, whose, values, lambda same: {"step": entries(same, "step")}, lowest=True)


# --- tables


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """All steps, the methods at their best, and which of these steps are at an edge; `rows`: of the CSV."""
    best = [told for told in rows if told["best"]]
    ends = [f"{kind_of(told)} ({told['step']})" for told in best if told["at_edge"]]
    return (
        f"All steps, * the method's best\n{text(rows, stars=True)}\n\n"
        f"Each method with its best step\n{text(best)}\n\n{edges.told(ends)}"
    )


def text(rows: Sequence[Mapping[str, Any]], stars: bool = False) -> str:
    """Table with a row per group; `stars`: the best ones are marked."""
    columns: dict[str, wording.Cell] = {
        "data": "data",
        "method": lambda r: NAMES.get(r["method"], r["method"]),
        "sharpness": "rectifier",
        "step": lambda r: r["step"] + edges.star(r) * stars,
        "nonsmooth": wording.four("nonsmooth_mean"),
        "sd": wording.four("nonsmooth_sd"),
        "smooth, test": wording.four("smooth_test_mean"),
        "nonsmooth, test": wording.four("nonsmooth_test_mean"),
        "accuracy (%)": wording.numbers(".2f", "accuracy_mean_percent"),
        "MiB": wording.four("bytes", 2**20),
        "10^6 evaluations": wording.four("evaluations", 1e6),
        "seeds": lambda r: f"{r['seeds']} of {r['seeds_planned']}" if wording.seeds_of(r) else r["seeds"],
    }
    return wording.table(rows, columns, left=4)


def kind_of(told: Mapping[str, Any]) -> str:
    """A row's method, data set and sharpness, as a reader knows them."""
    method = NAMES.get(told["method"], told["method"])
    return f"{method}, {wording.spelled(told['data'])}, sharpness {told['rectifier']}"


def row(choice: Choice) -> dict[str, Any]:
    """A row of the CSV."""
    group = choice.group
    return {
        "data": group.entry("data"),
        "method": group.entry("method"),
        "rectifier": group.entry("rectifier"),
        "step": group.entry("step"),
        **choice.row,
        **spread("nonsmooth", group.last(nonsmooth(group))),
        "smooth_test_mean": mean_sd(group.last("test_smooth_loss"))[0],
        "nonsmooth_test_mean": mean_sd(group.last("test_loss"))[0],
        **accuracy(group),
        "bytes": last(sent)(group, None),
        "evaluations": last(evaluations)(group, None),
        **counts(group),
    }


# --- figure


QUANTITIES = (
    Quantity("nonsmooth mean loss\n+ ridge", itemgetter("nonsmooth_mean"), itemgetter("nonsmooth_sd")),
    Quantity("test accuracy (%)", itemgetter("accuracy_mean_percent"), itemgetter("accuracy_sd_percent"), most=100),
    Quantity(
        "client evaluations ($10^6$ samples;\na gradient counts 2)", lambda row: row["evaluations"] / 1e6, log=True
    ),
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws a row of panels per data set; `rows`: the best ones of the CSV."""
    return totals.draw(split(rows, lambda r: wording.spelled(r["data"])), spelled, QUANTITIES)


def spelled(row: Mapping[str, Any]) -> str:
    """A row's method, and the sharpness of the smooth twin on which it descends."""
    name = NAMES.get(row["method"], row["method"])
    return name if row["method"].startswith("fedrzo") else f"{name}, β = {float(row['rectifier']):g}"


if __name__ == "__main__":
    main()
