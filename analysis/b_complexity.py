"""[B] table 1: communication rounds of FedRZO, upper and lower level, against its local iterations K and clients m.

python analysis/b_complexity.py [--out NAME]        # no results needed; about a minute

How many rounds a run takes is decided before it starts: by K, m and the schedules of `Local` (gamma and H from K) and
`LowerSolver` (T and H). So the counts are sums of the package's schedules over the rounds (above 500 rounds: over 500
of them, chosen at equal distances in log r). The circles are real runs, whose messages were counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.problems.analytic.bilevel import BilevelBowls
from zofl_mpi.problems.analytic.nonsmooth import Bowls
from zofl_mpi.rounds.lower import LowerSolver
from zofl_mpi.rounds.zeroth_order import theorem1
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

METHODS: dict[str, tuple[dict[str, Any] | None, float, float]] = {
    "upper level": (None, 3 / 4, 3 / 4),
    "Local SGD": ({"lower": "local_sgd", "T_lower": "alg3", "H_lower": "paper", "batch_lower": 0}, 3 / 4, 7 / 4),
    "FedAC-I": ({"lower": "fedac1", "T_lower": "auto", "H_lower": "paper", "batch_lower": 0}, 3 / 4, 13 / 12),
    "LFD, T of Thm 1": ({"lower": "lfd", "T_lower": "thm1", "H_lower": "paper", "batch_lower": 0}, 11 / 12, 11 / 12),
    "LFD, T of Alg. 3": ({"lower": "lfd", "T_lower": "alg3", "H_lower": "paper", "batch_lower": 0}, 11 / 12, 11 / 12),
}
"""What solves the lower level, and the paper's exponents of K and of m; all rounds count, the upper level's too."""
TERMS = 500
CLIENTS = 8
CUBES = (8, 27, 64, 125)
"""Values of m: of others m^(1/3) is rounded, to 2 rounds of FedAC for all m from 2 to 8."""
SHORT = tuple(2**p for p in range(8, 17, 2))
LONG = tuple(2**p for p in range(24, 41, 4))
RUNS = ((32, 2), (64, 2), (128, 2), (64, 4))
"""(K, m) of the runs whose messages are counted."""


@final
@dataclass(frozen=True)
class Curvature:
    """Those parts of a bilevel problem that a schedule looks at: kappa = 4, equal h_i."""

    homogeneous: bool = True

    def curvature(self, x: Array) -> tuple[float, float]:
        """Strong convexity mu_h and smoothness L_h of the lower problem."""
        return 0.5, 2.0


class Count(NamedTuple):
    """Communication rounds of a run.

    Attributes:
        upper: of the upper level.
        lower: of the lower level, both calls of all rounds.
        counted: upper and lower, from the messages of a real run; None where there was none.
    """

    method: str
    K: int
    m: int
    upper: int
    lower: float
    counted: tuple[int, int] | None = None

    @property
    def total(self) -> float:
        """Communication rounds of both levels."""
        return self.upper + self.lower


def report(flags: Any) -> Report:
    """The exponents, the counts and the figure."""
    against_K = {name: [count(name, K, CLIENTS) for K in (*SHORT, *LONG)] for name in METHODS}
    against_m = {name: [count(name, LONG[-1], m) for m in CUBES] for name in METHODS}
    runs = [measured(name, K, m) for name in METHODS for K, m in RUNS]
    rows = [row(c) for counts in (*against_K.values(), *against_m.values(), runs) for c in counts]
    text_ = f"{text(against_K, against_m)}\n\n{checked(runs)}"
    return Report(text_, rows=rows, figure=draw(against_K, against_m, runs))


main = command.script("b_complexity", __doc__, report)

# --- counting


def count(name: str, K: int, m: int, terms: int = TERMS) -> Count:
    """Communication rounds of a run, from the schedules."""
    R = math.ceil(K / theorem1(K, m)[0])
    solver, _, _ = METHODS[name]
    return Count(name, K, m, R, 0.0 if solver is None else 2 * summed(lower_of(solver, Curvature(), m), R, terms))


def lower_of(flags: Mapping[str, Any], problem: Any, m: int) -> LowerSolver:
    """The lower solver of these flags on a problem with m clients."""
    return LowerSolver(Setting(problem, Streams(0), (range(1),) * m), **flags)


def summed(lower: LowerSolver, R: int, terms: int = TERMS) -> float:
    """The communication rounds of one call a round, r = 0 ... R - 1; with more than `terms` rounds, of some of them.

    Of many, the first tenth of `terms` is summed, then the others stand for the rounds between their neighbours.
    """
    x = np.zeros(1)
    first = R if terms >= R else terms // 10
    head = math.fsum(lower.schedule(x, r).rounds for r in range(first))
    if first == R:
        return head
    edges = np.unique(np.geomspace(first, R, terms - first).round().astype(np.int64))
    middles = (edges[:-1] + edges[1:] - 1) // 2
    rounds = [lower.schedule(x, int(r)).rounds for r in middles]
    return head + math.fsum(np.diff(edges) * rounds)


def measured(name: str, K: int, m: int) -> Count:
    """Communication rounds counted from the messages of a run, beside what its schedules say; equal lower problems."""
    streams, solver = Streams(1), METHODS[name][0]
    local: dict[str, Any] = {"K": K, "eta": 0.1, "batch": 0}
    problem: Any
    data: tuple[Any, ...]
    method: FedRZONN | FedRZOBL
    if solver is None:
        problem, _, data = Bowls.random(streams, 2, m)
        method = from_flags(FedRZONN, Setting(problem, streams, data, dtype=np.float64), **local)
    else:
        problem, _, data = BilevelBowls.random(streams, 2, m, homogeneous=True)
        method = from_flags(FedRZOBL, Setting(problem, streams, data, dtype=np.float64), **local, **solver)
    clients, state, sent = LocalClients(list(data)), method.start(), np.zeros(2, np.int64)
    R = math.ceil(K / method.local.steps())
    for r in range(R):
        state = method.round(state, r, clients)  # type: ignore[arg-type]
        bill = clients.account()[0]
        items = dict(zip((step.rpartition(".")[2] for step in bill.steps), bill.messages[:, 0], strict=True))
        sent += [items["step"], items.get("lower", 0)]
    lower = 0.0 if solver is None else 2 * summed(lower_of(solver, problem, m), R, R)
    return Count(name, K, m, R, lower, (int(sent[0]), int(sent[1])))


# --- words

Counts = dict[str, list[Count]]


def slope(counts: Sequence[Count], what: str) -> float:
    """Slope of the total against K or m, fitted in logarithms."""
    at = [getattr(c, what) for c in counts]
    return float(np.polyfit(np.log(at), np.log([c.total for c in counts]), 1)[0])


def text(against_K: Counts, against_m: Counts) -> str:
    """Table of the exponents, fitted and the paper's."""
    short, long = f"K {SHORT[0]}-{SHORT[-1]}", f"K 2^{LONG[0].bit_length() - 1}-2^{LONG[-1].bit_length() - 1}"
    header = ("rounds of", short, long, "paper", f"m {CUBES[0]}-{CUBES[-1]}", "paper")
    body = [
        [
            name,
            f"{slope([c for c in against_K[name] if c.K in SHORT], 'K'):.3f}",
            f"{slope([c for c in against_K[name] if c.K in LONG], 'K'):.3f}",
            f"{K:.3f}",
            f"{slope(against_m[name], 'm'):.3f}",
            f"{m:.3f}",
        ]
        for name, (_, K, m) in METHODS.items()
    ]
    return f"{wording.text_table(header, body)}\n\n" + wording.paragraph(
        f"Exponents of K at m = {CLIENTS} and of m at K = 2^{LONG[-1].bit_length() - 1}, least squares in logarithms; "
        "upper and lower rounds together; kappa = 4."
    )


