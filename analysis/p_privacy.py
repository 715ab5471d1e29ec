"""Accuracy against epsilon of client-level privacy: first order, scalars, ZO-HFL; and how many scalars are enough.

python analysis/p_privacy.py [--grid jobs/p_privacy.toml ...] [--out NAME] [--partial]

A method's best step at each epsilon is the one of the highest last validation accuracy on seed 1. Prints, for each
cell, accuracies (a row per method, a column per epsilon) with the bytes up of a client's reply, and beside them the
number of directions that is predicted to be enough; at last the share of first order's progress that K scalars make,
predicted and measured. Writes NAME.txt, NAME.csv (a row per group), NAME_shares.csv, NAME.pdf and NAME.png.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from shared import choosing, edges, figures, wording
from shared.files import Report
from shared.groups import Array, Group, mean_sd, series, split
from shared.study import spread, study

COMMON = ("cell", "method", "epsilon", "step")
GRIDS = [f"p_privacy{name}.toml" for name in ("", "_zo", "_many", "_shares")]
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
LABELS = {"fedavg": "FedAvg, five steps", "zo_hfl-nobody": "ZO-HFL, clients add the noise"}
"""How a figure spells them, where it says more."""
CELLS = {
    "fashion-170": "Fashion-MNIST, n = 170",
    "mnist-170": "MNIST, n = 170",
    "fashion-7840": "Fashion-MNIST, n = 7,840",
    "mnist-7840": "MNIST, n = 7,840",
    "fashion-mlp": "Fashion-MNIST, a network, n = 906",
    "fashion-170-10000": "Fashion-MNIST, 10,000 clients",
}
SHARES = "shares"
"""The cell in which first order has fewer rounds."""
FREE = "free"
"""Neither clipped nor noised: another method than the clipped one, whose steps all have one length."""
FIRST, SCALARS = "fedavg-1", {1: "scalars-1", 8: "scalars-8", 64: "scalars-64"}
NOTE = (
    "Test accuracy in % after 100 rounds, mean ± sd over seeds, each at its step chosen by the validation accuracy of "
    "seed 1; ! the step is an end of what was tried. (epsilon, 1/m^1.1) of clients; none: clipped, without noise; "
    "free: not clipped either; pure: epsilon without a delta, Laplace noise on scalars and the K-norm mechanism on "
    "vectors. B up: bytes of a reply. s: norm of the mean clipped reply over C, measured on 64 scalars before noise, "
    "root mean square over rounds, less what chance gives; a = (s q m / z)^2; share: of the progress of first order "
    "that K scalars are predicted to make, K (a + n) / (n (a + K)), pure K (a + n^2) / (n (a + 4 K^2/pi)); less: "
    "points that K scalars are behind one step of FedAvg, mean over seeds. Measured share: rounds after which one step "
    "of FedAvg has the test loss of K scalars after 100, in % of these, seed by seed; steps are chosen for so many "
    "rounds, by the validation loss."
)

Row = Mapping[str, Any]


def report(groups: Sequence[Group]) -> Report:
    """The tables and the figure."""
    rows = choosing.rows(groups, (*COMMON, "rounds"), "step", validated, columns)
    best = [row for row in rows if row["best"]]
    cells = split([row for row in best if row["cell"] != SHARES], lambda r: r["cell"])
    parts = [f"{CELLS.get(cell, cell)}\n{tables(found)}" for cell, found in cells.items()]
    found = {epsilon: shares(of) for epsilon, of in shared(best).items()}
    parts += [f"Progress under epsilon {epsilon}\n{progress(of)}" for epsilon, of in found.items()]
    kept = [{"epsilon": e, "K": K, **progressed(*each)} for e, of in found.items() for K, each in of.items()]
    note = f"{NOTE} {wording.caption(groups, ('gamma', 'method'))}."
    return Report("\n\n".join(parts), note, rows, draw(best), {"_shares": kept})


main = study("p_privacy", __doc__, GRIDS, (*COMMON, "rounds"), report, needed=COMMON)

# --- what the runs say


def first(group: Group, column: str) -> float:
    """A column's last number on seed 1; nan without it."""
    return float(series(group.seeds[1], column)[-1]) if 1 in group.seeds else math.nan


def validated(same: Sequence[Group]) -> list[float]:
    """What steps are chosen by: validation accuracy, and where progress is compared the loss, both on seed 1."""
    return [
        -first(g, "validation_loss") if g.entry("cell") == SHARES else first(g, "validation_accuracy") for g in same
    ]


