"""Schedule of checkpoints, by rounds or by the clock; no bit of a result depends on it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, final

FIRST = 30.0
"""Minimum seconds from a session's first round to its first checkpoint, and between two."""
CHECKPOINT_SHARE = 0.02
"""Maximum share of time for checkpoints, unless more than LOST would be lost."""
LOST = 600.0
"""Maximum seconds of work between checkpoints."""
ANNOUNCEMENT = (
    f"checkpoints: after {FIRST:.0f} s, then every {FIRST:.0f} s to {LOST / 60:.0f} min, as often as "
    f"{CHECKPOINT_SHARE:.0%} of the time allows, and when a signal ends the run; --checkpoint-every N: every N rounds"
)
Every = Literal["auto"] | int


@final
@dataclass
class CheckpointTimer:
    """Decides after each round whether to checkpoint; `every`: --checkpoint-every, in a run of `rounds`."""

    every: Every
    rounds: int
    clock: Callable[[], float] = time.monotonic
    _spent: float = field(default=0.0, init=False)  # seconds spent on checkpoints so far
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
        """Write a checkpoint and time it."""
        since = self.clock()
        write()
        self._saved = self.clock()
        self._spent += self._saved - since
        self._longest = max(self._longest, self._saved - since)
