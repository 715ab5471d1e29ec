"""Schedules checkpoints by rounds or by the clock; results do not depend on it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, final

FIRST = 30.0
"""Least seconds before the session's first checkpoint, and between two."""
CHECKPOINT_SHARE = 0.02
"""Largest share of the elapsed time for checkpoints, unless LOST seconds of work are at stake."""
LOST = 600.0
"""Seconds of work after which a checkpoint is always due."""
ANNOUNCEMENT = (
    f"checkpoints: after {FIRST:.0f} s, then every {FIRST:.0f} s to {LOST / 60:.0f} min, as often as "
    f"{CHECKPOINT_SHARE:.0%} of the time allows, and when a signal ends the run; --checkpoint-every N: every N rounds"
)
Every = Literal["auto"] | int


@final
@dataclass
class CheckpointTimer:
    """Decides after each of `rounds` rounds whether a checkpoint is due; `every` is --checkpoint-every."""

    every: Every
    rounds: int
    clock: Callable[[], float] = time.monotonic
    _spent: float = field(default=0.0, init=False)  # seconds that checkpoints took so far
    _longest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began = self._saved = self.clock()

    def is_due(self, done: int) -> bool:
        """True if a checkpoint is due after `done` rounds; always after the last: a run may be extended."""
        if self.every != "auto":
            return self.every > 0 and (done % self.every == 0 or done == self.rounds)
        now = self.clock()
        since, affordable = now - self._saved, self._spent + self._longest <= CHECKPOINT_SHARE * (now - self._began)
        return done == self.rounds or since >= LOST or (since >= FIRST and affordable)

    def save(self, write: Callable[[], None]) -> None:
        """Writes a checkpoint and measures its time."""
        since = self.clock()
        write()
        self._saved = self.clock()
        self._spent += self._saved - since
        self._longest = max(self._longest, self._saved - since)
