"""Seconds of a run's rounds, measured on its first ones, for --dry-run."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from zofl_mpi.engine.fields import without_warnings
from zofl_mpi.engine.setting import Method
from zofl_mpi.run.loop.local import LocalClients

TRIAL_SECONDS = 5.0
"""Seconds that the measured rounds may take."""


class _TimeIsUp(Exception):
    pass


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises _TimeIsUp in the block when its time is up; in the main thread alone, where signals arrive."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measured(method: Method[Any], rounds: int) -> dict[str, str]:
    """Lines of --dry-run: seconds of the second round (of the first where the time is up), with all clients here.

    No line where a round fails: the run itself says why.
    """
    clients, seconds = LocalClients(list(method.setting.data), method), list[float]()
    since = time.perf_counter()
    try:
        with _limited(TRIAL_SECONDS), without_warnings():
            state = method.start()
            for r in range(min(2, rounds)):
                since = time.perf_counter()
                state = method.round(state, r, clients)
                clients.account()
                seconds.append(time.perf_counter() - since)
    except _TimeIsUp:
        pass
    except Exception:  # a method's or a problem's own
        return {}
    least = "" if seconds else "more than "
    each = seconds[-1] if seconds else time.perf_counter() - since
    return {
        "seconds of a round in one process, measured": f"{least}{each:.3g}",
        "seconds of all rounds in one process, about": f"{least}{each * rounds:.3g}",
    }
