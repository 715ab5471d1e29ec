"""What the figures of [C] share: names and looks of its methods, and differences seed by seed."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shared import figures, wording
from shared.groups import Array, Group, lacking, mean_sd, series, split
from shared.study import ACCURACY, entry, number

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
    "splitlora": "SplitLoRA",
    "decomfl": "DeComFL",
}
"""How they are spelled, in the order of their looks; frozen and with step 0 are controls."""
ALIKE = {"splitlora": "sflv2", "decomfl": "sflv1", "heron-group": "cse_fsl"}
"""Methods that have the look of another one, beside which they are not drawn: there are more than looks."""
LOOKS: Mapping[str, dict[str, Any]] = {"heron-still": {"color": "0.45", "linestyle": "", "marker": "x"}}
"""Where they differ from `figures.look`: a client part with step 0 is a frozen one, so markers lie on a line."""
LEFT_OUT = ("mu", "gamma", "server_fraction")
"""Flags that the captions of its figures leave out."""
NAMED = 6  # lines or points of a panel that a title names one by one


def name(group: Group) -> str:
    """A method or control, as a reader knows it."""
    return NAMES.get(group.entry("method"), group.entry("method"))


def place(group: Group) -> int:
    """The number of a method's line: the same in all figures."""
    method = ALIKE.get(group.entry("method"), group.entry("method"))
    return list(NAMES).index(method) if method in NAMES else len(NAMES)


def band(panel: Any, x: Any, values: Array, group: Group) -> None:
    """Draws a method's line, values (seeds, points)."""
    own = LOOKS.get(group.entry("method"))
    if own is None:
        figures.band(panel, x, values, name(group), place(group))
    else:
        panel.plot(x, values.mean(axis=0), label=name(group), markersize=4, zorder=4, **own)


def clients(config: Mapping[str, Any]) -> str:
    """How alike the clients are: iid, or α."""
    alpha = float(config.get("alpha", math.inf))
    return "iid" if math.isinf(alpha) else f"α = {alpha:g}"


def setting(group: Group) -> str:
    """The data set, and how alike the clients are."""
    return f"{wording.spelled(group.entry('data'))}, {clients(group.config)}"


def cell_title(row: Mapping[str, Any]) -> str:
    """The data set, and how alike the clients are, of a row of a CSV."""
    return f"{wording.spelled(row['data'])}, {row['setting'].replace('alpha', 'α = ')}"


def titled(panel: Any, title: str, groups: Sequence[Group], who: Callable[[Group], str], width: int = 52) -> None:
    """Sets a panel's title, and below it which lines lack seeds, or how many; `width` letters a line."""
    lines = [title]
    for note, found in split([g for g in groups if g.note], lambda g: g.note).items():
        names = f"{len(found)} of the points" if len(found) > NAMED else "; ".join(map(who, found))
        told = f"every point: {note[1:-1]}" if len(found) == len(groups) else f"{note[1:-1]}: {names}"
        lines += textwrap.wrap(told, width)
    panel.set_title("\n".join(lines), loc="left")


# --- seeds


def difference(group: Group, other: Group, column: str = "test_accuracy") -> Array:
    """(k,) the last number of `group` less that of `other`, for each of the k seeds that both have."""
    mine, theirs = group.seeds, other.seeds
    both = sorted(mine.keys() & theirs.keys())
    return np.array([series(mine[s], column)[-1] - series(theirs[s], column)[-1] for s in both])


def points(group: Group, other: Group) -> Array:
    """(k,) the difference of the last test accuracies in points of per cent."""
    return 100 * difference(group, other)


def signed(values: Array, planned: int) -> str:
    """Mean and deviation of differences, +1.23 ± 0.45, and of how many seeds, if not all."""
    mean, sd = mean_sd(values)
    note = lacking(len(values), planned)
    return wording.percent(mean, sd, note) if math.isnan(mean) or mean < 0 else "+" + wording.percent(mean, sd, note)


# --- columns

CELL = (entry("data", "setting", setting), entry("cell", key="setting"), entry("method", "method", name), ACCURACY)
"""Columns of the studies of images that a row begins with."""
LOCAL_LOSS = (
    number("local_loss_first", lambda group, _: local_loss(group, 0), "local loss, first"),
    number("local_loss_last", lambda group, _: local_loss(group, -1), "last"),
)


def local_loss(group: Group, r: int) -> float:
    """The mean local loss of a round; nan where there is none."""
    return mean_sd(np.array([series(run, "local_loss")[r] for run in group.runs]))[0]
