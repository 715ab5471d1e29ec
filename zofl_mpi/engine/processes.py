"""Processes of this node, as Linux shows them: detect and end a stopped one."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STOPPED = ("T", "t")  # states of a process held by a signal (SIGSTOP, SIGTSTP) or a debugger


class Process(NamedTuple):
    """A process: its number, its start (kernel ticks), and its PID namespace."""

    pid: int
    started: str
    space: str


def this_process() -> Process | None:
    """The calling process; None outside of Linux."""
    with suppress(OSError):
        return Process(os.getpid(), stat(os.getpid())[19], os.readlink("/proc/self/ns/pid"))
    return None


def is_stopped(process: Process) -> bool:
    """True if it exists and is stopped; False if that cannot be determined."""
    with suppress(OSError, IndexError):
        fields = stat(process.pid)
        return fields[0] in STOPPED and fields[19] == process.started
    return False


def kill(process: Process) -> None:
    """Kill a stopped process."""
    if is_stopped(process):
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
