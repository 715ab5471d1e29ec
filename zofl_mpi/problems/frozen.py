"""Shares frozen weights among the ranks of a node, through one file in memory."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

from zofl_mpi.engine.world import World

MEMORY = "/dev/shm"  # Linux's file system in memory
CACHE_LINE = 64  # bytes; rounding of products may depend on the address modulo this


def once_a_node(world: World, parameters: Iterable[Tensor]) -> None:
    """Moves frozen host tensors, equal on all ranks, into memory shared by the ranks of a node; collective.

    Tensors mapped from a file stay in place; all stay if memory has no room for another copy.
    """
    # torch allocates at cache lines; tensors mapped from a safetensors file rarely start at one
    own = [p for p in dict.fromkeys(parameters) if not (p.requires_grad or p.is_cuda or p.data_ptr() % CACHE_LINE)]
    ends = torch.tensor([0, *(-(-p.nbytes // CACHE_LINE) * CACHE_LINE for p in own)]).cumsum(0).tolist()
    number, ranks = world.neighbours(None)
    if len(ranks) == 1 or not own:
        return
    path, shared = "", None
    with suppress(OSError, RuntimeError):  # no /dev/shm, or no room there: each rank keeps its copy
        if number == 0:
            handle, path = tempfile.mkstemp(prefix="zofl_mpi-", dir=MEMORY)
            with open(handle, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, ends[-1])
            shared = torch.from_file(path, shared=True, size=ends[-1], dtype=torch.uint8)
            for p, start in zip(own, ends, strict=False):
                shared[start : start + p.nbytes] = p.detach().reshape(-1).view(torch.uint8)
    owner = world.neighbours(path if shared is not None else "")[1][0]
    with suppress(OSError, RuntimeError):
        if owner and number:
            shared = torch.from_file(owner, shared=True, size=ends[-1], dtype=torch.uint8)
    world.neighbours(None)  # all have mapped it: unlink its name
    with suppress(OSError):
        os.unlink(path)
    if shared is not None:
        for p, start in zip(own, ends, strict=False):
            p.data = shared[start : start + p.nbytes].view(p.dtype).view(p.shape)
