"""Ends a run after the round in progress on SIGTERM or SIGUSR1, a scheduler's warning before a time limit."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, final

STATUS = 75
"""Exit status of a run that a signal stopped and that can be resumed (EX_TEMPFAIL): a job script requeues on it."""


SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@final
class Stop:
    """Returns the name of the signal received, "" if none; a blocking MPI call delays Python's handler."""

    def __init__(self) -> None:
        self._name, self._listens, self._before = "", False, dict[int, Any]()

    def __call__(self) -> str:
        return self._name

    def listen(self) -> None:
        """Installs handlers that only note the signals; no effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        for number in SIGNALS:
            self._before.setdefault(number, signal.signal(number, self._heard))

    def restore(self) -> None:
        """Restores the handlers from before `listen`."""
        while self._before:
            signal.signal(*self._before.popitem())

    def tell(self, say: Callable[[str], None]) -> None:
        """Calls `say` with the first signal's name at once, in another thread: the main one may wait in MPI.

        Before `listen`, the signal still ends the process afterwards.
        """
        heard, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._heard)

        def listen() -> None:
            for number in iter(lambda: os.read(heard, 1), b""):
                if number[0] in SIGNALS:
                    say(signal.Signals(number[0]).name)
                    if not self._listens:
                        os._exit(128 + number[0])
                    return

        threading.Thread(target=listen, daemon=True).start()

    def ignore(self) -> None:
        """Ignores the signals: the run has ended and its exit status is fixed."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._name = self._name or signal.Signals(number).name
