"""What the READMEs quote of the kept tables: sentences with # for each number, and the numbers from the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from tests.analysis.tables import column, number, printed, rows

RESULTS, FRONT, METHODS = "analysis/results", "README.md", "zofl_mpi/methods/README.md"
SUMMARY = "analysis/results/README.md"
"""The first page of the results; `RESULTS` are all the others."""


@dataclass(frozen=True)
class Quote:
    """Words of a text, with # in place of every number that is compared.

    Attributes:
        words: as they stand in the text once, but for breaks of lines.
        numbers: what the text must say, to the digits that it gives.
        text: the file, from the root of the checkout; RESULTS: any of its pages.
    """

    words: str
    numbers: Sequence[float]
    text: str = RESULTS


def ends(values: Iterable[float]) -> list[float]:
    """The smallest and the largest."""
    found = list(values)
    return [min(found), max(found)]


def flat(parts: Iterable[Iterable[float]]) -> list[float]:
    """All numbers one behind the other."""
    return list(chain.from_iterable(parts))


# --- [A]

CELLS = ("a1000-b0.9", "a1-b0.5", "a0.1-b0.1")
ROWS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "SCAFFOLD": "scaffold",
    "ZO-HFL": "zo_hfl",
    "server SGD": "server_sgd",
    "FedAvg + ZO-HFL's server step": "fedavg+server",
}
PRINTED = ("fedavg", "fedprox", "scaffold", "zo_hfl")
MEAN, SD, PAPER = "accuracy_mean_percent", "accuracy_sd_percent", "paper_percent"


def of_table1(method: str) -> Iterator[float]:
    """Mean, deviation and, where there is one, the printed number of a method, cell by cell."""
    for data in ("mnist", "fashion-mnist"):
        for cell in CELLS:
            keys = (MEAN, SD, PAPER) if method in PRINTED else (MEAN, SD)
            yield from (number("a_table1", key, data=data, cell=cell, method=method) for key in keys)


def above(table: str, method: str, **where: str) -> list[float]:
    """Our means less the printed numbers, in points."""
    means, paper = (column(table, key, method=method, **where) for key in (MEAN, PAPER))
    return [ours - theirs for ours, theirs in zip(means, paper, strict=True)]


def table1() -> Iterator[Quote]:
    for name, method in ROWS.items():
        cell = "# ± # (#)" if method in PRINTED else "# ± #"
        yield Quote(f"| {name} " + f"| {cell} " * 6 + "|", list(of_table1(method)))
    averaging = [above("a_table1", method, cell=CELLS[0]) for method in ("fedavg", "fedprox")]
    apart = [above("a_table1", method, cell=CELLS[2]) for method in ("fedavg", "fedprox")]
    yield Quote("by # to # points where clients are alike", ends(flat(averaging)))
    yield Quote("and by # to # in the most heterogeneous cell", ends(flat(apart)))
    spreads = flat(column("a_table1", SD, cell=CELLS[2], method=method) for method in ("fedavg", "fedprox"))
    yield Quote("there and with a spread of # to # points over seeds", ends(spreads))
    lowest = number("a_table1", PAPER, data="mnist", cell=CELLS[2], method="fedavg")
    yield Quote("that they fall to # % is not", [lowest])
    yield Quote("where the paper prints # %", [lowest])
    scaffold = above("a_table1", "scaffold")
    close = sorted(scaffold[:3], key=abs)
    yield Quote("in two cells (within # points)", [abs(close[1])])
    yield Quote("in the others it is # to # points above the printed number", ends([close[2], *scaffold[3:]]))
    ours = [column("a_table1", MEAN, data=data, method="zo_hfl") for data in ("mnist", "fashion-mnist")]
    behind = ends(-points for points in above("a_table1", "zo_hfl"))
    for end in (0, -1):  # the smallest and the largest of the cells are quoted by one number
        means = [sorted(means)[end] for means in ours]
        yield Quote("with the printed steps: # % on MNIST and # % on Fashion-MNIST in all cells", means)
        yield Quote("with the printed steps ends at # % on MNIST and # % on Fashion-MNIST", means, FRONT)
    yield Quote("in all cells, # to # points below the printed numbers", behind)
    yield Quote("on Fashion-MNIST, # to # points below the printed numbers", behind, FRONT)
    cells = [{"data": data, "cell": cell} for data in ("mnist", "fashion-mnist") for cell in CELLS]
    apart_from_server = [
        abs(number("a_table1", MEAN, method="zo_hfl", **at) - number("a_table1", MEAN, method="server_sgd", **at))
        for at in cells
    ]
    limit = math.ceil(100 * max(apart_from_server)) / 100  # told as a bound
    yield Quote("the same mini-batches) to within # points", [limit])
    yield Quote("equals SGD on the server's own data alone to within # points", [limit], FRONT)
    at = {"data": "mnist", "cell": CELLS[2]}
    keys = (MEAN, SD, PAPER)
    yield Quote(
        "most unequal cell: SCAFFOLD | # ± # % (#) |",
        [number("a_table1", key, method="scaffold", **at) for key in keys],
        FRONT,
    )
    yield Quote(
        "| the same: ZO-HFL; the server alone | # ± # % (#); # ± # |",
        [number("a_table1", key, method="zo_hfl", **at) for key in keys]
        + [number("a_table1", key, method="server_sgd", **at) for key in keys[:2]],
        FRONT,
    )


def readings() -> Iterator[Quote]:
    def zo_hfl(table: str, reading: str) -> float:
        return number(table, MEAN, method="zo_hfl", reading=reading)

    def distance(table: str, reading: str) -> float:
        return sum(map(abs, column(table, "difference_percent", reading=reading))) / 2

    def moved(table: str) -> list[float]:
        first = zo_hfl(table, "default")
        small = ("batch-1", "batch-32", "batch-256", "mu-0.1", "mu-10", "lam-0.1", "tau-10")
        return [abs(zo_hfl(table, reading) - first) for reading in small]

    standard, iid = "pixels-standardize", "a_readings_iid"
    yield Quote("gamma_r sum to # over 500 rounds", [sum(0.01 / (r + 1) ** 0.5 for r in range(500))])
    yield Quote("standardised pixels bring ZO-HFL to # %", [zo_hfl("a_readings", standard)])
    yield Quote(
        "(mean distance # points over ZO-HFL and FedAvg; the default #)",
        [distance("a_readings", standard), distance("a_readings", "default")],
    )
    change = zo_hfl("a_readings", "default") - zo_hfl("a_readings", "lam-10")
    yield Quote("lambda of 10 by # downwards", [change])
    assert max(moved("a_readings")) < 0.2
    lowest = min(column("a_readings", MEAN, method="fedavg"))
    assert int(lowest) == 77
    yield Quote("No reading brings FedAvg below # %", [int(lowest)])
    yield Quote(
        "standardised pixels bring ZO-HFL from # to # % (printed #; mean distance with FedAvg # points, the default #)",
        [
            zo_hfl(iid, "default"),
            zo_hfl(iid, standard),
            number(iid, PAPER, method="zo_hfl", reading="default"),
            distance(iid, standard),
            distance(iid, "default"),
        ],
    )
    lam = abs(zo_hfl(iid, "lam-10") - zo_hfl(iid, "default"))
    assert max(*moved(iid), lam) < 0.8
    yield Quote(
        "no reading FedAvg, at # to # %, nearer to the printed # % than #",
        [
            *ends(column(iid, MEAN, method="fedavg")),
            number(iid, PAPER, method="fedavg", reading="default"),
            min(column(iid, "difference_percent", method="fedavg")),
        ],
    )


def tuned() -> Iterator[Quote]:
    def best(table: str, method: str, *keys: str) -> list[float]:
        return [number(table, key, method=method, best="True") for key in keys or (MEAN, SD)]

    def seed1(method: str, step: str) -> float:
        """On the test samples, of a step that only seed 1 has."""
        assert number("a_tuned", "seeds", method=method, step=step) == 1
        return number("a_tuned", MEAN, method=method, step=step)

    weak = [seed1("zo_hfl", "local-0.001 server-0.1"), seed1("server_sgd", "server-0.1")]
    yield Quote("ZO-HFL reaches # % in the cell (0.1, 10 %) on seed 1", weak[:1])
    yield Quote("the server alone reaches # % there", weak[1:])
    yield Quote(
        "SCAFFOLD ends at # ± # %, FedAvg + server at # ± #, the server alone at # ± #, ZO-HFL at # ± #, "
        "FedAvg at # ± #, FedProx at # ± #.",
        flat(best("a_tuned", m) for m in ("scaffold", "fedavg+server", "server_sgd", "zo_hfl", "fedavg", "fedprox")),
    )
    yield Quote(
        "it reaches # ± #, the server alone # ± #, SCAFFOLD # ± # % (three seeds)",
        flat(best("a_tuned", m) for m in ("zo_hfl", "server_sgd", "scaffold")),
        FRONT,
    )
    at_edge = {row["method"]: row["step"] for row in rows("a_tuned") if row["at_edge"]}
    assert at_edge == dict.fromkeys(("zo_hfl", "fedavg+server"), "local-0.0001 server-1")
    larger = [f"local-{local} server-1" for local in ("0.001", "0.003", "0.01")]
    yield Quote(
        "ZO-HFL ends at #, #, # %, FedAvg + server at #, #, #.",
        [seed1(method, step) for method in ("zo_hfl", "fedavg+server") for step in larger],
    )
    yield Quote(
        "FedAvg ends at # ± # %, FedProx at # ± #, SCAFFOLD at # ± #, FedAvg + server at # ± #; the server alone at "
        "# ± #, ZO-HFL at # ± #. ZO-HFL is again",
        flat(best("a_tuned_iid", m) for m in (*PRINTED[:3], "fedavg+server", "server_sgd", "zo_hfl")),
    )
    steps = [f"local-{local} server-1" for local in ("0.001", "0.003", "0.01")]
    larger = [number("a_tuned_iid", MEAN, method="zo_hfl", step=step, seeds="1") for step in steps]
    yield Quote("with steps of 0.001, 0.003, 0.01 it ends at #, #, #. (Chosen", larger)
    at_edge = {row["method"]: row["step"] for row in rows("a_tuned_iid") if row["at_edge"]}
    assert at_edge == {"zo_hfl": "local-0.0003 server-1"}


def figure2() -> Iterator[Quote]:
    def loss(table: str, *where: str) -> float:
        return float(printed(table, "fashion-mnist", *where)[0])

    taus = [[loss("a_fig2", cell, tau) for tau in ("5", "20", "50")] for cell in CELLS]
    yield Quote("ends at #, #, # nat for tau = 5, 20, 50", taus[0])
    yield Quote("at #, #, # in the second", taus[1])
    yield Quote("at #, #, # in the third", taus[2])
    spread = [float(printed("a_fig2", "fashion-mnist", cell, tau)[1]) for cell in CELLS for tau in ("5", "20", "50")]
    yield Quote("deviations over seeds # to #", ends(spread))
    by_mu = [loss("a_fig2_mu", CELLS[2], mu) for mu in ("0.1", "1", "10")]
    yield Quote("#, #, # for mu = 0.1, 1, 10", by_mu)


def cifar() -> Iterator[Quote]:
    table, keys = "a_table1_cifar", (MEAN, SD, PAPER)
    for problem in ("softmax", "features"):
        for cell, words in zip(CELLS, ("1000, 0.9", "1, 0.5", "0.1, 0.1"), strict=True):
            one_seed = cell == CELLS[0]
            told = [key for key in keys if not (one_seed and key == SD)]
            cells, values = [], []
            for method in ROWS.values():
                wanted = told if method in PRINTED else told[:-1]
                cells.append("#" + " ± #" * (SD in wanted) + " (#)" * (PAPER in wanted))
                values += [number(table, key, problem=problem, cell=cell, method=method) for key in wanted]
            yield Quote(f"| {problem}, {words} | " + " | ".join(cells) + " |", values)
    below = {
        (method, cell): -above(table, method, problem="softmax", cell=cell)[0]
        for method in PRINTED[:3]
        for cell in CELLS[1:]
    }
    second, third = CELLS[1:]
    spread = number(table, SD, problem="softmax", cell=second, method="fedavg")
    yield Quote(
        "(# and # points below them, ± #) and # and # below in the third, SCAFFOLD # and # below",
        [
            *(below[method, second] for method in ("fedavg", "fedprox")),
            spread,
            *(below[method, third] for method in ("fedavg", "fedprox")),
            *(below["scaffold", cell] for cell in (second, third)),
        ],
    )
    first = [number(table, PAPER, problem="softmax", cell=CELLS[0], method=method) for method in PRINTED]
    ours = [number(table, MEAN, problem=p, cell=CELLS[0], method="fedavg") for p in ("softmax", "features")]
    yield Quote(
        "near the printed # to # %: a linear model of the pixels ends at # %, of the random features at # %",
        [*ends(first), *ours],
    )
    where = {"problem": "softmax", "cell": third}
    zo_hfl, fedavg, server = (number(table, MEAN, method=m, **where) for m in ("zo_hfl", "fedavg", "server_sgd"))
    yield Quote("(# against #), and there the server alone, which asks no client, has #", [zo_hfl, fedavg, server])
    printed_zo_hfl = [number(table, PAPER, problem="softmax", cell=cell, method="zo_hfl") for cell in CELLS[1:]]
    yield Quote("The printed ZO-HFL, # and # %", printed_zo_hfl)


PERSONAL = {
    "FedAvg, fine-tuned": "fedavg",
    "FedProx, fine-tuned": "fedprox",
    "SCAFFOLD, fine-tuned": "scaffold",
    "ZO-HFL": "zo_hfl",
    "server SGD, fine-tuned": "server_sgd",
    "Ditto": "ditto",
    "pFedMe": "pfedme",
    "x_0, fine-tuned": "alone",
}


def personal_models() -> Iterator[Quote]:
    table, mean, sd = "a_personal", "personal_mean_percent", "personal_sd_percent"
    places = [{"data": data, "cell": cell} for data in ("mnist", "fashion-mnist") for cell in CELLS]
    ahead = ("less_fedavg_mean", "less_fedavg_sd", "seeds_ahead_of_fedavg", "seeds")

    def of(steps: str, method: str, at: Iterable[dict[str, str]] = places, key: str = mean) -> list[float]:
        return [number(table, key, steps=steps, method=method, **place) for place in at]

    def less(steps: str, other: str, at: Iterable[dict[str, str]] = places) -> list[float]:
        """ZO-HFL's means less another method's, in points."""
        return [ours - its for ours, its in zip(of(steps, "zo_hfl", at), of(steps, other, at), strict=True)]

    for steps in ("printed", "tuned"):
        for name, method in PERSONAL.items():
            values = flat(of(steps, method, [place], key) for place in places for key in (mean, sd))
            yield Quote(f"| {name}, {steps} |" + " # ± # |" * 6, values)
        values = flat(of(steps, "zo_hfl", [place], key) for place in places for key in ahead)
        yield Quote(f"| *ZO-HFL less FedAvg, {steps}* |" + " # ± # (# of #) |" * 6, values)
    printed = [-points for points in less("printed", "fedavg")]
    assert not any(of("printed", "zo_hfl", key=ahead[2]))
    yield Quote("in every cell and on every seed, by # to # points", ends(printed))
    limit = math.ceil(100 * max(map(abs, less("printed", "server_sgd")))) / 100  # told as a bound
    above_x0 = ends(less("printed", "alone"))
    yield Quote("fine-tuned (means within # points), and only # to # points above", [limit, *above_x0])
    yield from _tuned_personal_models(places, of, less)


Numbers = Callable[..., list[float]]


def _tuned_personal_models(places: list[dict[str, str]], of: Numbers, less: Numbers) -> Iterator[Quote]:
    mnist, fashion = places[:3], places[3:]
    others, third = [*mnist[:2], *fashion[:2]], [mnist[2], fashion[2]]
    behind = [-points for points in less("tuned", "fedavg", others)]
    assert not any(of("tuned", "zo_hfl", others, "seeds_ahead_of_fedavg"))
    yield Quote("on every seed: by # and # points on MNIST, by # and # on Fashion-MNIST", behind)
    seeds = ("less_fedavg_mean", "less_fedavg_sd", "seeds_ahead_of_fedavg", "seeds")
    numbers = [[of("tuned", "zo_hfl", [place], key)[0] for key in seeds] for place in third]
    yield Quote("seed by seed # ± # points on MNIST, ahead on # of # seeds", numbers[0])
    yield Quote("and # ± # on Fashion-MNIST, ahead on # of #", numbers[1])
    limit = math.ceil(100 * max(map(abs, less("tuned", "server_sgd", third)))) / 100  # told as a bound
    server = [-points for points in less("tuned", "server_sgd", others)]
    yield Quote("is # to # points ahead of ZO-HFL in the first two cells and within # in", [*ends(server), limit])
    yield Quote(
        "Ditto is ahead of ZO-HFL by # to # points, in", ends(-points for points in less("tuned", "ditto", places))
    )
    ditto, fedavg = ([of("tuned", method, at) for at in (third, others)] for method in ("ditto", "fedavg"))
    gains = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(ditto, fedavg, strict=True)]
    yield Quote("it is ahead by # and # points in the third cell;", gains[0])
    yield Quote("elsewhere the two are within #.", [math.ceil(10 * max(map(abs, gains[1]))) / 10])
    pfedme = [
        [a - b for a, b in zip(*(of("tuned", m, at) for m in ("pfedme", "fedavg")), strict=True)]
        for at in (third, others)
    ]
    yield Quote("fine-tuning by # and # points in the third cell, behind", pfedme[0])
    yield Quote("behind by # to # in the others. Its best", ends(-points for points in pfedme[1]))
    of_x = flat(of("tuned", method, third, "global_mean_percent") for method in ("zo_hfl", "fedavg"))
    yield Quote("on all test samples ZO-HFL's has # and # %, FedAvg's # and #", of_x)

    def tried(place: dict[str, str], method: str = "fedavg", **where: str) -> dict[str, str]:
        """The row of the steps that were chosen, or of these."""
        where = {"steps": "tried", "method": method} | place | (where or {"best": "True"})
        (row,) = [r for r in rows("a_personal") if r.items() >= where.items()]
        return row

    words = tried(mnist[2], "pfedme")["step"].split()
    inner, lam = float(words[0].removeprefix("local-")), float(words[1].removeprefix("lam-"))
    assert inner > 2 / lam
    yield Quote("in the third on MNIST is # with lambda = #, beyond", [inner, lam])
    local = [float(tried(place)["step"].split()[0].removeprefix("local-")) for place in places]
    yield Quote("is #, #, # in the three cells on MNIST and #, #, # on Fashion-MNIST", local)
    other = tried(mnist[0], step=tried(mnist[2])["step"])
    values = [float(row["chosen_by_percent"]) for row in (other, tried(mnist[0]))]
    yield Quote("it has # % in the first on MNIST's validation samples, with its own #", values)


# --- [B]


def figure1() -> Iterator[Quote]:
    hs = ("1", "5", "10", "20")
    for eta in ("0.1", "0.01", "0.001"):
        values = [number("b_fig1", key, eta=eta, H=h) for h in hs for key in ("last", "last_sd")]
        yield Quote("| after 1,000 rounds, each eta |" + " # ± # |" * 4, values)
        rounds, steps = (
            [number("b_fig1", key, eta=eta, H=h) for h in hs] for key in ("reached_in_round", "in_local_steps")
        )
        yield Quote("| first evaluated round at H = 1's last mean |" + " # |" * 4, rounds)
        yield Quote("| local steps by then |" + " # |" * 4, steps)
        yield Quote("H = 1; 20 | # ± #; # ± # |", values[:2] + values[-2:], FRONT)
    for h in hs:  # "agree to four digits"
        assert len({f"{value:.4f}" for value in column("b_fig1", "last", H=h)}) == 1
    yield Quote("on test samples to # on average", [number("b_fig1_sum", "last", reading="sum", H="1")])
    mean = [number("b_fig1_sum", key, reading="mean", H="20") for key in ("first", "last")]
    yield Quote("The mean descends: # -> # in 40 rounds", mean)


def methods() -> Iterator[Quote]:
    names = {
        "FedRZO, 1 direction": ("fedrzo", "10"),
        "FedRZO, 16 directions": ("fedrzo-16", "10"),
        "FedAvg, beta = 10": ("fedavg", "10"),
        "FedProx, beta = 10": ("fedprox", "10"),
        "FedMSPP, beta = 10": ("fedmspp", "10"),
        "Scaffnew, beta = 10, p = 0.1": ("scaffnew", "10"),
        "FedAvg, beta = 1": ("fedavg", "1"),
        "FedProx, beta = 1": ("fedprox", "1"),
        "FedMSPP, beta = 1": ("fedmspp", "1"),
        "Scaffnew, beta = 1, p = 0.1": ("scaffnew", "1"),
    }
    keys = ("step", "nonsmooth_mean", "nonsmooth_sd", "smooth_test_mean", MEAN, "evaluations")
    for name, (method, rectifier) in names.items():
        best = {"method": method, "rectifier": rectifier, "best": "True"}
        *values, evaluations = (number("b_methods", key, **best) for key in keys)
        yield Quote(f"| {name} | # | # ± # | # | # | # |", [*values, evaluations / 1e6])
    yield Quote("All send the same # MiB", [column("b_methods", "bytes")[0] / 2**20])
    yield Quote("1e-5, which ends at #", [number("b_methods", "nonsmooth_mean", method="fedrzo", step="1e-5")])
    chosen = [
        number("b_methods", key, method=method, rectifier="10", best="True")
        for method in ("fedrzo-16", "fedavg")
        for key in ("nonsmooth_mean", "nonsmooth_sd")
    ]
    yield Quote("FedRZO, 16 directions; FedAvg | # ± #; # ± # |", chosen, FRONT)
    images = [number("b_methods_cifar", "nonsmooth_mean", method=m, best="True") for m in ("fedrzo", "fedavg")]
    yield Quote("so that any best one is at an edge): FedRZO #, FedAvg #", images)


def bilevel() -> Iterator[Quote]:
    def line(problem: str, what: str, name: str) -> list[float]:
        """First, last, half the interval, seeds below the first line, and the round."""
        first, last, half, _, below, reached = printed("b_fig2", problem, what, name)
        return [float(first), float(last), float(half), float(below), float("nan" if reached == "-" else reached)]

    for words, problem, what in (
        ("hyper-parameters, test loss, 30 rounds", "hyperparameter", "test_loss"),
        ("fair classification, max_y f, 300 rounds", "fair", "objective_exact"),
    ):
        lines = [line(problem, what, f"H = {h}") for h in (1, 5, 10)]
        first = sum(start for start, *_ in lines) / 3
        rounds = "| rounds to H = 1's last value | | # | # | # | | seeds below H = 1 | | | # | # |"
        values = [first, *flat(found[1:3] for found in lines), *(found[-1] for found in lines)]
        values += [found[-2] for found in lines[1:]]
        yield Quote(f"| {words} | # | # ± # | # ± # | # ± # | {rounds}", values)
        if problem == "hyperparameter":
            yield Quote("test loss before; after 30 rounds, H = 10 | #; # ± # |", [first, *lines[2][1:3]], FRONT)
            (_, one, half, *_), *others = lines  # the intervals of H = 5 and of 10 are disjoint with that of 1
            assert all(last + other < one - half for _, last, other, *_ in others)
    fair, mean = (line("fair", "test_worst_class_loss", f"{name}, H = 10") for name in ("fair", "mean"))
    yield Quote("The worst class's test loss with H = 10 falls to # ± #", fair[1:3])
    yield Quote("classes' mean loss in its place ends at # ± #, lower on one seed of three", mean[1:3])
    assert mean[3] == 1 and abs(fair[1] - mean[1]) < mean[2]


def hypergradients() -> Iterator[Quote]:
    names = {
        "quadratic bowls": "bilevel_bowls",
        "minimax, known saddle": "saddle",
        "regularisers, MNIST": "hyperparameter",
        "`cvar`": "cvar",
        "`shares`": "shares",
    }

    def of(problem: str, method: str, *keys: str) -> list[float]:
        return [number("b_fednest", key, problem=problem, method=method, best="True") for key in keys]

    for name, problem in names.items():
        for spelled, method in (("FedRZO", "fedrzo"), ("FedNest", "fednest")):
            if method == "fednest" and problem in ("cvar", "shares"):
                continue
            known = problem != "hyperparameter"
            values = of(problem, method, "step", "first_mean", "measure_mean", "measure_sd")
            values += of(problem, method, *["distance_mean"] * known, "bytes", "evaluations")
            values[-2:] = [values[-2] / 2**10, values[-1] / 1e6]
            yield Quote(f"| {name} | {spelled} | # | # | # ± # |{' #' * known} | # | # |", values)
    for problem, words in (("bilevel_bowls", "on the bowls"), ("saddle", "on the saddle")):
        until = [of(problem, m, "bytes_until", "evaluations_until") for m in ("fednest", "fedrzo")]
        numbers = [until[0][0] / 2**10, until[1][0] / 2**10, until[0][1] / 1e6, until[1][1] / 1e6]
        yield Quote(f"{words} # KiB in place of # and # in place of #", numbers)
    (cvar,) = [row["by_seed"] for row in rows("b_fednest") if row["problem"] == "cvar" and row["best"] == "True"]
    start = of("cvar", "fedrzo", "first_mean")
    yield Quote(
        "F - F* is #, # and # on the three seeds after 500 rounds, where it began near #",
        [*map(float, cvar.split()), *start],
    )
    ends_there = [of("hyperparameter", method, "measure_mean")[0] for method in ("fedrzo", "fednest")]
    assert abs(ends_there[0] - ends_there[1]) < min(
        of("hyperparameter", m, "measure_sd")[0] for m in ("fedrzo", "fednest")
    )


def theory() -> Iterator[Quote]:
    table1 = {
        "upper level (nn)": ("upper level", "3/4", "3/4"),
        "Local SGD": ("Local SGD", "3/4", "7/4"),
        "FedAC-I": ("FedAC-I", "3/4", "13/12"),
        "LFD, T of Theorem 1": ("LFD, T of Thm 1", "11/12", "11/12"),
        "LFD, T of Algorithm 3": ("LFD, T of Alg. 3", "11/12", "11/12"),
    }
    for name, (row, of_k, of_m) in table1.items():
        small, large, _, clients, _ = map(float, printed("b_complexity", row))
        yield Quote(f"| {name} | # | # | {of_k} | # | {of_m} |", [small, large, clients])
    local_sgd = float(printed("b_complexity", "Local SGD")[1])
    yield Quote("exponent of K, Local SGD | # (3/4) |", [local_sgd], FRONT)

    def slope(line: str) -> float:
        return column("b_theory", "slope_fitted", line=line)[0]

    yield Quote("at a kink grows as eta^#", [slope("f^η - f at a kink")])
    yield Quote("the second derivative jumps as eta^#", [slope("|∇f^η - ∇f|")])
    yield Quote("only penalised as eta^#", [slope("set penalised")])
    yield Quote("falls as K^# (quadratics) and K^# (max of affine)", [slope("quadratic"), slope("max of affine")])
    yield Quote("at equal K as m^#, at equal m K as m^#", [slope("K = 2048"), slope("m K = 16384")])
    names = {
        "Local SGD, H = T/m": "Local SGD, H = T/m",
        "FedAC-I, H = 5": "FedAC-I, H = 5",
        "LFD, paper's H": "LFD, the paper's H",
        "Local SGD, H = 1": "Local SGD, H = 1",
        "FedAC-I, H = 1": "FedAC-I, H = 1",
        "exact": "exact",
    }
    keys = ("lower_error_relative", "distance_to_solution_relative", "objective_gap_relative")
    for name, solver in names.items():
        yield Quote(f"| {name} | # | # | # |", [number("b_bias", key, solver=solver) for key in keys])
    residual = [number("b_bias", "lower_residual", solver=s) for s in ("Local SGD, H = T/m", "Local SGD, H = 1")]
    yield Quote("`lower_residual` shows the bias (# against #)", residual)


# --- [C]

SPLIT = {
    "its client frozen (`--freeze client`)": "heron-frozen",
    "its head frozen (`--freeze auxiliary`)": "heron-frozen-head",
    "neither moves (`--lr-client 0`)": "heron-still",
    "CSE-FSL": "cse_fsl",
    "FSL-SAGE": "fsl_sage",
    "SFLV1": "sflv1",
    "SFLV2": "sflv2",
}


def split_accuracy() -> Iterator[Quote]:
    def last(method: str, setting: str = "iid") -> list[float]:
        return [number("c_fig2", key, method=method, setting=setting) for key in (MEAN, SD)]

    def less(method: str, setting: str) -> list[float]:
        keys = ("heron_less_it_mean", "heron_less_it_sd")
        return [number("c_fig2", key, method=method, setting=setting) for key in keys]

    settings = ("iid", "alpha0.3")
    yield Quote("| HERON | # ± # | | # ± # | |", flat(last("heron", setting) for setting in settings))
    for name, method in SPLIT.items():
        values = flat([*last(method, setting), *less(method, setting)] for setting in settings)
        yield Quote(f"| {name} |" + " # ± # |" * 4, values)

    def loss(method: str, when: str) -> float:
        return number("c_fig2", f"local_loss_{when}", method=method, setting="iid")

    yield Quote(
        "HERON's goes from # to # nat, nearly all of it the head's (frozen client #; frozen head #; step 0 #), "
        "CSE-FSL's to #",
        [
            loss("heron", "first"),
            *(loss(m, "last") for m in ("heron", "heron-frozen", "heron-frozen-head", "heron-still", "cse_fsl")),
        ],
    )
    yield Quote(
        "CIFAR-10: HERON; CSE-FSL; SFLV2 | # ± # %; # ± #; # ± # |",
        flat(map(last, ("heron", "cse_fsl", "sflv2"))),
        FRONT,
    )
    both = [*last("heron"), *last("heron-frozen")]
    yield Quote("HERON's accuracy, # ± #, is that of a frozen random client, # ± #", both, FRONT)


def split_panels() -> Iterator[Quote]:
    def narrow(cut: str, key: str, frozen: str = "False", **where: str) -> list[float]:
        return column("c_fig4", key, cut=cut, frozen=frozen, **where)

    one, two = (ends(narrow(cut, MEAN)) for cut in ("1", "2"))
    controls = {cut: [narrow(cut, key, "True")[0] for key in (MEAN, SD)] for cut in ("1", "2")}
    yield Quote("end between # and # %, the frozen client at # ± #", [*one, *controls["1"]])
    yield Quote("at the client # to #, frozen # ± #", [*two, *controls["2"]])
    gain = "less_frozen_mean"
    yield Quote("HERON less the frozen client is # to # points", ends(column("c_fig4", gain)))
    wide = [-v for mu in ("0.1", "1.0", "10.0") for v in column("c_fig4", gain, mu=mu)]
    yield Quote("a radius of 0.1 and more costs # to #", ends(wide))
    four, eight = ([narrow("2", key, n_p=n)[0] for key in (gain, "less_frozen_sd")] for n in ("4.0", "8.0"))
    yield Quote("n_p = 4 with two blocks gains # ± #", four)
    yield Quote("besides n_p = 8's # ± #", eight)
    losses = [narrow("1", "local_loss", mu="0.001", n_p=n)[0] for n in ("1.0", "8.0")]
    yield Quote("More directions lower the local loss (# to # nat)", losses)

    gains = [float(row[gain]) for row in rows("c_fig3") if row["method"] == "heron" and row["panel"] != "beta"]
    gains += [number("c_fig3", gain, method="heron", panel="beta", value=v) for v in ("0.1", "0.2", "0.5")]
    assert len(gains) == 12  # beta = 1 are the runs of 20 clients
    yield Quote("(# to #, mean #)", [*ends(gains), sum(gains) / len(gains)])

    def accuracy(panel: str, value: str, method: str = "heron") -> float:
        return number("c_fig3", MEAN, method=method, panel=panel, value=value)

    yield Quote("alpha = 0.1 costs # points", [accuracy("alpha", "1000.0") - accuracy("alpha", "0.1")])
    yield Quote("fraction of 0.1 costs #.", [accuracy("beta", "1.0") - accuracy("beta", "0.1")])
    clients = ("10.0", "20.0", "50.0", "100.0")
    yield Quote("HERON ends at #, #, #, # %", [accuracy("m", m) for m in clients])
    groups = [accuracy("m", m, "heron-group") for m in ("10.0", "50.0", "100.0")]
    yield Quote("`--norm group` it is #, #, # % with", groups)


def spectrum() -> Iterator[Quote]:
    models = ("before training, seed 1", "HERON, 60 rounds", "CSE-FSL, 60 rounds")
    keys = ("effective_rank", "effective_rank_error")
    ranks = flat([number("c_fig7", key, model=model) for key in keys] for model in models)
    norms = [number("c_fig7", "norm", model=model) for model in reversed(models[1:])]
    yield Quote(
        "is # ± # before training, # ± # after HERON's 60 rounds, # ± # after CSE-FSL's, "
        "whose |H|_2 is # beside HERON's #",
        [*ranks, *norms],
    )


def split_costs() -> Iterator[Quote]:
    def until(method: str, name: str) -> list[float]:
        rounds = printed("c_table2", name, cells=7)[0].split(", ")
        return [*map(float, rounds), number("c_table2", "gib", method=method)]

    def step(key: str, *which: str) -> list[float]:
        return [number("c_table2", key, method=method) for method in which]

    names = {"heron": "HERON", "heron-frozen": "HERON, frozen client", "cse_fsl": "CSE-FSL", "sflv2": "SFLV2"}
    yield Quote(
        "HERON #, #, # rounds and # GiB, frozen #, #, # and # GiB, CSE-FSL #, #, # and # GiB, SFLV2 #, #, # and # GiB",
        flat(until(*pair) for pair in names.items()),
    )
    methods = ("heron", "cse_fsl", "sflv2")
    memory = [size / 2**20 for size in step("client_peak_bytes", *methods)]
    yield Quote("step holds # MiB, CSE-FSL's #, SplitFed's #", memory)
    yield Quote("HERON; CSE-FSL; SplitFed | # MiB; #; # |", memory, FRONT)
    yield Quote("#, #, # G multiply-accumulates", [macs / 1e9 for macs in step("client_macs_a_step", *methods)])

    def ours(method: str) -> list[float]:
        """GiB of [C], ours, with heads; MiB; G multiply-accumulates: [C]'s and ours."""
        return [float(cell) for cell in printed("c_table2", method, cells=8)[1:]]

    heron, sage, cse, v1, v2 = map(ours, ("HERON", "FSL-SAGE", "CSE-FSL", "SFLV1", "SFLV2"))
    yield Quote(
        "# GiB (#), # or with heads # (#), # (#); CSE-FSL # (#) and SFLV1 # (#) are not. # and # G (#, #)",
        [
            *(v2[1], v2[0], heron[1], heron[2], heron[0], sage[2], sage[0]),
            *(cse[2], cse[0], v1[1], v1[0]),
            *(heron[6], cse[6], heron[5], cse[5]),
        ],
    )
    yield Quote(
        "client # MiB of # (#; printed # of #, #)",
        [heron[4], v2[4], heron[4] / v2[4], heron[3], v2[3], heron[3] / v2[3]],
    )
    yield Quote("G multiply-accumulates | # (#); # (#) |", [v2[1], v2[0], heron[6], heron[5]], FRONT)
    yield Quote("# and # G multiply-accumulates at batch 256", [heron[6], cse[6]], METHODS)
    yield Quote(
        "# GiB in 20 rounds without heads and # with them, # in SFLV2's 16", [heron[1], heron[2], v2[1]], METHODS
    )
    yield Quote(
        "passes hold # MiB there and SplitFed's # (#; [C]: # of #, #)",
        [heron[4], v2[4], heron[4] / v2[4], heron[3], v2[3], heron[3] / v2[3]],
        METHODS,
    )


