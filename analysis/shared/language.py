"""What the figures of [C] on language models share: settings, perplexities, captions."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from shared import wording
from shared.groups import Array, Group, lacking, mean_sd
from shared.split_costs import all_bytes

PERPLEXITY, LOSS = "validation_perplexity", "validation_loss"
"""Of the whole network on the validation part, over tokens."""
STARTS = {
    "pretrained": "pretrained weights, LoRA",
    "pretrained-long": "pretrained weights, LoRA, 8 times the steps",
    "random": "random weights, LoRA",
    "random-all": "random weights, all parameters train",
}
TOLD = {
    "model": "model",
    "text": "texts",
    "part": "part",
    "m": "m",
    "auxiliary_blocks": "in the auxiliary head",
    "lora_rank": "LoRA rank",
    "batch": "batch",
    "h": "h",
    "optimiser": "optimiser",
    "lr_client": "client step",
    "lr_server": "server step",
    "mu": "mu",
    "warmup": "warm-up",
    "eval_samples": "texts of a report",
}
"""Flags that a caption tells, and how."""


def start(group: Group) -> str:
    """From which weights a run begins, and what of them trains."""
    return STARTS.get(group.entry("start"), group.entry("start"))


def caption(groups: Iterable[Group], left_out: Sequence[str] = ()) -> str:
    """The caption, from the configurations, with the methods where they differ."""
    return wording.caption(groups, left_out, TOLD)


def told(values: Array, planned: int, sign: bool = False) -> str:
    """Mean and deviation over seeds as 3.412 ± 0.010, and of how many seeds, if not all; - for none."""
    mean, sd = mean_sd(values)
    if math.isnan(mean):
        return "-"
    number = f"{mean:{'+' if sign else ''}.3f}" + ("" if math.isnan(sd) else f" ± {sd:.3f}")
    return f"{number} {lacking(len(values), planned)}".rstrip()


def signed(values: Array, planned: int) -> str:
    """As `told`, of differences."""
    return told(values, planned, True)


def until(group: Group, budget: float) -> Array:
    """(seeds,) perplexities at the last evaluated round until which no more bytes were sent, labels too.

    nan where the first evaluated round has more.
    """
    at, values = group.curve(PERPLEXITY)
    within = np.flatnonzero(all_bytes(group)[at - 1] <= budget)
    return values[:, within[-1]] if len(within) else np.full(len(values), math.nan)
