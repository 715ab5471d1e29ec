"""Accuracy against epsilon of client-level privacy: first order, scalars, ZO-HFL; and how many scalars are enough.

python analysis/p_privacy.py [--grid jobs/p_privacy.toml ...] [--out NAME] [--partial]

A method's best step at each epsilon is the one of the highest last validation accuracy on seed 1. Prints, for each
cell, accuracies (a row per method, a column per epsilon) with the bytes up of a client's reply, and beside them the
number of directions that is predicted to be enough; writes NAME.txt, NAME.csv (a row per group), NAME.pdf and NAME.png.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from shared import choosing, command, edges, figures, files, wording
from shared.groups import Group, mean_sd, series, split
from shared.reading import read
from shared.study import accuracy, counts

COMMON = ("cell", "method", "epsilon", "step")
GRIDS = [f"p_privacy{name}.toml" for name in ("", "_zo", "_pure", "_cells", "_mlp", "_many")]
NAMES = {
    "fedavg-1": "FedAvg, one step",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "scalars-1": "1 scalar",
    "scalars-8": "8 scalars",
    "scalars-64": "64 scalars",
    "zo_hfl-server": "ZO-HFL",
    "zo_hfl-nobody": "ZO-HFL, nobody trusted",
    "server": "the server alone",
}
"""How they are spelled, in the order of their looks."""
CELLS = {
    "fashion-170": "Fashion-MNIST, n = 170",
    "mnist-170": "MNIST, n = 170",
    "fashion-7840": "Fashion-MNIST, n = 7,840",
    "fashion-mlp": "Fashion-MNIST, a network, n = 906",
    "fashion-170-10000": "Fashion-MNIST, 10,000 clients",
}
ROOM = 16
"""Points below the best that a panel has; a line below leaves it."""
FIRST, SCALARS = "fedavg-1", {1: "scalars-1", 8: "scalars-8", 64: "scalars-64"}
NOTE = (
    "Test accuracy in % after 100 rounds, mean ± sd over seeds, each at its step chosen by the validation accuracy of "
    "seed 1; ! the step is an end of what was tried. (epsilon, 1/m^1.1) of clients; pure: epsilon without a delta, "
    "Laplace noise on scalars and the K-norm mechanism on vectors. B up: bytes of a reply. s: norm of the mean clipped "
    "reply over C, measured on 64 scalars before noise, root mean square over rounds, less what chance gives; "
    "a = (s q m / z)^2; share: of the progress of first order that K scalars are predicted to make, "
    "K (a + n) / (n (a + K)), pure K (a + n^2) / (n (a + 4 K^2/pi)); less: points that K scalars are behind one "
    "step of FedAvg, mean over seeds."
)

Row = Mapping[str, Any]


def main(words: list[str] | None = None) -> None:
    """Print and write the tables, draw the figure; exit status 2 if a result is missing."""
    flags = command.parser("p_privacy", __doc__, GRIDS).parse_args(words)
    with command.refusals("p_privacy"):
        groups = read("p_privacy", flags, COMMON, COMMON)
        rows = rows_of(groups)
        best = [row for row in rows if row["best"]]
        text = "\n\n".join(
            f"{CELLS.get(cell, cell)}\n{tables(found)}" for cell, found in split(best, lambda r: r["cell"]).items()
        )
        files.publish(flags.out, text, f"{NOTE} {wording.caption(groups, ('gamma', 'method'))}.", rows, draw(best))


# --- what the runs say


def rows_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The rows of the CSV: a row per group."""
    tried = choosing.choices(
        groups,
        lambda g: " ".join(g.entry(axis) for axis in COMMON[:3]),
        lambda same: [
            100 * float(series(g.seeds[1], "validation_accuracy")[-1]) if 1 in g.seeds else math.nan for g in same
        ],
        choosing.by_size(["step"]),
    )
    return [
        {axis: choice.group.entry(axis) for axis in COMMON}
        | {"validation_percent": choice.value, **choice.row}
        | {name: of_all(choice.group, name) for name in ("clipped", "signal")}
        | {"epsilon_spent": spent(choice.group), "noise_multiplier": noise(choice.group)}
        | {"bytes_up_each": bytes_up(choice.group), "participants": participants(choice.group)}
        | {"n": size(choice.group)}
        | accuracy(choice.group)
        | {"by_seed_percent": " ".join(f"{100 * value:.3f}" for value in choice.group.last("test_accuracy"))}
        | counts(choice.group)
        for choice in tried
    ]


def of_all(group: Group, column: str) -> float:
    """The root mean square of a column over all rounds and seeds; nan where there is none."""
    values = [series(run, column) for run in group.runs if column in run.rounds]
    return float(np.sqrt(np.nanmean(np.square(values)))) if values and not np.isnan(values).all() else math.nan


def spent(group: Group) -> float:
    """The account's epsilon of the whole run."""
    return mean_sd(np.array([series(r, "epsilon")[-1] for r in group.runs if "epsilon" in r.rounds]))[0]


def noise(group: Group) -> float:
    """z; nan where nothing is clipped."""
    return float(group.config.get("noise_multiplier", math.nan) or math.nan)


def participants(group: Group) -> float:
    """q m."""
    return float(group.config.get("beta", 0)) * float(group.config["m"])


def bytes_up(group: Group) -> float:
    """Bytes of a client's reply."""
    messages = [(run.clients["bytes_up"].sum(), run.clients["messages"].sum()) for run in group.runs]
    return float(sum(up for up, _ in messages) / max(1, sum(count for _, count in messages)))


def size(group: Group) -> int:
    """n, from the last model."""
    return len(group.runs[0].final["x"]) if group.runs else 0


# --- tables


