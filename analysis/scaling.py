"""The table and the figure of a scaling study: seconds a round over ranks, where they go, speed-up and efficiency.

python analysis/scaling.py results/scaling/local.json     # a report of ReFrame, or HDF5 results; more of them together
python analysis/scaling.py                                # what is kept in analysis/results/scaling, drawn again
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from shared import command, figures, files
from shared.scaling import Case, Measured, one_rank, read
from shared.wording import aligned

KEPT = command.ANALYSIS / "results/scaling"
NOTE = (
    "Medians over the timed rounds (the first and evaluated ones left out), in brackets the least and the largest. "
    "computing: of the client rank that computes longest; waiting, sending: of a client rank on average; server: "
    "rank 0's computing, and its share of all computing. speed-up: the seconds of one process for the same clients, "
    "divided by these; efficiency: speed-up by ranks, the server's among them. start: before the first round, no part "
    "of it. to-kept: seconds here, divided by those of the kept study. MB: down to the clients and up, a round."
)
HEADER = (
    *("system", "method", "share", "study", "nodes", "ranks", "m", "clients/rank", "ms", "(range)", "computing"),
    *("waiting", "sending", "server", "(share)", "speed-up", "efficiency", "MB-down", "MB-up", "start", "to-kept"),
)


def main(words: list[str] | None = None) -> None:
    """Prints and draws a study; exit status 2 and one sentence if it cannot be read."""
    parser = argparse.ArgumentParser(prog="scaling", description=(__doc__ or "").split("\n")[0])
    default = [KEPT / "scaling.json"]
    parser.add_argument("results", type=Path, nargs="*", default=default, help="reports of ReFrame, or HDF5 results")
    parser.add_argument("--reference", type=Path, default=default[0], help="a kept study to compare with")
    parser.add_argument("--out", type=Path, default=KEPT / "scaling", help="the files' name without suffix")
    flags = parser.parse_args(words)
    with command.refusals("scaling"):
        study = read(flags.results)
        compares = flags.reference.exists() and flags.reference not in flags.results
        reference = read([flags.reference]).cases if compares else ()
        rows = [row(case, study, reference) for case in ordered(study)]
        title = f"{study.when or 'day unknown'}; {study.hardware}"
        files.publish(flags.out, f"{title}\n\n{table(rows)}", NOTE, rows, figure(study))
        files.write(flags.out.with_name(flags.out.name + ".json"), study.text())


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

    def cells(r: dict[str, Any]) -> list[str]:
        milliseconds = [f"{1e3 * r[name]:.1f}" for name in ("compute", "wait", "send", "server_compute")]
        compared = [_short(r["speed_up"]), _short(r["efficiency"])]
        sizes = [f"{r[name] / 1e6:.3g}" for name in ("bytes_down", "bytes_up")]
        return [
            *(str(r[name]) for name in ("system", "method", "share", "study", "nodes", "ranks", "m")),
            f"{r['clients_per_rank']:.4g}",
            f"{1e3 * r['seconds']:.1f}",
            f"({1e3 * r['low']:.1f}-{1e3 * r['high']:.1f})",
            *milliseconds,
            f"{100 * r['server_share']:.0f}%",
            *compared,
            *sizes,
            f"{r['start']:.1f}s",
            _short(r["to_reference"]),
        ]

    return "Times of a round in ms.\n\n" + aligned(HEADER, [cells(r) for r in rows], left=4)


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


@figures.styled
def figure(study: Measured) -> Any:
    """Speed-up over ranks, and where a client rank's time goes; a column of panels for each method."""
    rows = [row(case, study, ()) for case in ordered(study)]
    methods = list(dict.fromkeys(r["method"] for r in rows))
    drawn, panels = figures.canvas(2, len(methods), max(figures.PAGE, 1.75 * len(methods)), 1.9, sharey="row")
    for column, method in enumerate(methods):
        own = [r for r in rows if r["method"] == method]
        _speed_ups(panels[0, column], own, sorted({_line(r) for r in rows if r["ranks"] > 1}))
        _parts(panels[1, column], [r for r in own if r["ranks"] > 1])
        panels[0, column].set_title(method, loc="left")
    panels[0, 0].set_ylabel("speed-up to one process")
    panels[1, 0].set_ylabel("parts of a round,\na client rank")
    figures.legend(drawn, panels, 3, "medians over the timed rounds")
    return drawn


def _line(r: dict[str, Any]) -> tuple[str, str, str]:
    return r["system"], r["study"], r["share"]


def _speed_ups(panel: Any, rows: list[dict[str, Any]], lines: list[tuple[str, str, str]]) -> None:
    for k, line in enumerate(lines):
        points = [(r["ranks"], r["speed_up"]) for r in rows if _line(r) == line and r["ranks"] > 1]
        if points:
            looks = figures.look(k)
            system, study, share = line
            panel.plot(*zip(*points, strict=True), label=f"{system}, {study}, server {share}", **looks)
    panel.axhline(1, color="0.6", linewidth=0.6)
    panel.set_xscale("log", base=2)
    panel.set_xticks(sorted({r["ranks"] for r in rows if r["ranks"] > 1}), minor=False)
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel("ranks")


def _parts(panel: Any, rows: list[dict[str, Any]]) -> None:
    """Computing, waiting and sending of each run, as bars one on another."""
    places, below = range(len(rows)), [0.0] * len(rows)
    for name, label, colour in (
        ("compute", "computing", figures.BLUE),
        ("wait", "waiting", figures.YELLOW),
        ("send", "sending", figures.ORANGE),
    ):
        shares = [r[name] / r["seconds"] for r in rows]
        panel.bar(places, shares, bottom=below, color=colour, label=label, width=0.8)
        below = [a + b for a, b in zip(below, shares, strict=True)]
    words = [f"{r['system']}, {r['study']}, {r['share']}: {r['ranks']}" for r in rows]
    panel.set_xticks(places, words, fontsize=5, rotation=90)
    panel.set_title("system, study, share: ranks", loc="left", fontsize=6)


if __name__ == "__main__":
    main()
