"""Tables of benchmarks that are kept: a text to read, and the same as CSV."""

import csv
import datetime
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def processor() -> str:
    """Its name."""
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"^model name\s*: (.*)$", known, re.MULTILINE)
    return found[1] if found else platform.processor()


def machine() -> list[str]:
    """Day, processor and versions, and the load now."""
    import torch

    load = f"load {os.getloadavg()[0]:.1f} at the end (1 is a busy core)"
    python = f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}"
    return [f"{datetime.date.today()}; {processor()}, {os.cpu_count()} cores; {load}", python]


def write(path: Path, lines: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes PATH.txt, the lines under those of the machine, and PATH.csv, the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".txt").write_text("\n".join([*machine(), "", *lines]) + "\n")
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
