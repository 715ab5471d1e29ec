"""Times starts and rounds of this checkout in turn with another revision's.

    python -m tests.bench.starts ../before [--repeat 5] [--rounds 30]

ZO-HFL, FedAvg and CSE-FSL on digits, in one process and on 11 ranks: medians of the seconds before round 1, of those
of a round without evaluation, and of the CPU seconds of the whole command, each as this checkout's over the other's.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from tests.conftest import ROOT

RUNS = {"zo_hfl": "zo_hfl", "fedavg": "zo_hfl", "cse_fsl": "heron_sfl"}
"""{method: its command}."""
LAUNCH = {1: [], 11: ["mpirun", "--oversubscribe", "-n", "11"]}


class Measured(NamedTuple):
    """One run."""

    start: float
    round: float
    cpu: float


def measured(package: Path, ranks: int, method: str, rounds: int) -> Measured:
    """A run of the package in this folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "a.h5"
        command = [*LAUNCH[ranks], sys.executable, "-m", f"zofl_mpi.{RUNS[method]}", "--method", method, "--m", "10"]
        command += [
            "--quiet",
            "--rounds",
            str(rounds),
            "--eval-every",
            "1000",
            "--checkpoint-every",
            "0",
            "--out",
            str(out),
        ]
        before = os.times()
        environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        with h5py.File(out) as file:  # by h5py alone: the other revision's format may be another
            return Measured(float(file.attrs["seconds_start"]), float(np.median(file["rounds/seconds"][1:-1])), cpu)


def main() -> None:
    """Prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="*", default=list(LAUNCH))
    flags = parser.parse_args()
    places = {"now": ROOT, "before": flags.before.resolve()}
    for ranks in flags.ranks:
        for name in RUNS:
            found: dict[str, list[Measured]] = {place: [] for place in places}
            for k in range(flags.repeat):
                for place in (*places,) if k % 2 else (*places,)[::-1]:
                    found[place].append(measured(places[place], ranks, name, flags.rounds))
            for kind in Measured._fields:
                now, before = (statistics.median(getattr(each, kind) for each in found[place]) for place in places)
                print(
                    f"{ranks:2} {name:8} {kind:6} {before:8.4f} -> {now:8.4f} s, ratio {now / before:.3f}", flush=True
                )


if __name__ == "__main__":
    main()
