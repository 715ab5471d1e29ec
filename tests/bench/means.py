"""What the exact mean of many replies costs, in this checkout and, in turn, in another one:

    python -m tests.bench.means [--before FOLDER] [--series 3] [--ranks 1 11]

Clients reply with n float32 numbers of their own at once. For each number of ranks and each case it prints the least
milliseconds of a mean; the CPU milliseconds of all ranks, which say more where ranks share cores, since a rank whose
time slice ends waits for all others; and by how much the means raise a process at most, in MB: of the client ranks, and
of the server (with one rank they are one process). --before's times are divided by ours.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[2]
CASES = [(100, 2**18), (1000, 7840), (10, 2**18), (10, 7840)]  # m, n


@dataclass(frozen=True)
class Model:
    x: Any


class Steps:
    """A method whose clients have nothing to compute."""

    def __init__(self, n: int) -> None:
        self.x = np.random.default_rng(0).standard_normal(n, np.float32)

    def move(self, client: Any, message: Model) -> Model:
        return Model(message.x * np.float32(1 + client.i / 1000))


def status(name: str) -> int:
    """Bytes that Linux tells of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def one(m: int, n: int) -> None:
    """Measures, in the ranks that are there; rank 0 prints."""
    from tests.threads import serve_or_ask
    from zofl_mpi.run.loop.local import LocalClients
    from zofl_mpi.run.mpi.world import MPIWorld

    world, steps, repeats, seconds = MPIWorld.connect(), Steps(n), max(10, 10**8 // (m * n)), list[float]()
    before, cpu = status("VmRSS"), time.process_time()

    def program(clients: Any) -> None:
        for _ in range(repeats):
            since = time.perf_counter()
            clients.mean(steps.move, Model(steps.x))
            seconds.append(time.perf_counter() - since)
            clients.account()

    if world.size == 1:
        program(LocalClients([None] * m, steps))
    else:
        serve_or_ask(world, steps, [None] * m, program)
    told = world.comm.gather((status("VmHWM") - before, time.process_time() - cpu))
    if told is not None:  # at rank 0
        raised, work = zip(*told, strict=True)
        found = {"ms": min(seconds), "cpu": sum(work) / repeats, "server": raised[0], "clients": max(raised)}
        print(json.dumps({key: value * (1e3 if key in ("ms", "cpu") else 1e-6) for key, value in found.items()}))


def measured(checkout: Path, ranks: int, m: int, n: int) -> dict[str, float]:
    """What a run of a checkout prints."""
    words = [sys.executable, __file__, "--one", str(m), str(n)]
    if ranks > 1:
        words = ["mpirun", "-n", str(ranks), *words]
    found = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=checkout, env=found, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--series", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 11])
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        one(*flags.one)
        return
    checkouts = [HERE] if flags.before is None else [flags.before.resolve(), HERE]
    for ranks in flags.ranks:
        for m, n in CASES:
            rows = {checkout: list[dict[str, float]]() for checkout in checkouts}
            for _ in range(flags.series):
                for checkout in checkouts:
                    rows[checkout].append(measured(checkout, ranks, m, n))
            best = [{key: min(row[key] for row in each) for key in each[0]} for each in rows.values()]
            told = "".join(
                f"{b['ms']:9.2f} ms {b['cpu']:8.2f} CPU ms {b['clients']:6.1f} {b['server']:6.1f} MB" for b in best
            )
            ratios = "".join(f"{best[0][key] / best[-1][key]:7.2f}" for key in ("ms", "cpu")) if flags.before else ""
            print(f"{ranks:2} ranks, m = {m:<5} n = {n:<8}{told}{ratios}", flush=True)


if __name__ == "__main__":
    main()