def columns(group: Group) -> dict[str, Any]:
    """What the CSV has of a group beside its accuracy; the noise multiplier is nan where nothing is clipped."""
    config, runs = group.config, group.runs
    sent, count = (sum(run.clients[what].sum() for run in runs) for what in ("bytes_up", "messages"))
    return {
        "validation_percent": 100 * first(group, "validation_accuracy"),
        **{name: of_all(group, name) for name in ("clipped", "signal")},
        "epsilon_spent": mean_sd(np.array([series(r, "epsilon")[-1] for r in runs if "epsilon" in r.rounds]))[0],
        "noise_multiplier": float(config.get("noise_multiplier", math.nan) or math.nan),
        "bytes_up_each": float(sent / max(1, count)),
        "participants": float(config.get("beta", 0)) * float(config["m"]),
        "n": len(runs[0].final["x"]) if runs else 0,
        "by_seed_percent": by_seed(100 * group.last("test_accuracy")),
        "loss_by_seed": by_seed(group.last("test_loss")),
    }


def by_seed(values: Array) -> str:
    """Numbers of a row's seeds, in their order."""
    return " ".join(f"{value:.5g}" for value in values)


def of_all(group: Group, column: str) -> float:
    """The root mean square of a column over all rounds and seeds; nan where there is none."""
    values = [series(run, column) for run in group.runs if column in run.rounds]
    return float(np.sqrt(np.nanmean(np.square(values)))) if values and not np.isnan(values).all() else math.nan


# --- tables


def tables(rows: Sequence[Row]) -> str:
    """Accuracies of a cell's methods, then the prediction at each epsilon that the scalars have."""
    epsilons = list(dict.fromkeys(r["epsilon"] for r in rows))
    shown = {(r["method"], r["epsilon"]): edges.accuracy(r, marked=True) for r in rows}
    up = {r["method"]: f"{r['bytes_up_each']:,.0f}" for r in rows}
    methods = [method for method in NAMES if any(r["method"] == method for r in rows)]
    lines = [[NAMES[m], *(shown.get((m, e), "-") for e in epsilons), up[m]] for m in methods]
    told = [wording.text_table(["method", *map(spelled, epsilons), "B up"], lines)]
    found = predictions(rows)
    if found:
        header = ["epsilon", "z", "s", "a", *(f"{what}, K = {K}" for K in SCALARS for what in ("share", "less"))]
        told.append(wording.text_table(header, found))
    return "\n\n".join(told)


def predictions(rows: Sequence[Row]) -> list[list[str]]:
    """Lines of the prediction's table: z, s, a, and for each K the predicted share and the points behind."""
    lines = []
    for epsilon, found in split(rows, lambda r: r["epsilon"]).items():
        of = {r["method"]: r for r in found}
        if FIRST not in of or SCALARS[64] not in of or epsilon in ("inf", FREE):
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


