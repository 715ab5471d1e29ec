"""What end-to-end tests share."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """A run sets signal handlers and threads; a test that runs one in this process puts them back.

    One thread, as the numerics: two files run at a time, and threads that wait for each other would starve them.
    """
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with threadpool_limits(1):
        yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The module of a script in analysis/, imported as Python runs it: from its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    return importlib.import_module


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
