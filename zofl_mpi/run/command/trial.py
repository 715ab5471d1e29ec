"""Time of a run's rounds, measured on the first ones, for --dry-run."""

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
"""Maximum seconds of the measured rounds."""


class _TimeIsUp(Exception):
    pass


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in the block when its time is up; main thread only, where signals arrive."""

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
    """Lines of --dry-run: seconds of the second round (or the first if time is up), with all clients here.

    Empty if a round fails: the run itself reports why.
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
    except Exception:  # the user's method or problem may raise anything
        return {}
    least = "" if seconds else "more than "
    each = seconds[-1] if seconds else time.perf_counter() - since
    return {
        "seconds of a round in one process, measured": f"{least}{each:.3g}",
        "seconds of all rounds in one process, about": f"{least}{each * rounds:.3g}",
    }
