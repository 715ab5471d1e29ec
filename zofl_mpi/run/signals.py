"""SIGTERM and SIGUSR1 (a scheduler's warning before it takes the node) end a run after the round in progress."""

import signal
from types import FrameType
from typing import final

STATUS = 75
"""Exit status of a run that a signal stopped and that can be resumed (EX_TEMPFAIL): a job script requeues on it."""


@final
class Stop:
    """Names the signal that has come, "" for none. Blocking MPI calls delay Python's handler until they return."""

    def __init__(self) -> None:
        self._name = ""

    def __call__(self) -> str:
        return self._name

    def listen(self) -> None:
        """Makes the signals be noted here, and do nothing else."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._heard)

    def ignore(self) -> None:
        """Makes the signals do nothing: the run has ended, and its exit status is decided."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._name = self._name or signal.Signals(number).name
