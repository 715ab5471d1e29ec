"""The work that all programs of `tests.bench.peers` do, read from a file, and the file that each writes."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """Numbers of the work: each round every client takes `steps` SGD steps of `step`, on `batch` samples each."""

    problem: str
    rounds: int
    steps: int
    batch: int
    step: float
    seed: int = 1


@dataclass(frozen=True)
class Work:
    """A plan, the first parameters, and the data.

    Attributes:
        x0: (n,) parameters in the order of torch's `parameters()`.
        x, y: inputs (N, 784) float32 in [0, 1] and labels (N,); client i's are those from ends[i - 1] to ends[i].
        ends: (m,).
    """

    plan: Plan
    x0: Array
    x: Array
    y: Array
    ends: Array
    test_x: Array
    test_y: Array

    def save(self, path: Path) -> None:
        arrays = {name: value for name, value in vars(self).items() if name != "plan"}
        np.savez(path, plan=json.dumps(asdict(self.plan)), **arrays)

    @property
    def clients(self) -> list[tuple[Array, Array]]:
        """Inputs, as images for a CNN, and labels of each client."""
        return list(zip(np.split(self.shaped(self.x), self.ends[:-1]), np.split(self.y, self.ends[:-1]), strict=True))

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    def shaped(self, inputs: Array) -> Array:
        """(B, 784), or (B, 1, 28, 28) for a CNN."""
        return inputs.reshape(-1, 1, 28, 28) if self.plan.problem == "cnn" else inputs


def load() -> Work:
    """The work in the file that the command line names first."""
    stored = dict(np.load(sys.argv[1]))
    return Work(Plan(**json.loads(str(stored.pop("plan")))), **stored)


def finish(seconds: list[float], accuracy: float) -> None:
    """Writes the seconds of each round and the test accuracy into the file that the command line names second."""
    Path(sys.argv[2]).write_text(json.dumps({"seconds": seconds, "accuracy": accuracy}))
