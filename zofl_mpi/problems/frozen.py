"""Frozen weights once a node: its ranks map one file in memory, in place of a copy each."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

from zofl_mpi.engine.world import World

MEMORY = "/dev/shm"  # Linux's file system in memory
CACHE_LINE = 64  # bytes; products may round by the address modulo these


def once_a_node(world: World, parameters: Iterable[Tensor]) -> None:
    """Moves tensors on the host that train nothing, equal on all ranks, into memory that the ranks of a node share.

    All ranks call it. Those in a mapped file stay where they are; all do where memory has no room for one more copy.
    """
    # what torch allocates begins at a line, what a safetensors file maps hardly ever
    own = [p for p in dict.fromkeys(parameters) if not (p.requires_grad or p.is_cuda or p.data_ptr() % CACHE_LINE)]
    ends = torch.tensor([0, *(-(-p.nbytes // CACHE_LINE) * CACHE_LINE for p in own)]).cumsum(0).tolist()
    number, ranks = world.neighbours(None)
    if len(ranks) == 1 or not own:
        return
    path, shared = "", None
    with suppress(OSError, RuntimeError):  # no such place, or no room there: each keeps its copy
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
    world.neighbours(None)  # all have mapped it: it needs no name any more
    with suppress(OSError):
        os.unlink(path)
    if shared is not None:
        for p, start in zip(own, ends, strict=False):
            p.data = shared[start : start + p.nbytes].view(p.dtype).view(p.shape)
