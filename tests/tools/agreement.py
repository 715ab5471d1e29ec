"""When two results are the same run: bit for bit, clocks aside."""

from zofl_mpi.report.same import bits, differences

__all__ = ["bits", "differences"]
