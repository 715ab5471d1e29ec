"""When zeroth order pays: the share of the gap to first order that it closes, against its directions per parameter.

python analysis/pays.py [--tables DIR] [--out NAME]

Reads the tables that the studies of this repository wrote (DIR, by default analysis/results), those in which zeroth
order won nothing too. Each compares a zeroth-order method with a control that lacks just its estimates and with a
first-order method, all at their own best steps: share = (method - control) / (first order - control), of means over
seeds. Directions per parameter are the directions drawn in the whole run over the numbers that they perturb. Prints a
row per method and setting.

The curves are theory: the share of the excess loss that is gone on a quadratic without noise, for the best constant
step. With eigenvalues h_i in d dimensions, a step x - gamma d v v'Hx along a direction v that is uniform on the sphere
takes the second moments a_i = E x_i^2 (in the eigenvectors' coordinates, x = 0 the solution) to

    (1 - 2 gamma h_i + 2 c gamma^2 h_i^2) a_i + c gamma^2 sum_j h_j^2 a_j,    c = d / (d + 2),

since E v_i^2 v_j^2 = (1 + 2 [i = j]) / (d (d + 2)). If all h_i are equal the best factor a step is 1 - 1/d, and
rho = K / d directions per parameter close 1 - exp(-rho).
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array
from shared.pays import sizes, spelled
from shared.study import spread

from zofl_mpi.errors import UserError
from zofl_mpi.report import palette
from zofl_mpi.report.groups import t_half_width

Row = Mapping[str, str]
"""A line of a study's CSV."""


class Study(NamedTuple):
    """A comparison whose table lies in the repository.

    Attributes:
        table: the CSV's name without its ending.
        family: ZO-HFL, FedRZO or HERON-SFL.
        title: the setting, as a reader knows it.
        where: {column: entry} of the rows that it compares.
        score: the column of the means that are compared.
        control, first: entries of `method` between which the gap lies; a number: a known score.
        methods: {entry of `method`: its directions per parameter}; nan: as its row says.
    """

    table: str
    family: str
    title: str
    where: Mapping[str, str]
    score: str
    control: str | float
    first: str
    methods: Mapping[str, float]


ACCURACY = "accuracy_mean_percent"
NAMES = {
    "fedrzo": "FedRZO",
    "fedrzo-16": "FedRZO, 16 directions",
    "heron-frozen-head": "HERON, frozen head",
    "heron-1": "HERON, frozen head",
    "heron-8": "HERON, frozen head, 8 directions",
    "heron-32": "HERON, frozen head, 32 directions",
    "heron-norm-8": "HERON, normalisations, 8 directions",
}


def pays(title: str, config: Mapping[str, Any], steps: int, absent: Sequence[str] = ()) -> Study:
    """A setting of `c_pays`; `steps`: local steps of all clients in the run; `absent`: methods that it lacks."""
    channels = {"channels": (16, 32, 32, 64), "strides": (2, 2, 1, 2), "norm": "group", "head": "linear"}
    client, head, _ = sizes({**channels, **config})
    drawn = {"heron": 1, "heron-head": 1, "heron-head-8": 8, "heron-head-jvp": 1, "ho_sfl": 1, "ho_sfl-jvp": 1}
    drawn |= {"heron-sample": 32, "heron-sample-8": 256, "ho_sfl-sample": 32}
    methods = {m: steps * n / (client + head * (m == "heron")) for m, n in drawn.items() if m not in absent}
    return Study("c_pays", "HERON-SFL", title, {"setting": title}, ACCURACY, "heron-frozen", "sflv2", methods)


def cells(table: str, control: str, cell: str, title: str, *methods: str) -> Study:
    """A cell of a table that has the directions, beside SFLV2."""
    where, drawn = {"cell": cell, "best": "True"}, dict.fromkeys(methods, math.nan)
    return Study(table, "HERON-SFL", title, where, ACCURACY, control, "sflv2", drawn)


narrow, narrow_more = (partial(cells, table, "heron-frozen") for table in ("c_narrow", "c_narrow_more"))


def shares(title: str, share: str, n: str, lacks: str = "0.0") -> Study:
    """A cell of `a_shares`, whose table has the directions."""
    where = {"share": share, "n": n, "lacks": lacks, "best": "True"}
    return Study("a_shares", "ZO-HFL", title, where, ACCURACY, "server_sgd", "fedavg", {"zo_hfl": math.nan})


