"""DeComFL and FedAvg on MNIST: test accuracy of each seed, ours beside the printed curves, as far as ours have run.

python analysis/c_decomfl_mnist.py [--grid jobs/c_decomfl_mnist.toml jobs/c_decomfl_fedavg.toml] [--results DIR ...]
    [--out NAME]

--results names the folders of the grids, in their order. A run that was stopped before its last round counts as far as
it got. Prints and writes NAME.txt and NAME.csv, a row per method and printed round.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from shared import command, wording
from shared.files import Report
from shared.groups import series

from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records

PRINTED: dict[str, dict[int, tuple[float, float]]] = {
    "decomfl": {
        100: (81.1, 84.6),
        200: (87.5, 89.6),
        500: (89.2, 92.8),
        1_000: (91.5, 94.4),
        2_000: (94.2, 95.1),
        5_000: (96.1, 96.4),
        10_000: (96.7, 97.0),
    },
    "fedavg": {100: (96.4, 96.9), 1_000: (98.7, 99.0)},
}
"""Method -> round -> least and largest test accuracy in % of three seeds, from the repository of DeComFL's code."""
NAMES = {"decomfl": "DeComFL", "fedavg": "FedAvg"}
NOTE = (
    "Test accuracy in %, least to largest of the seeds; printed: three seeds, from the repository of DeComFL's code. "
    "s: seconds a round, least to largest; printed 0.69 to 0.72 for DeComFL, on a machine that is not named."
)


def report(flags: Any) -> Report:
    """The table, of all results that are there."""
    folders = flags.results or [None] * len(flags.grid)
    if len(folders) != len(flags.grid):
        raise UserError(f"--results: {len(folders)} folders for {len(flags.grid)} grids, must be one for each")
    studies = [grid.read(path, folder, trust=True) for path, folder in zip(flags.grid, folders, strict=True)]
    runs = [run for study in studies for run in reached(study)]
    if not runs:
        raise UserError("there is no result of these grids")
    rows = [row(method, at, runs) for method, known in PRINTED.items() for at in known]
    return Report(text(rows), NOTE, rows)


JOBS = command.ANALYSIS.parent / "jobs"
GRIDS = [JOBS / "c_decomfl_mnist.toml", JOBS / "c_decomfl_fedavg.toml"]
FLAGS = {
    "--grid": {"type": Path, "nargs": "+", "default": GRIDS, "help": "TOML files"},
    "--results": {"type": Path, "nargs": "+", "help": "their folders (default: the grids' own)"},
}
main = command.script("c_decomfl_mnist", __doc__, report, FLAGS)


def reached(study: grid.Grid) -> list[records.Run]:
    """The results of a grid, also of runs that are not finished; a result of another configuration is refused."""
    found = []
    for run in study.runs:
        word, sentence = grid.state_of(study, run)
        if word in ("finished", "interrupted", "running"):
            found.append(records.load(run.out))
        else:
            command.tell("c_decomfl_mnist", [f"{run.name}: {sentence}"])
    return found


def row(method: str, at: int, runs: list[records.Run]) -> dict[str, Any]:
    """A row of the CSV: a method after `at` rounds."""
    of = [run for run in runs if run.config["method"] == method and run.length >= at]
    values = [100 * float(series(run, "test_accuracy")[at - 1]) for run in of]
    seconds = [float(np.mean(series(run, "seconds"))) for run in of]
    least, largest = PRINTED[method][at]
    return {
        "method": method,
        "round": at,
        "printed_least_percent": least,
        "printed_largest_percent": largest,
        "least_percent": min(values, default=math.nan),
        "largest_percent": max(values, default=math.nan),
        "by_seed_percent": " ".join(f"{value:.2f}" for value in values),
        "seconds_least": min(seconds, default=math.nan),
        "seconds_largest": max(seconds, default=math.nan),
        "seeds": len(of),
    }


def text(rows: list[dict[str, Any]]) -> str:
    """Table with a row per method and round."""

    def span(key: str, form: str, otherwise: str) -> wording.Cell:
        keys = key.format("least"), key.format("largest")
        return lambda r: " to ".join(f"{r[k]:{form}}" for k in keys) if r["seeds"] else otherwise

    columns: dict[str, wording.Cell] = {
        "method": lambda r: NAMES[r["method"]],
        "rounds": lambda r: f"{r['round']:,}",
        "printed": lambda r: f"{r['printed_least_percent']:.1f} to {r['printed_largest_percent']:.1f}",
        "ours": span("{}_percent", ".1f", "not run"),
        "s a round": span("seconds_{}", ".2f", "-"),
        "seeds": "seeds",
    }
    return wording.table(rows, columns)


if __name__ == "__main__":
    main()
