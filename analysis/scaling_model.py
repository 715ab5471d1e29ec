"""A model of a round's time, compared with every run of a scaling study, and drawn to 1,024 ranks and 100,000 clients.

python analysis/scaling_model.py                               # of what is kept in analysis/results/scaling
python analysis/scaling_model.py results/scaling/local.json    # of a report of ReFrame
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import ticker
from shared import command, figures
from shared.files import Report
from shared.round_model import Form, Network, Work, cluster, network, predict, shared_server, work
from shared.scaling import NAMES, Case, Measured, read
from shared.wording import text_table

from zofl_mpi.errors import UserError

KEPT = command.ANALYSIS / "results/scaling"
RATE = 100.0
"""Gbit/s of a cluster's links."""
FAR, MANY = (16, 128, 1024), (1_000, 100_000)
"""Client ranks and clients that the model is drawn to."""
NOTE = (
    "Predicted from runs of one process and from the measured exchange on the same ranks. packed: a wave carries up to "
    "60 items or 64 KiB of each rank, as they do; one by one: a single item, what the runs would take without that. "
    "error: predicted / measured - 1. limit: what takes longest of clients, server, waves, cores (fewer than ranks), "
    "questions and bytes."
)
LIFTS = {
    "clients": "more client ranks, or a faster step",
    "cores": "a core for each rank",
    "waves": "larger waves, or fewer uploads",
    "questions": "fewer questions a round",
    "bytes": "smaller messages: scalars or seeds in place of models, a later cut, fewer uploads",
}
SERVER_LIFTS = {
    "fedavg": "fewer samples at the server (--server-batch)",
    "fedavg-cnn": "fewer samples at the server (--server-batch)",
    "heron": "server ranks (--merge, --server-ranks), fewer uploads (--k), or a GPU for the server",
}


def report(flags: Any) -> Report:
    """The model beside the runs, and drawn further."""
    if not flags.rate > 0:
        raise UserError(f"--rate {flags.rate}: must be a number of Gbit/s above 0")
    study = read(flags.results)
    rows, todo, net = modelled(study, flags.rate)
    far = [line(method, todo[method], net, m, ranks) for method in todo for m in MANY for ranks in FAR]
    parts = [f"{study.when}; {study.hardware}", compared(rows), drawn_to(far, flags.rate)]
    parts += [server_ranks(todo[SHARED], net)] if SHARED in todo else []
    return Report("\n\n".join(parts), NOTE, rows, figure(rows, todo, net), {"_far": far})


FLAGS = {
    "results": command.flag([KEPT / "scaling.json"], "reports of ReFrame, or a kept study", type=Path, nargs="*"),
    "--rate": command.flag(RATE, "of the cluster's links in Gbit/s"),
}
main = command.script("scaling/scaling_model", __doc__, report, FLAGS)


def modelled(study: Measured, rate: float) -> tuple[list[dict[str, Any]], dict[str, Work], Network]:
    """The measured runs beside the model, the work of each method, and a cluster's network.

    Args:
        rate: of the cluster's links in Gbit/s.

    Raises:
        UserError: no run is on several ranks.
    """
    rows = [checked(case, study) for case in study.cases if case.timing.ranks > 1]
    if not rows:
        raise UserError("no run on several ranks is among the results: there is nothing to compare the model with")
    methods = {case.method for case in study.cases if case.timing.ranks == 1}
    todo = {method: work_of(study, method, _least(study, method)) for method in sorted(methods)}
    return rows, todo, cluster(study.exchanges, rate * 1e9 / 8)


def work_of(study: Measured, method: str, share: str, system: str = "") -> Work:
    """What a round takes, from the runs in one process on a system; on all, where these are of one number of clients.

    Runs without a share's name are of any.
    """
    runs = [case for case in study.cases if case.method == method and case.share in (share, "")]
    own = [case for case in runs if case.system == system and case.timing.ranks == 1]
    several = len({case.timing.m for case in own}) > 1
    return work(method, own if several else runs)


def _least(study: Measured, method: str) -> str:
    """The share that is drawn: low, where it was measured."""
    shares = {case.share for case in study.cases if case.method == method and case.timing.ranks == 1}
    return "low" if "low" in shares else min(shares)


def checked(case: Case, study: Measured) -> dict[str, Any]:
    """A run's seconds, measured and predicted.

    Raises:
        UserError: there is no exchange on its ranks.
    """
    t = case.timing
    exchanges = [e for e in study.exchanges if (e.system, e.ranks) == (case.system, t.ranks)]
    if not exchanges:
        raise UserError(f"{case.system or 'a result'}: no exchange on {t.ranks} ranks is among the results")
    todo, net = work_of(study, case.method, case.share, case.system), network(exchanges)
    packed, one = (predict(todo, net, t.participants, t.ranks - 1, form) for form in FORMS)
    return {
        "system": case.system or "-",
        "method": case.method,
        "share": case.share or "-",
        "study": case.study or "-",
        "ranks": t.ranks,
        "m": t.m,
        "measured": t.seconds,
        "predicted": packed.seconds,
        "error": packed.seconds / t.seconds - 1,
        "one_by_one": one.seconds,
        "limit": packed.limit,
    }


FORMS: tuple[Form, Form] = ("packed", "one")
BENEATH: tuple[tuple[Form, str, dict[str, Any]], ...] = (
    ("one", "one by one", {"linewidth": 4, "alpha": 0.35}),
    ("packed", "packed", {"linewidth": 1.1}),
)
"""Looks of the two forms: where they agree, the thin line lies on the wide one."""


