"""Effective rank of a language model's loss, and how far one zeroth-order step gets beside a gradient step.

python analysis/l_rank.py [--seeds 3] [--texts 64] [--directions 64] [--out NAME]

At a model x, F is the mean loss of one batch of texts, in the parameters that train (LoRA's, or all); a seed draws
batch and directions. Of F's Hessian H: trace (Hutchinson), largest eigenvalue in size and sum of eigenvalues' sizes
(Lanczos), and the curvature c = g'Hg/|g|^2 along the gradient g. One step is taken from x, along -g, or along -(g'u) u,
u ~ N(0, I), over many u; of each kind the best of a line of step sizes, one for all u, by the mean decrease of F. If F
were its quadratic, the second would be a share 1/(tr(H)/c + 2) of the first: 1/(d + 2) on |x|^2.

First: the commands of jobs/l_pretrain.toml, and for --weights tuned, where DeComFL of jobs/l_food.toml ends,
python analysis/export.py results/l_food/pretrained-decomfl-1e-3-s1.h5 results/l_lm/tuned, with --own
results/l_lm/food.jsonl --own results/l_lm/pretrained. Takes a quarter of an hour of one core.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from shared import command, figures, wording
from shared.files import Report
from shared.groups import split
from shared.spectrum import SAMPLES, Apply, hessian_product, spectrum, trace
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zofl_mpi.engine import device
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.rounds.split.client import NetworkLoss
from zofl_mpi.run.command import build, plan
from zofl_mpi.run.command.family import family_of

FOLDER = "results/l_lm"
WEIGHTS = ("pretrained", "tuned", "random")
TRAIN = {"lora": "LoRA", "all": "all"}
TASKS = {"food": "to choose one of four foods", "tune": "to write a text"}
COARSE, FINE = 4.0 ** np.arange(-8, 4), 2.0 ** (np.arange(-3, 4) / 2)
"""Step sizes that are tried, in the one that is best for the quadratic; then, in the best of these."""
FIRST = 8
"""Directions of the coarse search."""
NOTE = (
    "d: parameters that train. tr: trace of H; |H|: its largest eigenvalue in size; sum: that of its eigenvalues' "
    "sizes; c: curvature along the gradient. gain: decrease of the loss by the best gradient step, nat. share: mean "
    "decrease by the best zeroth-order step along one direction, over the gain; predicted: 1/(tr/c + 2) of each batch; "
    "x d: share times d + 2, which is 1 where all directions are curved alike. Mean ± sd over batches."
)


class Look(NamedTuple):
    """F at a model on one batch.

    Attributes:
        loss: F(x) as a function of x (d,).
        apply: products with its Hessian at the model.
    """

    x: Tensor
    loss: Callable[[Tensor], float]
    gradient: Tensor
    apply: Apply


def report(flags: Any) -> Report:
    """The table and the figure."""
    rows = []
    for task, weights, train in product(flags.tasks, flags.weights, flags.train):
        for seed in range(1, flags.seeds + 1):
            row = {"task": task, "weights": weights, "train": train, "seed": seed}
            rows.append(row | measured(row, flags))
            command.tell("l_rank", [" ".join(f"{key} {value}" for key, value in rows[-1].items())])
    return Report(table(rows), NOTE, rows, draw(rows))


FLAGS = {
    "--seeds": command.flag(3, "batches, each with directions of its own"),
    "--texts": command.flag(64, "of a batch"),
    "--directions": command.flag(64, "zeroth-order steps that are averaged"),
    "--steps": command.flag(40, "of each of two Lanczos runs"),
    "--probes": command.flag(60, "of the trace"),
    "--tasks": command.flag(list(TASKS), "what is tuned", choices=TASKS),
    "--weights": command.flag(list(WEIGHTS), "that a run begins with", choices=WEIGHTS),
    "--train": command.flag(list(TRAIN), "parameters", choices=TRAIN),
}
main = command.script("l_rank", __doc__, report, FLAGS)

# --- a model


def measured(row: dict[str, Any], flags: argparse.Namespace) -> dict[str, Any]:
    """The numbers of a row of the CSV."""
    streams = Streams(row["seed"])
    with looking(setting_of(row), flags.texts, streams) as look:
        d = len(look.x)
        told = trace(look.apply, d, streams, flags.probes)
        found = spectrum(look.apply, d, streams, flags.steps, 2)
        g = look.gradient.double()
        curvature = float(g @ look.apply(g) / (g @ g))
        rank = told.value / found.norm.value
        predicted = 1 / (told.value / curvature + 2)
        us = [direction(streams, i, look.x) for i in range(flags.directions)]
        first, at_first = best_step(look, [look.gradient], 1 / abs(curvature))
        zeroth, at_zeroth = best_step(look, [(look.gradient @ u) * u for u in us], 1 / abs(told.value + 2 * curvature))
        return {
            "parameters": d,
            "loss": look.loss(look.x),
            "trace": told.value,
            "trace_error": told.error,
            "norm": found.norm.value,
            "norm_residual": found.norm.residual,
            "sum": found.trace_of(np.abs).value,
            "smallest": float(found.ends[0]),
            "largest": float(found.ends[1]),
            "curvature": curvature,
            "gradient": float(g.norm()),
            "rank": rank,
            "rank_sizes": found.trace_of(np.abs).value / found.norm.value,
            "rank_gradient": told.value / curvature,
            "gain_first": first,
            "gain_zeroth": zeroth,
            "share": zeroth / first,
            "predicted": predicted,
            "share_d": zeroth / first * (d + 2),
            "size_first": at_first,
            "size_zeroth": at_zeroth,
        }


def setting_of(row: dict[str, Any]) -> Setting[Any]:
    """The model and its texts, as `python -m zofl_mpi.heron_sfl` makes them."""
    family = family_of("zofl_mpi.heron_sfl")
    named = {
        "method": "decomfl",
        "problem": "split_lm",
        "model": f"{FOLDER}/{row['weights']}",
        "data": f"{FOLDER}/{row['task']}.jsonl",
        "train": row["train"],
        "label-smoothing": 0,
    }
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return build.build_setting(SingleProcess(), family, plan.parse_plan(family, words), device.select("cpu"))


@contextmanager
def looking(setting: Setting[Any], texts: int, streams: Streams) -> Iterator[Look]:
    """Context manager: the loss of the training texts at the model with which a run begins."""
    problem, loss = setting.problem, NetworkLoss(setting.problem)
    whole = replace(setting.data[0], rows=np.concatenate([own.rows for own in setting.data]))
    drawn = streams(Purpose.SPECTRUM, r=SAMPLES).choice(len(whole), texts, replace=False)
    inputs, labels = problem.samples(whole, np.sort(drawn))
    x, buffers = loss.flat.initial()

    def mean() -> Tensor:
        return loss(problem.smash(inputs), labels)

    def value(at: Tensor) -> float:
        with torch.no_grad(), loss.flat.bound_to(at, buffers):
            return float(mean())

    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        with loss.flat.bound_to(x, buffers) as bound:
            parameters = [p for p in bound if id(p) in loss.flat.places]  # the auxiliary part holds nothing
            slopes = torch.autograd.grad(mean(), parameters)

        def apply(v: Tensor) -> Tensor:
            with torch.enable_grad(), loss.flat.bound_to(x, buffers):
                return hessian_product([mean()], parameters, v)

        yield Look(x, value, torch.cat([slope.reshape(-1) for slope in slopes]), apply)


# --- steps


def direction(streams: Streams, i: int, like: Tensor) -> Tensor:
    """u_i (d,) ~ N(0, I)."""
    return torch.from_numpy(streams(Purpose.SPECTRUM, r=SAMPLES, i=i, t=1).standard_normal(len(like))).to(like)


def best_step(look: Look, along: Sequence[Tensor], unit: float) -> tuple[float, float]:
    """The largest mean decrease of F by steps along minus these vectors, one size for all; and that size, in `unit`."""
    _, centre = best(look, along[:FIRST], unit, COARSE)
    return best(look, along, unit, centre * FINE)


def best(look: Look, along: Sequence[Tensor], unit: float, sizes: Any) -> tuple[float, float]:
    """The same of these sizes alone."""
    before = look.loss(look.x)
    decreases = [[before - look.loss(look.x - float(size * unit) * each) for size in sizes] for each in along]
    mean = np.nan_to_num(np.mean(decreases, axis=0), nan=-np.inf)
    return float(mean.max()), float(sizes[mean.argmax()])


# --- table


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A row per task, weights and parameters."""
    header = ("task", "weights", "train", "d", "loss", "tr/|H|", "sum/|H|", "tr/c", "gain", "share", "predicted", "x d")
    keys = ("loss", "rank", "rank_sizes", "rank_gradient", "gain_first", "share", "predicted", "share_d")
    cells = []
    for own in split(rows, lambda r: f"{r['task']} {r['weights']} {r['train']}").values():
        one = own[0]
        told = [spelled(np.array([row[key] for row in own])) for key in keys]
        cells.append([one["task"], one["weights"], TRAIN[one["train"]], f"{one['parameters']:,}", *told])
    return wording.text_table(header, cells, left=3)


