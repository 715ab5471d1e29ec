"""Local steps of a torch module against a plain torch loop: `python -m tests.bench.network [--quick]`.

An MLP (one hidden layer of 200) and a CNN on bytes, batch 32, one FedAvg client's steps. The plain loop is what one
would write: nn.Module, autograd, optim.SGD, minibatches indexed from floats in memory, with one thread and with all.
It runs the same module, and once the CNN as usually written, the ReLU before the pooling. Every variant of a comparison
takes the same steps (the first is checked) and runs in turn with the others; the best of several times counts. On a
busy machine look at the CPU time, for one thread.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]
from torch import nn

from tests.bench.local import STREAMS, Array, Solve, machine
from zofl_mpi.data import Dataset
from zofl_mpi.engine.device import cores
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.problems.models import CNN, MLP
from zofl_mpi.problems.network import Network, seeded

SAMPLES, BATCH, GAMMA = 5000, 32, 0.01


def dataset(shape: tuple[int, int, int]) -> Dataset:
    generator = STREAMS(Purpose.SYNTHETIC)
    inputs = generator.integers(0, 256, (SAMPLES, int(np.prod(shape))), dtype=np.uint8)
    return Dataset(inputs, generator.integers(0, 10, SAMPLES), 10, scale=1 / 255)


def ours(problem: Network, x: Array, data: Dataset, batches: NDArray[np.int64], **terms: float) -> Solve:
    """One call of `descend`, on one thread."""

    def solve() -> Array:
        torch.set_num_threads(1)
        return problem.descend(data, x, batches, np.full(len(batches), GAMMA), **terms)

    return solve


def plain(
    module: nn.Module, x: Array, data: Dataset, batches: NDArray[np.int64], shape: tuple[int, ...], threads: int
) -> Solve:
    """nn.Module, autograd and optim.SGD."""
    inputs, labels = (torch.from_numpy(a) for a in data.take(np.arange(len(data)), np.float32))
    images = inputs.view(-1, *shape)
    model = copy.deepcopy(module)

    def solve() -> Array:
        torch.set_num_threads(threads)
        nn.utils.vector_to_parameters(torch.tensor(x), model.parameters())
        optimiser = torch.optim.SGD(model.parameters(), lr=GAMMA)
        for positions in torch.from_numpy(batches):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[positions]), labels[positions])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()

    return solve


def usual(module: nn.Module) -> nn.Module:
    """The CNN with each ReLU before the pooling."""
    layers = list(copy.deepcopy(module).layers)  # type: ignore[arg-type]
    for k in (1, 4):
        layers[k], layers[k + 1] = layers[k + 1], layers[k]
    return nn.Sequential(*layers)


def check(first: Mapping[str, Solve]) -> None:
    """All variants make the same first step.

    Later ones may differ: rounding soon switches a ReLU or a maximum, after 20 steps by 3e-4 on some processors.
    """
    results = {name: solve() for name, solve in first.items()}
    for name, y in results.items():
        np.testing.assert_allclose(y, next(iter(results.values())), atol=1e-6, err_msg=name)


def best(variants: Mapping[str, Solve], repeats: int) -> dict[str, NDArray[np.float64]]:
    """Seconds on the clock and of the CPU, the best of `repeats`, after a run that warms up."""
    for solve in variants.values():
        solve()
    seconds = {name: np.full(2, np.inf) for name in variants}
    for _ in range(repeats):
        for name, solve in variants.items():
            start = np.array([time.perf_counter(), time.process_time()])
            solve()
            seconds[name] = np.minimum(seconds[name], [time.perf_counter(), time.process_time()] - start)
    return seconds


def compare(name: str, shape: tuple[int, int, int], make: Callable[[], nn.Module], steps: int, repeats: int) -> None:
    """Ours against the plain loops, as ratios within one run."""
    data = dataset(shape)
    module = seeded(make, STREAMS(Purpose.START))
    problem = Network(module, shape, 10, np.ones(1))
    x = problem.initial(STREAMS(Purpose.START))
    batches = STREAMS(Purpose.BATCH).integers(0, SAMPLES, (steps, BATCH))
    loops = {"plain loop": module} | ({"plain loop, ReLU first": usual(module)} if name == "CNN" else {})

    def variants_of(batches: NDArray[np.int64]) -> dict[str, Solve]:
        variants: dict[str, Solve] = {"ours, 1 thread": ours(problem, x, data, batches)}
        for threads in sorted({1, len(cores())}):
            for title, model in loops.items():
                title = f"{title}, {threads} thread{'s'[: threads - 1]}"
                variants[title] = plain(model, x, data, batches, shape, threads)
        return variants

    check(variants_of(batches[:1]))
    variants = variants_of(batches)
    seconds = best(variants, repeats)
    mine = seconds["ours, 1 thread"]
    gigaflops = problem.flops(BATCH) * steps / mine[1] / 1e9
    print(f"\n{name} on {shape}, n = {problem.n}, batch {BATCH}: ours {gigaflops:.0f} GFLOP/s")
    print(f"  {'us per step':34s} {'clock':>8s} {'CPU':>8s}    ours / it: clock, CPU")
    for title, value in seconds.items():
        clock, cpu = value / steps * 1e6
        print(f"  {title:34s} {clock:8.0f} {cpu:8.0f}    {mine[0] / value[0]:.2f}, {mine[1] / value[1]:.2f}")
    terms = best({"none": variants["ours, 1 thread"], "mu": ours(problem, x, data, batches, mu=1e-9)}, repeats)
    print(f"  a proximal term costs {(terms['mu'][1] / terms['none'][1] - 1) * 100:.0f} % more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats: about half a minute")
    steps, repeats = (30, 3) if parser.parse_args().quick else (150, 7)
    with threadpool_limits(1):
        machine()
    for shape in ((1, 28, 28), (3, 32, 32)):
        compare("MLP", shape, lambda s=shape: MLP(int(np.prod(s)), 10), 3 * steps, repeats)
        compare("CNN", shape, lambda s=shape: CNN(s, 10), steps, repeats)


if __name__ == "__main__":
    main()
