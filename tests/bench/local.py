"""How fast Algorithm 2 of [A] runs on one core: `python -m tests.bench.local [--quick]`.

Softmax regression 784 x 10 on bytes like MNIST's, the pair x + eta v, x - eta v on shared mini-batches. Every variant
of a comparison takes the same steps (checked) and runs in turn with the others; the best of several times counts, in
CPU seconds of the one thread. A table by batch size, for one model and for two, for inputs of 65, 784 and 3072 values,
also says what `--kernel auto` takes in a long run, by its own measurement, kept in the user's cache or made now.
"""

import argparse
import importlib.metadata
import importlib.util
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped, unused-ignore]

from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Work
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics.schedules import stepsizes
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import Terms

STREAMS = Streams(1)
SAMPLES, FEATURES, CLASSES, MU, H = 20_000, 784, 10, 1.0, 450
KERNELS = ("numpy", "numba") if importlib.util.find_spec("numba") else ("numpy",)
Array = NDArray[Any]
Solve = Callable[[], Array]


def dataset(features: int = FEATURES) -> Dataset:
    """Bytes of which four fifths are 0, as in MNIST."""
    generator = STREAMS(Purpose.SYNTHETIC)
    inputs = generator.integers(0, 256, (SAMPLES, features), dtype=np.uint8)
    inputs *= generator.random((SAMPLES, features)) < 0.2
    return Dataset(inputs, generator.integers(0, CLASSES, SAMPLES), CLASSES, scale=1 / 255)


def draw(
    batch: int, steps: int, models: int = 2, features: int = FEATURES
) -> tuple[Array, NDArray[np.int64], NDArray[np.float64]]:
    """The points (models, n), the mini-batches, the step sizes."""
    x = 0.01 * STREAMS(Purpose.START).standard_normal((models, features * CLASSES))
    batches = STREAMS(Purpose.BATCH).integers(0, SAMPLES, (steps, batch))
    return x.astype(np.float32), batches, stepsizes("harmonic", 0.1, steps)


def ours(kernel: str, data: Dataset, batch: int, steps: int, models: int = 2) -> Solve:
    """All models in one call of our kernel."""
    x, batches, sizes = draw(batch, steps, models, data.features)
    problem = Softmax(data.features, CLASSES, kernel, weights=np.ones(1), terms=Terms(mu=(MU,)))
    return lambda: problem.lower(0, data, x, x, batches, sizes)


def fastest(data: Dataset, batch: int, models: int = 2) -> str:
    """The kernel that `--kernel auto` takes in a long run."""
    problem = Softmax(data.features, CLASSES, weights=np.ones(1), terms=Terms(mu=(MU,)))
    times = problem.step_times(Work(batch, models, 0), data)
    return min(times, key=lambda name: times[name])


def autograd(data: Dataset, batch: int, steps: int, proximal: str) -> Solve:
    """nn.Linear, autograd and optim.SGD, one model after the other; the inputs are floats in memory already.

    Args:
        proximal: whether mu/2 |y - x|^2 stands in the "loss", or mu (y - x) is added to the "gradient" by hand.
    """
    import torch

    torch.set_num_threads(1)
    x, batches, sizes = draw(batch, steps)
    everything, labels = (torch.from_numpy(a) for a in data.take(np.arange(len(data)), np.float32))

    def solve(start: Array) -> Array:
        centre = torch.from_numpy(start.reshape(CLASSES, FEATURES))
        model = torch.nn.Linear(FEATURES, CLASSES, bias=False)
        model.weight.data.copy_(centre)
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
        for positions, size in zip(torch.from_numpy(batches), sizes.tolist(), strict=True):
            optimiser.param_groups[0]["lr"] = size
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(everything[positions]), labels[positions])
            if proximal == "loss":
                loss = loss + MU / 2 * (model.weight - centre).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            if proximal == "gradient":
                assert model.weight.grad is not None
                model.weight.grad.add_(model.weight.data - centre, alpha=MU)
            optimiser.step()
        return model.weight.detach().numpy().ravel()

    return lambda: np.stack([solve(start) for start in x])


def best(variants: Mapping[str, Solve], repeats: int) -> dict[str, float]:
    """Seconds of each variant, the best of `repeats`, after a run in which all results are compared."""
    results = {name: solve() for name, solve in variants.items()}
    for name, y in results.items():
        np.testing.assert_allclose(y, next(iter(results.values())), atol=1e-4, err_msg=name)
    seconds = dict.fromkeys(variants, np.inf)
    for _ in range(repeats):
        for name, solve in variants.items():
            start = time.thread_time()
            solve()
            seconds[name] = min(seconds[name], time.thread_time() - start)
    return seconds


def compare(data: Dataset, batch: int, steps: int, repeats: int) -> None:
    """Our kernels against autograd, as ratios within one run."""
    variants: dict[str, Solve] = {name: ours(name, data, batch, steps) for name in KERNELS}
    variants["autograd, proximal term in the loss"] = autograd(data, batch, steps, "loss")
    variants["autograd, proximal term by hand"] = autograd(data, batch, steps, "gradient")
    seconds = best(variants, repeats)
    auto = fastest(data, batch)
    print(f"\nthe pair, {steps} steps, batch {batch} (auto takes {auto})")
    for name, value in seconds.items():
        each = value / steps / 2 * 1e6
        print(f"  {name:36s} {value * 1e3:8.1f} ms {each:7.1f} us per model-step {value / seconds[auto]:6.1f} x {auto}")


def table(data: Dataset, models: int, repeats: int) -> None:
    """Microseconds per step by batch size, what auto takes in a long run, and its time by that of the best."""
    n = data.features * CLASSES
    print(f"\nus per step of {models} model(s), n = {n}")
    print("  batch" + "".join(f"{name:>12s}" for name in KERNELS) + "  auto")
    for batch in (1, 8, 16, 32, 64, 96, 128, 192, 256, 512):
        count = max(4, min(200, 1_000_000 // batch // data.features))
        seconds = best({name: ours(name, data, batch, count, models) for name in KERNELS}, repeats)
        row = "".join(f"{value / count * 1e6:12.1f}" for value in seconds.values())
        auto = fastest(data, batch, models)
        print(f"  {batch:5d}{row}  {auto:6s}{seconds[auto] / min(seconds.values()):5.2f}")


def machine() -> None:
    """The processor and the versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "torch", *KERNELS[1:2])]
    blas = {f"{info['internal_api']} {info['version']} {info.get('architecture', '')}" for info in threadpool_info()}
    print(f"{(names or [platform.processor()])[0]}; Python {platform.python_version()}; {'; '.join(packages)}")
    print(f"{'; '.join(sorted(blas))}; one thread")
    if any(line.startswith("flags") and " avx512f " in line for line in lines) and "Haswell" in str(blas):
        print("AVX2 kernels on a processor with AVX-512: OPENBLAS_CORETYPE is set, or this OpenBLAS is too old for it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats: a few seconds")
    steps, repeats = (60, 3) if parser.parse_args().quick else (H, 9)
    data = dataset()
    with threadpool_limits(1):
        machine()
        for batch in (1, 32, 64):
            compare(data, batch, steps, repeats)
        for features in (65, FEATURES, 3072):
            for models in (1, 2):
                table(dataset(features), models, 3 * repeats)


if __name__ == "__main__":
    main()
