"""The table and the figure of a scaling study: seconds a round over ranks, where they go, speed-up and efficiency.

python analysis/scaling.py results/scaling/local.json     # a report of ReFrame, or HDF5 results; more of them together
python analysis/scaling.py                                # what is kept in analysis/results/scaling, drawn again
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

from shared import command, figures, wording
from shared.files import Report
from shared.scaling import NAMES, Case, Measured, one_rank, read

from zofl_mpi.report import palette

KEPT = command.ANALYSIS / "results/scaling"
NOTE = (
    "Medians over the timed rounds (the first and evaluated ones left out), in brackets the least and the largest. "
    "computing: of the client rank that computes longest; waiting, sending: of a client rank on average; server: "
    "rank 0's computing, and its share of all computing. speed-up: the seconds of one process for the same clients, "
    "divided by these; efficiency: speed-up by ranks, the server's among them. start: before the first round, no part "
    "of it. to-kept: seconds here, divided by those of the kept study. MB: down to the clients and up, a round."
)


def report(flags: Any) -> Report:
    """The table, the figure, and what was measured."""
    study = read(flags.results)
    compares = flags.reference.exists() and flags.reference not in flags.results
    reference = read([flags.reference]).cases if compares else ()
    rows = [row(case, study, reference) for case in ordered(study)]
    title = f"{study.when or 'day unknown'}; {study.hardware}"
    return Report(f"{title}\n\n{table(rows)}", NOTE, rows, figure(study), {".json": study.text()})


FLAGS = {
    "results": command.flag([KEPT / "scaling.json"], "reports of ReFrame, or HDF5 results", type=Path, nargs="*"),
    "--reference": command.flag(KEPT / "scaling.json", "a kept study to compare with", type=Path),
}
main = command.script("scaling/scaling", __doc__, report, FLAGS)


def ordered(study: Measured) -> list[Case]:
    """The runs, those of one study, method and share together."""
    return sorted(study.cases, key=lambda c: (c.system, c.method, c.share, c.study, c.timing.m, c.timing.ranks))


def row(case: Case, study: Measured, reference: tuple[Case, ...]) -> dict[str, Any]:
    """A line of the table: numbers in seconds and bytes, nan where there is nothing to compare with."""
    t, alone = case.timing, one_rank(study.cases).get(case.work)
    before = {other.key: other.timing.seconds for other in reference}.get(case.key, math.nan)
    speed_up = alone.timing.seconds / t.seconds if alone else math.nan
    return {
        "system": case.system or "-",
        "method": case.method,
        "share": case.share or "-",
        "study": case.study or "-",
        "nodes": t.nodes,
        "ranks": t.ranks,
        "m": t.m,
        "clients_per_rank": case.per_rank,
        "seconds": t.seconds,
        "low": t.low,
        "high": t.high,
        "compute": t.compute,
        "wait": t.wait,
        "send": t.send,
        "server_compute": t.server_compute,
        "server_share": t.share,
        "speed_up": speed_up,
        "efficiency": speed_up / t.ranks,
        "bytes_down": t.bytes_down,
        "bytes_up": t.bytes_up,
        "start": t.start,
        "to_reference": t.seconds / before,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The lines in plain text."""
    ms, mb, short = (
        partial(wording.numbers, ".1f", unit=1e-3),
        partial(wording.numbers, ".3g", unit=1e6),
        partial(wording.numbers, ".2f"),
    )
    names = ("system", "method", "share", "study", "nodes", "ranks", "m")
    columns: dict[str, wording.Cell] = {
        **{name: name for name in names},
        "clients/rank": wording.numbers(".4g", "clients_per_rank"),
        "ms": ms("seconds"),
        "(range)": lambda r: f"({1e3 * r['low']:.1f}-{1e3 * r['high']:.1f})",
        "computing": ms("compute"),
        "waiting": ms("wait"),
        "sending": ms("send"),
        "server": ms("server_compute"),
        "(share)": lambda r: f"{100 * r['server_share']:.0f}%",
        "speed-up": short("speed_up"),
        "efficiency": short("efficiency"),
        "MB-down": mb("bytes_down"),
        "MB-up": mb("bytes_up"),
        "start": lambda r: f"{r['start']:.1f}s",
        "to-kept": short("to_reference"),
    }
    return f"Times of a round in ms.\n\n{wording.table(rows, columns, left=4)}"


@figures.styled
def figure(study: Measured) -> Any:
    """Speed-up of each run, and where its client ranks' time goes: a row for each run, a column for each method."""
    rows = [row(case, study, ()) for case in ordered(study) if case.timing.ranks > 1]
    methods, runs = list(dict.fromkeys(r["method"] for r in rows)), sorted({_run(r) for r in rows}, reverse=True)
    height = max(1.2, 0.3 + 0.14 * len(runs))
    drawn, panels = figures.canvas(2, len(methods), figures.PAGE, height, sharey=True, sharex="row")
    for column, method in zip(panels.T, methods, strict=True):
        own = [r for r in rows if r["method"] == method]
        places = [runs.index(_run(r)) for r in own]
        _speed_ups(column[0], own, places)
        _parts(column[1], own, places)
        column[0].set_title(NAMES.get(method, method), loc="left")
    for panel in panels[:, 0]:
        panel.set_yticks(range(len(runs)), [_name(run) for run in runs], fontsize=6.5)
    figures.legend(drawn, panels, 3, "medians over the timed rounds; a row: system, study, server's share, MPI ranks")
    return drawn


def _run(r: dict[str, Any]) -> tuple[str, str, str, int]:
    return r["system"], r["study"], r["share"], r["ranks"]


def _name(run: tuple[str, str, str, int]) -> str:
    return f"{', '.join(word for word in run[:3] if word != '-')}, {run[3]} ranks".removeprefix(", ")


def _speed_ups(panel: Any, rows: list[dict[str, Any]], places: list[int]) -> None:
    panel.axvline(1, color="0.6", linewidth=0.8)
    panel.plot([r["speed_up"] for r in rows], places, color=palette.BLACK, linestyle="", marker="o", markersize=3)
    panel.set_xlim(left=0)
    panel.set_xlabel("speed-up")


def _parts(panel: Any, rows: list[dict[str, Any]], places: list[int]) -> None:
    """Computing, waiting and sending of each run, as bars one beside another."""
    start = [0.0] * len(rows)
    for name, kind, label in (
        ("compute", "compute", "computing"),
        ("wait", "wait", "waiting"),
        ("send", "comm", "sending"),
    ):
        shares = [r[name] / r["seconds"] for r in rows]
        panel.barh(places, shares, left=start, color=palette.SECONDS[kind], label=label, height=0.75)
        start = [a + b for a, b in zip(start, shares, strict=True)]
    panel.set_xlabel("share of a round")


if __name__ == "__main__":
    main()
