"""Comparison of the bits of two results, clocks aside."""

from __future__ import annotations

import os

import numpy as np

from zofl_mpi.run.records import load

CLOCKS = {"seconds"}
"""Columns of /rounds that tell the time."""


def differences(one: str | os.PathLike[str], other: str | os.PathLike[str], *, bytes_too: bool = True) -> list[str]:
    """The names of what differs between two results: steps, /final/*, /rounds/* without clocks, /clients/*.

    Args:
        bytes_too: compare the bytes and messages of the clients as well.

    Raises:
        UserError: a file is no result, or cannot be read.
    """
    a, b = load(one), load(other)
    pairs = [("final", a.final, b.final), ("rounds", a.rounds, b.rounds)]
    if bytes_too:
        pairs.append(("clients", a.clients, b.clients))
    found = [] if a.steps == b.steps else [f"steps: {a.steps} and {b.steps}"]
    for group, left, right in pairs:
        for name in sorted(left.keys() | right.keys()):
            if name in CLOCKS:
                continue
            if name not in left or name not in right or bits(left[name]) != bits(right[name]):
                found.append(f"{group}/{name}")
    return found


def bits(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of a value: equal for equal bits only; two NaNs of one payload are equal."""
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()
