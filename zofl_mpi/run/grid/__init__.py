"""Grids of runs: a TOML file names them, `python -m zofl_mpi.run.grid` does what is left of them."""

from zofl_mpi.run.grid.file import Grid, GridRun, read
from zofl_mpi.run.grid.state import finished, state_of

__all__ = ["Grid", "GridRun", "finished", "read", "state_of"]
