"""How fast [B]'s network is evaluated on one core: `python -m tests.bench.relu_net [--quick]`.

784 inputs, 4 units, bytes like MNIST's in a memory map. Every variant of a comparison evaluates the same points on the
same mini-batches (checked) and runs in turn with the others; the best of several times counts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]

from tests.bench.local import CLASSES, FEATURES, SAMPLES, STREAMS, best, dataset, machine
from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.numerics import zo
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.problems.sums import TARGETS

NET = ReLUNet(FEATURES)
ETA = 1e-3
Array = NDArray[Any]
Solve = Callable[[], Array]


def client(folder: Path) -> Dataset:
    """A fifth of the samples, in no order; the inputs are mapped from a file, as `zofl_mpi.data.cache` maps them."""
    data = dataset()
    np.save(folder / "inputs.npy", data.inputs)
    mapped = np.asarray(np.load(folder / "inputs.npy", mmap_mode="r"))
    return replace(data, inputs=mapped, rows=STREAMS(Purpose.PARTITION).permutation(SAMPLES)[: SAMPLES // 5])


def draw(k: int, batch: int, count: int) -> tuple[Array, NDArray[np.int64]]:
    """x and x + eta v for k - 1 directions v, (k, n); `count` mini-batches."""
    x, generator = NET.initial(STREAMS(Purpose.START)), STREAMS(Purpose.DIRECTION)
    moved = [x + np.float32(ETA) * zo.direction(generator, NET.n, np.float32) for _ in range(k - 1)]
    return np.stack([*moved, x]), STREAMS(Purpose.BATCH).integers(0, SAMPLES // 5, (count, batch))


def together(data: Dataset, x: Array, batches: Array) -> Solve:
    """(count, k) losses, all points in one product."""
    return lambda: np.stack([NET.losses(0, x, data, batch) for batch in batches])


def one_by_one(data: Dataset, x: Array, batches: Array) -> Solve:
    """Each point in a call of its own."""
    return lambda: np.stack([np.concatenate([NET.losses(0, a[None], data, b) for a in x]) for b in batches])


def torch_forward(data: Dataset, x: Array, batches: Array) -> Solve:
    """The same network in torch without autograd, one point after the other; inputs are floats in memory already."""
    import torch

    torch.set_num_threads(1)
    inputs, labels = data.take(np.arange(len(data)), np.float32)
    everything, targets = torch.from_numpy(inputs), torch.from_numpy(TARGETS.astype(np.float32)[labels % 2])
    flat = [torch.from_numpy(a) for a in x]
    models = [(a, a[: -NET.hidden].reshape(NET.hidden, FEATURES), a[-NET.hidden :]) for a in flat]

    def solve() -> Array:
        losses = np.empty((len(batches), len(x)))
        with torch.no_grad():
            for t, batch in enumerate(torch.from_numpy(batches)):
                U, v = everything[batch], targets[batch]
                for j, (a, Z, w) in enumerate(models):
                    residual = torch.relu(torch.nn.functional.linear(U, Z)) @ w - v
                    losses[t, j] = (residual @ residual / (2 * len(v)) + NET.lam / 2 * (a @ a)).item()
        return losses

    return solve


def parts(data: Dataset, x: Array, batches: Array) -> dict[str, Solve]:
    """The three large pieces of one evaluation, each for all batches."""
    rows = [data.rows[batch] if data.rows is not None else batch for batch in batches]
    raw = np.take(data.inputs, rows[0], axis=0)
    U, Z = raw.astype(np.float32), np.ascontiguousarray(x[:, : -NET.hidden]).reshape(-1, FEATURES)
    nothing = np.zeros(1)

    def repeated(work: Callable[[Array], Any]) -> Solve:
        def solve() -> Array:
            for row in rows:
                work(row)
            return nothing

        return solve

    return {
        "  of it gathering the rows": repeated(lambda row: np.take(data.inputs, row, axis=0)),
        "  of it bytes to floats": repeated(lambda row: raw.astype(np.float32)),
        "  of it the product": repeated(lambda row: Z @ U.T),
    }


def evaluations(data: Dataset, k: int, batch: int, count: int, repeats: int) -> None:
    """k points on one mini-batch."""
    x, batches = draw(k, batch, count)
    floats = Dataset(*data.take(np.arange(len(data)), np.float32), CLASSES)
    seconds = best(
        {
            "one product": together(data, x, batches),
            "one product, floats in memory already": together(floats, x, batches),
            f"{k} evaluations": one_by_one(data, x, batches),
            "torch forward, floats in memory already": torch_forward(data, x, batches),
        },
        repeats,
    )
    seconds |= best(parts(data, x, batches), repeats)
    print(f"\n{k} points, batch {batch}")
    for name, value in seconds.items():
        print(f"  {name:42s} {value / count * 1e6:8.1f} us {value / seconds['one product']:6.2f} x one product")


def noise(data: Dataset, batch: int, count: int) -> None:
    """The error of a difference of two losses in float32, against float64 at the same points."""
    exact, generator = replace(NET, dtype=np.float64), STREAMS(Purpose.DIRECTION)
    x, batches = draw(1, batch, count)
    print(f"\nF(x + eta v) - F(x), batch {batch}, root mean squares over {count} directions")
    for eta in (0.1, 0.01, 0.001):
        both = []
        for b in batches:
            pair = np.stack([x[0] + np.float32(eta) * zo.direction(generator, NET.n, np.float32), x[0]])
            values = NET.losses(0, pair, data, b), exact.losses(0, pair.astype(np.float64), data, b)
            both.append([v[0] - v[1] for v in values])
        ours, truth = np.array(both).T
        size, error = (float(np.sqrt(np.mean(a**2))) for a in (truth, ours - truth))
        print(f"  eta {eta:5.3f}   difference {size:.1e}   error in float32 {error:.1e} = {error / size:.1e} of it")


def local_steps(data: Dataset, batch: int, steps: int, repeats: int) -> None:
    """`descend` on the smooth twin against torch's autograd."""
    import torch

    x, batches = draw(1, batch, steps)
    inputs, labels = data.take(np.arange(len(data)), np.float32)
    everything, targets = torch.from_numpy(inputs), torch.from_numpy(TARGETS.astype(np.float32)[labels % 2])
    gamma = 0.01

    def autograd() -> Array:
        a = torch.from_numpy(x[0].copy()).requires_grad_()
        for b in torch.from_numpy(batches):
            Z, w = a[: -NET.hidden].reshape(NET.hidden, FEATURES), a[-NET.hidden :]
            units = torch.nn.functional.softplus(torch.nn.functional.linear(everything[b], Z), NET.rectifier)
            loss = (units @ w - targets[b]).square().mean() / 2 + NET.lam / 2 * (a @ a)
            (g,) = torch.autograd.grad(loss, a)
            with torch.no_grad():
                a -= gamma * g
        return a.detach().numpy()

    seconds = best(
        {"descend": lambda: NET.descend(data, x[0], batches, np.full(steps, gamma)), "autograd": autograd}, repeats
    )
    print(f"\na gradient step of the smooth twin, batch {batch}")
    for name, value in seconds.items():
        print(f"  {name:42s} {value / steps * 1e6:8.1f} us {value / seconds['descend']:6.2f} x descend")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches and repeats: a few seconds")
    count, repeats = (50, 3) if parser.parse_args().quick else (300, 15)
    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        machine()
        data = client(Path(folder))
        evaluations(data, 2, 64, count, repeats)
        evaluations(data, 17, 64, count, repeats)
        evaluations(data, 2, 1, count, repeats)
        local_steps(data, 64, count, repeats)
        noise(data, 64, count)


if __name__ == "__main__":
    main()