def studies() -> list[Study]:
    """All comparisons that have a control and a first-order method."""
    best, lora = {"best": "True"}, 2 * 8 * (192 + 576)  # rank 8, a block at the client and one in the head
    one, five = {"data": "cifar10", "setting": "iid"}, 60 * 5 * 5
    return [
        Study("a_tuned", "ZO-HFL", "MNIST, 30 % of the data at the server, unlike clients", best, ACCURACY,
              "server_sgd", "scaffold", {"zo_hfl": math.nan}),
        Study("a_tuned_iid", "ZO-HFL", "MNIST, 30 % of the data at the server, iid", best, ACCURACY,
              "server_sgd", "fedavg", {"zo_hfl": math.nan}),
        shares("Fashion-MNIST, 54 samples at the server, n = 170", "0.001", "170.0"),
        shares("Fashion-MNIST, server lacks 3 of 10 classes, n = 170", "0.01", "170.0", "3.0"),
        shares("Fashion-MNIST, 54 samples at the server, lacks 3 of 10 classes, n = 170", "0.001", "170.0", "3.0"),
        shares("Fashion-MNIST, 10 % of the data at the server, lacks 3 of 10 classes, n = 170", "0.1", "170.0", "3.0"),
        shares("Fashion-MNIST, 30 % of the data at the server, lacks 3 of 10 classes, n = 170", "0.3", "170.0", "3.0"),
        shares("Fashion-MNIST, 54 samples at the server, n = 7,840", "0.001", "7840.0"),
        shares("Fashion-MNIST, 1 % of the data at the server, n = 7,840", "0.01", "7840.0"),
        shares("Fashion-MNIST, server lacks 3 of 10 classes, n = 7,840", "0.01", "7840.0", "3.0"),
        shares("Fashion-MNIST, 10 % of the data at the server, n = 7,840", "0.1", "7840.0"),
        shares("Fashion-MNIST, 30 % of the data at the server, n = 7,840", "0.3", "7840.0"),
        shares("Fashion-MNIST, 1 % of the data at the server, n = 170", "0.01", "170.0"),
        shares("Fashion-MNIST, 54 samples at the server, n = 850", "0.001", "850.0"),
        shares("Fashion-MNIST, 1 % of the data at the server, n = 850", "0.01", "850.0"),
        shares("Fashion-MNIST, 10 % of the data at the server, n = 170", "0.1", "170.0"),
        shares("Fashion-MNIST, 10 % of the data at the server, n = 850", "0.1", "850.0"),
        shares("Fashion-MNIST, 30 % of the data at the server, n = 170", "0.3", "170.0"),
        shares("Fashion-MNIST, 30 % of the data at the server, n = 850", "0.3", "850.0"),
        Study("b_methods", "FedRZO", "MNIST, ReLU network; control: output 0, loss 0.5", best | {"rectifier": "10"},
              "nonsmooth_mean", 0.5, "fedavg", {"fedrzo": 300 * 5 * 10 / 3140, "fedrzo-16": 300 * 5 * 10 * 16 / 3140}),
        Study("c_fig2", "HERON-SFL", "CIFAR-10, narrow ResNet", one, ACCURACY, "heron-frozen", "sflv2",
              {"heron": five / (1416 + 81930), "heron-frozen-head": five / 1416}),
        pays("CIFAR-10, 3 of 4 stages at the client", {"data": "cifar10", "cut": 3}, 40 * 3 * 10),
        pays("Fashion-MNIST, 4 of 4 stages at the client, pooled head",
             {"data": "fashion-mnist", "cut": 4, "head": "pooled"}, 30 * 3 * 10, ("ho_sfl-jvp", "heron-sample-8")),
        Study("c_fig5", "HERON-SFL", "GPT-2, E2E, pretrained", {"start": "pretrained"}, "validation_perplexity_mean",
              "heron-frozen", "splitlora", {"heron": 12 * 3 * 5 / lora}),
        narrow("mnist-k4", "MNIST, cut of 4 features", "heron-head", "heron-head-8", "ho_sfl-8"),
        narrow("fashion-k2", "Fashion-MNIST, cut of 2 features", "heron-head-8"),
        narrow("fashion-k4", "Fashion-MNIST, cut of 4 features", "heron", "heron-head", "heron-head-8", "ho_sfl-8"),
        narrow("fashion-k16", "Fashion-MNIST, cut of 16 features", "heron-head-8"),
        narrow_more("mnist-k4", "MNIST, cut of 4 features", "heron-head-32"),
        narrow_more("fashion-k4", "Fashion-MNIST, cut of 4 features", "heron-head-32"),
        narrow_more("fashion-k4-momentum", "Fashion-MNIST, cut of 4 features, momentum SGD",
                    "heron-head", "heron-head-8", "ho_sfl", "ho_sfl-8"),
        narrow_more("fashion-k8", "Fashion-MNIST, cut of 8 features", "heron-head-8"),
        narrow_more("cifar-k4", "CIFAR-10, cut of 4 features", "heron-head-8", "ho_sfl-8"),
        narrow_more("cifar-k16", "CIFAR-10, cut of 16 features", "heron-head-8", "ho_sfl-8"),
        cells("c_fleet", "heron-none", "group", "CIFAR-10, pretrained, sensors that differ",
              "heron-1", "heron-8", "heron-32", "heron-norm-8", "ho_sfl-8"),
        cells("c_fleet", "heron-none", "group-trains", "CIFAR-10, pretrained, sensors that differ, server trains",
              "heron-8"),
        cells("c_fleet", "heron-statistics", "batch", "CIFAR-10, sensors that differ, BatchNorm taken anew", "heron-8"),
    ]  # fmt: skip


