"""What the benchmark has found: checks, figures, what was left out and why; as a table, and as JSON."""

from __future__ import annotations

import gc
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from zofl_mpi.engine import memory

LATE = 2.0
"""A section that takes so many times its seconds is broken off."""
NO_GPU = "no GPU"


@dataclass(frozen=True)
class Check:
    """A result on the device beside the same in float64 on the CPU."""

    name: str
    error: float
    bound: float
    source: str  # of the bound

    @property
    def right(self) -> bool:
        return math.isfinite(self.error) and self.error <= self.bound


@dataclass(frozen=True)
class Figure:
    """A number that was measured, or a demand on one: then with its verdict, or why there is none."""

    name: str
    value: float
    unit: str
    wanted: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Left:
    """What was not done, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Failed:
    """A section that ended by an exception; what it had found until then is kept."""

    section: str
    sentence: str
    trace: str


class Late(Exception):
    """A section has had its time."""


@dataclass
class Bench:
    """What is to be measured, and what was found.

    Attributes:
        device: as torch calls it.
        tiny: shapes that a CPU computes in an instant; nothing is judged by them.
        machine: hardware, versions, date.
    """

    device: str
    tiny: bool
    machine: Mapping[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _end: float = math.inf

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def check(self, name: str, error: float, bound: float, source: str) -> None:
        self.checks.append(Check(name, float(error), float(bound), source))

    def figure(self, name: str, value: float | None, unit: str) -> None:
        """A measured number; None is left out (a CPU's kernels, say)."""
        if value is not None:
            self.figures.append(Figure(name, float(value), unit))

    def demand(
        self, name: str, value: float | None, sense: Literal["at most", "at least"], bound: float, unit: str = "1"
    ) -> None:
        """A number of which more, or less, than `bound` is wanted on a GPU; None: it could not be measured."""
        if value is None:
            self.skip(name, "not measured" if self.on_gpu else NO_GPU)
            return
        met = value <= bound if sense == "at most" else value >= bound
        judged = "met" if met else "not met"
        why = judged if self.on_gpu and not self.tiny else f"not judged: {'tiny shapes' if self.tiny else NO_GPU}"
        self.figures.append(Figure(name, float(value), unit, f"{sense} {bound:g}", why))

    def skip(self, name: str, why: str) -> None:
        self.left.append(Left(name, why))

    def time_left(self) -> float:
        """Seconds that the section in progress still has; below 0 where it should have ended."""
        return self._end - time.monotonic()

    def check_time(self) -> None:
        """Lets a section go on that still has time.

        Raises:
            Late: it has none.
        """
        if self.time_left() <= 0:
            raise Late

    def run(self, title: str, section: Callable[[Bench], None], limit: float) -> None:
        """Runs a section for about `limit` seconds; whatever becomes of it, the others are run, too."""
        print(f"{title} ...", file=sys.stderr, flush=True)
        start, self._end = time.monotonic(), time.monotonic() + limit
        try:
            with broken_off(LATE * limit):
                section(self)
        except Exception as exc:
            late = isinstance(exc, Late) or time.monotonic() - start >= LATE * limit  # a client's step wraps it
            if late:
                self.skip(f"the rest of {title}", f"{limit:g} s were over")
            else:
                sentence = memory.shortage(exc) or f"{type(exc).__name__}: {exc}".strip().partition("\n")[0]
                self.failed.append(Failed(title, sentence, traceback.format_exc()))
        self.seconds[title] = time.monotonic() - start
        self._end = math.inf
        gc.collect()
        if self.on_gpu:
            import torch

            torch.cuda.empty_cache()  # the next section's memory is its own

    @property
    def status(self) -> int:
        """1 where something is wrong, or could not be seen to be right."""
        return int(bool(self.failed) or not all(check.right for check in self.checks))

    def table(self) -> str:
        """All of it as text."""
        parts = [[f"{name:10s} {value}" for name, value in self.machine.items()]]
        parts.append(_columns("check", [(c.name, "right" if c.right else "WRONG", *_numbers(c)) for c in self.checks]))
        rows = [(f.name, _short(f.value), f.unit, *filter(None, (f.wanted, f.verdict))) for f in self.figures]
        parts.append(_columns("measured", rows))
        parts.append(_columns("skipped", [(each.name, each.why) for each in self.left]))
        parts.append(_columns("failed", [(each.section, each.sentence) for each in self.failed]))
        parts.append(_columns("seconds", [(name, f"{value:.1f}") for name, value in self.seconds.items()]))
        return "\n\n".join("\n".join(part) for part in parts if part)

    def document(self) -> dict[str, Any]:
        """All of it for JSON, with the tracebacks."""
        return {
            "machine": dict(self.machine),
            "device": self.device,
            "tiny": self.tiny,
            "status": self.status,
            "checks": [{**asdict(check), "right": check.right} for check in self.checks],
            "figures": [asdict(each) for each in self.figures],
            "left_out": [asdict(each) for each in self.left],
            "failed": [asdict(each) for each in self.failed],
            "seconds": self.seconds,
        }


def _numbers(check: Check) -> tuple[str, str]:
    return f"{check.error:.1e}, at most {check.bound:.1e}", check.source


def _short(value: float) -> str:
    return f"{value:.4g}"


def _columns(title: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows, each word under those of the same place in the other rows; a title above."""
    if not rows:
        return []
    places = max(map(len, rows))
    widths = [max(len(row[k]) if k < len(row) else 0 for row in rows) for k in range(places)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return [title, *(f"  {line}" for line in lines)]


@contextmanager
def broken_off(seconds: float) -> Iterator[None]:
    """Context manager: `Late` is raised after so many seconds, between two lines of Python; in the main thread only."""

    def late(number: int, frame: Any) -> None:
        raise Late

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
