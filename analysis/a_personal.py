"""Personal models of ZO-HFL beside those of every other method: accuracy of the y_i and of x, cell by cell.

python analysis/a_personal.py [--grid jobs/a_personal.toml jobs/a_personal_tuned.toml jobs/a_personal_steps.toml]
    [--results DIR] [--out NAME] [--partial]

ZO-HFL's y_i, and those of the methods that train none, are made by Algorithm 2 of [A] from the method's x, on the
client's own data; Ditto's and pFedMe's are their own. The control "x_0" does so from x_0: no federation at all. A
personal accuracy is that of y_i on held-out samples weighted to client i's classes, mean over the clients; a global
one that of x on all test samples. Of a grid with axes of steps the best in a cell are those of the highest personal
accuracy on the validation part after the last round, over the seeds that all of a method's steps there have; ! where
they are at an edge of the grid. A grid with a validation part and without axes of steps has these, on more seeds.
Prints a table per data set, for printed and for tuned steps, where ZO-HFL is ahead of FedAvg with fine-tuning, seed by
seed, and the steps that were chosen; writes NAME.txt, NAME.csv (with all that were tried), NAME.pdf and NAME.png.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared import choosing, edges, figures, wording
from shared.choosing import Choice, named_step, size
from shared.files import Report
from shared.groups import Group, ahead, series
from shared.study import counts, spread, study

from zofl_mpi.errors import UserError
from zofl_mpi.report.groups import t_half_width

GRIDS = ["a_personal.toml", "a_personal_tuned.toml", "a_personal_steps.toml"]
STEPS = ("local", "server", "own", "lam", "copy")
PLACE = ("data", "cell", "method")
AXES = (*PLACE, *STEPS)
PERSONAL, VALIDATION = "personal_accuracy", "validation_personal_accuracy"
RIVAL, OURS = "fedavg", "zo_hfl"
FLAGS = (
    *("gamma", "schedule", "gamma_local", "schedule_local"),
    *("personal_gamma", "personal_schedule", "lam_p", "alpha_p"),
)
"""What steps are: those that were chosen are those of the tuned runs."""
NAMES = {
    "fedavg": "FedAvg, fine-tuned",
    "fedprox": "FedProx, fine-tuned",
    "scaffold": "SCAFFOLD, fine-tuned",
    "zo_hfl": "ZO-HFL",
    "server_sgd": "server SGD, fine-tuned",
    "ditto": "Ditto",
    "pfedme": "pFedMe",
    "alone": "x_0, fine-tuned",
}
"""How they are spelled, in the order of their looks."""
Row = Mapping[str, Any]


def report(groups: Sequence[Group]) -> Report:
    """The tables and the figure."""
    rows = rows_of(groups)
    return Report(tables(rows), note(groups), rows, draw(rows))


main = study("a_personal", __doc__, GRIDS, AXES, report, needed=PLACE)

# --- the choice of steps


def kind(group: Group) -> str:
    """What a group is: tried (steps that are chosen among), tuned (chosen so: it has a validation part), or printed."""
    if any(axis in group.where for axis in STEPS):
        return "tried"
    return "tuned" if group.config.get("validation") else "printed"


def choices(groups: Sequence[Group]) -> list[Choice]:
    """The choice for each of the groups of tried steps; no step at all, 0, is at no edge: none lies below it."""
    last = choosing.by(lambda run: 100 * float(series(run, VALIDATION)[-1]))
    tried = choosing.choices(groups, choosing.place(*PLACE), last, choosing.by_size(STEPS))
    return [
        replace(choice, at_edge=tuple(axis for axis in choice.at_edge if size(choice.group.where[axis]) != 0))
        for choice in tried
    ]


def whose(group: Group) -> tuple[str, str, str]:
    """Data set, cell and method."""
    return group.entry("data"), group.entry("cell"), group.entry("method")


def check_steps(group: Group, best: Group) -> None:
    """Refuses a tuned group whose steps are not the best of those that were tried.

    Raises:
        UserError: they are not.
    """
    if differing := [key for key in FLAGS if group.config.get(key) != best.config.get(key)]:
        raise UserError(
            f"{' '.join(whose(group))}: the best of the steps that were tried are {named_step(best, STEPS)}, "
            f"and the grid of tuned steps has another {', '.join(differing)}"
        )


# --- what is measured


def rows_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The rows of the CSV, in the groups' order."""
    tried = [g for g in groups if kind(g) == "tried"]
    of = {id(choice.group): choice for choice in choices(tried)}
    best = {whose(choice.group): choice.group for choice in of.values() if choice.best}
    rivals = {where(g): g for g in groups if g.entry("method") == RIVAL and kind(g) != "tried"}
    for group in groups:
        if kind(group) == "tuned" and whose(group) in best and group.runs:
            check_steps(group, best[whose(group)])
    return [row(g, of.get(id(g)), best.get(whose(g)), rivals.get(where(g))) for g in groups]


