"""When two results are the same run: bit for bit, clocks aside."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from zofl_mpi.run import records

CLOCKS = {"seconds"}


def differences(a: str | Path, b: str | Path, bytes_too: bool = True) -> list[str]:
    """The names of what differs between two results: /final/*, /rounds/* without clock columns, /clients/*."""
    one, two = records.load(a), records.load(b)
    pairs = [("final", one.final, two.final), ("rounds", one.rounds, two.rounds)]
    if bytes_too:
        pairs.append(("clients", one.clients, two.clients))
    found = [] if one.steps == two.steps else [f"steps: {one.steps} and {two.steps}"]
    for group, left, right in pairs:
        for name in sorted(left.keys() | right.keys()):
            if name in CLOCKS:
                continue
            if name not in left or name not in right or bits(left[name]) != bits(right[name]):
                found.append(f"{group}/{name}")
    return found


def bits(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Equal for equal bits only; two NaNs of one payload are equal."""
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


if __name__ == "__main__":
    for other in sys.argv[2:]:
        print(other, differences(sys.argv[1], other) or "identical")