def tables(rows: Sequence[Row]) -> str:
    """Accuracies of a cell's methods, then the prediction at each epsilon that the scalars have."""
    epsilons = list(dict.fromkeys(r["epsilon"] for r in rows))
    shown = {(r["method"], r["epsilon"]): cell(r) for r in rows}
    up = {r["method"]: f"{r['bytes_up_each']:,.0f}" for r in rows}
    methods = [method for method in NAMES if any(r["method"] == method for r in rows)]
    lines = [[NAMES[m], *(shown.get((m, e), "-") for e in epsilons), up[m]] for m in methods]
    told = [wording.aligned(["method", *map(spelled, epsilons), "B up"], lines)]
    found = predictions(rows)
    if found:
        header = ["epsilon", "z", "s", "a", *(f"{what}, K = {K}" for K in SCALARS for what in ("share", "less"))]
        told.append(wording.aligned(header, found))
    return "\n\n".join(told)


def predictions(rows: Sequence[Row]) -> list[list[str]]:
    """Lines of the prediction's table: z, s, a, and for each K the predicted share and the points behind."""
    lines = []
    for epsilon, found in split(rows, lambda r: r["epsilon"]).items():
        of = {r["method"]: r for r in found}
        if FIRST not in of or SCALARS[64] not in of or epsilon == "inf":
            continue
        z, s, a = of[FIRST]["noise_multiplier"], signal(of[SCALARS[64]]), enough(of[SCALARS[64]])
        words = [spelled(epsilon), f"{z:.3g}", f"{s:.2f}", f"{a:.3g}"]
        for K, method in SCALARS.items():
            words.append(f"{100 * share(K, of[FIRST]['n'], a, pure(of[FIRST])):.0f} %")
            behind = (
                of[FIRST]["accuracy_mean_percent"] - of[method]["accuracy_mean_percent"] if method in of else math.nan
            )
            words.append(wording.plain(behind))
        lines.append(words)
    return lines


def share(K: int, n: int, a: float, laplace: bool) -> float:
    """The predicted progress of K scalars over that of first order; both have a step that is best for their noise.

    Signal over noise, squared: a/n and a/K by Gaussian noise; pure, a/n^2 by the K-norm mechanism and (pi/4) a/K^2 by
    Laplace noise on scalars clipped in l1, whose l2 norm is sqrt(pi/(2 K)) of it.
    """
    many, first = (math.pi / 4 * a / K**2, a / n**2) if laplace else (a / K, a / n)
    return K / n * (many / (1 + many)) / (first / (1 + first))


def pure(row: Row) -> bool:
    """Whether its epsilon has no delta."""
    return bool(row["epsilon"].startswith("p"))


def signal(row: Row) -> float:
    """s, from K = 64 scalars: without the part of |mean|^2 that replies of independent directions have, 1/(q m)."""
    N, squared = row["participants"], row["signal"] ** 2 * (2 * 64 / math.pi if pure(row) else 1)
    return math.sqrt(max(0.0, (N * squared - 1) / (N - 1)))


def enough(row: Row) -> float:
    """a = (s q m / z)^2."""
    return float((signal(row) * row["participants"] / row["noise_multiplier"]) ** 2)


def cell(row: Row) -> str:
    """A row's accuracy, with ! at an end of the steps and the seeds that are missing."""
    return wording.mean_of(row, "accuracy", note=f"{edges.MARK * bool(row['at_edge'])} {wording.seeds_of(row)}".strip())


def spelled(epsilon: str) -> str:
    """An entry of the grids' axis: e0.3, p10 (pure), inf."""
    return {"e": epsilon[1:], "p": f"pure {epsilon[1:]}", "i": "none"}[epsilon[0]]


# --- figure


@figures.styled
def draw(rows: Sequence[Row]) -> Any:
    """A panel per cell, and one for pure epsilon: accuracy against epsilon, a line per method."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(str(CELLS.get(row["cell"], row["cell"])) + (", pure" if pure(row) else ""), []).append(row)
    figure, axes = figures.canvas(-(-len(panels) // 3), min(3, len(panels)), figures.PAGE, 2.3, sharey=False)
    for panel, (title, found) in zip(axes.flat, panels.items(), strict=False):
        finite = sorted({float(r["epsilon"][1:]) for r in found if r["epsilon"] != "inf"})
        end = finite[-1] * 4
        for method in NAMES:
            line = sorted((place(r, end), r) for r in found if r["method"] == method)
            if len(line) == 1:
                panel.axhline(line[0][1]["accuracy_mean_percent"], label=NAMES[method], color="0.5", linewidth=0.9)
            elif line:
                values = [np.array([float(v) for v in r["by_seed_percent"].split()]) for _, r in line]
                figures.barred(panel, [x for x, _ in line], values, label=NAMES[method], **looks(method))
        panel.set_xscale("log")
        inf = [end] if any(r["epsilon"] == "inf" for r in found) else []
        panel.set_xticks([*finite, *inf], [*(f"{x:g}" for x in finite), *("none" for _ in inf)])
        panel.minorticks_off()
        if not title.endswith("pure"):
            panel.set_ylim(bottom=max(panel.get_ylim()[0], panel.get_ylim()[1] - ROOM))
        panel.set_title(title)
        panel.set_xlabel("epsilon")
    for row in axes:
        row[0].set_ylabel("test accuracy (%)")
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    handles = {label: h for panel in axes.flat for h, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    names = [name for name in NAMES.values() if name in handles]
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncol=5, frameon=False)
    return figure


def place(row: Row, end: float) -> float:
    """Where a row stands on the axis of epsilon; without noise at its end."""
    return end if row["epsilon"] == "inf" else float(row["epsilon"][1:])


def looks(method: str) -> dict[str, Any]:
    """A method's colour, line and marker."""
    return figures.look(list(NAMES).index(method))


if __name__ == "__main__":
    main()
