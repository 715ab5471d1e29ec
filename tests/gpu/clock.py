"""Seconds, kernels and bytes of a piece of work, on a GPU or a CPU."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.gpu.report import Bench

Work = Callable[[], Any]
MOST = 50
"""Repetitions at most."""


def wait(bench: Bench) -> None:
    """Until the device has done what it was given."""
    if bench.on_gpu:
        torch.cuda.synchronize()


def once(bench: Bench, work: Work) -> float:
    wait(bench)
    start = time.perf_counter()
    work()
    wait(bench)
    return time.perf_counter() - start


def timed(bench: Bench, work: Work, share: float = 0.25) -> float:
    """Seconds of `work`: the best of as many times as `share` of the section's time left allows, after a first one.

    The first one warms up: memory is asked for, algorithms are chosen. It counts where a second
    would take longer than the section may.

    Raises:
        Late: the section has had its time already.
    """
    bench.check_time()
    first, left = once(bench, work), bench.time_left()
    if first > left:
        return first
    best = once(bench, work)
    for _ in range(1 if bench.tiny else min(MOST, int(share * left / max(best, 1e-6)))):
        best = min(best, once(bench, work))
    return best


def peak(bench: Bench, work: Work) -> float | None:
    """Bytes that torch holds at once on the GPU in `work`, models and data among them; None on a CPU."""
    if not bench.on_gpu:
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def kernels(bench: Bench, work: Work) -> int | None:
    """How many kernels and copies the GPU was given, also by replayed graphs; None where the profiler sees none."""
    if not bench.on_gpu:
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in seen.events()) or None


@contextmanager
def nothing_waits(device: str) -> Iterator[None]:
    """Within it torch raises where the host waits for the GPU."""
    if device == "cpu":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
