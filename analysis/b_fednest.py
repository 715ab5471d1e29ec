"""FedRZO beside FedNest, which has second derivatives, and on two problems where nobody has any.

python analysis/b_fednest.py [--grid jobs/b_fednest.toml] [--results DIR] [--out NAME] [--partial]

On bilevel_bowls, saddle, cvar and shares the optimum is known: a line is F(x) - F* at the exact lower solution. On
hyperparameter it is the test loss. Each method has its best constant step. Where the optimum is known the step is that
of the lowest geometric mean of F - F* over the evaluated rounds (what is below 1e-12 counts as that), on seeds, and so
problems, other than those that are told; on hyperparameter that of the lowest loss on the validation part, mean of the
last evaluations, over the seeds that all steps have; *! where it is at an edge of the grid. An evaluation is that of
one sample's f_i at one point; a gradient and a product with second derivatives count 2 each. Prints all steps, the
methods at their best, and what each spends until it is where the worse of the two ends; writes NAME.txt, NAME.csv, and
NAME.pdf and NAME.png: the measure against bytes and evaluations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter
from shared import choosing, edges, figures, wording
from shared.budgets import sent
from shared.choosing import Choice
from shared.files import Report
from shared.groups import Array, Group, entries, series, split
from shared.study import counts, spread, study

from zofl_mpi.engine.streams import Streams
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Saddle
from zofl_mpi.problems.analytic.black_boxes import CVaR, Shares
from zofl_mpi.run import records

AXES = ("problem", "method", "step")
KNOWN: Mapping[str, Any] = {"bilevel_bowls": BilevelBowls, "saddle": Saddle, "cvar": CVaR, "shares": Shares}
TOLD = (1, 2, 3)
"""Seeds that are told; where the optimum is known, steps are chosen on the others."""
DERIVATIVE = 2
"""Evaluations that a gradient, or a product with second derivatives, is counted as."""
FLOOR = 1e-12
"""The least F - F* that counts in a mean: rounding."""
VALIDATION = "validation_loss"
NAMES = {"fedrzo": "FedRZO", "fednest": "FedNest"}
TITLES = {
    "bilevel_bowls": "quadratic bowls",
    "saddle": "minimax, known saddle",
    "hyperparameter": "regularisers, MNIST",
    "cvar": "cvar (values alone)",
    "shares": "shares (lower solutions alone)",
}
Row = Mapping[str, Any]


def report(groups: Sequence[Group]) -> Report:
    """The tables and the figure."""
    tried = choices(groups)
    best = [choice.group for choice in tried if choice.best]
    rows = [row(choice, best) for choice in tried]
    return Report(tables(rows), note(groups), rows, draw(best))


main = study("b_fednest", __doc__, ["b_fednest.toml"], AXES, report, needed=AXES)

# --- what is measured


@cache
def truth(problem: str, seed: int, n: int, m: int, noise: float) -> tuple[Array, float]:
    """x*, F* of the problem that a seed draws."""
    x, value = KNOWN[problem].random(Streams(seed), n, m, noise=noise)[0].truth()
    return x, value


def optimum(run: records.Run) -> tuple[Array, float]:
    """x*, F* of a result whose problem is known."""
    config = run.config
    return truth(config["problem"], config["seed"], config["n"], config["m"], config["noise"])


def measure(run: records.Run) -> Array:
    """(R,) F - F*, or the test loss where F* is not known; nan where nothing was evaluated."""
    if run.config["problem"] not in KNOWN:
        return series(run, "test_loss")
    return series(run, "objective_exact") - optimum(run)[1]


def last(run: records.Run) -> float:
    """The measure after the last round."""
    return float(measure(run)[-1])


def distance(run: records.Run) -> float:
    """|x - x*| after the last round; nan where x* is not known."""
    return float(np.linalg.norm(run.final["x"] - optimum(run)[0])) if run.config["problem"] in KNOWN else math.nan


def evaluations(group: Group) -> Array:
    """(R,) evaluations of a sample by all clients in the rounds so far, mean over seeds; see `DERIVATIVE`."""
    config = group.config
    if config["method"] == "fednest":
        rounds = [DERIVATIVE * config["batch"] * series(run, "gradients") for run in group.runs]
    else:  # f_i at both ends of a direction in each local step, gradients below
        upper = 2 * config["H"] * config["batch"]
        rounds = [upper + DERIVATIVE * config["batch_lower"] * series(run, "lower_steps") for run in group.runs]
    return np.asarray(config["m"] * np.cumsum(np.mean(rounds, axis=0)))


def told_of(group: Group) -> Group:
    """The group with the seeds that are told."""
    runs = tuple(run for seed, run in group.seeds.items() if seed in TOLD)
    return replace(group, runs=runs, planned=len(TOLD))


# --- the choice of steps


def criterion(run: records.Run) -> float:
    """What a run is chosen by: the least is best."""
    if run.config["problem"] not in KNOWN:
        return choosing.at_the_end(run, VALIDATION)
    gaps = measure(run)
    return float(np.exp(np.mean(np.log(np.maximum(gaps[~np.isnan(gaps)], FLOOR)))))


def for_choice(group: Group) -> Group:
    """The group with the seeds that its step is chosen on."""
    if group.entry("problem") not in KNOWN:
        return group
    runs = tuple(run for seed, run in group.seeds.items() if seed not in TOLD)
    return replace(group, runs=runs, planned=len(runs))


def choices(groups: Sequence[Group]) -> list[Choice]:
    """The choice of each group among the steps of its method on its problem."""

    def values(same: Sequence[Group]) -> list[float]:
        return choosing.means([for_choice(g) for g in same], criterion)

    steps = choosing.place("problem", "method")
    return choosing.choices(groups, steps, values, lambda same: {"step": entries(same, "step")}, lowest=True)


# --- tables


def row(choice: Choice, best: Sequence[Group]) -> dict[str, Any]:
    """A row of the CSV; `best`: the groups of best steps."""
    group, told = choice.group, told_of(choice.group)
    rival = [told_of(g) for g in best if g.entry("problem") == group.entry("problem")]
    at = reached(told, rival) if choice.best and told.runs else None
    until = math.nan if at is None else at
    return {
        "problem": group.entry("problem"),
        "method": group.entry("method"),
        "step": group.entry("step"),
        "chosen_by": choice.value,
        **choice.row,
        "first_mean": float(curve(told)[1][:, 0].mean()) if told.runs else math.nan,
        **spread("measure", np.array([last(run) for run in told.runs])),
        "by_seed": " ".join(wording.digits(*map(last, told.runs))),
        **spread("distance", np.array([distance(run) for run in told.runs])),
        "bytes": float(sent(told)[-1]) if told.runs else math.nan,
        "evaluations": float(evaluations(told)[-1]) if told.runs else math.nan,
        "reached_in_round": until + 1,
        "bytes_until": math.nan if at is None else float(sent(told)[at]),
        "evaluations_until": math.nan if at is None else float(evaluations(told)[at]),
        **counts(told),
        "rounds": group.rounds,
    }


def curve(group: Group) -> tuple[Any, Array]:
    """(k,) evaluated rounds from 0, and (seeds, k) the measure."""
    values = np.stack([measure(run) for run in group.runs])
    there = np.flatnonzero(~np.isnan(values).any(axis=0))
    return there, values[:, there]


def reached(group: Group, rivals: Sequence[Group]) -> int | None:
    """The first evaluated round, from 0, at which the mean is where the worse of the methods ends; None: alone."""
    if len(rivals) < 2 or not all(g.runs for g in rivals):
        return None
    worst = max(float(np.mean([last(run) for run in g.runs])) for g in rivals)
    at, values = curve(group)
    return int(at[np.flatnonzero(values.mean(axis=0) <= worst)[0]])


def tables(rows: Sequence[Row]) -> str:
    """All steps, the methods at their best, and what they spend until the worse one's end."""
    best = [r for r in rows if r["best"]]
    ends = [", ".join([*reversed(names(r)), r["step"]]) for r in best if r["at_edge"]]
    both: dict[str, wording.Cell] = {"problem": "problem", "method": lambda r: names(r)[1]}
    tried = both | {"step": lambda r: r["step"] + edges.star(r), "chosen by": wording.four("chosen_by")}
    reached = both | {
        "step": "step",
        "first": wording.four("first_mean"),
        "last": wording.four("measure_mean"),
        "sd": wording.four("measure_sd"),
        "|x - x*|": wording.four("distance_mean"),
        "KiB": wording.four("bytes", 2**10),
        "10^6 evaluations": wording.four("evaluations", 1e6),
        "by seed": "by_seed",
    }
    until = both | {
        "rounds": wording.numbers(".0f", "reached_in_round"),
        "KiB": wording.four("bytes_until", 2**10),
        "10^6 evaluations": wording.four("evaluations_until", 1e6),
    }
    told = [r for r in best if not math.isnan(r["reached_in_round"])]
    return "\n\n".join(
        [
            f"All steps by what they are chosen by, * the best\n{wording.table(rows, tried, left=3)}",
            f"Each method with its best step\n{wording.table(best, reached, left=3)}",
            f"Until the mean is where the worse of the two ends\n{wording.table(told, until, left=2)}",
            edges.told(ends),
        ]
    )


