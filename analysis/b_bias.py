"""[B] Algorithms 2 and 3 with unequal h_i: the lower solvers' bias, and where it leads the upper level.

python analysis/b_bias.py [--rounds 100] [--seeds 1 2] [--out NAME]       # no results needed; about two minutes

The problem is `known.BilevelBowls`: quadratics whose lower solution, minimiser x* and least value F* are known. There
is no gradient noise and all samples are used, so whatever lower error remains is the solver's own: local steps between
two averagings lead to the mean of the clients' minimisers, which is not y(x). T = 60 steps a call, where Algorithm 3's
grow with r; FedAC's are its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.problems.analytic.bilevel import BilevelBowls
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

SOLVERS: dict[str, dict[str, Any]] = {
    "Local SGD, H = T/m": {"lower": "local_sgd", "T_lower": "60", "H_lower": "paper", "batch_lower": 0},
    "Local SGD, H = 1": {"lower": "local_sgd", "T_lower": "60", "H_lower": "1", "batch_lower": 0},
    "FedAC-I, H = 5": {"lower": "fedac1", "T_lower": "auto", "H_lower": "5", "batch_lower": 0},
    "FedAC-I, H = 1": {"lower": "fedac1", "T_lower": "auto", "H_lower": "1", "batch_lower": 0},
    "LFD, the paper's H": {"lower": "lfd", "T_lower": "60", "H_lower": "paper", "batch_lower": 0},
    "exact": {"lower": "exact"},
}
N, M, H, GAMMA, ETA = 8, 5, 5, 0.01, 0.01


class Course(NamedTuple):
    """What a run of Algorithm 2 reached.

    Attributes:
        gap: (rounds,) F(x_r) - F* after each round, relative to that of x_0.
        distance: |x_R - x*| / |x_0 - x*|.
        error: |y - y(x)| / |y(x)| of the call at x in the last round.
        residual: |(1/m) sum_i grad_y h_i(x, y)| of that call.
    """

    gap: Array
    distance: float
    error: float
    residual: float


def report(flags: Any) -> Report:
    """The table and the figure."""
    courses = {name: [run(solver, flags.rounds, s) for s in flags.seeds] for name, solver in SOLVERS.items()}
    return Report(text(courses), about(flags.rounds, flags.seeds), rows(courses), draw(courses))


FLAGS = {"--rounds": command.flag(100, "of the upper level"), "--seeds": command.flag([1, 2], "of problem and run")}
main = command.script("b_bias", __doc__, report, FLAGS)


def run(solver: Mapping[str, Any], rounds: int, seed: int) -> Course:
    """Runs Algorithm 2 on a random problem with unequal clients."""
    streams = Streams(seed)
    problem, _, data = BilevelBowls.random(streams, N, M)
    setting = Setting(problem, streams, data, dtype=np.float64)
    method = from_flags(FedRZOBL, setting, H=H, gamma=GAMMA, eta=ETA, batch=0, **solver)
    clients, state, points = LocalClients(list(data)), method.start(), []
    x0 = state.x
    for r in range(rounds):
        x, state = state.x, method.round(state, r, clients)
        points.append(state.x)
    best, least = problem.truth()
    exact = problem.P @ x  # the call was made at x
    return Course(
        np.array([problem.implicit(p) - least for p in points]) / (problem.implicit(x0) - least),
        float(np.linalg.norm(state.x - best) / np.linalg.norm(x0 - best)),
        float(np.linalg.norm(state.y - exact) / np.linalg.norm(exact)),
        method.residual(clients, x, state.y),
    )


# --- words

Courses = dict[str, list[Course]]


def mean(courses: Sequence[Course], what: str) -> float:
    """The mean of a number over seeds; of the gap, that after the last round."""
    values = [np.atleast_1d(getattr(course, what))[-1] for course in courses]
    return float(np.mean(values))


def rows(courses: Courses) -> list[dict[str, Any]]:
    """A row for each solver."""
    told = {
        "lower_error_relative": "error",
        "lower_residual": "residual",
        "distance_to_solution_relative": "distance",
        "objective_gap_relative": "gap",
    }
    return [
        {"solver": name, **{column: mean(found, what) for column, what in told.items()}, "seeds": len(found)}
        for name, found in courses.items()
    ]


def text(courses: Courses) -> str:
    """The table."""
    header = ("lower solver", "|y - y(x)|/|y(x)|", "|grad_y h|", "|x - x*|/|x0 - x*|", "(F - F*)/(F0 - F*)")
    body = [[row["solver"], *(f"{value:.2e}" for value in list(row.values())[1:5])] for row in rows(courses)]
    return wording.text_table(header, body)


def about(rounds: int, seeds: Sequence[int]) -> str:
    """The note: what was measured."""
    return (
        f"After {rounds} rounds, mean over {len(seeds)} seed{'' if len(seeds) == 1 else 's'}; n = {N}, m = {M}, "
        f"H = {H}, gamma = {GAMMA:g}, eta = {ETA:g}, unequal quadratic h_i with kappa of the mean at most 4, "
        "T = 60, no noise."
    )


# --- figure


@figures.styled
def draw(courses: Courses) -> Any:
    """Draws the gap of the implicit objective against rounds."""
    figure, panels = figures.canvas(1, 1, figures.COLUMN, 2.6)
    panel = panels[0, 0]
    for k, (name, found) in enumerate(courses.items()):
        gaps = np.exp(np.mean(np.log([np.maximum(course.gap, 1e-16) for course in found]), axis=0))
        looks = figures.look(k) | {"markevery": (k * 3, max(len(gaps) // 7, 1))}
        panel.plot(1 + np.arange(len(gaps)), gaps, label=name, **looks)
    panel.set(yscale="log", xlabel="rounds", ylabel="$(F(x_r) - F^*) / (F(x_0) - F^*)$", xlim=(0, None))
    figures.legend(figure, panels, 2, "geometric mean over seeds")
    return figure


if __name__ == "__main__":
    main()
