"""Whether this MPI library reads and writes a GPU's memory, so that uploads need not pass the host."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLAG = "ZOFL_GPU_MPI"
"""Set to 1 in the environment of all ranks: uploads go from GPU to GPU."""
MAPS = Path("/proc/self/maps")
CUDA = 0
"""MPIX_GPU_SUPPORT_CUDA of MPICH."""


def direct(place: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what travels from `place`, a device as torch calls it, stays in GPUs' memory.

    It is so where it is asked for; a library that says that it cannot is believed, with a warning.
    """
    if not place.startswith("cuda") or environment.get(FLAG) != "1":
        return False
    if aware(library(), environment):
        return True
    print(
        f"zofl_mpi: warning: {FLAG}=1, but this MPI library was built without CUDA, or is not told to use it (Cray: "
        "MPICH_GPU_SUPPORT_ENABLED=1): uploads pass the host",
        file=sys.stderr,
    )
    return False


def aware(mpi: Any, environment: Mapping[str, str] = os.environ) -> bool:
    """Answer of the library about itself: Open MPI's question, MPICH's, or the variables of Cray's and MVAPICH's.

    Args:
        mpi: the loaded library, by ctypes; None where it is not found.
    """
    if environment.get("MPICH_GPU_SUPPORT_ENABLED") == "1" or environment.get("MV2_USE_CUDA") == "1":
        return True
    if hasattr(mpi, "MPIX_Query_cuda_support"):
        return bool(mpi.MPIX_Query_cuda_support())
    if hasattr(mpi, "MPIX_GPU_query_support"):
        found = ctypes.c_int(0)
        return mpi.MPIX_GPU_query_support(CUDA, ctypes.byref(found)) == 0 and bool(found.value)
    return False


def library() -> Any:
    """The MPI library that this process has loaded; None where there is none, or the system does not tell."""
    if not MAPS.exists():
        return None
    paths = (line.rpartition(" ")[2] for line in MAPS.read_text().splitlines())
    path = next((path for path in paths if Path(path).name.startswith("libmpi.so")), None)
    return None if path is None else ctypes.CDLL(path)