LANGUAGE = {
    "its client frozen (`--freeze client`)": "heron-frozen",
    "CSE-FSL": "cse_fsl",
    "FSL-SAGE": "fsl_sage",
    "SplitLoRA": "splitlora",
    "DeComFL": "decomfl",
}


def language() -> Iterator[Quote]:
    def of(method: str, *keys: str, start: str = "pretrained") -> list[float]:
        return [number("c_fig5", key, method=method, start=start) for key in keys]

    both = ("validation_perplexity_mean", "validation_perplexity_sd")
    less, at = ("heron_less_it_mean", "heron_less_it_sd"), ("at_herons_bytes_mean", "at_herons_bytes_sd")
    mib = {m: of(m, "bytes")[0] / 2**20 for m in ("heron", *LANGUAGE.values())}
    yield Quote("| HERON, LoRA | # ± # | | # | # ± # |", [*of("heron", *both), mib["heron"], *of("heron", *at)])
    for name, method in LANGUAGE.items():
        values = [*of(method, *both), *of(method, *less), mib[method], *of(method, *at)]
        yield Quote(f"| {name} | # ± # | # ± # | # | # ± # |", values)
    gains = [of(m, less[0])[0] for m in ("cse_fsl", "splitlora")]
    yield Quote("through them is worth # (CSE-FSL) and # (SplitLoRA)", gains)
    losses = [of(m, f"local_loss_{when}")[0] for m in ("heron", "cse_fsl") for when in ("first", "last")]
    yield Quote("HERON's local loss goes from # to # nat, CSE-FSL's from # to #", losses)
    kinds = [f"pretrained-{name}" for name in ("adamw_transformers", "adamw")]
    ends = [number("c_lm_optimiser", key, start=kind) for kind in kinds for key in both]
    yield Quote("it ends at # ± #, by torch's (the table's) at # ± #; seed by seed", ends)
    yield from _more_steps()
    start = "random"
    yield Quote("| HERON, random weights | # ± # | |", of("heron", *both, start=start))
    for name, method in (("its client frozen", "heron-frozen"), ("CSE-FSL", "cse_fsl"), ("SplitLoRA", "splitlora")):
        yield Quote(f"| {name}, random weights | # ± # | # ± # |", of(method, *both, *less, start=start))
    moved = [of(m, f"local_loss_{when}", start=start)[0] for m in ("cse_fsl", "heron") for when in ("first", "last")]
    yield Quote("(CSE-FSL's local loss from # to # nat, HERON's from # to #)", moved)
    scores = [number("c_bleu", "bleu", result=f"pretrained-{m}-s1") for m in ("heron", "decomfl", "splitlora")]
    yield Quote("HERON #, DeComFL #, SplitLoRA #. Twenty contexts", scores)
    front = [of(m, both[0])[0] for m in ("heron", "heron-frozen", "splitlora")]
    yield Quote("E2E, perplexity: HERON; frozen client; SplitLoRA | #; #; # |", front, FRONT)