def checked(runs: Sequence[Count]) -> str:
    """A line that says how many runs differ from their schedules, and a line for each."""
    wrong = [c for c in runs if c.counted != (c.upper, round(c.lower))]
    told = [f"{c.method}, K = {c.K}, m = {c.m}: counted {c.counted}, schedule {c.upper}, {c.lower:g}" for c in wrong]
    return "\n".join([f"{len(runs)} runs, their messages counted: {len(wrong)} differ from the schedules.", *told])


def row(c: Count) -> dict[str, Any]:
    """A line of the CSV file."""
    upper, lower = c.counted or ("", "")
    counted = {"upper_counted": upper, "lower_counted": lower}
    return {"method": c.method, "K": c.K, "m": c.m, "upper": c.upper, "lower": round(c.lower), **counted}


# --- figure


@figures.styled
def draw(against_K: Counts, against_m: Counts, runs: Sequence[Count]) -> Any:
    """Draws rounds against K and against m, the paper's orders in grey through the last points."""
    figure, panels = figures.canvas(1, 2, figures.PAGE, 2.8)
    for panel, found, what, place in ((panels[0, 0], against_K, "K", 1), (panels[0, 1], against_m, "m", 2)):
        for k, (name, counts) in enumerate(found.items()):
            at = np.array([getattr(c, what) for c in counts], np.float64)
            total = np.array([c.total for c in counts])
            panel.plot(at, total, label=name, **figures.look(k))
            order = METHODS[name][place]
            panel.plot(at, total[-1] * (at / at[-1]) ** order, color="0.6", linewidth=0.7, zorder=1)
        panel.set(xscale="log", yscale="log", xlabel=("local iterations $K$", "clients $m$")[place - 1])
    colours = {name: figures.look(k)["color"] for k, name in enumerate(METHODS)}
    for c in runs:
        if c.m == RUNS[0][1] and c.counted:
            panels[0, 0].plot(c.K, sum(c.counted), "o", mfc="none", mec=colours[c.method], markersize=5)
    panels[0, 0].set(ylabel="communication rounds", title=f"$m = {CLIENTS}$; circles: runs with $m = {RUNS[0][1]}$")
    panels[0, 1].set_xticks(CUBES, map(str, CUBES))
    panels[0, 1].minorticks_off()
    panels[0, 1].set(title=f"$K = 2^{{{LONG[-1].bit_length() - 1}}}$")
    figures.legend(figure, panels, 5, "upper and lower level together; grey: the paper's order")
    return figure


if __name__ == "__main__":
    main()
