"""[B] figure 2: bilevel and minimax problems over rounds for several numbers of local steps, with 95 % intervals.

python analysis/b_fig2.py [--grid jobs/b_fig2.toml jobs/b_fig2_minimax.toml] [--partial]

Left: the test loss of the logistic regression whose regularisers are chosen (hyperparameter). Right: the objective of
fair classification at the exact maximiser, |L(x)|^2/(2 lambda) (fair, or fair_softmax); and, where the grid has the
control that minimises the mean of the classes' losses, the worst class's loss under both. Lines are means over seeds,
bands and numbers after ± the 95 % interval of the mean, t sqrt(s^2/k) with Student's t for k - 1 degrees of freedom.
In fair classification seeds differ in their starts as well, by more than the methods differ: thin lines are the seeds
there, in place of the band, and the table counts those that end below the first line's run of the same seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from shared import figures, wording
from shared.files import Report
from shared.groups import Array, Group, entries, series, split
from shared.study import study

from zofl_mpi.report.groups import half_width

PANELS = {
    "hyperparameter": ("test_loss", "test loss (nat)", "hyper-parameters"),
    "fair": ("objective_exact", "$\\max_y f(x, y)$", "fair classification"),
    "fair_softmax": ("objective_exact", "$\\max_y f(x, y)$", "the same with softmax regression"),
}
"""Problem -> column, label of its axis, title."""
SCATTERED = ("fair", "fair_softmax")
"""Problems with random starts."""
WORST = ("test_worst_class_loss", "worst class's test loss", "fairness")
GOALS = {"fair": "classes weighted by $y$", "mean": "classes' mean loss"}


def report(groups: Sequence[Group]) -> Report:
    """The last numbers and the figure."""
    return Report(f"{text(groups)}\n\n{captions(groups)}", figure=draw(groups))


main = study("b_fig2", __doc__, ["b_fig2.toml", "b_fig2_minimax.toml"], ("H", "goal"), report, needed=("H",))


def problem_of(group: Group) -> str:
    """The problem of a group: hyperparameter, fair or fair_softmax."""
    return str(group.config["problem"])


def goal_of(group: Group) -> str:
    """The goal of a group: fair, or the control, mean."""
    return group.where.get("goal", "fair")


def shown_in(groups: Sequence[Group], problem: str) -> list[Group]:
    """The lines of a problem's panel."""
    return [g for g in groups if problem_of(g) == problem and goal_of(g) == "fair"]


def compared(groups: Sequence[Group]) -> list[Group]:
    """The groups of the control, and those it is compared with."""
    mean = [g for g in groups if goal_of(g) == "mean"]
    alike = {g.entry("H") for g in mean}
    return [g for g in groups if mean and problem_of(g) == "fair" and g.entry("H") in alike]


# --- words


def text(groups: Sequence[Group]) -> str:
    """Table of first and last numbers, and how soon a line is where the one with the fewest local steps ends."""
    body = []
    for problem, (column, _, _) in PANELS.items():
        found = [g for g in shown_in(groups, problem) if g.runs]
        for group in found:
            told = ends(group.curve(column)[1])
            told += [below(group, found[0], column), reached(group, found, column)]
            body.append([problem, column, f"H = {group.entry('H')}", *told])
    control = [g for g in compared(groups) if g.runs]
    for group in control:
        name = f"{goal_of(group)}, H = {group.entry('H')}"
        told = [*ends(group.curve(WORST[0])[1]), below(group, control[0], WORST[0]), "-"]
        body.append(["fair", WORST[0], name, *told])
    header = ("problem", "column", "line", "first", "last", "±", "seeds", "below the first", "rounds to its end")
    return wording.text_table(header, body, left=3)


def ends(values: Array) -> list[str]:
    """Mean of (seeds, k) values at the first and last evaluation, interval of the latter, number of seeds."""
    numbers = wording.digits(float(values[:, 0].mean()), float(values[:, -1].mean()), float(half_width(values)[-1]))
    return [*numbers, str(len(values))]


def below(group: Group, first: Group, column: str) -> str:
    """How many seeds end below the run of the same seed in the first group."""
    least = {run.config["seed"]: float(series(run, column)[-1]) for run in first.runs}
    last = {run.config["seed"]: float(series(run, column)[-1]) for run in group.runs}
    return str(sum(value < least[seed] for seed, value in last.items() if seed in least))


def reached(group: Group, groups: Sequence[Group], column: str) -> str:
    """The first evaluated round whose mean is as low as that of the first group after its last."""
    level = groups[0].curve(column)[1][:, -1].mean()
    rounds, values = group.curve(column)
    there = np.flatnonzero(values.mean(axis=0) <= level)
    return str(rounds[there[0]]) if len(there) else f"> {rounds[-1]}"


def captions(groups: Sequence[Group]) -> str:
    """The note: what was measured, problem by problem."""
    problems = split(groups, problem_of)
    return "\n".join(
        wording.paragraph(f"{name}: {wording.caption(own, ('problem',))}") for name, own in problems.items()
    )


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws a panel for each problem, and one for the control."""
    there = [problem for problem in PANELS if shown_in(groups, problem)]
    control = compared(groups)
    columns = len(there) + bool(control)
    figure, panels = figures.canvas(1, columns, figures.COLUMN if columns == 1 else figures.PAGE, 2.3)
    for panel, problem in zip(panels[0], there, strict=False):
        found = shown_in(groups, problem)
        for group in found:
            k = entries(found, "H").index(group.entry("H"))
            line(panel, group, PANELS[problem][0], f"$H$ = {group.entry('H')}", k)
        figures.titled(panel, PANELS[problem][2], found, lambda g: f"H = {g.entry('H')}")
        panel.set_ylabel(PANELS[problem][1])
        if problem in SCATTERED:
            logarithmic(panel)
    if control:
        for k, group in enumerate(control):
            line(panels[0, -1], group, WORST[0], GOALS[goal_of(group)], 3 + k)
        figures.titled(panels[0, -1], f"{WORST[2]}, $H$ = {control[0].entry('H')}", control, goal_of)
        panels[0, -1].set_ylabel(WORST[1])
        logarithmic(panels[0, -1])
    for panel in panels[0]:
        panel.set(xlabel="rounds", xlim=(0, None))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figures.legend(figure, panels, 5, "line: mean over seeds; band: 95 % interval of the mean; thin: seeds")
    return figure


def logarithmic(panel: Any) -> None:
    """Makes the vertical axis logarithmic, with plain numbers."""
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())


def line(panel: Any, group: Group, column: str, label: str, k: int) -> None:
    """Draws the mean over seeds with its interval, or with a thin line for each seed."""
    if not group.runs:
        return
    rounds, values = group.curve(column)
    mean, half, look = values.mean(axis=0), half_width(values), figures.look(k)
    panel.plot(rounds, mean, label=label, **(look | {"markevery": max(len(rounds) // 6, 1)}))
    if problem_of(group) in SCATTERED:
        panel.plot(rounds, values.T, color=look["color"], alpha=0.4, linewidth=0.6)
    elif len(values) > 1:
        panel.fill_between(rounds, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0)


if __name__ == "__main__":
    main()