def _more_steps() -> Iterator[Quote]:
    steps = [float(loss) for loss in column("c_lm_tuned", "validation_loss", method="heron", start="pretrained")]
    usual = sorted(steps)[:-3]  # but for steps of 1e-2 and 3e-2
    yield Quote("losses differ by less than # over all radii", [math.ceil(1000 * (usual[-1] - usual[0])) / 1000])
    assert not any(r["at_edge"] for r in rows("c_lm_tuned"))
    best = {
        r["method"]: r["step"].split()[0]
        for r in rows("c_lm_tuned")
        if r["best"] == "True" and "long" not in r["start"]
    }
    assert {best[m] for m in ("cse_fsl", "fsl_sage", "splitlora")} == {"local-3e-3"}

    def of(method: str, key: str, start: str) -> list[float]:
        return [number("c_lm_zo", f"{key}_{part}", method=method, start=start) for part in ("mean", "sd")]

    place = "pretrained"
    told = [*of("heron", "validation_perplexity", place), *of("heron-frozen", "heron_less_it", place)]
    yield Quote("HERON has # ± #, less its frozen client's # ± #. With", told)
    place = "pretrained-long"
    ahead = [abs(each) for each in of("heron-frozen", "heron_less_it", place)]
    yield Quote("every seed's validation texts, by # ± #, and behind", ahead)
    test = [of(method, "test_perplexity", place)[0] for method in ("heron", "heron-frozen")]
    yield Quote("on the test texts (# beside #)", test)