def names(row: Row) -> list[str]:
    """A row's problem and method."""
    return [row["problem"], NAMES.get(row["method"], row["method"])]


def note(groups: Sequence[Group]) -> str:
    """The caption."""
    left = ("gamma", "gamma_local", "schedule", "server_batch", "split", "x0")
    return (
        "first, last: F(x) - F* at the exact lower solution after the first and the last round, of hyperparameter the "
        "test loss; "
        f"seeds {TOLD[0]} to {TOLD[-1]}. {wording.caption([told_of(g) for g in groups], left)}."
    )


# --- figure


@figures.styled
def draw(best: Sequence[Group]) -> Any:
    """Draws a row per problem: the measure against bytes and against evaluations."""
    shown = [g for g in map(told_of, best) if g.runs]
    blocks = split(shown, lambda g: g.entry("problem"))
    figure, panels = figures.canvas(len(blocks), 2, figures.PAGE, 1.7, sharey="row")
    for line, (problem, block) in zip(panels, blocks.items(), strict=True):
        for group in block:
            at, values = curve(group)
            k = list(NAMES).index(group.entry("method"))
            for panel, budget in zip(line, (sent(group) / 2**10, evaluations(group) / 1e6), strict=True):
                figures.band(panel, budget[at], values, NAMES[group.entry("method")], k)
        known = problem in KNOWN
        line[0].set(ylabel="$F(x_r) - F^*$" if known else "test loss (nat)")
        line[0].set_title(TITLES.get(problem, problem), loc="left")
        for panel in line:
            panel.set(xscale="log", yscale="log" if known else "linear")
            panel.xaxis.set_minor_formatter(NullFormatter())
    panels[-1, 0].set_xlabel("sent down and up (KiB)")
    panels[-1, 1].set_xlabel("client evaluations ($10^6$ samples; a derivative counts 2)")
    figures.legend(figure, panels, 2)
    return figure


if __name__ == "__main__":
    main()
