"""Comparison of the bits of results, clocks aside.

    zofl-same RESULT.h5 OTHER.h5 [MORE.h5 ...]       # what differs from the first; exit status 1 if anything does

python -m zofl_mpi.report.same is the same.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, plain, printing, refused
from zofl_mpi.run.records import load

CLOCKS = {"seconds"}
"""Columns of /rounds that tell the time."""
ELSEWHERE = " (in other rounds)"
"""Ends the name of a column that is equal where both have values: a run is evaluated where it stopped, too."""


def differences(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> list[str]:
    """The names of what differs between two results: steps, /final/*, /rounds/* without clocks, /clients/*.

    UserError: a file is no result, or cannot be read.
    """
    a, b = load(one), load(other)
    pairs = [("final", a.final, b.final), ("rounds", a.rounds, b.rounds), ("clients", a.clients, b.clients)]
    found = [] if a.steps == b.steps else [f"steps: {a.steps} and {b.steps}"]
    for group, left, right in pairs:
        for name in sorted(left.keys() | right.keys()):
            if name in CLOCKS:
                continue
            if name not in left or name not in right or bits(left[name]) != bits(right[name]):
                elsewhere = group == "rounds" and name in left and name in right and agree(left[name], right[name])
                found.append(f"{group}/{name}{ELSEWHERE if elsewhere else ''}")
    return found


def agree(left: NDArray[np.float64], right: NDArray[np.float64]) -> bool:
    """Whether two columns have the same bits wherever both have a value."""
    if left.shape != right.shape:
        return False
    both = ~(np.isnan(left) | np.isnan(right))
    return bits(left[both]) == bits(right[both])


def bits(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of a value: equal for equal bits only; two NaNs of one payload are equal."""
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


@printing
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
        raise SystemExit(refused(error)) from error
    for other, names in found.items():
        rest = [name for name in names if not name.endswith(ELSEWHERE)]
        same = "the same bits" + (", evaluated in other rounds" if names else "")
        print(f"{other}: {plain('differs in ' + ', '.join(rest) if rest else same)}")
        found[other] = rest
    raise SystemExit(int(any(found.values())))


if __name__ == "__main__":
    main()
