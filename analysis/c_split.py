"""What the scripts of [C] share: names, seeds in pairs, bytes with and without labels, the cost of a client's step."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import study
from a_budget import sent
from study import Array, Group

from zofl_mpi.errors import UserError
from zofl_mpi.problems.network import seeded
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_resnet import ResNet
from zofl_mpi.rounds.split.costs import STEP_BYTES, STEP_MACS
from zofl_mpi.rounds.split.measured import macs, peak_bytes
from zofl_mpi.run import records

NAMES = {
    "heron": "HERON",
    "cse_fsl": "CSE-FSL",
    "fsl_sage": "FSL-SAGE",
    "sflv1": "SFLV1",
    "sflv2": "SFLV2",
    "heron-frozen": "HERON, frozen client",
    "heron-frozen-head": "HERON, frozen auxiliary",
    "heron-still": "HERON, client step 0",
    "heron-group": "HERON, GroupNorm",
}
"""How they are spelled, in the order of their looks; the three before the last are controls."""
LOOKS: Mapping[str, dict[str, Any]] = {"heron-still": {"color": "0.45", "linestyle": "", "marker": "x"}}
"""Where they differ from `study.look`: frozen or with step 0, the client part is the same, so markers lie on a line."""
NAMED = 6  # lines or points of a panel that a title names one by one
SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "digits": (1, 8, 8)}
STEPS = {"heron": "forward", "cse_fsl": "auxiliary", "fsl_sage": "auxiliary", "sflv1": "cut", "sflv2": "cut"}
"""What a client's step is, as `costs.peak_bytes` calls it."""


def name(group: Group) -> str:
    """A method or control, as a reader knows it."""
    return NAMES.get(group.entry("method"), group.entry("method"))


def place(group: Group) -> int:
    """The number of its line: the same in all figures."""
    return list(NAMES).index(group.entry("method")) if group.entry("method") in NAMES else len(NAMES)


def band(panel: Any, x: Any, values: Array, group: Group) -> None:
    """A method's line, values (seeds, points)."""
    own = LOOKS.get(group.entry("method"))
    if own is None:
        study.band(panel, x, values, name(group), place(group))
    else:
        panel.plot(x, values.mean(axis=0), label=name(group), markersize=4, zorder=4, **own)


def clients(config: Mapping[str, Any]) -> str:
    """How alike the clients are: iid, or α."""
    alpha = float(config.get("alpha", math.inf))
    return "iid" if math.isinf(alpha) else f"α = {alpha:g}"


def setting(group: Group) -> str:
    """The data set, and how alike the clients are."""
    return f"{study.spelled(group.entry('data'))}, {clients(group.config)}"


def titled(panel: Any, title: str, groups: Sequence[Group], who: Callable[[Group], str], width: int = 52) -> None:
    """A panel's title, and below it which lines lack seeds, in lines of so many letters; their number where many do."""
    lines = [title]
    for note, found in study.split([g for g in groups if g.note], lambda g: g.note).items():
        names = f"{len(found)} of the points" if len(found) > NAMED else "; ".join(map(who, found))
        names = "all" if len(found) == len(groups) else names
        lines += textwrap.wrap(f"{note.strip('()')}: {names}", width)
    panel.set_title("\n".join(lines), loc="left")


# --- seeds


def seeds(group: Group) -> dict[int, records.Run]:
    """{seed: its result}."""
    return {int(run.config["seed"]): run for run in group.runs}


def difference(group: Group, other: Group, column: str = "test_accuracy") -> Array:
    """(k,) the last number of `group` less that of `other`, for each of the k seeds that both have."""
    mine, theirs = seeds(group), seeds(other)
    both = sorted(mine.keys() & theirs.keys())
    return np.array([study.series(mine[s], column)[-1] - study.series(theirs[s], column)[-1] for s in both])


def signed(values: Array, planned: int) -> str:
    """Their mean and deviation in points of per cent, +1.23 ± 0.45, and how many seeds they are of, if not all."""
    mean, sd = study.mean_sd(100 * values)
    note = "" if len(values) == planned else f"({len(values)} of {planned} seeds)"
    return study.percent(mean, sd, note) if math.isnan(mean) or mean < 0 else "+" + study.percent(mean, sd, note)


# --- bytes


def all_bytes(group: Group) -> Array:
    """(R,) down and up of all clients in all rounds so far, labels too; mean over seeds."""
    return np.asarray(sent(group) + label_bytes(group))


def label_bytes(group: Group) -> Array:
    """(R,) of the labels alone."""
    return np.asarray(np.cumsum([study.series(run, "label_bytes") for run in group.runs], axis=1).mean(axis=0))


def head_bytes(run: records.Run) -> Array:
    """(R,) of the auxiliary heads alone, of one result, in all rounds so far."""
    config = run.config
    took = (run.clients["bytes_up"].sum(axis=1) > 0).sum(axis=1)
    rounds = np.arange(run.length)
    ways = {"heron": 1 if config.get("uplink") == "seeds" else 2, "cse_fsl": 2}.get(str(config["method"]), 0)
    times = took * (rounds % config["l"] == 0) if config["method"] == "fsl_sage" else took * ways
    local = network(config).local
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
    """Of a group's clients; nan where it has no results.

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
    kind = "auxiliary" if estimate == "exact" else STEPS[method]
    passes = 1 + int(config["n_p"]) if kind == "forward" else 3
    return counted(config, kind, passes)


def counted(config: Mapping[str, Any], kind: str, passes: int) -> Step:
    """As --dry-run counts, on this machine."""
    problem, batch = network(config), int(config["batch"])
    client, head, _ = macs(problem)
    each = client if kind == "cut" else client + head
    return Step(passes * each * batch, float(peak_bytes(problem, batch, kind)), False)


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
    return SplitNetwork(*parts, shape, 10, dtype, "cpu", bf16)


def client_macs(group: Group) -> Array:
    """(R,) multiply-accumulates of all clients in all rounds so far, mean over seeds.

    Raises:
        UserError: the number of local steps is unknown.
    """
    steps = [np.cumsum(local_steps(run)) for run in group.runs]
    return np.asarray(step(group).macs * np.mean(steps, axis=0))


def local_steps(run: records.Run) -> Array:
    """(R,) of all clients in each round.

    Raises:
        UserError: a round is one pass over the data, and not every step is uploaded.
    """
    h, k = int(run.config["h"]), int(run.config["k"])
    if h:
        return np.asarray(h * (run.clients["bytes_up"].sum(axis=1) > 0).sum(axis=1), np.float64)
    if k == 1:
        return study.series(run, "server_steps")
    raise UserError(f"{run.path} does not tell its local steps: --h 0 --k {k}")


def words(values: Sequence[float], unit: float = 1) -> list[str]:
    """Four significant digits each."""
    return study.digits(*(value / unit for value in values))