def line(method: str, todo: Work, net: Network, m: int, ranks: int) -> dict[str, Any]:
    """A round on a cluster."""
    packed, one = (predict(todo, net, m, ranks, form) for form in FORMS)
    lift = SERVER_LIFTS.get(method, "less work at the server") if packed.limit == "server" else LIFTS[packed.limit]
    return {
        "method": method,
        "m": m,
        "client_ranks": ranks,
        "packed": packed.seconds,
        "one_by_one": one.seconds,
        "limit": packed.limit,
        "limit_one_by_one": one.limit,
        "lifted_by": lift,
    }


def compared(rows: list[dict[str, Any]]) -> str:
    """The measured and predicted seconds of every run, and how far they lie apart."""
    names = ("system", "method", "share", "study", "ranks", "m")
    ms = [[f"{1e3 * r[name]:.1f}" for name in ("measured", "predicted", "one_by_one")] for r in rows]
    cells = [
        [*(str(r[name]) for name in names), *told[:2], f"{100 * r['error']:+.0f} %", *told[2:], r["limit"]]
        for r, told in zip(rows, ms, strict=True)
    ]
    header = [*names, "measured", "predicted", "error", "one-by-one", "limit"]
    errors = np.abs([r["error"] for r in rows])
    summary = (
        f"{len(rows)} runs: error {100 * np.median(errors):.0f} % in the median, {100 * errors.max():.0f} % at most, "
        f"{100 * np.mean([r['error'] for r in rows]):+.0f} % on average"
    )
    return f"Milliseconds a round, measured and by the model.\n\n{text_table(header, cells, left=4)}\n\n{summary}"


def drawn_to(far: list[dict[str, Any]], rate: float) -> str:
    """The rounds on a cluster in plain text, and what would lift each limit."""
    cells = [
        [
            *(r["method"], f"{r['m']:,}", f"{r['client_ranks']:,}", f"{r['packed']:.3g}", f"{r['one_by_one']:.3g}"),
            *(r["limit"], r["limit_one_by_one"], r["lifted_by"]),
        ]
        for r in far
    ]
    header = ["method", "m", "client-ranks", "packed", "one-by-one", "limit", "(one-by-one)", "lifted-by"]
    return (
        f"Seconds a round on a cluster, by the model: a core for each rank, links of {rate:g} Gbit/s, questions and "
        f"computing as fast as here, the server's share low where that was measured.\n\n{text_table(header, cells)}"
    )


SHARED, NUMBERS = "heron", 14_858
"""The method whose server may have several ranks, and the parameters of its server's part in the study."""
SERVERS = ((1, 1), (2, 10), (5, 10), (10, 10), (32, 32), (100, 100))
"""Server ranks and merged uploads."""


def server_ranks(todo: Work, net: Network) -> str:
    """Rounds of the most clients on the most ranks with a server of several ranks, in plain text."""
    cells = []
    for servers, merge in SERVERS:
        found = predict(shared_server(todo, net, servers, merge, NUMBERS), net, MANY[-1], FAR[-1])
        cells.append([f"{servers:,}", f"{merge:,}", f"{found.seconds:.3g}", found.limit])
    return (
        f"{SHARED} with {MANY[-1]:,} clients on {FAR[-1]:,} client ranks and a server of S ranks that takes a step on "
        f"G uploads, seconds a round by the model.\n\n{text_table(['S', 'G', 'seconds', 'limit'], cells, left=0)}"
    )


@figures.styled
def figure(rows: list[dict[str, Any]], todo: dict[str, Work], net: Network) -> Any:
    """Seconds over ranks for each method, in both forms; the last panel compares the model with the runs."""
    ranks = np.unique(np.geomspace(1, FAR[-1], 60).astype(int))
    columns = (len(todo) + 2) // 2
    drawn, panels = figures.canvas(2, columns, max(figures.PAGE, 2.3 * columns), 2.0)
    flat = list(panels.flat)
    for panel, (method, each) in zip(flat, todo.items(), strict=False):
        if panel is not flat[0]:
            panel.sharey(flat[0])
        for k, m in enumerate(MANY):
            for form, word, looks in BENEATH:
                seconds = [predict(each, net, m, int(p), form).seconds for p in ranks]
                panel.loglog(ranks, seconds, color=figures.LOOKS[k][0], label=f"{m:,} clients, {word}", **looks)
        panel.set_title(NAMES.get(method, method), loc="left")
        panel.set_xlabel("client ranks")
        panel.set_ylabel("seconds a round")
    _scatter(flat[len(todo)], rows)
    for panel in flat[len(todo) + 1 :]:
        panel.set_axis_off()
    figures.legend(drawn, panels, 4, "a cluster, by the model; the last panel: the runs that were measured")
    return drawn


def _scatter(panel: Any, rows: list[dict[str, Any]]) -> None:
    """Predicted over measured, a mark for each system."""
    for k, system in enumerate(dict.fromkeys(r["system"] for r in rows)):
        own = [r for r in rows if r["system"] == system]
        colour, _, marker = figures.LOOKS[k % len(figures.LOOKS)]
        points = [1e3 * r["measured"] for r in own], [1e3 * r["predicted"] for r in own]
        panel.loglog(*points, linestyle="", color=colour, marker=marker, markersize=4, alpha=0.7, label=system)
    ends = [1e3 * f(min(r["measured"], r["predicted"]) for r in rows) for f in (min, max)]
    panel.loglog(ends, ends, color="0.6", linewidth=0.6)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:.0f}")
        axis.set_minor_locator(ticker.NullLocator())
    panel.set_title("measured runs", loc="left")
    panel.set_xlabel("ms a round, measured")
    panel.set_ylabel("predicted")


if __name__ == "__main__":
    main()
