"""Figures of the page, as plotly's JSON: lists and dictionaries, drawn by the script in the page."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from zofl_mpi.arrays import Array
from zofl_mpi.errors import plain
from zofl_mpi.report.facts import CELL
from zofl_mpi.report.groups import Group, half_width
from zofl_mpi.report.palette import BYTES, COLOURS, SECONDS
from zofl_mpi.run.records import Run

Chart = dict[str, Any]
DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")
POINTS = 2000
"""A curve has no more points; of longer runs every k-th round is drawn, and the last."""
BARS = 64
"""Bars of ranks or clients; of more, consecutive ones share a bar: their mean."""
TIME_LABELS = {"compute": "computing", "wait": "waiting", "comm": "sending", "staging": "copying to and from the GPU"}


def curves(groups: Sequence[Group]) -> dict[str, Any]:
    """Every column of every group, against what all have of `axes`; the page's script lets the reader choose.

    Of several seeds the mean, and the ends of its 95 % t interval, at the rounds in which all of them have a number.
    """
    runs = [run for group in groups for run in group.runs]
    against = [axes(run) for run in runs]
    common = [name for name in against[0] if all(name in each for each in against)]
    names = list(dict.fromkeys(name for run in runs for name in run.rounds if name not in ("round", "seconds")))
    shown = [name for name in names if any(np.isfinite(run.rounds.get(name, np.nan)).any() for run in runs)]
    first = [name for name in ("test_accuracy", "objective", "test_loss", "loss") if name in shown]
    shown = first + [name for name in shown if name not in first]
    described = {name: text for run in runs for name, text in run.descriptions.items()}
    units = {name: unit for run in runs for name, unit in run.units.items()}
    columns = [
        {
            "name": plain(name, CELL),
            "unit": plain(units.get(name, ""), CELL),
            "description": plain(described.get(name, "")),
        }
        for name in shown
    ]
    return {"columns": columns, "groups": [_curve(k, group, common, shown) for k, group in enumerate(groups)]}


def _curve(k: int, group: Group, against: Sequence[str], shown: Sequence[str]) -> dict[str, Any]:
    length = min(run.length for run in group.runs)
    at, spent = thinned(length), [axes(run) for run in group.runs]
    values = {
        name: np.stack([run.rounds[name][:length][at] for run in group.runs])
        for name in shown
        if all(name in run.rounds for run in group.runs)
    }
    ends = {plain(name, CELL): (rows.mean(axis=0), half_width(rows)) for name, rows in values.items()}
    of = f" (n = {len(group.runs)})" if len(group.runs) > 1 else ""
    return {
        "label": group.label + of,
        "colour": COLOURS[k % len(COLOURS)],
        "dash": DASHES[k % len(DASHES)],
        "x": {name: json_numbers(np.mean([each[name][:length][at] for each in spent], axis=0)) for name in against},
        "y": {name: json_numbers(mean) for name, (mean, _) in ends.items()},
        "low": {name: json_numbers(mean - half) for name, (mean, half) in ends.items() if of},
        "high": {name: json_numbers(mean + half) for name, (mean, half) in ends.items() if of},
    }


def axes(run: Run) -> dict[str, Array]:
    """{name with unit: (R,) values} of the possible horizontal axes."""
    seconds = np.nan_to_num(run.rounds.get("seconds", np.zeros(run.length)))
    devices = {
        "virtual hours so far": ("virtual_seconds", 3600),
        "joules of the clients' devices so far": ("joules", 1),
    }
    spent = {name: run.rounds[column] / unit for name, (column, unit) in devices.items() if column in run.rounds}
    up, down = (np.cumsum(run.clients[name].sum((1, 2))) / 2**20 for name in ("bytes_up", "bytes_down"))
    return {
        "finished rounds": np.arange(1, run.length + 1),
        "seconds of all rounds so far": np.cumsum(seconds),
        "MiB sent up to the server so far": up,
        "MiB sent down to clients so far": down,
        "MiB sent up and down so far": up + down,
        **spent,
    }


def round_seconds(run: Run) -> Chart:
    """Wall time of each round, and computing of its busiest rank."""
    rounds, at = np.arange(1, run.length + 1), thinned(run.length)
    busiest = run.ranks["seconds_compute"].sum(1).max(1, initial=0.0)
    lines = {"whole round": run.rounds.get("seconds", np.full(run.length, np.nan)), "computing, busiest rank": busiest}
    data = [
        {"type": "scatter", "mode": "lines", "name": name, "x": json_numbers(rounds[at]), "y": json_numbers(values[at])}
        for name, values in lines.items()
    ]
    return chart(data, x="finished rounds", y="seconds a round")


def rank_seconds(run: Run) -> Chart:
    """Each rank's seconds by kind; rank 0 is the server, with --server-ranks S the first S ranks are."""
    names, starts = groups(run.ranks["seconds_compute"].shape[2])
    data = [
        _bars(word, names, means(run.ranks[f"seconds_{kind}"].sum((0, 1)), starts), SECONDS[kind])
        for kind, word in TIME_LABELS.items()
        if f"seconds_{kind}" in run.ranks and (kind != "staging" or run.ranks["seconds_staging"].any())
    ]
    return chart(data, x="rank", y="seconds of the run", barmode="stack")