def where(group: Group) -> tuple[str, str, str]:
    """Whose steps, data set and cell."""
    return kind(group), group.entry("data"), group.entry("cell")


def row(group: Group, choice: Choice | None, best: Group | None, rival: Group | None) -> dict[str, Any]:
    """A row of the CSV; `choice` of a step that was tried, `best` the best of the method in this cell."""
    less = ahead(group, rival, PERSONAL)
    has_step = group if choice and best else best if kind(group) == "tuned" else None
    return {
        "steps": kind(group),
        "data": group.entry("data"),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "step": named_step(has_step, STEPS) if has_step else "printed",
        **spread("personal", 100 * group.last(PERSONAL), "_percent"),
        **spread("global", 100 * group.last("test_accuracy"), "_percent"),
        **spread("less_fedavg", less),
        "seeds_ahead_of_fedavg": int((less > 0).sum()),
        "chosen_by_percent": choice.value if choice else math.nan,
        **(choice or Choice(group, math.nan)).row,
        **counts(group),
    }


# --- tables


def tables(rows: Sequence[Row]) -> str:
    """The comparison grid by grid and data set by data set, where ZO-HFL is ahead, and the steps that were chosen."""
    parts = []
    for steps in dict.fromkeys(r["steps"] for r in rows):
        for data in dict.fromkeys(r["data"] for r in rows):
            block = [r for r in rows if (r["steps"], r["data"]) == (steps, data)]
            if block and steps != "tried":
                title = f"{wording.spelled(data)}, {steps} steps: accuracy in %, personal | global"
                parts.append(f"{title}\n{table(block)}")
    parts.append("\n".join(verdicts(rows)))
    if any(r["steps"] == "tried" for r in rows):
        title = "Steps that were chosen, by personal accuracy on validation samples (%), and the next best"
        parts += [f"{title}\n{chosen(rows)}"]
        marked = [f"{name(r)} ({r['step']}) on {wording.spelled(r['data'])}, {r['cell']}" for r in rows if r["at_edge"]]
        parts.append(edges.told(marked))
        parts += [wording.paragraph(sentence) for sentence in (least(rows), single(rows)) if sentence]
    return "\n\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """Table of one data set: a row per method, a column per cell."""
    return wording.crossed("method", ((name(r), r["cell"], told(r)) for r in rows))


def told(row: Row) -> str:
    """A row's personal and global accuracy, with the seeds that are missing."""
    both = (wording.mean_of(row, key) for key in ("personal", "global"))
    return f"{' | '.join(both)} {wording.seeds_of(row)}".rstrip()


def verdicts(rows: Sequence[Row]) -> list[str]:
    """A line for each grid, data set and cell: how far ZO-HFL is ahead of fine-tuned FedAvg, and on how many seeds."""
    lines = ["ZO-HFL's personal accuracy less FedAvg's with fine-tuning, seed by seed, in points"]
    for r in rows:
        if r["method"] == OURS and not math.isnan(r["less_fedavg_mean"]):
            mean, seeds = r["less_fedavg_mean"], f"ahead on {r['seeds_ahead_of_fedavg']:.0f} of {r['seeds']} seeds"
            spread = "" if math.isnan(r["less_fedavg_sd"]) else f" ± {r['less_fedavg_sd']:.2f}"
            lines.append(f"{r['steps']}, {wording.spelled(r['data'])}, {r['cell']}: {mean:+.2f}{spread}, {seeds}")
    return lines