def depth() -> Iterator[Quote]:
    def of(cut: str, blocks: int, key: str, method: str = "cse_fsl") -> float:
        return number("c_fig6", key, cut=cut, auxiliary_blocks=str(blocks), method=method)

    def less(cut: str, depths: Iterable[int]) -> list[float]:
        return [of(cut, k, f"less_frozen_{part}") for k in depths for part in ("mean", "sd")]

    yield Quote("# ± # nat with a head of norm and unembedding alone, # ± #, # ± #, # ± # with", less("1", range(4)))
    yield Quote("the client it is # ± #, # ± #, # ± #. HERON", less("2", range(3)))
    heron = [abs(each) for each in column("c_fig6", "less_frozen_mean", method="heron")]
    assert max(heron) < 0.001 and max(column("c_fig6", "less_frozen_sd", method="heron")) < 0.003
    yield Quote("its local loss (# to #)", [of("1", k, "local_loss_mean", "heron") for k in (0, 3)])


def table3() -> Iterator[Quote]:
    def row(method: str, key: str, again: str = "False", head: str = "", setting: str = "paper") -> float:
        where = {"size": "medium", "setting": setting, "method": method, "recomputes": again, "head_blocks": head}
        return number("c_table3", key, **where)

    three = (("splitlora", ""), ("cse_fsl", "0"), ("heron", "0"))
    work = [[row(m, "operations_3f", head=h) / 1e12, row(m, "paper_operations", head=h)] for m, h in three]
    yield Quote(
        "SplitLoRA # (#), CSE-FSL # (#), HERON # (#) 10^12 operations", [value for pair in work for value in pair]
    )
    computed = [row(m, "operations_computed", head=h) / 1e12 for m, h in three]
    yield Quote("as computed they are #, #, #, and", computed)
    again = [row(m, "operations_computed", "True", h) / 1e12 for m, h in three[:2]]
    yield Quote("with blocks computed again # and #. Beyond", again)
    plain = [row(m, "step_bytes", head=h) / 2**30 for m, h in three]
    less = [row(m, "step_bytes", "True", h) / 2**30 for m, h in three[:2]]
    yield Quote("a step holds # GiB (SplitLoRA), # (CSE-FSL), # (HERON), and # and # with", [*plain, *less])
    cases = (("splitlora", "False", ""), ("splitlora", "True", ""), ("cse_fsl", "False", "3"), ("cse_fsl", "True", "3"))
    short = [row(m, "step_bytes", a, h, "short") / 2**20 for m, a, h in (*cases, ("heron", "False", "3"))]
    yield Quote("SplitLoRA # MiB, # with blocks computed again, CSE-FSL # and #, HERON #, where", short)


