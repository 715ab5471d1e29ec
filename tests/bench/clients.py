"""What many clients cost: `python -m tests.bench.clients [--clients 10 1000 10000] [--rounds 15] [--beta 0.01 1]`.

ZO-HFL on synthetic samples (tau 2), two client ranks and the server, for each number of clients and each participating
share beta. It prints

- the start: seconds from the process's beginning to the first round;
- a round: milliseconds, and microseconds a participant, of the median round without evaluation or checkpoint;
- an evaluation and a checkpoint: what they add to their rounds, in milliseconds;
- memory: the largest resident size of a client rank and of the server, in MiB, and how much of it came after a third of
  the rounds: nothing where memory is flat;
- the file: bytes of the result, and what a round adds to its tables by client and by rank.

Other work on the machine shows in every time.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.conftest import start
from zofl_mpi.run import records

RANKS, EVALUATE, SAVE = 3, 4, 6
FLAGS = "--data synthetic --synthetic-samples 400000 --synthetic-features 32 --tau 2 --schedule-h constant --quiet"


class Measured(NamedTuple):
    """One run."""

    start: float
    plain: float
    evaluation: float
    checkpoint: float
    memory: tuple[float, float]
    growth: tuple[float, float]
    file: int


def measured(path: Path, m: int, beta: float, rounds: int) -> Measured:
    """A run of m clients, a share beta of which takes part."""
    every = f"--eval-every {EVALUATE} --checkpoint-every {SAVE} --force --out {path}"
    words = f"-m zofl_mpi.zo_hfl {FLAGS} {every} --m {m} --beta {beta} --rounds {rounds}".split()
    done = start(RANKS, *words, timeout=1800.0)
    if done.returncode:
        sys.exit(done.stderr)
    run = records.load(path)
    seconds, r = run.rounds["seconds"], np.arange(1, rounds + 1)
    evaluated, after = (r % EVALUATE == 0) | (r == 1) | (r == rounds), r % SAVE == 1  # a save counts for the next round
    plain = float(np.median(seconds[~evaluated & ~after]))
    peak = run.ranks["peak_bytes"].max(axis=1) / 2**20
    both = np.stack([peak[:, 1:].max(axis=1), peak[:, 0]])
    growth = both[:, -1] - both[:, rounds // 3]
    return Measured(
        start=float(run.attrs["seconds_start"]),
        plain=plain,
        evaluation=float(np.median(seconds[evaluated & ~after & (r > 1)])) - plain,
        checkpoint=float(np.median(seconds[after & ~evaluated & (r > 1)])) - plain,
        memory=(float(both[0, -1]), float(both[1, -1])),
        growth=(float(growth[0]), float(growth[1])),
        file=path.stat().st_size,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 1000, 10000])
    parser.add_argument("--beta", type=float, nargs="+", default=[0.01, 1.0])
    parser.add_argument("--rounds", type=int, default=15, help="a multiple of 3, at least 9")
    flags = parser.parse_args()
    head = f"{'clients':>8} {'beta':>5} {'start':>7} {'round':>10} {'each':>8} {'evaluation':>11} {'checkpoint':>11}"
    print(f"{head}   memory of a client rank, of the server (grown)   file, per round")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        for m in flags.clients:
            for beta in flags.beta:
                found = measured(path, m, beta, flags.rounds)
                each = found.plain / max(1, round(beta * m))
                run = records.load(path)
                row = sum(values[0].nbytes for group in (run.clients, run.ranks) for values in group.values())
                (own, server), (more, most) = found.memory, found.growth
                print(
                    f"{m:8d} {beta:5g} {found.start:5.1f} s {found.plain * 1e3:7.1f} ms {each * 1e6:5.0f} us "
                    f"{found.evaluation * 1e3:8.0f} ms {found.checkpoint * 1e3:8.0f} ms   "
                    f"{own:5.0f} MiB (+{more:.1f}), {server:5.0f} MiB (+{most:.1f})   "
                    f"{found.file / 2**10:6.0f} KiB, {row / 2**10:.1f} KiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
