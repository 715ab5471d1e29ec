"""How many processes a launcher started, and the `World` that connects them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from zofl_mpi.run.world import Alone, World, launched


def speaks_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process should print what concerns all, while MPI is not there to ask."""
    ranks = [
        environment[k] for k in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID") if k in environment
    ]
    return not ranks or ranks[0] == "0"


def connect(environment: Mapping[str, str] = os.environ) -> World:
    """All processes that a launcher started; `Alone` if there is no sign of a launcher. MPI is not even loaded then.

    Raises:
        UserError: the launcher's processes do not see each other.
    """
    if not launched(environment):
        return Alone()
    from zofl_mpi.run.mpi.world import MPIWorld

    return MPIWorld()
