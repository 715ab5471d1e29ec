"""Split clients that learn, beside frozen ones: each method at its best step, and the share of the gap it closes."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from shared import choosing, wording
from shared.groups import Array, Group, series
from shared.split_costs import SHAPES, local_steps
from zofl_mpi.problems.flat import Flat
from zofl_mpi.problems.split_images import ConvNet
from zofl_mpi.rounds.split.costs import RECOMPUTED, STEP_BYTES, STEP_COUNTED, STEP_MACS
from zofl_mpi.run import records

VALIDATION = "validation_accuracy"
SAMPLE_MACS = "multiply-accumulates of a sample at the client"
STEPS = ("local", "server")
"""Axes of step sizes, each in the order of their size."""
FROZEN, FIRST = "heron-frozen", "sflv2"
"""Between which the gap lies: a client that does not train, and first order through the cut."""
NAMES = {
    "heron-frozen": "frozen client",
    "heron": "HERON",
    "heron-head": "HERON, exact head",
    "heron-head-8": "HERON, exact head, 8 directions",
    "heron-head-32": "HERON, exact head, 32 directions",
    "heron-head-jvp": "HERON, exact head, jvp",
    "heron-head-jvp-8": "HERON, exact head, jvp, 8 directions",
    "heron-sample": "HERON, exact head, per sample",
    "heron-sample-8": "HERON, exact head, per sample, 8 directions",
    "ho_sfl": "HO-SFL",
    "ho_sfl-8": "HO-SFL, 8 directions",
    "ho_sfl-jvp": "HO-SFL, jvp",
    "ho_sfl-sample": "HO-SFL, per sample",
    "ho_sfl-sample-8": "HO-SFL, per sample, 8 directions",
    "heron-n2": "HERON, last 2 layers exact",
    "heron-n2-zo": "the same, the rest estimated",
    "ho_sfl-n2": "HO-SFL, last 2 layers exact",
    "ho_sfl-n2-zo": "HO-SFL, the rest estimated",
    "heron-n4": "HERON, last 4 layers exact",
    "cse_fsl": "CSE-FSL",
    "sflv2": "SFLV2",
}
"""How the methods of a grid are spelled."""


def name(group: Group) -> str:
    """A group's method, as a reader knows it."""
    return spelled(group.entry("method"))


def spelled(method: str) -> str:
    """A method, as a reader knows it."""
    return NAMES.get(method, method)


def setting(group: Group) -> str:
    """The data set, how many of the network's stages clients hold, and what else a setting has."""
    config = group.config
    stages = len(config.get("channels", ConvNet.channels))
    words = [wording.spelled(str(config["data"])), f"{config['cut']} of {stages} stages at the client"]
    words += ["pooled head"] if config.get("head") == "pooled" else []
    alpha = float(config.get("alpha", math.inf))
    words += [] if math.isinf(alpha) else [f"α = {alpha:g}"]
    words += [] if config.get("augment", "none") == "none" else [str(config["augment"])]
    return ", ".join(words)


# --- the best step of a method


def validated(run: records.Run) -> float:
    """A result's last accuracy on the validation part in %."""
    return 100 * float(series(run, VALIDATION)[-1])


def chosen(groups: Sequence[Group], axes: Mapping[str, Sequence[str]]) -> list[tuple[Group, tuple[str, ...]]]:
    """The best group of each setting and method, and the axes along which its step is at an edge, in order.

    The best has the highest last accuracy on the validation part, over the seeds that all of a method's steps have; the
    first stands for a method without results.
    """

    def whose(group: Group) -> str:
        return f"{group.entry('setting')}\n{group.entry('method')}"

    found: dict[str, tuple[Group, tuple[str, ...]]] = {}
    tried = choosing.choices(groups, whose, lambda same: choosing.means(same, validated), axes)
    for choice in tried:
        if choice.best or whose(choice.group) not in found:
            found[whose(choice.group)] = choice.group, choice.at_edge
    return list(found.values())


# --- the gap


def paired(group: Group, frozen: Group, first: Group) -> tuple[Array, Array]:
    """(k,) points of per cent that a method is ahead of the frozen client, and (k,) first order, seed by seed."""
    own, control, top = (g.seeds for g in (group, frozen, first))
    both = sorted(own.keys() & control.keys() & top.keys())

    def less(runs: Mapping[int, records.Run]) -> Array:
        last = [series(runs[s], "test_accuracy")[-1] - series(control[s], "test_accuracy")[-1] for s in both]
        return np.array(last, np.float64) * 100

    return less(own), less(top)


# --- costs


def costs(group: Group) -> dict[str, float]:
    """{what: its cost in a client's step}; of a method with a backward pass also if it computes its blocks again."""
    kept = json.loads(group.runs[0].attrs.get("costs") or "{}") if group.runs else {}
    keys = {
        "macs": STEP_MACS,
        "macs_a_sample": SAMPLE_MACS,
        "peak": STEP_BYTES,
        "macs_counted": STEP_COUNTED,
        "macs_again": STEP_COUNTED + RECOMPUTED,
        "peak_again": STEP_BYTES + RECOMPUTED,
    }
    return {word: float(kept.get(key, math.nan)) for word, key in keys.items()}


def work(group: Group) -> Array:
    """(R,) multiply-accumulates of all clients in all rounds so far; mean over seeds."""
    steps = np.mean([np.cumsum(local_steps(run)) for run in group.runs], axis=0)
    return np.asarray(steps * costs(group)["macs"])


def sizes(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Numbers that train in the client's part and in the auxiliary head, and those of a smashed sample."""
    keys = ("channels", "strides", "cut", "head", "norm", "data")
    return _sizes(*(tuple(v) if isinstance(v, list) else v for v in (config[key] for key in keys)))


@cache
def _sizes(channels: Any, strides: Any, cut: int, head: Any, norm: Any, data: str) -> tuple[int, int, int]:
    import torch

    shape = SHAPES[data]
    client, auxiliary, _ = ConvNet(channels, strides, cut, head, norm).parts(shape, 10)
    with torch.no_grad():
        smashed = client(torch.zeros(1, *shape)).numel()
    own, top = Flat([client, auxiliary]).sizes()
    return own, top, smashed


def cosine_rule(directions: int, d: int) -> float:
    """About the cosine of an estimate from so many directions in d dimensions with the gradient."""
    return math.sqrt(directions / (directions + d + 1))


def rule(group: Group) -> float:
    """`cosine_rule` of a method with global directions; nan for others."""
    config = group.config
    estimates = config.get("method") in ("heron", "ho_sfl") and config.get("estimate", "one-sided") != "exact"
    global_ = config.get("directions") == "global" and int(config.get("exact_layers", 0)) == 0
    if not (group.runs and estimates and global_) or config.get("freeze", "none") != "none":
        return math.nan
    client, head, _ = sizes(config)
    perturbed = config["method"] == "heron" and config["head_gradient"] == "estimated"
    return cosine_rule(int(config["n_p"]), client + perturbed * head)
