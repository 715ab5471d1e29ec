"""Cost of a round of a result: its seconds by use, and its bytes; comparison of the bits of two results.

python analysis/timing.py RESULT [--same-as OTHER]    # exit status 1 where the bits differ
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict

from shared.timing import Timing, timing

from zofl_mpi.errors import UserError, refused
from zofl_mpi.report.same import differences
from zofl_mpi.run import records


def lines(found: Timing) -> Iterator[str]:
    """Yields a line a number: its name, the number, its unit."""
    for name, value in asdict(found).items():
        if name not in ("steps", "kernel"):
            unit = "B" if name.startswith("bytes") else "1" if isinstance(value, int) else "s"
            yield f"{name:16} {value:.6g} {unit}"
    yield f"{'server_share':16} {found.share:.6g} 1"


def main(words: list[str] | None = None) -> int:
    """Prints the cost of a round; exit status 1 where the bits differ from another result's, 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="timing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("result", help="an HDF5 result")
    parser.add_argument("--same-as", metavar="OTHER", help="another result: do the two have the same bits?")
    flags = parser.parse_args(words)
    try:
        for line in lines(timing(records.load(flags.result))):
            print(line)
        if flags.same_as:
            found = differences(flags.result, flags.same_as)
            print(f"{'bits':16} {'differ: ' + ', '.join(found) if found else 'same'}")
            return int(bool(found))
    except UserError as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
