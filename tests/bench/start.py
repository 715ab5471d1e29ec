"""What the start of a run costs beside the bare imports: `python -m tests.bench.start [--ranks 11] [--turns 5]`.

The README's first command with one round, once with each kernel, against the same number of ranks that import numpy,
h5py and MPI and end. All take turns; what counts is the CPU time of all ranks and of the launcher, the least of the
turns, which other work on the machine disturbs least. The wall time is shown beside it.
"""

import argparse
import resource
import sys
import tempfile
import time

from tests.conftest import start

BARE = ("-c", "import numpy, h5py\nfrom mpi4py import MPI")


def cpu() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(ranks: int, words: tuple[str, ...]) -> tuple[float, float]:
    """CPU and wall seconds of a start."""
    before, since = cpu(), time.perf_counter()
    done = start(ranks, *words, timeout=300.0)
    if done.returncode:
        sys.exit(done.stderr)
    return cpu() - before, time.perf_counter() - since


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=11)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = (
            "-m",
            "zofl_mpi.zo_hfl",
            "--quiet",
            "--force",
            "--out",
            f"{folder}/run.h5",
            "--rounds",
            str(flags.rounds),
        )
        variants = {"bare imports": BARE} | {k: (*run, "--kernel", k) for k in ("auto", "numpy", "numba")}
        for words in variants.values():  # the caches of data, byte code and kernels
            measured(flags.ranks, words)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for _ in range(flags.turns):
            for name, words in variants.items():
                found[name].append(measured(flags.ranks, words))
    least = {name: min(cpu for cpu, _ in turns) for name, turns in found.items()}
    print(f"{flags.ranks} ranks, {flags.rounds} round(s), least of {flags.turns} turns")
    for name, turns in found.items():
        wall = min(wall for _, wall in turns)
        print(f"  {name:14s} {least[name]:7.2f} CPU-s {wall:7.2f} s {least[name] / least['bare imports']:6.2f} x bare")


if __name__ == "__main__":
    main()
