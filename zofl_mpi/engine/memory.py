"""Turn out-of-memory errors into advice: memory requested, memory free, and flags that need less."""

import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from typing import Any

import numpy as np

from zofl_mpi.engine import device
from zofl_mpi.engine.fields import is_flag
from zofl_mpi.engine.roles import program_of
from zofl_mpi.errors import UserError

GROWS = ("batch", "server_batch")
"""Flags with which a step's memory grows in every method; a method names further ones in `grows_with`."""
OF_GPU = re.compile(r"CUDA out of memory|CUDA error: out of memory|CU\w+_STATUS_ALLOC_FAILED|HIP out of memory")
OF_HOST = re.compile(r"DefaultCPUAllocator: (can't|not enough)")
BEYOND_NUMPY = re.compile(r"array is too big|Maximum allowed (size|dimension) exceeded")
ASKED = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+ \w+)")
FREE = re.compile(r"total capac\w+ of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")


def shortage(exc: BaseException) -> str:
    """Message on the memory requested and free; "" if `exc` is no out-of-memory error.

    Recognises torch's exceptions by name, without importing torch.
    """
    text, at_run_time = str(exc), isinstance(exc, RuntimeError)
    on_gpu = any(cls.__name__ == "OutOfMemoryError" for cls in type(exc).__mro__)
    on_gpu = on_gpu or (at_run_time and OF_GPU.search(text) is not None)
    on_host = isinstance(exc, MemoryError) or (at_run_time and OF_HOST.search(text))
    if not (on_gpu or on_host or (isinstance(exc, ValueError) and BEYOND_NUMPY.search(text))):
        return ""
    asked, where = ASKED.search(text), "the GPU" if on_gpu else "the host"
    wish = f"{_readable(asked[1])} more were asked for" if asked else "more was asked for"
    return f"out of memory on {where}: {wish}{_free(text, on_gpu)}"


def remedy(method: Any, at_server: bool = False) -> str:
    """Advice: the flags of `method` that reduce the memory of clients, or of the server; general advice for None."""
    program = program_of(method)
    names = (*program.grows_with, *GROWS)
    grown = {name: value for name, value in _flags(method) if name in names and isinstance(value, int)}
    grown = {name: value for name, value in grown.items() if value > 1 or (value == 0 and name == "batch")}
    own = {name: value for name, value in grown.items() if name.startswith("server_")}
    shown = (own or grown) if at_server else {name: grown[name] for name in grown if name not in own}
    ways = [f"--{name.replace('_', '-')} (now {value or '0: all samples'})" for name, value in shown.items()]
    options = [f"a smaller {' or '.join(ways)}"] * bool(ways) + ["--bf16"] * (program.backend.bf16 is False)
    if not options:
        return "smaller batches, or more ranks with fewer clients each, take less"
    return f"{' or '.join(options)} takes less"


def check_batches(method: Any, kernel: str) -> None:
    """Refuse a mini-batch whose positions or samples exceed this machine's memory.

    A compiled kernel copies no samples.
    """
    known, setting = host_bytes(), method.setting
    held = setting.server if setting.server is not None else setting.data[0]
    features = getattr(held, "features", 0) if kernel != "numba" else 0
    sample = 8 + np.dtype(setting.dtype).itemsize * (features if isinstance(features, int) else 0)
    for name, value in _flags(method):
        if known and name in GROWS and isinstance(value, int) and value * sample > known[1]:
            raise UserError(
                f"--{name.replace('_', '-')} {value}: the samples of one step take {_gibibytes(value * sample)}, this "
                f"machine has {_gibibytes(known[1])} in all; take a smaller one"
            )


def _flags(method: Any) -> Iterator[tuple[str, Any]]:
    """(field, value) of the flags of a method and its parts."""
    for f in fields(method) if is_dataclass(method) else ():
        value = getattr(method, f.name)
        if is_flag(f):
            yield from _flags(value) if is_dataclass(value) else [(f.name, value)]


def _free(text: str, on_gpu: bool) -> str:
    """Free memory as torch's message or the system reports it; "" if neither does."""
    found = FREE.search(text)
    if on_gpu and found:
        return f", {found[2]} of {found[1]} are free"
    known = device.free_bytes() if on_gpu else host_bytes()
    return f", {_gibibytes(known[0])} of {_gibibytes(known[1])} are free" if known else ""


def host_bytes() -> tuple[int, int] | None:
    """Bytes that this process may still allocate, and the total, by the host and `ulimit -v`; None if unknown."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        limit, own = getrlimit(RLIMIT_AS)[0], int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, KeyError, ValueError):
        return None
    if limit == RLIM_INFINITY:
        return free, total
    return min(free, max(0, limit - own * os.sysconf("SC_PAGE_SIZE"))), min(total, limit)


def room(on_gpu: bool) -> int:
    """Bytes that this process may still allocate on the host or on its GPU; 0 if unknown."""
    known = device.free_bytes() if on_gpu else host_bytes()
    return known[0] if known else 0


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _readable(amount: str) -> str:
    """An amount of bytes with a readable unit."""
    number, unit = amount.split()
    return _gibibytes(int(number)) if unit == "bytes" and number.isdigit() else amount
