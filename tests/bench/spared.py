"""Work that a round, an evaluation or a listing does not need, in this checkout and, in turn, in another one:

    python -m tests.bench.spared [--before FOLDER] [--series 3] [--only WORD]

    listing     whether a run of a grid is finished: FedAvg, 1,000 rounds, 1,000 clients
    shares      weights of 10 participants among 10^6 clients
    fleet       virtual seconds of 10 participants among the devices of 10^6 clients
    schedule    a round of FedRZO_bl, whose lower level's schedule follows from x; no evaluation
    evaluation  of ZO-HFL with softmax: 20 personal models on test and validation samples

Milliseconds, of CPU time but for schedule and evaluation; each number is the least of the series, --before's is divided
by ours. Each measurement has a process of its own, whose package is that of the checkout.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
M = 10**6
GRID = """module = "zofl_mpi.fedrzo"
folder = "results"
name = "run-{seed}"
axes.seed = [1]
[fixed]
method = "fedavg"
data = "synthetic"
synthetic-features = 4
synthetic-samples = 4000
min-samples = 1
tau = 1
batch = 4
m = 1000
beta = 0.01
rounds = 1000
eval-every = 100
"""


def least(work: Callable[[], Any], repeats: int = 20) -> float:
    """CPU milliseconds."""
    found = []
    for _ in range(repeats):
        since = time.process_time()
        work()
        found.append(time.process_time() - since)
    return 1e3 * min(found)


def run(words: str) -> Path:
    """The result of a command, in this folder."""
    command = [sys.executable, "-m", *words.split(), "--quiet", "--force", "--out", "a.h5"]
    subprocess.run(command, check=True, capture_output=True)
    return Path("a.h5")


def rounds(words: str, every: int = 0) -> Any:
    """(R,) seconds of the rounds; (R,) whether they have an evaluation."""
    import h5py
    import numpy as np

    with h5py.File(run(f"{words} --checkpoint-every 0")) as file:
        seconds = np.asarray(file["rounds/seconds"])
    r = np.arange(1, len(seconds) + 1)
    return seconds[1:-1], (r % every == 0)[1:-1] if every else np.zeros(len(r) - 2, bool)


# --- cases


def listing() -> float:
    from zofl_mpi.run.grid import file, state

    Path("g.toml").write_text(GRID)
    subprocess.run([sys.executable, "-m", "zofl_mpi.run.grid", "g.toml", "--run"], check=True, capture_output=True)
    grid = file.read(Path("g.toml"))
    assert state.judged(grid, grid.runs[0])[0] == "finished"
    return least(lambda: state.judged(grid, grid.runs[0]))


def shares() -> float:
    from zofl_mpi.engine.setting import Setting
    from zofl_mpi.engine.streams import Streams
    from zofl_mpi.rounds import base

    setting: Any = Setting(None, Streams(1), ("abc",) * M)
    made = getattr(base, "ClientWeights", None) or base.shares  # type: ignore[attr-defined]

    def weights() -> list[float]:
        found = made(setting, "size")
        return [found[i] for i in range(0, M, M // 10)]

    return least(weights, 5)


def fleet() -> float:
    import numpy as np

    from zofl_mpi.engine.fleet import DeviceClass, Fleet, RoundWork
    from zofl_mpi.engine.streams import Streams

    devices = Fleet([DeviceClass("phone", 1e9, down=1e7, up=1e6)], np.zeros(M, np.int64), Streams(1))
    each = np.ones(10)
    return least(lambda: devices.seconds(RoundWork(list(range(10)), each, each, each, each)))


def schedule() -> float:
    import numpy as np

    words = "--method fedrzo_bl --data digits --m 5 --gamma 1e-5 --eta 0.005 --T-lower auto"
    seconds, _ = rounds(f"zofl_mpi.fedrzo {words} --rounds 3 --eval-every 1000")
    return 1e3 * float(np.median(seconds))


def evaluation() -> float:
    import numpy as np

    data = "--data synthetic --synthetic-samples 10000 --synthetic-features 200 --validation 0.4"
    words = f"--method zo_hfl --problem softmax {data} --m 20 --beta 0.05 --tau 1 --rounds 40"
    seconds, evaluated = rounds(f"zofl_mpi.zo_hfl {words} --eval-every 2", every=2)
    return 1e3 * float(np.median(seconds[evaluated]) - np.median(seconds[~evaluated]))


def stored() -> float:
    import h5py

    with h5py.File(
        run("zofl_mpi.heron_sfl --method decomfl --problem split_resnet --width 8 --m 3 --rounds 1")
    ) as file:
        return sum(value.nbytes for value in file["final"].values()) / 1e3


CASES = {case.__name__: case for case in (listing, shares, fleet, schedule, evaluation, stored)}


def measured(checkout: Path, case: str) -> float:
    """What a case gives in a checkout; NaN if it does not run there."""
    found = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", case]
        done = subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True)
    if done.returncode:
        print(f"{case} in {checkout}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return float("nan")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--series", type=int, default=3)
    parser.add_argument("--only", default="", help="the cases with this word in their name")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(CASES[flags.one]())
        return
    checkouts = [HERE] if flags.before is None else [flags.before.resolve(), HERE]
    for case in (name for name in CASES if flags.only in name):
        series = [[measured(checkout, case) for checkout in checkouts] for _ in range(flags.series)]
        best = [min(each) for each in zip(*series, strict=True)]
        ratio = f"{best[0] / best[-1]:10.2f}" if flags.before else ""
        print(f"{case:12}{''.join(f'{value:14.3f}' for value in best)}{ratio}", flush=True)


if __name__ == "__main__":
    main()