def report(flags: Any) -> Report:
    """The table and the figure."""
    rows = [row for study in studies() for row in rows_of(study, flags.tables)]
    return Report(table(rows), NOTE, rows, draw(rows))


FLAGS = {"--tables": command.flag(command.ANALYSIS / "results", "folder of the studies' CSVs", type=Path)}
main = command.script("pays", __doc__, report, FLAGS)

NOTE = (
    "share: of the gap between control and first order that the method closes, means over seeds; directions: drawn in "
    "the whole run over the numbers that they perturb. Scores: accuracy in %; loss for FedRZO, perplexity for GPT-2."
)


# --- the studies


def rows_of(study: Study, folder: Path) -> list[dict[str, Any]]:
    """The rows of the CSV of a study's zeroth-order methods.

    Raises:
        UserError: its table is missing, or has not one row of each method that is compared.
    """
    found = [line for line in read(folder / f"{study.table}.csv") if study.where.items() <= line.items()]
    lines = {line["method"]: line for line in found}
    if len(lines) < len(found):
        twice = [method for method in lines if sum(line["method"] == method for line in found) > 1]
        raise UserError(
            f"{study.table}.csv: {study.title} has several rows of {', '.join(twice)}; run its script again"
        )
    absent = [m for m in (study.control, study.first, *study.methods) if isinstance(m, str) and m not in lines]
    if absent:
        raise UserError(f"{study.table}.csv: {study.title} has no row of {', '.join(absent)}; run its grid again")
    control = study.control if isinstance(study.control, float) else float(lines[study.control][study.score])
    first = float(lines[study.first][study.score])
    rows = []
    for method, directions in study.methods.items():
        score = float(lines[method][study.score])
        drawn = float(lines[method]["directions_per_parameter"]) if math.isnan(directions) else directions
        rows.append(
            {
                "study": study.table,
                "setting": study.title,
                "family": study.family,
                "method": NAMES.get(method) or wording.method_name(spelled(method)),
                "directions_per_parameter": drawn,
                "score": score,
                "control": control,
                "first_order": first,
                "share_percent": 100 * (score - control) / (first - control),
                **ahead(study, method, lines),
                "seeds": int(lines[method].get("seeds") or 0),
            }
        )
    return rows


def ahead(study: Study, method: str, lines: Mapping[str, Row]) -> dict[str, float]:
    """Mean and deviation over seeds of method - control, seed by seed; nan where the table does not have them."""
    row, control = lines[method], lines.get(str(study.control), {})
    listed = [line.get("accuracy_by_seed_percent", "").split() for line in (row, control)]
    if all(listed):
        return spread("ahead", np.array([float(a) - float(b) for a, b in zip(*listed, strict=True)]))
    kept = [row.get("gain_mean"), row.get("gain_sd")]
    if method == "heron" and "heron_less_it_mean" in control:
        kept = [control["heron_less_it_mean"], control["heron_less_it_sd"]]
    if isinstance(study.control, float):
        kept = [str(float(row[study.score]) - study.control), row.get(study.score.removesuffix("_mean") + "_sd")]
    return dict(zip(("ahead_mean", "ahead_sd"), (float(k or "nan") for k in kept), strict=True))


def read(path: Path) -> list[Row]:
    """The lines of a CSV.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; run the study's script first") from error


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per setting and method, in the order of directions per parameter."""
    lines = []
    for row in sorted(rows, key=lambda r: float(r["directions_per_parameter"])):
        numbers = wording.digits(*(row[k] for k in ("directions_per_parameter", "control", "score", "first_order")))
        lines.append([row["method"], row["setting"], *numbers, f"{row['share_percent']:.0f}"])
    header = ("method", "setting", "directions", "control", "method's", "first order", "share (%)")
    return wording.text_table(header, lines, left=2)


# --- theory


