"""Times what a continuation reads before its data: a result of many rounds, and a checkpoint of a large model.

    python -m tests.bench.again
    PYTHONPATH=../before python tests/bench/again.py        another revision's package

Prints the seconds of the configuration (`stored.config_of`, rank 0 before the run is built) and of the result's own
attributes (`result.attributes_of`), the least of five.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from zofl_mpi.run import records
from zofl_mpi.run.command import stored
from zofl_mpi.run.command.result import attributes_of


def made(path: Path, rounds: int, m: int, payload: int) -> None:
    """A result of `rounds` rows of m clients, with a checkpoint of `payload` bytes."""
    config = {"method": "fedavg", "problem": "softmax", "rounds": rounds}
    attrs: dict[str, Any] = {"config": config, "kernel": "numpy", "run": "a"}
    recorder = records.Recorder.create(path, attrs=attrs, m=m, ranks=1, rounds=rounds)
    table = np.ones((2, m))
    for k in range(rounds):
        recorder.append({"round": k, "seconds": 0.1, "test_accuracy": 0.5}, steps=("train", "measure"), bytes_up=table)
    recorder.close("interrupted")
    state = {"state": np.zeros(payload, np.uint8)}
    records.save_checkpoint(records.checkpoint_path(path), state, {**attrs, "round": rounds})


def main() -> None:
    """Prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--payload", type=int, default=1 << 28)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        made(path, flags.rounds, flags.clients, flags.payload)
        checkpoint = records.Checkpoint({}, {})
        calls = {
            "configuration": lambda: stored.config_of(str(path)),
            "result": lambda: attributes_of(path, checkpoint),
        }
        for name, call in calls.items():
            seconds = []
            for _ in range(5):
                since = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - since)
            print(f"{name:14} {min(seconds):.4f} s", flush=True)


if __name__ == "__main__":
    main()
