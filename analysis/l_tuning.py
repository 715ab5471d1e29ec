"""A small language model tuned by forward passes alone and by backpropagation: accuracy, loss, passes, bytes.

python analysis/l_tuning.py [--grid jobs/l_food.toml jobs/l_tune.toml] [--results DIR] [--out NAME] [--partial]

A grid is a task: food, one of four is chosen for a text; tune, texts are written. A way's step is the one of the lowest
validation loss after the last round on seed 1. Prints a table of each task, a row per way at its step, and what was
tried; writes NAME.txt, NAME.csv (a row per group), NAME.pdf and NAME.png (test accuracy, or loss, against a client's
forward passes and bytes up).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from shared import command, edges, figures, wording
from shared.choosing import Choice, choices, place, step_axes
from shared.files import Report
from shared.groups import Array, Group, entries, split
from shared.reading import read
from shared.study import counts, spread

from zofl_mpi.data import lines

FOLDER = "results/l_lm"
GRIDS = ["l_food.toml", "l_tune.toml"]
AXES = ("weights", "way", "step")
NAMES = {
    "none": "no tuning",
    "labels": "the training labels' shares alone",
    "decomfl": "DeComFL, LoRA",
    "decomfl-all": "DeComFL, all parameters",
    "fedkseed": "FedKSeed, LoRA",
    "heron": "HERON, LoRA",
    "heron-frozen": "HERON, frozen client",
    "splitlora": "SplitLoRA",
    "fedavg": "FedAvg of LoRA (SFLV1)",
}
"""In the order of their looks."""
TASKS = {"food": "Choice of one of four foods", "tune": "Texts written for values"}
UNTUNED = ("none", "labels")
PASSES = {"decomfl": 2, "fedkseed": 2, "heron": 2, "splitlora": 3, "sflv1": 3}
"""Forward passes of a client's step, a backward pass counted as two; HERON's through its own blocks and head alone."""
NOTE = (
    "Test part after the last round, mean ± sd over seeds, steps chosen by the validation loss of seed 1; ! the step "
    "is an end of what was tried. It is that of clients and server, but HERON's server has its frozen client's best. "
    "D: directions per parameter; passes: forward passes of a client over the run, a backward pass counted as two "
    "(HERON's and SplitLoRA's clients hold one block, HERON's one more in the head). B up, B down: of a client in a "
    "round. SFLV1's iterates are FedAvg's, which would send 4 bytes a parameter each way."
)


def report(flags: Any) -> Report:
    """The tables and the figure."""
    groups, axes = read("l_tuning", flags, AXES, AXES), step_axes(flags, "step".__eq__)
    whose = place("weights", "way")
    tried = choices(groups, lambda g: task(g) + whose(g), lambda same: list(map(validation, same)), axes, lowest=True)
    rows = [row(choice) for choice in tried]
    untuned = [r for r in rows if (r["task"], r["weights"], r["way"]) == ("food", "pretrained", "none")]
    rows += [r | of_labels(Path(FOLDER, f"{r['task']}.jsonl")) for r in untuned]
    best = [choice.group for choice in tried if choice.best]
    text = "\n\n".join(
        f"{TASKS[name]}\n{table([r for r in own if r['best']])}\n\n{attempts(own)}"
        for name, own in split(rows, lambda r: r["task"]).items()
    )
    told = {"m": "m", "batch": "batch", "h": "h", "mu": "mu", "eval_samples": "texts of a report"}
    return Report(text, f"{NOTE} {wording.caption(best, flags=told)}.", rows, draw(best))


main = command.script("l_tuning", __doc__, report, grids=GRIDS)


def task(group: Group) -> str:
    """The grid's task, by its data."""
    return str(group.config["data"]).rpartition("/")[2].removesuffix(".jsonl")


def validation(group: Group) -> float:
    """The last validation loss of seed 1; nan where it is not finite, or there is none."""
    value = float(group.seeds[1].rounds["validation_loss"][-1]) if 1 in group.seeds else math.nan
    return value if math.isfinite(value) else math.nan


def row(choice: Choice) -> dict[str, Any]:
    """A row of the CSV."""
    group = choice.group
    run = group.runs[0] if group.runs else None
    accuracy, loss = 100 * group.last("test_accuracy"), group.last("test_loss")
    at, losses = group.curve("test_loss")
    return {
        "task": task(group),
        **{axis: group.entry(axis) for axis in AXES},
        "validation_loss": choice.value,
        **choice.row,
        **spread("accuracy", accuracy, "_percent"),
        **spread("loss", loss),
        "accuracy_by_seed": " ".join(f"{value:.1f}" for value in accuracy),
        "loss_by_seed": " ".join(f"{value:.4f}" for value in loss),
        "loss_by_round": " ".join(f"{r}:{value:.4f}" for r, value in zip(at, losses.mean(axis=0), strict=True)),
        "steps": group.rounds * int(group.config["h"]),
        "passes": float(passes(group)[-1]),
        "directions_per_parameter": float(run.attrs.get("directions_per_parameter", math.nan)) if run else math.nan,
        **{f"bytes_{way}_a_round": float(bytes_of(group, way)[-1]) / max(1, group.rounds) for way in ("up", "down")},
        **counts(group),
    }