def chosen(rows: Sequence[Row]) -> str:
    """Table of the steps that were chosen, ! where they are at an edge, out of how many, and what the next best had."""
    lines = []
    for r in [r for r in rows if r["steps"] == "tried" and r["best"]]:
        place = tuple(r[axis] for axis in PLACE)
        tried = [o for o in rows if o["steps"] == "tried" and tuple(o[axis] for axis in PLACE) == place]
        others = [o["chosen_by_percent"] for o in tried if not (o["best"] or math.isnan(o["chosen_by_percent"]))]
        values = map(wording.plain, (r["chosen_by_percent"], max(others, default=math.nan)))
        lines.append([wording.spelled(r["data"]), r["cell"], name(r), edges.step(r), *values, str(len(tried))])
    return wording.text_table(["data", "cell", "method", "steps", "validation", "next", "tried"], lines, left=4)


def single(rows: Sequence[Row]) -> str:
    """A sentence that names what no other steps were tried for, if there is any."""
    count = Counter(tuple(r[axis] for axis in PLACE) for r in rows if r["steps"] == "tried")
    alone = [r for r in rows if r["steps"] == "tried" and count[tuple(r[axis] for axis in PLACE)] == 1]
    told = "; ".join(f"{name(r)} on {wording.spelled(r['data'])}, {r['cell']}" for r in alone)
    return f"Nothing else was tried for {told}." if alone else ""


def least(rows: Sequence[Row]) -> str:
    """A sentence that names the best steps that are none at all, if there are any."""
    none = [r for r in rows if r["steps"] == "tried" and r["best"] and any(size(w) == 0 for w in r["step"].split())]
    told = ", ".join(f"{name(r)} ({r['step']}) on {wording.spelled(r['data'])}, {r['cell']}" for r in none)
    return f"Nothing lies below a step of 0, which is best for {told}." if none else ""


def name(row: Row) -> str:
    """A row's method, as a reader knows it."""
    return NAMES.get(str(row["method"]), str(row["method"]))


def note(groups: Sequence[Group]) -> str:
    """The caption."""
    left = ("gamma", "gamma_local", "schedule", "schedule_local", "mu", "tau")
    by = (
        "Tuned steps are those of the highest personal accuracy on the validation part after the last round, chosen in "
        "each cell."
    )
    told = [g for g in groups if kind(g) != "tried"]
    return f"{by if len(told) < len(groups) else ''} {wording.caption(told, left)}.".strip()


# --- figure


@figures.styled
def draw(rows: Sequence[Row]) -> Any:
    """Draws a row per data set and a column per kind of steps: personal accuracy, full, and global, hollow, by cell."""
    told = [r for r in rows if r["steps"] != "tried" and r["seeds"]]
    kinds, names = (list(dict.fromkeys(r[key] for r in told)) for key in ("steps", "data"))
    figure, panels = figures.canvas(len(names), len(kinds), figures.PAGE, 2.5, sharex=True, sharey=True)
    for panel, (data, steps) in zip(panels.flat, ((d, k) for d in names for k in kinds), strict=True):
        block = [r for r in told if (r["steps"], r["data"]) == (steps, data)]
        cells = list(dict.fromkeys(r["cell"] for r in block))
        for r in block:
            mark(panel, r, cells.index(r["cell"]))
        panel.set_title(f"{wording.spelled(data)}, {steps} steps", loc="left")
        panel.set_xticks(range(len(cells)), [c.replace("a", "α = ").replace("-b", ", β = ") for c in cells])
    for line in panels:
        line[0].set_ylabel("accuracy (%)")
    figures.legend(figure, panels, 4, "mean over seeds, 95 % t interval; full: personal, hollow: global")
    return figure


def mark(panel: Any, row: Row, at: int) -> None:
    """Draws a row's two accuracies beside the other methods' of its cell."""
    k = list(NAMES).index(row["method"])
    x, colour = at + (k - (len(NAMES) - 1) / 2) * 0.1, figures.look(k)["color"] if k < 7 else "0.5"
    looks = {"color": colour, "marker": "oshD^vPX"[k], "markersize": 4.5, "linestyle": "", "capsize": 0}
    for what, full in (("personal", True), ("global", False)):
        if full or row["method"] != "alone":  # x_0 itself is chance
            half = t_half_width(row[f"{what}_sd_percent"], int(row["seeds"]))
            looks |= {"markerfacecolor": colour if full else "white", "label": NAMES[row["method"]] if full else None}
            figures.barred(panel, [x + 0.03 * (not full)], [row[f"{what}_mean_percent"]], half, **looks)


if __name__ == "__main__":
    main()
