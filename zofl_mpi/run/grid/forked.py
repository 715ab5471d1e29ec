"""Run in a fork of the grid's process, which saves imports.

torch takes a second, its compiler, which its gradient checkpointing needs, one more: a third of a short run.
"""

import importlib
import mmap
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from typing import IO, final

from zofl_mpi.engine.device import may_have_gpu
from zofl_mpi.run.command.cli import main
from zofl_mpi.run.records import provenance

SIGNALS = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
HEAVY = "torch", "torch._dynamo", "numba"
USED = mmap.mmap(-1, len(HEAVY))
"""Flags, in memory shared by all these processes: True for each of HEAVY that some run has imported."""


def forks() -> bool:
    """True if this process may be forked: it has no threads, and no GPU, whose driver does not outlive that."""
    return sys.platform == "linux" and threading.active_count() == 1 and not may_have_gpu()


@final
class Forked:
    """A process with the functions of `subprocess.Popen` that the grid runner calls.

    `words` are the run's command, as one would type it; `others` the logs of other runs, whose locks it must not hold.
    """

    def __init__(self, module: str, words: Sequence[str], log: IO[bytes], others: Sequence[IO[bytes]]) -> None:
        _import()
        self._process = get_context("fork").Process(target=_run, args=(module, words, log, others))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child handles them in its own way
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads: BLAS takes care
                self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        return int(self._process.exitcode or 0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)


def _import() -> None:
    """Imports what the runs have in common; notes the commit, since their code is that of now."""
    import zofl_mpi.run.loop.session  # noqa: F401

    for name, used in zip(HEAVY, USED[:], strict=True):
        if used:
            with suppress(ImportError):
                importlib.import_module(name)
    provenance()


def _run(module: str, words: Sequence[str], log: IO[bytes], others: Sequence[IO[bytes]]) -> None:
    os.setsid()  # Ctrl-C at the terminal is for the grid, which passes it on in its way
    for other in others:
        other.close()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", 1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    sys.orig_argv[:] = words
    try:
        main(module, words[3:])
    finally:
        for k, name in enumerate(HEAVY):
            USED[k] |= name in sys.modules