# --- scaling

SCALED = ("fedavg", "fedavg-cnn", "heron", "zo_hfl")


def scaling() -> Iterator[Quote]:
    def gain(system: str, ranks: int, share: str = "low") -> list[float]:
        at = {"system": system, "ranks": str(ranks), "share": share, "study": "strong"}
        return [number("scaling/scaling", "speed_up", method=method, **at) for method in SCALED]

    yield Quote("take # (FedAvg, softmax), # (FedAvg, CNN), # (HERON), # (ZO-HFL) times less", gain("local", 3))
    front = [gain("local", 3)[k] for k in (3, 1)]
    yield Quote("two client ranks beside one process: ZO-HFL; FedAvg's CNN | # times; # |", front, FRONT)
    yield Quote("gains nothing then (#, #, #, #)", gain("local", 2))
    yield Quote("and up to # where the server computes as much", [max(gain("local", 2, "high"))])
    yield Quote("three ranks take # to # of one process's speed", ends(gain("one-core", 3)))
    yield Quote(
        "behind links of 1 Gbit/s it is # to #, behind 100 Mbit/s # to #",
        [*ends(gain("gigabit", 7)), *ends(gain("megabit", 7))],
    )
    alone, seven = (column("scaling/scaling", "start", ranks=ranks) for ranks in ("1", "7"))
    yield Quote("# to # s alone, # to # s for seven ranks", [*ends(alone), *ends(seven)])
    table = "scaling/scaling_model"
    missed, here = ([abs(100 * e) for e in column(table, "error", **at)] for at in ({}, {"system": "local"}))
    told = [median(missed), len(missed), median(here)]
    yield Quote("misses by # % in the median of # runs, by # % where all ranks", told)
    yield Quote("(`local`), at most by # %: HERON on seven", [max(missed)])

    def far(method: str, ranks: int) -> float:
        return number("scaling/scaling_model_far", "packed", method=method, m="100000", client_ranks=str(ranks))

    yield Quote("100,000 clients, # s a round (CNN: #)", [far("fedavg", 1024), far("fedavg-cnn", 1024)])
    yield Quote("at # s a round for 100,000 clients", [far("zo_hfl", 128)])
    yield Quote("HERON stops below 16, at # s", [far("heron", 16)])
    assert round(far("heron", 16)) == round(far("heron", 1024)) and far("zo_hfl", 128) <= far("zo_hfl", 1024)


