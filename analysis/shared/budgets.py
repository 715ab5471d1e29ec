"""What a group has used up after each round: rounds and bytes; and the units they are told in."""

import numpy as np

from shared.groups import Array, Group

UNITS = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))


def sent(group: Group) -> Array:
    """(R,) bytes to and from all clients in the rounds so far, mean over seeds."""
    totals = [run.clients["bytes_down"].sum((1, 2)) + run.clients["bytes_up"].sum((1, 2)) for run in group.runs]
    return np.asarray(np.cumsum(totals, axis=1).mean(axis=0))


def unit_of(largest: float) -> tuple[float, str]:
    """The largest unit that makes it at least 1, and its name."""
    name, scale = next(((n, s) for n, s in reversed(UNITS) if largest >= s), UNITS[0])
    return float(scale), name
