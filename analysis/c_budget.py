"""[C]: test accuracy against what was sent and against what the clients computed, of all methods and HERON's controls.

python analysis/c_budget.py [--grid jobs/c_fig2.toml] [--results DIR] [--out NAME] [--partial]

Bytes are those down and up of all clients, labels too; work is the multiply-accumulates of all clients' local steps, a
backward pass as two forward passes. A frozen client's directions are in the auxiliary head alone, its passes are as
many. Prints the totals; writes NAME.txt, NAME.csv, NAME.pdf and NAME.png, a row of panels per setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter
from shared import command, figures, files, wording
from shared.budgets import sent, unit_of
from shared.groups import Group, split
from shared.heron import band, name, place, setting, titled
from shared.reading import read
from shared.split_costs import all_bytes, client_macs, label_bytes, step

AXES = ("data", "cell", "method")
NOTE = (
    "MiB: sent down and up by all clients in all rounds; labels apart, which [C] does not count. G MAC: "
    "multiply-accumulates of all clients' local steps, and of one. peak: bytes live at once in a "
    "client's step beyond its model, as tensors are counted."
)
LEFT_OUT = ("mu", "gamma", "server_fraction")


def main(words: list[str] | None = None) -> None:
    """Print and write the totals, draw the figure; exit status 2 if a result is missing."""
    flags = command.parser("c_budget", __doc__, ["c_fig2.toml"]).parse_args(words)
    with command.refusals("c_budget"):
        groups = read("c_budget", flags, AXES, ("method",))
        note = f"{NOTE} {again(groups)}{wording.caption(groups, LEFT_OUT)}."
        files.publish(flags.out, text(groups), note, [row(group) for group in groups], draw(groups))


def again(groups: Sequence[Group]) -> str:
    """A sentence, where results do not tell what a step costs."""
    found = [name(g) for g in groups if not step(g).recorded]
    return f"Steps counted here, as the results do not tell: {wording.listed(found)}. " if found else ""


# --- table

HEADER = ("setting", "method", "accuracy (%)", "MiB", "labels, MiB", "G MAC", "a step", "peak, MiB")


def text(groups: Sequence[Group]) -> str:
    """Table with a row per setting and method."""
    return wording.aligned(HEADER, [told_of(g) for g in groups], left=2)


def told_of(group: Group) -> list[str]:
    """The cells of a row on screen."""
    found = row(group)
    sizes = (found["bytes_without_labels"] / 2**20, found["bytes_of_labels"] / 2**20)
    work = (found["client_macs"] / 1e9, found["client_macs_a_step"] / 1e9, found["client_peak_bytes"] / 2**20)
    accuracy = wording.percent(*group.accuracy(), group.note)
    return [setting(group), name(group), accuracy, *wording.digits(*sizes, *work)]


def row(group: Group) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    there = bool(group.runs)
    return {
        "data": group.entry("data"),
        "setting": group.entry("cell"),
        "method": group.entry("method"),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "bytes_without_labels": float(sent(group)[-1]) if there else math.nan,
        "bytes_of_labels": float(label_bytes(group)[-1]) if there else math.nan,
        "client_macs": float(client_macs(group)[-1]) if there else math.nan,
        "client_macs_a_step": step(group).macs,
        "client_peak_bytes": step(group).peak,
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


# --- figure


def draw(groups: Sequence[Group]) -> Any:
    """Draws a row of panels per setting: bytes, and the clients' work."""
    rows = split(groups, setting)
    scale, unit = unit_of(max(float(all_bytes(g)[-1]) for g in groups if g.runs))
    with plt.rc_context(figures.STYLE):
        figure, panels = figures.canvas(len(rows), 2, figures.PAGE, 2.3, sharex="col", sharey=True)
        for line, (title, found) in zip(panels, rows.items(), strict=True):
            for group in sorted(found, key=place):
                if group.runs:
                    curves(line, group, scale)
            titled(line[0], title, found, name)
            line[0].set_ylabel("test accuracy (%)")
        for panel in panels.flat:
            panel.set_xscale("log")
            panel.xaxis.set_minor_formatter(NullFormatter())
        panels[-1, 0].set_xlabel(f"sent down and up, with labels ({unit})")
        panels[-1, 1].set_xlabel("multiply-accumulates of all clients ($10^9$)")
        figures.legend(figure, panels, 3)
    return figure


def curves(panels: Any, group: Group, scale: float) -> None:
    """Draws a method's line in both panels of a row."""
    at, values = group.curve("test_accuracy")
    for panel, budget in zip(panels, (all_bytes(group) / scale, client_macs(group) / 1e9), strict=True):
        band(panel, budget[at - 1], 100 * values, group)


if __name__ == "__main__":
    main()
