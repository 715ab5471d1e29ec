"""What split training costs: bytes of labels and heads, and the work and memory of a client's step."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from shared.budgets import sent
from shared.groups import Array, Group, series
from zofl_mpi.errors import UserError
from zofl_mpi.problems.network import seeded
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ResNet
from zofl_mpi.rounds.split.client import CutLoss, HeadLoss
from zofl_mpi.rounds.split.costs import STEP_BYTES, STEP_MACS, macs, peak_bytes
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.rules import Backprop
from zofl_mpi.run import records

SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "digits": (1, 8, 8)}
STEPS = {
    "heron": (HeadLoss, TwoPoint),
    "cse_fsl": (HeadLoss, Backprop),
    "fsl_sage": (HeadLoss, Backprop),
    "sflv1": (CutLoss, Backprop),
    "sflv2": (CutLoss, Backprop),
}
"""The loss and the gradient rule of a client's step."""

# --- bytes


def all_bytes(group: Group) -> Array:
    """(R,) bytes down and up of all clients in all rounds so far, labels too; mean over seeds."""
    return np.asarray(sent(group) + label_bytes(group))


def label_bytes(group: Group) -> Array:
    """(R,) bytes of the labels alone, in all rounds so far; mean over seeds."""
    return np.asarray(np.cumsum([series(run, "label_bytes") for run in group.runs], axis=1).mean(axis=0))


def head_bytes(run: records.Run) -> Array:
    """(R,) bytes of the auxiliary heads alone in all rounds so far, of one result."""
    config = run.config
    took = (run.clients["bytes_up"].sum(axis=1) > 0).sum(axis=1)
    rounds = np.arange(run.length)
    ways = {"heron": 1 if config.get("uplink") == "seeds" else 2, "cse_fsl": 2}.get(str(config["method"]), 0)
    times = took * (rounds % config["l"] == 0) if config["method"] == "fsl_sage" else took * ways
    local = network(config).client_side
    return np.asarray(np.cumsum(times) * local.sizes()[1] * np.dtype(config["dtype"]).itemsize, np.float64)


# --- what a client's step costs


@final
@dataclass(frozen=True)
class Step:
    """What a client's local step costs.

    Attributes:
        macs: multiply-accumulates.
        peak: bytes live at once, beyond the model.
        recorded: whether the result tells them; else they are counted again, from its configuration.
    """

    macs: float
    peak: float
    recorded: bool


def step(group: Group) -> Step:
    """Cost of a local step of a group's clients; nan where it has no results.

    Raises:
        UserError: neither does a result tell, nor its configuration.
    """
    if not group.runs:
        return Step(math.nan, math.nan, True)
    run = group.runs[0]
    kept = json.loads(run.attrs.get("costs") or "{}")
    if STEP_MACS in kept:
        return Step(float(kept[STEP_MACS]), float(kept[STEP_BYTES]), True)
    return _counted(run.config, run.path)


def _counted(config: Mapping[str, Any], path: Path) -> Step:
    method, estimate = str(config["method"]), config.get("estimate")
    if estimate == "central" or method not in STEPS:
        raise UserError(f"{path} does not tell what a client's step costs, and its steps are not all alike")
    loss, rule = (HeadLoss, Backprop) if estimate == "exact" else STEPS[method]
    return counted(config, loss, rule, 1 + int(config["n_p"]) if rule is TwoPoint else 3)


def counted(config: Mapping[str, Any], loss: type[Any], rule: type[Any], passes: int) -> Step:
    """Cost of a local step, counted on this machine as --dry-run counts it."""
    problem, batch = network(config), int(config["batch"])
    client, head, _ = macs(problem)
    own = loss(problem)
    each = client if own.at_cut else client + head
    return Step(passes * each * batch, float(peak_bytes(own, rule(slice(0, own.travels)), batch)), False)


def network(config: Mapping[str, Any]) -> SplitNetwork:
    """The network in parts of a configuration.

    Raises:
        UserError: one that this module does not know.
    """
    if config.get("problem") != "split_resnet" or config.get("data") not in SHAPES:
        told = f"--problem {config.get('problem')} --data {config.get('data')}"
        raise UserError(f"{told}: what a step costs is known of split_resnet on {', '.join(SHAPES)} only")
    keys = ("width", "cut", "head", "dtype", "bf16", "data")
    return _network(tuple(config["stages"]), *(config[key] for key in keys))


@cache
def _network(
    stages: tuple[int, ...], width: int, cut: int, head: Any, dtype: str, bf16: bool, data: str
) -> SplitNetwork:
    shape = SHAPES[data]
    parts = seeded(lambda: ResNet(width, stages, cut, head).parts(shape, 10), np.random.default_rng(0))
    return SplitNetwork(*parts, shape, 10, dtype=dtype, bf16=bf16)


def client_macs(group: Group) -> Array:
    """(R,) multiply-accumulates of all clients in all rounds so far, mean over seeds.

    Raises:
        UserError: the number of local steps is unknown.
    """
    steps = [np.cumsum(local_steps(run)) for run in group.runs]
    return np.asarray(step(group).macs * np.mean(steps, axis=0))


def local_steps(run: records.Run) -> Array:
    """(R,) local steps of all clients in each round.

    Raises:
        UserError: a round is one pass over the data, and not every step is uploaded.
    """
    h, k = int(run.config["h"]), int(run.config["k"])
    if h:
        return np.asarray(h * (run.clients["bytes_up"].sum(axis=1) > 0).sum(axis=1), np.float64)
    if k == 1:
        return series(run, "server_steps")
    raise UserError(f"{run.path} does not tell its local steps: --h 0 --k {k}")
