"""Comparison of the bits of results, clocks aside.

    zofl-same RESULT.h5 OTHER.h5 [MORE.h5 ...]       # what differs from the first; exit status 1 if anything does

python -m zofl_mpi.report.same is the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np

from zofl_mpi.errors import UserError
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


def main(words: Sequence[str] | None = None) -> None:
    """Prints a line for each result beside the first; exit status 1 where bits differ, 2 where one cannot be read."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="zofl-same", description=__doc__, formatter_class=form)
    parser.add_argument("result", help="an HDF5 result")
    parser.add_argument("others", nargs="+", metavar="other", help="results to compare with it")
    flags = parser.parse_args(words)
    try:
        found = {other: differences(flags.result, other) for other in flags.others}
    except UserError as error:
        print(f"zofl-same: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    for other, names in found.items():
        print(f"{other}: {'differs in ' + ', '.join(names) if names else 'the same bits'}")
    raise SystemExit(int(any(found.values())))


if __name__ == "__main__":
    main()
