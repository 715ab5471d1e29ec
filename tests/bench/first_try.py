"""What each command gives where no flag but the method's name is typed, on the embedded digits.

    python -m tests.bench.first_try [--out FOLDER]

Prints, and writes into FOLDER as first_try.csv and .txt, for each pair of command and method, over three seeds:
processor seconds of the whole command (one process, one thread; the most of the seeds), accuracy on test samples at the
end, and its gain over chance as a share of what the command of the README that was tuned gains. The test beside the
table (`tests/e2e/test_first_try.py`) runs a few rounds of each pair.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.tables import write
from zofl_mpi import records
from zofl_mpi.__main__ import FAMILIES

SEEDS = (1, 2, 3)
TUNED = {
    "zofl_mpi.zo_hfl": "--alpha 0.1",
    "zofl_mpi.fedrzo": "--n-p 8 --rounds 200",
    "zofl_mpi.heron_sfl": "--problem split_resnet --m 2 --width 8 --batch 64 --rounds 10 --lr-server 1e-3",
}
"""Flags of the README's commands that were tuned, of the family's first method."""
CHANCE = {"zofl_mpi.zo_hfl": 0.1, "zofl_mpi.fedrzo": 0.5, "zofl_mpi.heron_sfl": 0.1}  # ten classes; even or odd


def pairs() -> Iterator[tuple[str, str]]:
    """Every command with each of its methods."""
    for module in FAMILIES:
        yield from ((module, method) for method in import_module(module).METHODS)


def spent() -> float:
    """Processor seconds of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measured(module: str, flags: str) -> tuple[list[float], list[float]]:
    """Processor seconds of the command with each seed, and accuracies at the end."""
    seconds, accuracies = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            out, since = Path(folder) / f"{seed}.h5", spent()
            words = [*flags.split(), "--seed", str(seed), "--out", str(out), "--quiet"]
            subprocess.run([sys.executable, "-m", module, *words], check=True, stdout=subprocess.DEVNULL)
            seconds.append(spent() - since)
            accuracies.append(float(records.load(out).table()["test_accuracy"].dropna().iloc[-1]))
    return seconds, accuracies


def table() -> Iterator[dict[str, Any]]:
    """A row for each tuned command, whose share is 1, and for each pair."""
    gains = dict[str, float]()
    tuned = ((module, "tuned", flags) for module, flags in TUNED.items())
    for module, method, flags in (*tuned, *((module, method, f"--method {method}") for module, method in pairs())):
        seconds, ends = measured(module, flags)
        gain = float(np.mean(ends)) - CHANCE[module]
        each = {f"accuracy_{seed}": end for seed, end in zip(SEEDS, ends, strict=True)}
        share = gain / gains.setdefault(module, gain)
        yield {"command": module, "method": method, "seconds": max(seconds), **each, "share": share}


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    folder = parser.parse_args().out
    lines, rows = [f"{'command, method':34}{'seconds':>8}  {'accuracy at the end, %':24}share of the tuned gain"], []
    print(lines[0])
    for row in table():
        each = " ".join(f"{100 * row[f'accuracy_{seed}']:.1f}" for seed in SEEDS)
        name = f"{row['command'].partition('.')[2]} {row['method']}"
        lines.append(f"{name:34}{row['seconds']:8.1f}  {each:24}{row['share']:.2f}")
        rows.append(row)
        print(lines[-1], flush=True)
    if folder:
        write(folder / "first_try", lines, rows)


if __name__ == "__main__":
    main()