def remaining(h: Array, gamma: float, steps: int) -> float:
    """Share of the excess loss that is left after so many steps from E x_i^2 = 1 / h_i; see the module's docstring.

    Args:
        h: (d,) eigenvalues.
        gamma: constant step.
    """
    d = len(h)
    c = d / (d + 2)
    step = np.diag(1 - 2 * gamma * h + 2 * c * (gamma * h) ** 2) + c * gamma**2 * h**2
    return float(h @ np.linalg.matrix_power(step, steps) @ (1 / h)) / d


def closed(kappa: float, rho: float, d: int = 100) -> float:
    """Share of the excess loss that rho directions per parameter close by the best constant step.

    Args:
        kappa: condition; the eigenvalues lie between 1 / kappa and 1 at equal ratios.
    """
    h = np.geomspace(1 / kappa, 1, d)
    steps = max(1, round(rho * d))
    return 1 - min(remaining(h, gamma, steps) for gamma in np.geomspace(0.1 / d, 10 / d, 25))


# --- the figure

LOOKS = {
    "ZO-HFL": (palette.BLUE, "o"),
    "FedRZO": (palette.ORANGE, "s"),
    "HERON": (palette.GREEN, "^"),
    "HO-SFL": (palette.BLACK, "D"),
}
"""{how a method's name begins: colour and marker}"""
PANELS = {
    "federated learning": ("a_tuned", "a_tuned_iid", "a_shares", "b_methods"),
    "split learning, a cut of 2 to 16 features, or sensors that differ": ("c_narrow", "c_narrow_more", "c_fleet"),
    "split learning, a wide cut": ("c_fig2", "c_fig5", "c_pays"),
}
"""{title: its studies}"""
LEAST, MOST = -40, 125
FEW = 0.1
"""Directions per parameter below which little of any gap was closed."""


@figures.styled
def draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Share against directions per parameter: a panel per kind of study, a look a method; grey: few directions."""
    figure, panels = figures.canvas(len(PANELS), 1, figures.PAGE, 1.5, sharex=True, sharey=True)
    rho = np.geomspace(0.01, 100, 30)
    theory: list[tuple[str, Any, Callable[[float], float]]] = [
        ("theory: a quadratic, equal curvatures", "-", lambda r: 1 - math.exp(-r)),
        ("theory: curvatures from 1 to 100", "--", lambda r: closed(100, r)),
    ]
    curves = [(label, line, [100 * share_of(float(r)) for r in rho]) for label, line, share_of in theory]
    for panel, title in zip(panels.flat, PANELS, strict=True):
        panel.set(xscale="log", xlim=(0.01, 100), ylim=(LEAST, MOST), yticks=(0, 50, 100))
        panel.set_title(title, loc="left")
        panel.axvspan(0.01, FEW, color="0.93", zorder=0)
        panel.axhline(0, color="0.6", linewidth=0.8)
    most = max(row["share_percent"] for row in rows if row["directions_per_parameter"] < FEW)
    panels[-1, 0].set_xlabel(f"directions per parameter (grey: below {FEW:g}, where at most {most:.0f} % is closed)")
    figure.supylabel("share of the gap closed (%)", fontsize=8)
    figure.draw_without_rendering()  # panels have their sizes, by which points are set apart
    for panel, studies in zip(panels.flat, PANELS.values(), strict=True):
        points(panel, [row for row in rows if row["study"] in studies])
        for label, line, shares in curves:
            panel.plot(rho, shares, line, color="0.6", linewidth=1, label=label, zorder=1.5)
    figures.legend(
        figure, panels, 2, "a point: a method in a setting; bar: 95 % t interval of its lead over the control"
    )
    return figure


def points(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws the rows' shares, set apart; hollow where the server has enough samples of all classes."""
    x = figures.apart(panel, [r["directions_per_parameter"] for r in rows], [r["share_percent"] for r in rows])
    for at, row in zip(x, rows, strict=True):
        name = next(word for word in LOOKS if row["method"].startswith(word))
        colour, marker = LOOKS[name]
        half = 100 * t_half_width(row["ahead_sd"], row["seeds"]) / abs(row["first_order"] - row["control"])
        poor = any(word in row["setting"] for word in ("lacks", "54 samples"))
        where = {True: ": server with 54 samples, or 7 of 10 classes", False: ": server with 1 % or more, all classes"}[
            poor
        ]
        looks = {"color": colour, "marker": marker, "markersize": 4.5, "elinewidth": 0.6, "linestyle": ""}
        if name == "ZO-HFL":
            looks |= {"label": name + where, "markerfacecolor": colour if poor else "white"}
        panel.errorbar(at, row["share_percent"], half, **{"label": name, **looks})


if __name__ == "__main__":
    main()