def shared(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """{epsilon: the rows of K scalars, and of first order with fewer rounds}, where all have all of their seeds."""
    found = split([row for row in rows if row["cell"] == SHARES], lambda r: spelled(r["epsilon"]))
    return {e: of for e, of in found.items() if all(row["seeds"] == row["seeds_planned"] for row in of)}


def shares(rows: Sequence[Row]) -> dict[int, tuple[float, Array]]:
    """{K: the predicted share, and (seeds,) the measured ones}, in %."""
    of = {r["method"]: r for r in rows if r["method"] != FIRST}
    line = sorted((r for r in rows if r["method"] == FIRST), key=lambda r: r["rounds"])
    n, a = line[0]["n"], enough(of[SCALARS[64]])
    losses = np.array([numbers(r, "loss_by_seed") for r in line])
    after = np.log([r["rounds"] for r in line])
    found = {}
    for method, row in of.items():
        K, pairs = int(method.rpartition("-")[2]), zip(numbers(row, "loss_by_seed"), losses.T, strict=True)
        rounds = np.exp([np.interp(-loss, -course, after) for loss, course in pairs])
        found[K] = 100 * share(K, n, a, False), 100 * rounds / row["rounds"]
    return dict(sorted(found.items()))


def progress(found: Mapping[int, tuple[float, Array]]) -> str:
    """The table of shares: predicted and measured."""
    lines = []
    for K, each in found.items():
        predicted, mean, sd = progressed(*each).values()
        lines.append([str(K), f"{predicted:.0f} %", f"{mean:.0f} ± {sd:.0f} %"])
    return wording.text_table(["K", "predicted", "measured"], lines)


def progressed(predicted: float, measured: Array) -> dict[str, float]:
    """Columns of a share of progress."""
    return {"predicted_percent": predicted, **spread("measured", measured, "_percent")}


def numbers(row: Row, key: str) -> list[float]:
    """The numbers of a row's seeds."""
    return [float(word) for word in str(row[key]).split()]


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


def spelled(epsilon: str) -> str:
    """An entry of the grids' axis: e0.3, p10 (pure), inf, free."""
    return {"e": epsilon[1:], "p": f"pure {epsilon[1:]}", "i": "none", "f": FREE}[epsilon[0]]


# --- figure


MODELS = ("fedavg-1", "fedavg", "scaffold", "server")
FEW = ("scalars-64", "scalars-8", "zo_hfl-server", "zo_hfl-nobody", "server")
COMPARED = ("scalars-64", "scalars-8")
"""Methods of a panel."""


@figures.styled
def draw(rows: Sequence[Row]) -> Any:
    """Accuracies of the first cell and of pure epsilon; scalars less one step of FedAvg in each cell; shares.

    Accuracies have a scale, those by pure epsilon another one, and all differences one.
    """
    cells = split([row for row in rows if row["cell"] != SHARES and row["epsilon"] != FREE], titled)
    exact = [title for title in cells if "pure" not in title]
    absolute: list[tuple[str, Sequence[str]]] = [(title, methods) for title in exact[:1] for methods in (MODELS, FEW)]
    absolute += [(title, tuple(NAMES)) for title in cells if title not in exact]
    measured = shared(rows)
    count = len(absolute) + len(exact) + len(measured)
    figure, axes = figures.canvas(-(-(count + 1) // 3), 3, figures.PAGE, 1.8)
    panels = iter(axes.flat)
    for k, ((title, methods), panel) in enumerate(zip(absolute, panels, strict=False)):
        if k == 1:
            panel.sharey(axes.flat[0])
        against_epsilon(panel, cells[title], methods, "")
        panel.set_title(title, loc="left")
        if k != 1:
            panel.set_ylabel("test accuracy (%)")
    for k, title in enumerate(exact):
        panel = next(panels)
        if k:
            panel.sharey(axes.flat[len(absolute)])
        against_epsilon(panel, cells[title], COMPARED, FIRST)
        panel.set_title(title, loc="left")
        panel.axhline(0, color="0.5", linewidth=0.8)
    axes.flat[len(absolute)].set_ylabel("less FedAvg, one step\n(points)")
    for (epsilon, found), panel in zip(measured.items(), panels, strict=False):
        against_K(panel, shares(found))
        panel.set(xlabel="number K of scalars", ylabel="progress over\none step's (%)")
        panel.set_title(f"n = 170, ε = {epsilon}", loc="left")
    for panel in axes.flat[count:]:
        panel.set_axis_off()
    handles = {label: h for panel in axes.flat for h, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    title = "mean over seeds; bars: 95 % t intervals"
    legend = axes.flat[count].legend(handles.values(), handles.keys(), loc="center left", frameon=False, title=title)
    legend.set_in_layout(False)  # it reaches into the next panel, which is empty
    return figure


def titled(row: Row) -> str:
    """The title of a row's panel."""
    return CELLS.get(row["cell"], str(row["cell"])) + ", pure ε" * pure(row)


def against_epsilon(panel: Any, rows: Sequence[Row], methods: Sequence[str], less: str) -> None:
    """A line per method, less that of another one seed by seed; without noise at the end; points stand side by side."""
    finite = sorted({float(r["epsilon"][1:]) for r in rows if r["epsilon"] != "inf"})
    end = finite[-1] * 4
    control = {r["epsilon"]: np.array(numbers(r, "by_seed_percent")) for r in rows if r["method"] == less}
    there = [method for method in methods if any(r["method"] == method for r in rows)]
    for k, method in enumerate(there):
        line = sorted((r for r in rows if r["method"] == method), key=lambda r: place(r, end))
        values = [np.array(numbers(r, "by_seed_percent")) - control.get(r["epsilon"], 0) for r in line]
        if method == "server":
            panel.axhline(values[0].mean(), label=NAMES[method], color="0.5", linewidth=0.9, linestyle="--")
        else:
            x = [place(r, end) * 1.13 ** (k - (len(there) - 1) / 2) for r in line]
            looks = figures.look(list(NAMES).index(method))
            figures.barred(panel, x, *figures.averaged(values), label=LABELS.get(method, NAMES[method]), **looks)
    panel.set(xscale="log", xlabel="ε")
    inf = [end] if any(r["epsilon"] == "inf" for r in rows) else []
    panel.set_xticks([*finite, *inf], [*(f"{x:g}" for x in finite), *("none" for _ in inf)])
    panel.minorticks_off()


def against_K(panel: Any, found: Mapping[int, tuple[float, Array]]) -> None:
    """Shares of progress: the prediction as a line, what was measured as points."""
    panel.plot(list(found), [told for told, _ in found.values()], color="0.5", linewidth=0.9)
    values = figures.averaged([own for _, own in found.values()])
    figures.barred(panel, list(found), *values, **figures.look(0) | {"linestyle": "", "color": "0.2"})
    panel.annotate("predicted", (8, found[8][0]), (10, found[8][0] / 2), color="0.4")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(list(found), [str(K) for K in found])
    ticks = [5, 10, 20, 50, 100]
    panel.set_yticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()


def place(row: Row, end: float) -> float:
    """Where a row stands on the axis of epsilon; without noise at its end."""
    return end if row["epsilon"] == "inf" else float(row["epsilon"][1:])


if __name__ == "__main__":
    main()
