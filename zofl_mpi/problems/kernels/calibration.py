"""Times of softmax regression's kernels on this machine: measured once for each size, kept in the user's cache.

By them rank 0 decides which kernel `--kernel auto` takes: no rule by processor or size held on the next machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from zofl_mpi.data.cache import keep_note
from zofl_mpi.engine import device

SECONDS = 0.25
"""CPU time that all measurements of one size may take together, the loading and compiling of a kernel aside."""
CALLS = 8
"""Calls of each kernel, in turn, whose fastest one counts."""

Times = dict[str, float]


def step_times(size: Mapping[str, str | int], kernels: Mapping[str, Callable[[int], object]]) -> Times:
    """{kernel: seconds of a local step}: as kept in the user's cache, else (also if it is damaged) measured now.

    Of a step's `size`, with the `kernels` as functions that take so many steps.
    """
    key = {**machine(), **size}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    file = _folder() / f"{digest[:16]}.json"
    times = _read(file, key, kernels)
    if times is None:
        times = measured(kernels)
        keep_note(file, json.dumps({"key": key, "seconds": times}))
    return times


def machine() -> dict[str, str]:
    """Processor and libraries, by which times differ."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "numba", "llvmlite", "zofl_mpi")}
    return {"processor": (names or [platform.processor()])[0], "blas": device.blas(), **versions}


def measured(kernels: Mapping[str, Callable[[int], object]]) -> Times:
    """{kernel: seconds of a local step}, the kernels in turn; of each its fastest call, which other jobs slow least."""
    for take in kernels.values():
        take(1)  # loads it, or compiles it
    budget = SECONDS / (CALLS * len(kernels))
    steps = {name: max(1, int(budget / _seconds(take, 1))) for name, take in kernels.items()}
    times, end = dict.fromkeys(kernels, math.inf), time.thread_time() + SECONDS
    while time.thread_time() < end:
        for name, take in kernels.items():
            times[name] = min(times[name], _seconds(take, steps[name]) / steps[name])
    return times


def _seconds(take: Callable[[int], object], steps: int) -> float:
    start = time.thread_time()
    take(steps)
    return max(time.thread_time() - start, 1e-6)


def _folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("zofl_mpi")) / "kernels"


def _read(file: Path, key: Mapping[str, str | int], kernels: Mapping[str, object]) -> Times | None:
    """The times in a file of ours; None where it is missing, damaged or of something else."""
    try:
        stored = json.loads(file.read_text())
        times = {name: float(stored["seconds"][name]) for name in kernels}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    fits = stored.get("key") == dict(key) and all(0 < value < math.inf for value in times.values())
    return times if fits else None
