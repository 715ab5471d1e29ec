"""Settings of split learning in which it matters that clients learn: first-order clients beside a frozen one.

python analysis/c_pays_search.py [--grid jobs/c_pays_search.toml] [--results DIR] [--out NAME] [--partial]

Prints, for each setting, the accuracy on the validation part after the last round of a frozen random client, of CSE-FSL
and of SFLV2, and what the latter two have more.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from shared import wording
from shared.files import Report
from shared.groups import Group, mean_sd, split
from shared.pays import FROZEN, NAMES, setting, validated
from shared.study import study

AXES = ("setting", "method")
METHODS = (FROZEN, "cse_fsl", "sflv2")
NOTE = "Accuracy in % on the validation part after the last round; more: points ahead of the frozen client."
FLAGS = {"problem": "problem", "channels": "channels", "m": "m", "h": "h", "batch": "batch", "lr_client": "client step"}


def report(groups: Sequence[Group]) -> Report:
    """The table."""
    rows = [row(found) for found in split(groups, lambda g: g.entry("setting")).values()]
    return Report(text(rows), f"{NOTE} {wording.caption(groups, flags={**FLAGS, 'lr_server': 'server step'})}.", rows)


main = study("c_pays_search", __doc__, ["c_pays_search.toml"], AXES, report, needed=AXES)


def row(groups: Sequence[Group]) -> dict[str, Any]:
    """A row of the CSV: a setting."""
    of = {g.entry("method"): accuracy(g) for g in groups}
    frozen, local, through = (of.get(method, math.nan) for method in METHODS)
    return {
        "setting": setting(groups[0]),
        "frozen_percent": frozen,
        "cse_fsl_percent": local,
        "sflv2_percent": through,
        "cse_fsl_more": local - frozen,
        "sflv2_more": through - frozen,
        "seeds": min(len(g.runs) for g in groups),
    }


def accuracy(group: Group) -> float:
    """The last accuracy on the validation part in %, mean over seeds; nan for none."""
    return mean_sd(np.array([validated(run) for run in group.runs]))[0]


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Table with a row per setting."""
    header = ("setting", *(NAMES[m] for m in METHODS), "CSE-FSL more", "SFLV2 more")
    keys = ("frozen_percent", "cse_fsl_percent", "sflv2_percent", "cse_fsl_more", "sflv2_more")
    return wording.text_table(header, [[r["setting"], *(wording.plain(r[key]) for key in keys)] for r in rows])


if __name__ == "__main__":
    main()