PAYS = {
    "HERON": "heron",
    "HERON, exact head": "heron-head",
    "the same, eight directions": "heron-head-8",
    "the same, derivatives (`jvp`)": "heron-head-jvp",
    "the same, per sample": "heron-sample",
    "per sample, eight directions": "heron-sample-8",
    "HO-SFL": "ho_sfl",
    "HO-SFL, `jvp`": "ho_sfl-jvp",
    "HO-SFL, per sample": "ho_sfl-sample",
    "last stage exact, the others frozen": "heron-n2",
    "the same, the others estimated": "heron-n2-zo",
    "HO-SFL, last stage exact, the others frozen": "ho_sfl-n2",
    "HO-SFL, the others estimated": "ho_sfl-n2-zo",
    "last two stages exact": "heron-n4",
    "CSE-FSL, all stages": "cse_fsl",
    "SFLV2": "sflv2",
}
PLACES = ("CIFAR-10, 3 of 4 stages at the client", "Fashion-MNIST, 4 of 4 stages at the client, pooled head")


def pays() -> Iterator[Quote]:
    def of(method: str, *keys: str, place: int = 0) -> list[float]:
        return [number("c_pays", key, setting=PLACES[place], method=method) for key in keys]

    both, share = (MEAN, SD), ("share_mean_percent", "share_sd_percent")
    frozen = flat(of("heron-frozen", *both, place=k) for k in (0, 1))
    yield Quote("| frozen client | # ± # | 0 | | # ± # | 0 | |", frozen)
    for name, method in PAYS.items():
        values, cells = list[float](), ""
        for k in (0, 1):
            if not any(r["setting"] == PLACES[k] and r["method"] == method for r in rows("c_pays")):
                cells += " | | |"
                continue
            peak = [of(method, "client_peak_bytes", place=k)[0] / 2**20]
            values += [*of(method, *both, place=k), *(of(method, *share, place=k) if method != "sflv2" else []), *peak]
            cells += f" # ± # | {'100' if method == 'sflv2' else '# ± #'} | # |"
        yield Quote(f"| {name} |{cells}", values)
    yield Quote("HERON closes # ± # % of the gap on CIFAR-10", of("heron", *share))
    gain = ("gain_mean", "gain_sd")
    yield Quote("on CIFAR-10 (# ± # points)", of("heron-head", *gain))
    peaks = [[of(m, "client_peak_bytes", place=k)[0] / 2**20 for k in (0, 1)] for m in MEMORY]
    forward, sample, last, first = peaks
    given = [*of("heron-sample", *gain), sample[0], first[0]]
    yield Quote("a little more (# ± #), at a first-order client's memory (# of # MiB)", given)
    sent = [of("ho_sfl", "bytes", place=k)[0] / of("heron", "bytes", place=k)[0] for k in (0, 1)]
    yield from (Quote("sends # times HERON's bytes", [ratio]) for ratio in sent)
    yield from what_estimates_are_worth(of)
    tried = [
        number("c_pays_steps", "validation_percent", setting=PLACES[1], method="heron", step=f"local-{s} server-1e-1")
        for s in ("3e-6", "1e-5")
    ]
    still = number("c_pays_steps", "validation_percent", setting=PLACES[1], method="heron-frozen", best="True")
    yield Quote("(HERON on the validation part: # % with a step of 3e-6, # with 1e-5; frozen #)", [*tried, still])
    stages = [[of(m, share[0], place=k)[0] for k in (0, 1)] for m in ("heron-n2", "heron-n4")]
    ratios = [last[k] / other[k] for other in (forward, first) for k in (0, 1)]
    yield Quote(
        "it closes # % and # % at # and # times a forward-only step's memory, # and # of", [*stages[0], *ratios]
    )
    work = [of(m, "client_macs", place=k)[0] / 1e9 for k in (0, 1) for m in ("heron-n2", "heron")]
    yield Quote("HERON (# of # G, # of #)", work)
    yield Quote("Two stages close # and # %", stages[1])
    beside = [*ahead_of("heron-n2-zo"), *ahead_of("heron-n2-zo", place=1)]
    yield Quote("stage, are # ± # points above none on CIFAR-10 and # ± # on Fashion-MNIST: not told apart", beside)
    yield Quote("last stage exact is # ± # points above HERON's", ahead_of("ho_sfl-n2"))
    yield Quote("the layers before give # ± #.", ahead_of("ho_sfl-n2-zo"))
    again = [float(v) for k in (0, 1) for v in printed("c_pays", PLACES[k], "CSE-FSL", cells=4)[:2]]
    yield Quote("little (# to # MiB, # to #)", again)
    by_seed = {(r["setting"], r["method"]): r["gain_by_seed"] for r in rows("c_pays")}
    ahead = [[float(v) for v in by_seed[place, m].split()] for m in BOTH for place in PLACES]
    yield Quote("ahead by #, #, # and by #, #, # points, seed by seed", [*ahead[0], *ahead[1]])
    yield Quote("CSE-FSL by # to # and # to #. Share", [*ends(ahead[2]), *ends(ahead[3])])
    iid = [float(r["sflv2_more"]) for r in rows("c_pays_search") if "α" not in r["setting"]]
    yield Quote("SFLV2 is # to # points ahead of a frozen client with untuned steps", ends(iid))
    (apart,) = [r for r in rows("c_pays_search") if "α" in r["setting"]]
    yield Quote(
        "it is # behind, and CSE-FSL #:".replace(" behind", " *behind*"), [-float(apart[f"{m}_more"]) for m in BOTH]
    )
    yield from way_up()