def of_labels(path: Path) -> dict[str, Any]:
    """Columns of a control that knows the shares of the training labels and does not read: accuracy, loss of a token.

    Raises:
        UserError: the file is not there.
    """
    found = lines.read(path)
    counts = Counter(line.kind for line in found if line.split == "train")
    test = [line for line in found if line.split == "test"]
    nats = -sum(math.log(counts[line.kind] / counts.total()) for line in test)
    tokens = sum(len(line.completions[0].split()) for line in test)
    right = np.mean([line.kind == counts.most_common(1)[0][0] for line in test])
    told = {"accuracy_mean_percent": 100 * float(right), "loss_mean": nats / tokens, "validation_loss": math.nan}
    return told | {
        "weights": "-",
        "way": "labels",
        "accuracy_sd_percent": math.nan,
        "loss_sd": math.nan,
        "passes": 0.0,
        "rounds": 0,
    }


def passes(group: Group) -> Array:
    """(R,) forward passes of a client so far."""
    each = PASSES[str(group.config["method"])] * int(group.config["h"])
    return each * np.arange(1.0, group.rounds + 1)


def bytes_of(group: Group, way: str) -> Array:
    """(R,) bytes up or down of a client so far, mean over clients and seeds."""
    totals = [run.clients[f"bytes_{way}"].sum(axis=1).mean(axis=1) for run in group.runs]
    return np.asarray(np.cumsum(totals, axis=1).mean(axis=0), np.float64)


# --- tables


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A row per way at its best step."""

    def tuned(told: Callable[[Any], Any]) -> wording.Cell:
        return lambda r: "" if r["way"] in UNTUNED else told(r)

    columns: dict[str, wording.Cell] = {
        "weights": "weights",
        "way": lambda r: NAMES[r["way"]],
        "step": lambda r: r["step"] + edges.MARK * bool(r["at_edge"]),
        "loss": lambda r: f"{r['loss_mean']:.3f}" + ("" if math.isnan(r["loss_sd"]) else f" ± {r['loss_sd']:.3f}"),
        "accuracy (%)": lambda r: wording.mean_of(r, "accuracy"),
        "rounds": tuned(itemgetter("rounds")),
        "passes": tuned(wording.numbers(",.0f", "passes")),
        "D": tuned(wording.four("directions_per_parameter")),
        "B up": tuned(wording.numbers(",.0f", "bytes_up_a_round")),
        "B down": tuned(wording.numbers(",.0f", "bytes_down_a_round")),
        "seeds": "seeds",
    }
    return wording.table(rows, columns, left=3)


def attempts(rows: Sequence[dict[str, Any]]) -> str:
    """The validation loss of each step."""
    cells = [
        [r["weights"], NAMES[r["way"]], r["step"], f"{r['validation_loss']:.4f}", edges.star(r).strip()]
        for r in rows
        if not math.isnan(r["validation_loss"])
    ]
    return wording.text_table(["tried on seed 1", "way", "step", "validation loss", ""], cells, left=3)


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """A row per task: test accuracy, or loss, against a client's forward passes and bytes up; pretrained weights."""
    blocks = split([g for g in groups if g.entry("weights") == "pretrained" and g.runs], task)
    budgets: dict[str, Callable[[Group], Array]] = {
        "forward passes of a client (a backward pass is two)": passes,
        "KiB up of a client": lambda group: bytes_of(group, "up") / 1024,
    }
    figure, panels = figures.canvas(len(blocks), 2, figures.PAGE, 2.4, sharey="row")
    ways = [way for way in NAMES if way in entries(groups, "way")]
    for line, (name, found) in zip(panels, blocks.items(), strict=True):
        column, unit, label = (
            ("test_accuracy", 100, "test accuracy (%)") if name == "food" else ("test_loss", 1, "test loss (nat)")
        )
        for group in found:
            way, (at, values) = group.entry("way"), group.curve(column)
            for panel, (word, budget) in zip(line, budgets.items(), strict=True):
                if way == "none":
                    panel.axhline(unit * values.mean(), color="0.5", linewidth=0.9, label=NAMES[way])
                else:
                    figures.band(panel, budget(group)[at - 1], unit * values, NAMES[way], ways.index(way) - 1)
                panel.set(xscale="log", xlabel=word)
                panel.xaxis.set_major_formatter("{x:g}")
        line[0].set_ylabel(label)
        line[0].set_title(TASKS[name], loc="left")
    figures.legend(figure, panels, 3)
    return figure


if __name__ == "__main__":
    main()
