"""Restore the process after a run, so that the script continues unaffected."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zofl_mpi.engine import device
from zofl_mpi.errors import UserError

VARIABLES = (*device.THREADS, "OPENBLAS_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG")
_RUNNING = threading.Lock()


@contextmanager
def alone() -> Iterator[None]:
    """Context of one run at a time in this process; UserError if another is in progress."""
    if not _RUNNING.acquire(blocking=False):
        raise UserError(
            "a run is in progress in this process, and two would disturb each other's threads, seeds and signals: "
            "end it first, or start a process for each"
        )
    try:
        yield
    finally:
        _RUNNING.release()


@contextmanager
def put_back() -> Iterator[None]:
    """Context that restores environment variables, library threads, the import path and the hook of threads."""
    from threadpoolctl import ThreadpoolController

    variables = {name: os.environ.get(name) for name in VARIABLES}
    libraries = [(each, each.num_threads) for each in ThreadpoolController().lib_controllers]
    torch = sys.modules.get("torch")
    settings = _settings(torch)
    path, hook = list(sys.path), threading.excepthook
    try:
        yield
    finally:
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for library, count in libraries:
            library.set_num_threads(count)
        if torch is not None:
            _set(torch, settings)
        sys.path[:], threading.excepthook = path, hook


def _settings(torch: Any) -> tuple[Any, ...]:
    """Torch's threads, and the settings of `device.reproducible`."""
    if torch is None:
        return ()
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )


def _set(torch: Any, settings: tuple[Any, ...]) -> None:
    threads, strict, warns, fill, benchmark, deterministic, tf32, precision = settings
    if _settings(torch) == settings:
        return
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict, warn_only=warns)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic
    torch.backends.cudnn.allow_tf32 = tf32
    torch.set_float32_matmul_precision(precision)
