"""SIGTERM and SIGUSR1 (a scheduler's warning) end a run after the round in progress."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, final

STATUS = 75
"""Exit status after a signal, for a run that can be resumed (EX_TEMPFAIL); job scripts requeue on it."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@final
class Stop:
    """Name of the received signal, or "". Blocking MPI calls delay Python's handler until they return."""

    def __init__(self) -> None:
        self._name, self._listens, self._before = "", False, dict[int, Any]()

    def __call__(self) -> str:
        return self._name

    def listen(self) -> None:
        """Record signals instead of their usual effect; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        for number in SIGNALS:
            self._before.setdefault(number, signal.signal(number, self._heard))

    def restore(self) -> None:
        """Restore the signals' handlers from before `listen`."""
        while self._before:
            signal.signal(*self._before.popitem())

    def tell(self, say: Callable[[str], None]) -> None:
        """Give the first signal's name to `say` at once, in another thread: the main one may wait in MPI.

        Before `listen` the signal then ends this process, as without a handler.
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
        """Ignore signals: the run has ended, and its exit status is decided."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._name = self._name or signal.Signals(number).name
