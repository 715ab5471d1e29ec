"""Grids of runs from TOML files; `python -m zofl_mpi.run.grid FILE` lists them, `--run` does what is not finished."""

from zofl_mpi.run.grid.file import Grid, GridRun, read
from zofl_mpi.run.grid.state import finished, state_of

__all__ = ["Grid", "GridRun", "finished", "read", "state_of"]
