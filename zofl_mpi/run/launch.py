"""Connects the processes that a launcher started."""

import os
from collections.abc import Mapping

from zofl_mpi.engine.world import SingleProcess, World, launched

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables in which launchers give a process its rank."""


def speaks_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the one to print a message before MPI is initialised."""
    return next((environment[name] for name in RANKS if name in environment), "0") == "0"


def connect(environment: Mapping[str, str] = os.environ) -> World:
    """The world of all launched processes; else a `SingleProcess` (UserError: they do not see each other)."""
    if not launched(environment):
        return SingleProcess()
    from zofl_mpi.run.mpi.world import MPIWorld

    return MPIWorld.connect()
