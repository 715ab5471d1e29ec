"""When a run writes checkpoints: every so many rounds, or by the clock. No bit of a result depends on it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, final

FIRST = 30.0
"""Seconds from the session's first round to its first checkpoint, and between two, at least."""
CHECKPOINT_SHARE = 0.02
"""Share of the elapsed time that checkpoints take at most, unless more than LOST would be lost."""
LOST = 600.0
"""Seconds of work after which a checkpoint is written in any case."""
ANNOUNCEMENT = (
    f"checkpoints: after {FIRST:.0f} s, then every {FIRST:.0f} s to {LOST / 60:.0f} min, as often as "
    f"{CHECKPOINT_SHARE:.0%} of the time allows, and when a signal ends the run; --checkpoint-every N: every N rounds"
)
Every = Literal["auto"] | int


@final
@dataclass
class CheckpointTimer:
    """Decides after each round whether a checkpoint is due; `every`: --checkpoint-every, of a run of `rounds`."""

    every: Every
    rounds: int
    clock: Callable[[], float] = time.monotonic
    _spent: float = field(default=0.0, init=False)  # seconds that checkpoints took so far
    _longest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began = self._saved = self.clock()

    def is_due(self, done: int) -> bool:
        """True if a checkpoint is due after `done` rounds; after the last in any case: a run may be made longer."""
        if self.every != "auto":
            return self.every > 0 and (done % self.every == 0 or done == self.rounds)
        now = self.clock()
        since, affordable = now - self._saved, self._spent + self._longest <= CHECKPOINT_SHARE * (now - self._began)
        return done == self.rounds or since >= LOST or (since >= FIRST and affordable)

    def save(self, write: Callable[[], None]) -> None:
        """Writes a checkpoint, and counts how long it takes."""
        since = self.clock()
        write()
        self._saved = self.clock()
        self._spent += self._saved - since
        self._longest = max(self._longest, self._saved - since)
