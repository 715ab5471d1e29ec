"""Accuracy against bytes up of methods that send models, parts of models or scalars, and rounds to given accuracies.

python analysis/c_bytes.py [--grid jobs/c_hiso.toml jobs/c_bytes.toml] [--out NAME] [--partial]

A method's best step is the one of the highest accuracy on the validation part, mean of the last evaluations; it alone
is drawn. Bytes are those up of all clients, labels too. Writes NAME.txt, NAME.csv (a row per method and step), NAME.pdf
and NAME.png.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from shared import choosing, figures, wording
from shared.files import Report
from shared.groups import Array, Group, mean_sd
from shared.study import accuracy, study

from zofl_mpi.run import records

AXES = ("method", "local", "server")
VALIDATION = "validation_accuracy"
NAMES = {
    "fedavg": "FedAvg",
    "fedavg-quantise": "FedAvg, 3 bits",
    "fedavg-topk": "FedAvg, top 2 %",
    "fedavg-1": "FedAvg, one step",
    "fedavg-1-topk": "FedAvg, one step, top 2 %",
    "decomfl": "DeComFL",
    "hiso": "HiSo",
    "heron": "HERON",
}
"""How they are spelled, in the order of their looks."""
TARGETS = (70, 75, 80)
"""Test accuracies in % to which rounds are counted."""
NOTE = (
    "Test accuracy in % after the last round, * at the method's best step by the validation part; rounds to: the first "
    "evaluated round with that test accuracy in %, seed by seed, - for none; by validation: the same on the validation "
    "part, to the largest, seed 1; KiB of all clients, labels too: up in all rounds; up, and both ways, until the "
    "largest, mean over seeds."
)


def report(groups: Sequence[Group]) -> Report:
    """The table and the figure."""
    at_the_end = choosing.by(lambda run: choosing.at_the_end(run, VALIDATION))
    groups = sorted(groups, key=place)  # stable: steps stay in the grid's order
    tried = choosing.choices(groups, choosing.place("method"), at_the_end, {})
    caption = wording.caption(groups, ("gamma", "gamma_local", "schedule_local", "lr_server"))
    rows = [row(choice.group, choice.best) for choice in tried]
    return Report(text(rows), f"{NOTE} {caption}.", rows, draw([choice.group for choice in tried if choice.best]))


main = study("c_bytes", __doc__, ["c_hiso.toml", "c_bytes.toml"], AXES, report)


def place(group: Group) -> int:
    """The number of a method's line."""
    return list(NAMES).index(group.entry("method"))


def name(group: Group) -> str:
    """A method, as a reader knows it."""
    return NAMES[group.entry("method")]


def bytes_up(run: records.Run) -> Array:
    """(R,) bytes up of all clients in the rounds so far, labels too."""
    labels = run.rounds.get("label_bytes", np.zeros(run.length))
    return np.asarray(np.cumsum(run.clients["bytes_up"].sum((1, 2)) + labels), np.float64)


def bytes_both(run: records.Run) -> Array:
    """(R,) bytes up and down of all clients in the rounds so far, labels too."""
    return np.asarray(bytes_up(run) + np.cumsum(run.clients["bytes_down"].sum((1, 2))), np.float64)


def rounds_to(run: records.Run, target: float, column: str = "test_accuracy") -> float:
    """The first evaluated round with an accuracy of `target` in %; nan for none."""
    reached = np.flatnonzero(100 * run.rounds[column] >= target)
    return float(reached[0] + 1) if len(reached) else math.nan


# --- table


def row(group: Group, is_best: bool) -> dict[str, Any]:
    """A row of the CSV: a method with one of its steps."""
    sent = float(np.mean([bytes_up(run)[-1] for run in group.runs])) if group.runs else math.nan
    found: dict[str, Any] = {
        "method": group.entry("method"),
        "step": choosing.step(group, [axis for axis in group.where if axis in AXES[1:]]),
        "best": is_best,
        **accuracy(group),
        "bytes_up": sent,
        "bytes_up_a_client_and_round": sent / (max(group.rounds, 1) * int(group.config["m"])),
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }
    for target in TARGETS:
        counted = np.array([rounds_to(run, target) for run in group.runs])
        found[f"rounds_to_{target}_mean"] = mean_sd(counted)[0]
        found[f"rounds_to_{target}_by_seed"] = " ".join("-" if math.isnan(r) else f"{r:.0f}" for r in counted)
    for word, sizes in (("up", bytes_up), ("both", bytes_both)):
        until = [
            math.nan if math.isnan(at) else sizes(r)[int(at) - 1] for r, at in zip(group.runs, counted, strict=True)
        ]
        found[f"bytes_{word}_to_{TARGETS[-1]}"] = mean_sd(np.array(until))[0]
    of_1 = [rounds_to(run, TARGETS[-1], VALIDATION) for seed, run in group.seeds.items() if seed == 1]
    return {**found, "rounds_by_validation": of_1[0] if of_1 else math.nan}


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Table with a row per method and step."""
    header = ["method", "step", "accuracy (%)", "KiB up", *(f"rounds to {t}" for t in TARGETS)]
    header += ["by validation", "KiB up to it", "both ways"]
    lines = []
    for told in rows:
        reached = wording.mean_of(told, "accuracy", note=wording.seeds_of(told))
        rounds = [told[f"rounds_to_{target}_by_seed"] for target in TARGETS]
        kib = (told[key] / 2**10 for key in ("bytes_up", f"bytes_up_to_{TARGETS[-1]}", f"bytes_both_to_{TARGETS[-1]}"))
        sent, up, both, at = wording.digits(*kib, told["rounds_by_validation"])
        best = " *" * told["best"]
        lines.append([NAMES[told["method"]], told["step"], reached + best, sent, *rounds, at, up, both])
    return wording.text_table(header, lines, left=2)


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws test accuracy against bytes up."""
    figure, panels = figures.canvas(1, 1, figures.PAGE, 3.0)
    panel = panels[0, 0]
    for group in groups:
        at, values = group.curve("test_accuracy")
        sizes = np.mean([bytes_up(run) for run in group.runs], axis=0) / 2**10
        figures.band(panel, sizes[at - 1], 100 * values, name(group), place(group))
    panel.set_xscale("log")
    panel.set_xlabel("sent up by all clients, with labels (KiB)")
    panel.set_ylabel("test accuracy (%)")
    figures.titled(panel, "MNIST, 16 components, 458 parameters, iid", groups, name)
    figures.legend(figure, panels, 3)
    return figure


if __name__ == "__main__":
    main()
