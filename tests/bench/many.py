"""What many clients and their checkpoints cost, 10 of them a round, in this checkout and, in turn, in another one:

    python -m tests.bench.many [--before FOLDER] [--rounds 10000 100000] [--checkpoints 10 1000] [--series 3]

FedAvg on synthetic samples in one process, small local steps. For each m of --rounds it prints the median seconds of a
round without evaluation or checkpoint; for each m of --checkpoints the seconds of 100 rounds with the checkpoints that
are written by default, and without any. Each number is the least of the series; --before's is divided by ours.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

HERE = Path(__file__).resolve().parents[2]
FLAGS = "--method fedavg --data synthetic --synthetic-features 4 --min-samples 1 --tau 1 --batch 4 --quiet --force"
PARTICIPANTS = 10
WITHOUT = "--checkpoint-every 0"


def seconds(checkout: Path, path: Path, m: int, rounds: int, flags: str) -> np.ndarray:
    """(rounds,) the seconds of each round of a run of m clients."""
    samples = f"--synthetic-samples {4 * max(m, 1000)} --m {m} --beta {PARTICIPANTS / m} --eval-clients {PARTICIPANTS}"
    words = f"-m zofl_mpi.fedrzo {FLAGS} {samples} --rounds {rounds} --eval-every 1000 {flags} --out {path}"
    found = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words.split()], cwd=path.parent, env=found, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout}: {done.stderr}")
    with h5py.File(path) as file:  # another checkout may have another format
        return np.asarray(file["rounds/seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--rounds", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--checkpoints", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--series", type=int, default=3)
    flags = parser.parse_args()
    checkouts = [HERE] if flags.before is None else [flags.before.resolve(), HERE]
    cases = [("a round", m, 20, WITHOUT) for m in flags.rounds]
    for m in flags.checkpoints:
        cases += [("100 rounds with checkpoints", m, 100, ""), ("100 rounds without", m, 100, WITHOUT)]
    with tempfile.TemporaryDirectory() as folder:
        for what, m, rounds, more in cases:
            least = dict.fromkeys(checkouts, np.inf)
            for _ in range(flags.series):
                for k, checkout in enumerate(checkouts):
                    found = seconds(checkout, Path(folder) / f"{k}.h5", m, rounds, more)
                    value = np.median(found[1:-1]) if what == "a round" else found.sum()
                    least[checkout] = min(least[checkout], float(value))
            shown = "".join(f"{1e3 * value:10.1f} ms" for value in least.values())
            ratio = f"{least[checkouts[0]] / least[HERE]:8.2f}" if flags.before else ""
            print(f"m = {m:<9,} {what:<32}{shown}{ratio}", flush=True)


if __name__ == "__main__":
    main()
