"""Progress of a run on the screen: a bar on a terminal, else a line every few rounds."""

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Self, final

LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "hydra", "srun", "prun")


class Progress:
    """Shows nothing (--quiet); a context manager, whose subclasses show how far a run is."""

    _pace = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, done: int, note: str, seconds: float) -> None:
        """Shows that `done` rounds are finished; `note` is the last evaluation, `seconds` the time of the round."""

    def pace(self, seconds: float) -> float:
        """Seconds per round after one of `seconds`; recent rounds count more: they grow with H = tau sqrt(r + 1)."""
        self._pace = 0.9 * self._pace + 0.1 * seconds if self._pace else seconds
        return self._pace


@final
class Lines(Progress):
    """Prints a line at the first and the last round, and whenever `every` seconds have passed since the line before."""

    def __init__(self, rounds: int, every: float = 5.0) -> None:
        self._rounds, self._every, self._next = rounds, every, 0.0

    def update(self, done: int, note: str, seconds: float) -> None:
        pace = self.pace(seconds)
        if time.monotonic() < self._next and done < self._rounds:
            return
        self._next = time.monotonic() + self._every
        left = timedelta(seconds=round((self._rounds - done) * pace))
        round_of = f"round {done:>{len(str(self._rounds))}}/{self._rounds}"
        print(f"{round_of}  {note}  {pace:.3f} s/round  {left} left", flush=True)


@final
class Bar(Progress):
    """A bar that is drawn anew a few times a second, on one line.

    Args:
        terminal: the device to draw on, None for standard output. A launcher passes its ranks' output on line by line,
            and a bar is one line that never ends: under a launcher it goes to the terminal itself.
    """

    def __init__(self, rounds: int, start: int, terminal: str | None) -> None:
        from rich import progress as rich
        from rich.console import Console

        self._file = open(terminal, "w") if terminal else None  # noqa: SIM115  (closed by __exit__)
        width = os.get_terminal_size(self._file.fileno()).columns or 100 if self._file else None
        self._bar = rich.Progress(
            rich.TextColumn("round"),
            rich.MofNCompleteColumn(),
            rich.BarColumn(bar_width=24),
            rich.TextColumn("{task.fields[note]}  {task.fields[pace]}"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("left"),
            console=Console(file=self._file, force_terminal=True, width=width),
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=rounds, completed=start, note="", pace="")

    def __enter__(self) -> Self:
        self._bar.start()
        self._bar.console.show_cursor(True)  # a run that is killed could not bring it back
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()
        if self._file:
            self._file.close()

    def update(self, done: int, note: str, seconds: float) -> None:
        self._bar.update(self._task, completed=done, note=note, pace=f"{self.pace(seconds):.3f} s/round")


def progress(rounds: int, start: int, quiet: bool) -> Progress:
    """The form of progress that fits where the output goes."""
    if quiet:
        return Progress()
    launcher = outermost_launcher()
    terminal = None if launcher is None else terminal_of(launcher)
    on_screen = sys.stdout.isatty() if launcher is None else terminal is not None
    return Bar(rounds, start, terminal) if on_screen else Lines(rounds)


def terminal_of(launcher: int) -> str | None:
    """The terminal that a launcher's own standard output goes to; None if it goes elsewhere.

    A rank's own output does not tell: Open MPI gives its ranks a pseudo-terminal even if its own output goes to a file,
    MPICH always gives them a pipe.
    """
    try:
        target = os.readlink(f"/proc/{launcher}/fd/1")
    except OSError:
        return None
    return target if target.startswith(("/dev/pts/", "/dev/tty")) and os.access(target, os.W_OK) else None


def outermost_launcher() -> int | None:
    """The process id of the outermost MPI launcher among this process's ancestors; None if there is none."""
    outermost, pid = None, os.getppid()
    with suppress(OSError, ValueError):
        while pid > 1:
            stat = Path(f"/proc/{pid}/stat").read_text()
            name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :]
            if any(launcher in name for launcher in LAUNCHERS):
                outermost = pid
            pid = int(rest.split()[1])
    return outermost