def ahead_of(method: str, place: int = 0) -> list[float]:
    """What a method is ahead of the one beside it: mean and deviation."""
    return [number("c_pays_pairs", key, setting=PLACES[place], method=method) for key in ("ahead_mean", "ahead_sd")]


def what_estimates_are_worth(of: Callable[..., list[float]]) -> Iterator[Quote]:
    one, eight = "heron-head", "heron-head-8"
    angle = ("cosine", "cosine_sd")
    yield Quote("cosine with the gradient is # ± #, where the rule", of(one, *angle))
    yield Quote("a root mean square, says # (d", of(one, "cosine_rule"))
    given = [*of("heron-head-jvp", *angle), *ahead_of("heron-head-jvp")]
    yield Quote("oracle without mu, have # ± # and are # ± # points ahead of differences", given)
    peaks = [of(m, "client_peak_bytes")[0] / 2**20 for m in ("heron-head-jvp", "cse_fsl")]
    yield Quote("and at # MiB, where CSE-FSL takes #.", peaks)
    server = [*of("ho_sfl-jvp", *angle), *of("ho_sfl", *angle), *ahead_of("ho_sfl-jvp")]
    yield Quote("So it is with HO-SFL (# ± # for # ± #, # ± # points)", server)
    there = [*of("heron-head-jvp", *angle, place=1), *of(one, *angle, place=1), *ahead_of("heron-head-jvp", place=1)]
    yield Quote("and on Fashion-MNIST (# ± # for # ± #, # ± # points)", there)
    words = "Eight directions have # ± # (rule: #) and are # ± # points ahead of one;"
    yield Quote(words, [*of(eight, *angle, "cosine_rule"), *ahead_of(eight)])
    spent = [*of(eight, "passes"), *of(one, "passes"), *(of(m, "client_macs")[0] / 1e9 for m in (eight, "cse_fsl"))]
    yield Quote("takes # forward passes for #, in all # G multiply-accumulates for CSE-FSL's #.", spent)
    won = [of(m, "gain_mean")[0] / (of(m, "passes")[0] - 1) for m in (eight, one, "heron-n2")]
    yield Quote("one wins # points with eight directions, # with one, and # in the exact last stage", won)
    each, many = "heron-sample", "heron-sample-8"
    words = "Per sample, eight directions have # ± # for one's # ± #, and are # ± # points ahead (seed by seed #, #, #)"
    seeds = next(r for r in rows("c_pays_pairs") if r["method"] == many)["ahead_by_seed"].split()
    yield Quote(words, [*of(many, *angle), *of(each, *angle), *ahead_of(many), *map(float, seeds)])
    share = of(many, "share_mean_percent", "share_sd_percent")
    yield Quote("won here, # ± # % of the gap, for # passes a step", [*share, *of(many, "passes")])
    given = [*of(eight, *angle, place=1), *of(one, *angle, place=1), *ahead_of(eight, place=1)]
    yield Quote("On Fashion-MNIST eight directions have # ± # for # ± # and win # ± # points", given)


