"""The page: one HTML file that needs no network, no server and no other file."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from zofl_mpi.errors import UserError, plain
from zofl_mpi.report import charts, facts
from zofl_mpi.report.groups import Group, Groups, half_width
from zofl_mpi.run.records import Run

FIGURES_OF = 12
"""Maximum number of runs with individual figures."""
QUALITIES = ("test_accuracy", "personal_accuracy", *facts.LOSSES)
"""Columns of the table of groups."""
AT_ONCE = 3
"""Sections of single runs are open where there are no more."""


def page(found: Groups) -> str:
    """The page of one run or of groups, as HTML of about 5 MB, most of it the plotting library.

    UserError: plotly is not installed.
    """
    runs = [run for group in found.groups for run in group.runs]
    names = facts.labels(runs)
    drawn: dict[str, charts.Chart] = {}
    few = len(runs) <= AT_ONCE
    sections = [
        _section(k, run, names[k], drawn if len(runs) <= FIGURES_OF else None, few) for k, run in enumerate(runs)
    ]
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs compared"
    summary, notes = _summary(runs, names), [*found.notes]
    if len(found.groups) < len(runs):
        title = f"{len(runs)} runs in {len(found.groups)} groups"
        summary = f"{_grouped(found.groups)}<details><summary>Each run</summary>{summary}</details>"
    if len(runs) > FIGURES_OF:
        notes.append(f"Runs have figures of their own on pages of {FIGURES_OF} runs at most.")
    template = files("zofl_mpi.report").joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(title),
        "SUMMARY": summary,
        "NOTES": "".join(f"<p>{escape(plain(note))}</p>" for note in notes),
        "SECTIONS": "\n".join(sections),
        "CURVES": _json(charts.curves(found.groups)),
        "CHARTS": _json(drawn),
        "PLOTLY": plotly(),
    }
    return re.sub("@([A-Z]+)@", lambda place: parts[place[1]], template)


def plotly() -> str:
    """The plotting library's script (UserError: it is not installed)."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as exc:
        raise UserError("the page needs plotly, which is not installed: pip install 'zofl_mpi[report]'") from exc
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _summary(runs: Sequence[Run], names: Sequence[str]) -> str:
    columns, rows = facts.table(runs)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("run", *columns))
    body = (
        "<tr>" + f"<th><a href='#run{k}'>{escape(name)}</a></th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        for k, (name, row) in enumerate(zip(names, rows, strict=True))
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{'</tr>'.join(body)}</tr></tbody></table>"


def _grouped(groups: Sequence[Group]) -> str:
    """A row a group: its seeds, and the mean of each quality's last value with its 95 % t interval."""
    names = [name for name in QUALITIES if any(facts.last(run, name) is not None for g in groups for run in g.runs)]
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in ("group", "seeds", *names))
    body = [
        f"<tr><th>{escape(group.label)}</th><td>{len(group.runs)} of {group.planned}</td>"
        + "".join(f"<td>{_ended(group, name)}</td>" for name in names)
        for group in groups
    ]
    told = "<p>Mean over seeds of the last value, and its 95 % t interval.</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{'</tr>'.join(body)}</tr></tbody></table>{told}"


def _ended(group: Group, name: str) -> str:
    values = [value for run in group.runs if (value := facts.last(run, name)) is not None]
    if len(values) < len(group.runs):
        return ""
    half = float(half_width(np.array(values)[:, None])[0])
    return f"{np.mean(values):.4g}" + (f" ± {half:.2g}" if np.isfinite(half) else "")


def _section(k: int, run: Run, name: str, drawn: dict[str, charts.Chart] | None, is_open: bool) -> str:
    """Everything about one run; its figures are added to `drawn`, if there is one."""
    figures = {
        "Seconds of each round": charts.round_seconds,
        "Where each rank's seconds went (rank 0 is the server)": charts.rank_seconds,
        "Protocol bytes by step: what the method sends to clients and back": charts.step_bytes,
        "Participation of clients": charts.participation,
    }
    if run.ranks["transport_sent"].any():
        figures["Transport bytes by rank: what this run moved"] = charts.rank_bytes
    if run.counts is not None:
        figures["Samples of each class at each client"] = charts.class_counts
    shown = []
    for n, (caption, draw) in enumerate(figures.items() if run.length and drawn is not None else ()):
        assert drawn is not None
        drawn[f"run{k}-{n}"] = draw(run)
        title = f"<figcaption>{escape(caption)}</figcaption>"
        shown.append(f"<figure>{title}<div id='run{k}-{n}' class=plot></div></figure>")
    words = "".join(f"<p>{escape(plain(sentence))}</p>" for sentence in facts.sentences(run))
    flags = {plain(key, facts.CELL): plain(json.dumps(value)) for key, value in run.config.items()}
    return (
        f"<details class=run id=run{k}{' open' if is_open else ''}><summary><h2>{escape(name)}</h2></summary>"
        f"{words}<div class=figures>{''.join(shown)}</div>{_listed(facts.origin(run))}"
        f"<details><summary>All {len(flags)} flags</summary>{_listed(flags)}</details></details>"
    )


def _listed(rows: Mapping[str, str]) -> str:
    items = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows.items())
    return f"<dl>{''.join(items)}</dl>"


def _json(value: Any) -> str:
    """JSON inside a script: no text of a result can end it."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
