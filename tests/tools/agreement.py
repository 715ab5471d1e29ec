"""When two results are the same run: bit for bit, clocks aside."""

import sys

from zofl_mpi.run.records import differences
from zofl_mpi.run.records.result import bits

__all__ = ["bits", "differences"]

if __name__ == "__main__":
    for other in sys.argv[2:]:
        print(other, differences(sys.argv[1], other) or "identical")
