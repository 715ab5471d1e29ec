"""The vocabulary of the end-to-end tests: how a command line is run, and what its results are looked at with."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import LIMIT
from zofl_mpi.run import records


def wait_until(holds: Callable[[], bool]) -> None:
    """Ends when this holds."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, "the run did not get going"
        time.sleep(0.02)


def rounds_of(path: Path | str) -> int:
    """How many rounds a result holds; 0 while there is none that can be read."""
    try:
        return records.load(path).length
    except Exception:
        return 0
