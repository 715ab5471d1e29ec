"""What it costs to find that a step changed a message which several clients read, beside a copy for each of them.

    python -m tests.bench.ownership

Seconds for 7,840 float32 numbers (a softmax of MNIST) and for 124 million (GPT-2 small), as an array and as a tensor:
one copy, the two sums of a question, and whether all numbers are finite (at evaluations).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from zofl_mpi.engine import messages
from zofl_mpi.engine.fields import is_finite
from zofl_mpi.engine.ownership import Shared

SIZES = {7_840: 2000, 124_000_000: 2}  # {numbers: repetitions}


@dataclass(frozen=True)
class Model:
    x: Any


def best(work: Callable[[], object], times: int) -> float:
    """Seconds of one call, the best of five series."""
    found = []
    for _ in range(5):
        since = time.perf_counter()
        for _ in range(times):
            work()
        found.append((time.perf_counter() - since) / times)
    return min(found)


def main() -> None:
    print(f"{'numbers':>12} {'kind':>7} {'copy':>10} {'checked':>10} {'finite':>10}   checked/copy")
    for n, times in SIZES.items():
        for kind, x in (("array", np.ones(n, np.float32)), ("tensor", torch.ones(n))):
            model = Model(x)
            copied = best(lambda model=model: messages.copy(model), times)  # type: ignore[misc]
            checked = best(lambda model=model: Shared([model, model], "nobody").check(), times)  # type: ignore[misc]
            finite = best(lambda x=x: is_finite(x), times)  # type: ignore[misc]
            print(f"{n:12,} {kind:>7} {copied:10.3g} {checked:10.3g} {finite:10.3g}   {checked / copied:.2f}")


if __name__ == "__main__":
    main()
