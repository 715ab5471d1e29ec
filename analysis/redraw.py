"""Figures drawn again from the tables kept in analysis/results; no result is read, and no table is written.

python analysis/redraw.py               # all of them
python analysis/redraw.py scaling       # those whose names begin so

Curves over rounds need results: their scripts draw them, where the runs have been made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import scaling
import scaling_model
from shared import command, files
from shared.scaling import read

KEPT = command.ANALYSIS / "results"
STUDY = KEPT / "scaling/scaling.json"
DRAWN: Mapping[str, Callable[[], Any]] = {
    "scaling/scaling": lambda: scaling.figure(read([STUDY])),
    "scaling/scaling_model": lambda: scaling_model.figure(*scaling_model.modelled(read([STUDY]), scaling_model.RATE)),
}
"""Name of a figure, and what draws it."""


def main(words: list[str] | None = None) -> None:
    """Draws the figures and prints their paths."""
    parser = argparse.ArgumentParser(prog="redraw", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="*", default=[""], help="how the figures' names begin")
    parser.add_argument("--out", type=Path, default=KEPT, help="the folder to draw into")
    flags = parser.parse_args(words)
    with command.refusals("redraw"):
        for name, draw in DRAWN.items():
            if Path(name).name.startswith(tuple(flags.name)):
                files.keep(draw(), flags.out / name)


if __name__ == "__main__":
    main()