MEMORY, BOTH = ("heron-head", "heron-sample", "heron-n2", "cse_fsl"), ("sflv2", "cse_fsl")


def way_up() -> Iterator[Quote]:
    def up(method: str, uplink: str, key: str) -> list[float]:
        return column("c_pays_uplink", key, setting=PLACES[0], method=method, uplink=uplink)

    (dense,), smashed = up("cse_fsl", "dense", "bytes"), up("cse_fsl", "dense", "smashed_bytes")[0]
    words = "smashed samples are # KiB a client and round on CIFAR-10, a dense model # KiB with"
    yield Quote(words, [smashed / 2**10, dense / 2**10])
    numbers, angles, sizes = (up("sflv2", "coefficients", key) for key in ("numbers", "cosine", "bytes"))
    yield Quote("(# a round) Ferret's # coefficients", [sizes[0], numbers[0]])
    yield Quote(
        "a cosine of about #, HO-SFL's ten estimates each with #;", [angles[0], *up("ho_sfl", "seeds", "cosine")]
    )
    yield Quote("they take # KiB of the dense #.", [sizes[1] / 2**10, up("sflv2", "dense", "bytes")[0] / 2**10])


QUOTES = [
    *table1(),
    *readings(),
    *tuned(),
    *personal_models(),
    *figure2(),
    *cifar(),
    *figure1(),
    *methods(),
    *bilevel(),
    *hypergradients(),
    *theory(),
    *split_accuracy(),
    *split_panels(),
    *spectrum(),
    *split_costs(),
    *language(),
    *depth(),
    *table3(),
    *scaling(),
    *pays(),
]