def spelled(values: Any) -> str:
    """Mean ± sd, three digits."""
    sd = f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else ""
    return f"{values.mean():.3g}{sd}"


# --- figure


@figures.styled
def draw(rows: Sequence[dict[str, Any]]) -> Any:
    """A panel per task: the share of a zeroth-order step against the effective rank, a point per batch."""
    panels = split(rows, lambda r: r["task"])
    figure, axes = figures.canvas(1, len(panels), figures.PAGE, 2.4, sharey=True)
    for panel, (task, found) in zip(axes.flat, panels.items(), strict=True):
        kinds = split(found, lambda r: f"{r['weights']} weights, {TRAIN[r['train']]}")
        for k, (name, own) in enumerate(kinds.items()):
            panel.plot(
                [row["rank_sizes"] for row in own],
                [row["share"] for row in own],
                label=name,
                **figures.look(k) | {"linestyle": "", "markersize": 5},
            )
        line = np.geomspace(25, 500, 20)
        panel.plot(line, 1 / (line + 2), color="0.5", linewidth=0.9, label="1/(effective rank + 2)")
        for k, (train, own) in enumerate(split(found, lambda r: r["train"]).items()):
            label = f"1/(d + 2), {TRAIN[train]}"
            panel.axhline(
                1 / (own[0]["parameters"] + 2), color="0.7", linestyle=("--", ":")[k], linewidth=0.9, label=label
            )
        panel.set(xscale="log", yscale="log", xlabel="effective rank: sum of |eigenvalues| / largest")
        figures.ticks(panel, (25, 50, 100, 200, 400))
        panel.set_title(TASKS[task], loc="left")
    axes[0, 0].set_ylabel("decrease of the loss,\nshare of a gradient step's")
    figures.legend(figure, axes, 3, "one zeroth-order step along one direction, at its best size; a point per batch")
    return figure


if __name__ == "__main__":
    main()
