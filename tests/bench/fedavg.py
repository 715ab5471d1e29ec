"""A round of FedAvg on 2 client ranks against a plain torch loop: `python -m tests.bench.fedavg [--quick]`.

Softmax regression 784 x 10, 10 clients, 20 local steps of batch 32 a round, 60,000 samples; or, --problem cnn, the
small convolutional network on 28 x 28 images. The loop is what one would write without a framework: one process,
nn.Module, autograd, optim.SGD, the average of the clients' parameters. All take turns; a variant's time is the median
of its rounds, the ratio is that of the best turn of each. A bare program shows what is left to gain: the package's
compiled kernel between a Bcast and a Reduce, with no ledger, records, checks or same bits on any ranks.
"""

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from zofl_mpi.run import records

CLIENTS, STEPS, BATCH, SAMPLES, FEATURES, CLASSES = 10, 20, 32, 60_000, 784, 10


def module(problem: str) -> Any:
    """The model of both."""
    import torch

    if problem == "softmax":
        return torch.nn.Linear(FEATURES, CLASSES, bias=False)
    from zofl_mpi.problems.models import CNN

    return CNN((1, 28, 28), CLASSES)


def loop(problem: str, threads: int, rounds: int, path: Path) -> float:
    """Seconds of the plain loop's median round."""
    import torch

    torch.set_num_threads(threads)
    stored = np.load(path)
    inputs, labels = torch.from_numpy(stored["x"]).float() / 255, torch.from_numpy(stored["y"])
    shape = (-1, FEATURES) if problem == "softmax" else (-1, 1, 28, 28)
    parts = torch.randperm(SAMPLES).chunk(CLIENTS)
    model = module(problem)
    state = [p.detach().clone() for p in model.parameters()]
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        total = [torch.zeros_like(p) for p in state]
        for part in parts:
            for p, value in zip(model.parameters(), state, strict=True):
                p.data.copy_(value)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(STEPS):
                batch = part[torch.randint(len(part), (BATCH,))]
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs[batch].reshape(shape)), labels[batch])
                loss.backward()
                optimiser.step()
            for t, p in zip(total, model.parameters(), strict=True):
                t += p.data / CLIENTS
        state = total
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def ours(problem: str, ranks: int, rounds: int, path: Path, folder: Path) -> float:
    """Seconds of the median round of the package, recording and all, but for evaluations."""
    out = folder / "run.h5"
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    flags = f"--method fedavg --problem {problem} --data {path} --m {CLIENTS} --tau {STEPS} --schedule-h constant"
    flags += f" --batch {BATCH} --gamma-local 0.01 --schedule-local constant --rounds {rounds} --eval-every {rounds}"
    flags += f" --checkpoint-every 0 --test-fraction 0.001 --server-fraction 0.001 --force --quiet --out {out}"
    if problem == "softmax" and importlib.util.find_spec("numba"):
        flags += " --kernel numba"  # what auto takes in longer runs
    command = [*launcher, sys.executable, "-m", "zofl_mpi.zo_hfl", *flags.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return float(np.median(records.load(out).table()["seconds"][1:-1]))


def bare(rounds: int, path: Path) -> None:
    """Writes the seconds of a median round of the compiled kernel alone between two collectives, into bare.txt.

    Runs under mpirun, as `--bare` of this file.
    """
    from mpi4py import MPI

    from zofl_mpi.problems.kernels.softmax_numba import advance

    world, stored = MPI.COMM_WORLD, np.load(path)
    inputs, labels, generator = stored["x"].reshape(-1, FEATURES), stored["y"], np.random.default_rng(world.rank)
    mine = CLIENTS // (world.size - 1) if world.rank else 0
    parts = [generator.permutation(SAMPLES)[: SAMPLES // CLIENTS] for _ in range(mine)]
    pull, keep = np.full(STEPS, 0.01 / BATCH / 255**2, np.float32), np.ones(STEPS, np.float32)
    none, unshifted = np.empty(0, np.float32), np.empty((0, CLASSES, FEATURES), np.float32)
    x, seconds = np.zeros((1, CLASSES, FEATURES), np.float32), []
    for _ in range(rounds):
        start = time.perf_counter()
        world.Bcast(x)
        total = np.zeros_like(x)
        for part in parts:
            rows, d = part[generator.integers(len(part), size=(STEPS, BATCH))], np.zeros_like(x)
            advance(x, d, x + d, inputs, rows, none, none, labels[rows], pull, keep, 0 * keep, unshifted, np.inf)
            total += (x + d) / CLIENTS
        world.Reduce(total, x)
        seconds.append(time.perf_counter() - start)
    if world.rank == 0:
        path.with_name("bare.txt").write_text(str(statistics.median(seconds[1:])))


def alone(rounds: int, path: Path) -> float:
    """`bare` on a server and 2 client ranks."""
    command = ["mpirun", "-n", "3", sys.executable, "-m", "tests.bench.fedavg", "--bare", str(rounds), str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return float(path.with_name("bare.txt").read_text())


def made(folder: Path) -> Path:
    """Bytes like MNIST's, four fifths of them 0."""
    from tests.gpu.made import images

    data = images(SAMPLES, FEATURES)
    np.savez(folder / "bench.npz", x=data.inputs.reshape(-1, 28, 28), y=data.labels)
    return folder / "bench.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--problem", choices=["softmax", "cnn"], default="softmax")
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(int(options.bare[0]), Path(options.bare[1]))
        return
    problem = options.problem
    turns, rounds = (1 if options.quick else 5), (30 if problem == "softmax" else 3)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        path = made(Path(name))

        def run(ranks: int) -> float:
            return ours(problem, ranks, 5 * rounds, path, Path(name))

        variants: dict[str, Callable[[], float]] = {
            "torch loop, 1 thread": lambda: loop(problem, 1, rounds, path),
            "torch loop, 2 threads": lambda: loop(problem, 2, rounds, path),
            "zofl_mpi, 1 process": lambda: run(1),
            "zofl_mpi, 2 client ranks": lambda: run(3),
        }
        if problem == "softmax" and importlib.util.find_spec("numba"):
            variants["bare program, 2 client ranks"] = lambda: alone(5 * rounds, path)
        for _ in range(turns):
            for variant, seconds in variants.items():
                best[variant] = min(best.get(variant, np.inf), seconds())
    plain = min(value for variant, value in best.items() if variant.startswith("torch"))
    for variant, value in best.items():
        print(f"{variant:29s} {value * 1e3:8.2f} ms a round   {value / plain:5.3f} of the plain loop's best")


if __name__ == "__main__":
    main()
