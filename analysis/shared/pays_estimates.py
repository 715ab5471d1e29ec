"""What estimates are worth in c_pays: how far they point along the gradient, for how many passes, to what end."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shared import wording
from shared.groups import Array, Group, mean_sd, series
from shared.pays import costs, paired, rule, setting, spelled
from shared.study import spread

AGAINST = (
    ("heron-head-8", "heron-head"),
    ("heron-sample-8", "heron-sample"),
    ("ho_sfl-8", "ho_sfl"),
    ("ho_sfl-sample-8", "ho_sfl-sample"),
    ("heron-head-jvp", "heron-head"),
    ("heron-head-jvp-8", "heron-head-8"),
    ("ho_sfl-jvp", "ho_sfl"),
    ("heron-n2-zo", "heron-n2"),
    ("ho_sfl-n2-zo", "ho_sfl-n2"),
    ("ho_sfl-n2", "heron-n2"),
)
"""Methods that differ in one thing: more directions, derivatives in place of differences, estimates beside exact
layers, whose gradient it is."""
Places = Mapping[str, Sequence[Group]]
"""{setting: its groups, each method at its best step}."""


def passes(group: Group) -> float:
    """A client's step in forward passes of its part, by multiply-accumulates, the head's among them; nan for no run."""
    if not group.runs:
        return math.nan
    each = costs(group)
    return each["macs"] / (each["macs_a_sample"] * int(group.config["batch"]))


def cosines(group: Group) -> Array:
    """(seeds,) means over evaluations of `estimate_cosine`; (0,) where it was not measured."""
    found = [series(run, "estimate_cosine") for run in group.runs if "estimate_cosine" in run.rounds]
    return np.array([np.nanmean(values) for values in found], np.float64)


def directions(group: Group) -> int:
    """n_p of a client's step; 0 where nothing is estimated."""
    config = group.config
    frozen = config.get("freeze", "none") == "client"
    frozen |= int(config.get("exact_layers", 0)) > 0 and config.get("rest") == "frozen"
    return 0 if frozen else int(config.get("n_p", 0))


def angles(group: Group) -> dict[str, float]:
    """Columns of a row of NAME.csv: how far steps point along the gradient, and for how much work."""
    mean, sd = mean_sd(cosines(group))
    return {
        "directions": directions(group),
        "passes": passes(group),
        "cosine": mean,
        "cosine_sd": sd,
        "cosine_rule": rule(group),
    }


def estimates_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per setting and method whose cosine was measured, from the rows of NAME.csv."""
    header = ("setting", "estimate", "directions", "passes of a step", "cosine", "rule", "gain", "share (%)")
    lines = []
    for row in rows:
        if math.isnan(row["cosine"]):
            continue
        cosine = f"{row['cosine']:.4f} ± {row['cosine_sd']:.4f}"
        by_rule = "" if math.isnan(row["cosine_rule"]) else f"{row['cosine_rule']:.4f}"
        gained = wording.mean_of(row, "gain", ""), wording.mean_of(row, "share")
        cells = (str(row["directions"]), *wording.digits(row["passes"]), cosine, by_rule, *gained)
        lines.append([row["setting"], spelled(row["method"]), *cells])
    return wording.text_table(header, lines, left=2)


def differences(places: Places) -> Iterator[dict[str, Any]]:
    """The rows of NAME_pairs.csv: what a method is ahead of one that differs from it in one thing, seed by seed."""
    for found in places.values():
        of = {g.entry("method"): g for g in found if g.runs}
        for method, other in AGAINST:
            if method in of and other in of:
                ahead = paired(of[method], of[other], of[method])[0]
                each = " ".join(f"{value:.4f}" for value in ahead)
                where = {"setting": setting(of[method]), "method": method, "beside": other}
                yield {**where, **spread("ahead", ahead), "ahead_by_seed": each}


def differences_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per pair of methods."""
    header = ("setting", "method", "beside", "ahead, points, seed by seed", "mean")
    lines = []
    for row in rows:
        each = ", ".join(f"{float(value):.2f}" for value in row["ahead_by_seed"].split())
        both = spelled(row["method"]), spelled(row["beside"])
        lines.append([row["setting"], *both, each, wording.mean_of(row, "ahead", "")])
    return wording.text_table(header, lines, left=3)
