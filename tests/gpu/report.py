"""Prints what a section of the GPU check finds, line by line as it comes, and counts what is wrong."""

import math
import time
from dataclasses import dataclass
from typing import Literal

NO_GPU = "no GPU"


class Late(Exception):
    """A section has had its time."""


@dataclass
class Bench:
    """What a section computes on, and how much of it was wrong.

    Attributes:
        device: as torch calls it.
        tiny: shapes that a CPU computes in an instant; nothing is judged by them.
        end: of the section's time, by `time.monotonic`.
        wrong: results that are wrong, or could not be seen to be right.
    """

    device: str
    tiny: bool
    end: float = math.inf
    wrong: int = 0

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def check(self, name: str, error: float, bound: float, source: str) -> None:
        """A result on the device beside the same in float64 on the CPU; `source` is the bound's."""
        right = math.isfinite(error) and error <= bound
        self.wrong += not right
        self._say("right" if right else "WRONG", f"{name}: {error:.1e}, at most {bound:.1e} ({source})")

    def holds(self, name: str) -> None:
        """A statement that was seen to hold."""
        self._say("right", name)

    def failed(self, name: str, why: str) -> None:
        """A part that raised, or that a package was missing for."""
        self.wrong += 1
        self._say("FAILED", f"{name}: {why}")

    def figure(self, name: str, value: float | None, unit: str) -> None:
        """A measured number; None is left out (a CPU's kernels, say)."""
        if value is not None:
            self._say("measured", f"{name}: {value:.4g} {unit}")

    def demand(
        self, name: str, value: float, sense: Literal["at most", "at least"], bound: float, unit: str = "1"
    ) -> None:
        """A number of which more, or less, than `bound` is wanted on a GPU."""
        met = value <= bound if sense == "at most" else value >= bound
        judged = self.on_gpu and not self.tiny
        verdict = ("met" if met else "not met") if judged else f"not judged: {'tiny shapes' if self.tiny else NO_GPU}"
        self._say("measured", f"{name}: {value:.4g} {unit}, {sense} {bound:g}: {verdict}")

    def skip(self, name: str, why: str) -> None:
        """A part that nothing can be said about here."""
        self._say("skipped", f"{name}: {why}")

    def time_left(self) -> float:
        """Seconds that the section still has; below 0 where it should have ended."""
        return self.end - time.monotonic()

    def check_time(self) -> None:
        """Lets a section go on that still has time (Late: it has none)."""
        if self.time_left() <= 0:
            raise Late

    @staticmethod
    def _say(kind: str, text: str) -> None:
        print(f"{kind:8} {text}", flush=True)
