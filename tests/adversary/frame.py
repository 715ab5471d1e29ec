"""Runs the trials of a kind and counts those that held."""

import importlib
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

Trial = Callable[[], str]
"""Returns "" if the program held, else what broke."""
Trials = Iterator[tuple[str, Trial]]
FOLDER = Path(__file__).parent
NO_KIND = ("__init__", "__main__", "frame")


def kinds() -> list[str]:
    """The modules of this folder that hold trials."""
    names = sorted(file.stem for file in FOLDER.glob("*.py"))
    return [name for name in names if name not in NO_KIND and not name.startswith("test_")]


def perform(kind: str, say: Callable[[str], None] = print) -> tuple[int, list[str]]:
    """Runs all trials of a kind; returns how many there were, and what broke."""
    broken, count, since = list[str](), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="adversary-") as folder:
        for name, trial in importlib.import_module(f"tests.adversary.{kind}").trials(Path(folder)):
            count += 1
            try:
                what = trial()
            except Exception:
                what = traceback.format_exc()
            if what:
                broken.append(f"{name}: {what}")
                say(f"{kind}: {broken[-1]}")
    say(f"{kind}: {count - len(broken)} of {count} held ({time.monotonic() - since:.0f} s)")
    return count, broken