def rank_bytes(run: Run) -> Chart:
    """Transport bytes of the run by rank and direction."""
    names, starts = groups(run.ranks["transport_sent"].shape[2])
    data = [
        _bars(way, names, means(run.ranks[f"transport_{way}"].sum((0, 1)), starts) / 2**20)
        for way in ("sent", "received")
    ]
    return chart(data, x="rank", y="MiB of the run", barmode="group")


def step_bytes(run: Run) -> Chart:
    """Protocol bytes of the run by step of a round and direction."""
    steps = [escape(plain(step, CELL)) for step in run.steps]
    data = [
        _bars(word, steps, run.clients[f"bytes_{way}"].sum((0, 2)) / 2**20, BYTES[way])
        for way, word in (("down", "down to clients"), ("up", "up to the server"))
    ]
    return chart(data, x="step of a round", y="MiB of the run", barmode="group")


def participation(run: Run) -> Chart:
    """Rounds in which each client sent something."""
    rounds = (run.clients["messages"].sum(1) > 0).sum(0)
    names, starts = groups(rounds.size, run.first_clients)
    data = [{"type": "bar", "name": "rounds", "x": names, "y": json_numbers(means(rounds, starts))}]
    return chart(data, x="client", y="rounds with a message")


def class_counts(run: Run) -> Chart:
    """Samples of each class at each client."""
    assert run.counts is not None
    names, starts = groups(len(run.counts), run.first_clients)
    counts = means(run.counts, starts)
    grid = {"x": names, "y": list(range(counts.shape[1])), "z": [json_numbers(row) for row in counts.T]}
    shades = {"colorscale": "Blues", "reversescale": True, "colorbar": {"title": {"text": "samples"}}}
    return chart([{"type": "heatmap", **grid, **shades}], x="client", y="class")


def _bars(name: str, x: Sequence[str], heights: Array, colour: str = "") -> dict[str, Any]:
    """A trace of bars."""
    bars: dict[str, Any] = {"type": "bar", "name": name, "x": x, "y": json_numbers(heights)}
    return bars | ({"marker": {"color": colour}} if colour else {})


def chart(data: list[dict[str, Any]], x: str, y: str, **layout: Any) -> Chart:
    """A figure of traces with titled axes; a trace without a colour takes the next of the palette."""
    for trace, colour in zip(data, COLOURS, strict=False):
        if trace["type"] != "heatmap":
            trace.setdefault("marker", {"color": colour})
    axis: dict[str, Any] = {"title": {"text": x}}
    if data[0]["type"] != "scatter":
        axis["type"] = "category"  # names that are numbers are names all the same
    return {"data": data, "layout": {"xaxis": axis, "yaxis": {"title": {"text": y}}, **layout}}


def groups(n: int, first: Array | None = None) -> tuple[list[str], Array]:
    """Names of at most BARS groups of n consecutive ranks or clients, and where each group starts.

    `first`: (n,) the first client of each entry, where entries are sums over clients already.
    """
    starts = np.unique(np.linspace(0, n, min(n, BARS) + 1).astype(int)[:-1])
    numbered = np.arange(n) if first is None else np.asarray(first)
    if len(starts) == n and first is None:
        return [str(k) for k in numbered], starts
    ends = [str(numbered[b] - 1) for b in starts[1:]] + ["the last"]
    return [f"{numbered[a]} to {end}" for a, end in zip(starts, ends, strict=True)], starts


def means(values: Array, starts: Array) -> Array:
    """Means over consecutive groups along the first axis."""
    sizes = np.diff([*starts, len(values)]).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(np.add.reduceat(values.astype(float), starts, axis=0) / sizes)


def thinned(length: int) -> Array:
    """Indices of at most POINTS rounds, the last among them."""
    return np.unique(np.linspace(0, max(length - 1, 0), min(length, POINTS)).astype(int))


def json_numbers(values: Array) -> list[float | None]:
    """Values for JSON, with six digits; what is not finite is None, a gap."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
