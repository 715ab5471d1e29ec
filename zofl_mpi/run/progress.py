"""Progress of a run on the screen: a line every few seconds."""

import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import final

LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "hydra", "srun", "prun")


@final
class Progress:
    """Prints a line at the first and the last round, and whenever `every` seconds have passed; none if `quiet`."""

    def __init__(self, rounds: int, quiet: bool = False, every: float = 5.0) -> None:
        self._rounds, self._quiet, self._every = rounds, quiet, every
        self._next = self._pace = 0.0

    def update(self, done: int, note: str, seconds: float) -> None:
        """Notes that `done` rounds are finished; `note` is the last evaluation, `seconds` the time of the round."""
        pace = self.pace(seconds)
        if self._quiet or (time.monotonic() < self._next and done < self._rounds):
            return
        self._next = time.monotonic() + self._every
        left = timedelta(seconds=round((self._rounds - done) * pace))
        round_of = f"round {done:>{len(str(self._rounds))}}/{self._rounds}"
        print(f"{round_of}  {note}  {pace:.3f} s/round  {left} left", flush=True)

    def pace(self, seconds: float) -> float:
        """Seconds per round after one of `seconds`; recent rounds count more: they grow with H = tau sqrt(r + 1)."""
        self._pace = 0.9 * self._pace + 0.1 * seconds if self._pace else seconds
        return self._pace


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
