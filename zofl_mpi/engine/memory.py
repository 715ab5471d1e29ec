"""Memory that runs out: a sentence with what was asked for, what is free, and which flags take less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from typing import Any

from zofl_mpi.engine import device
from zofl_mpi.engine.fields import is_flag
from zofl_mpi.engine.roles import program_of

GROWS = ("batch", "server_batch")
"""Flags with which the memory of a step grows in every method; a method names others in `grows_with`."""
OF_GPU = re.compile(r"CUDA out of memory|CUDA error: out of memory|CU\w+_STATUS_ALLOC_FAILED|HIP out of memory")
OF_HOST = re.compile(r"DefaultCPUAllocator: (can't|not enough)")
ASKED = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+ \w+)")
FREE = re.compile(r"total capac\w+ of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")


def shortage(exc: BaseException) -> str:
    """Sentence on the memory asked for and the memory free; "" if `exc` does not say that memory ran out.

    torch's exceptions are known by their names: where it was not imported, it has raised none.
    """
    told, on_gpu = str(exc), any(cls.__name__ == "OutOfMemoryError" for cls in type(exc).__mro__)
    if not on_gpu and isinstance(exc, RuntimeError):
        on_gpu = OF_GPU.search(told) is not None
    if not (on_gpu or isinstance(exc, MemoryError) or (isinstance(exc, RuntimeError) and OF_HOST.search(told))):
        return ""
    asked, where = ASKED.search(told), "the GPU" if on_gpu else "the host"
    wish = f"{_readable(asked[1])} more were asked for" if asked else "more was asked for"
    return f"out of memory on {where}: {wish}{_free(told, on_gpu)}"


def remedy(method: Any, at_server: bool = False) -> str:
    """Names the flags of `method` that take less memory, with their values; general advice for None.

    Args:
        at_server: whether it is the server that had too little.
    """
    program = program_of(method)
    names = (*program.grows_with, *GROWS)
    grown = [(name, value) for name, value in _flags(method) if name in names and _can_shrink(name, value)]
    own = [pair for pair in grown if pair[0].startswith("server_")]
    if at_server:
        grown = own or grown
    else:
        grown = [pair for pair in grown if pair not in own]
    ways = [f"--{name.replace('_', '-')} (now {value}{': all samples' * (value == 0)})" for name, value in grown]
    further = ["--bf16"] * (program.backend.bf16 is False)
    if not (ways or further):
        return "smaller batches, or more ranks with fewer clients each, take less"
    smaller = f"a smaller {' or '.join(ways)}" if ways else ""
    return " or ".join(filter(None, [smaller, *further])) + " takes less"


def _can_shrink(name: str, value: Any) -> bool:
    return isinstance(value, int) and (value > 1 or (value == 0 and name == "batch"))


def _flags(method: Any) -> Iterator[tuple[str, Any]]:
    """(field, value) of the flags of a method and its parts."""
    for f in fields(method) if is_dataclass(method) else ():
        value = getattr(method, f.name)
        if is_flag(f):
            yield from _flags(value) if is_dataclass(value) else [(f.name, value)]


def _free(told: str, on_gpu: bool) -> str:
    """Free memory as torch's message or the system states it; "" if neither does."""
    found = FREE.search(told)
    if on_gpu and found:
        return f", {found[2]} of {found[1]} are free"
    known = device.free_bytes() if on_gpu else host_bytes()
    return f", {_gibibytes(known[0])} of {_gibibytes(known[1])} are free" if known else ""


def host_bytes() -> tuple[int, int] | None:
    """Bytes of the host that this process may still allocate, and its limit; None if the system does not say.

    The lesser of what the host has and of what the process may have (ulimit -v).
    """
    try:
        text = Path("/proc/meminfo").read_text()
        total, free = (int(line.split()[1]) * 1024 for line in (_line(text, "MemTotal"), _line(text, "MemAvailable")))
        limit, own = getrlimit(RLIMIT_AS)[0], int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, StopIteration):
        return None
    if limit == RLIM_INFINITY:
        return free, total
    return min(free, max(0, limit - own * os.sysconf("SC_PAGE_SIZE"))), min(total, limit)


def _line(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{name}:"))


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _readable(amount: str) -> str:
    """Amount with a readable unit."""
    number, unit = amount.split()
    return _gibibytes(int(number)) if unit == "bytes" and number.isdigit() else amount
