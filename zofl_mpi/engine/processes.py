"""Processes of this node, as Linux shows them: whether another rank is stopped, and the end of one that is."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STOPPED = ("T", "t")  # states of a process that a signal (SIGSTOP, SIGTSTP) or a debugger holds


class Process(NamedTuple):
    """A process, by its number, its start (ticks of the kernel), and the namespace of the number."""

    pid: int
    started: str
    space: str


def this_process() -> Process | None:
    """The calling process; None outside of Linux."""
    with suppress(OSError):
        return Process(os.getpid(), stat(os.getpid())[19], os.readlink("/proc/self/ns/pid"))
    return None


def is_stopped(process: Process) -> bool:
    """True if it exists and is stopped; False where that cannot be seen."""
    with suppress(OSError, IndexError):
        fields = stat(process.pid)
        return fields[0] in STOPPED and fields[19] == process.started
    return False


def kill(process: Process) -> None:
    """Ends a stopped process."""
    if is_stopped(process):
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
