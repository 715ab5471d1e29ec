"""Ends a process that waits for ever: a round that takes too long (--round-timeout), a recovery that does not end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from zofl_mpi.engine.ledger import Clock

LOOK = 0.2
"""Seconds between two looks at the clock."""
GRACE = 2.0
"""Seconds in which the ranks that wait say so, once a round takes too long: the others are late."""
ALONE = 5.0
"""Seconds more until a rank ends by itself: rank 0, which ends all, may be out of reach."""


@final
class Watch:
    """One rank's deadlines, kept by a thread of its own.

    Args:
        rank, size: this one, and how many there are.
        limit: seconds that a round may take; 0 for no limit.
        halt: prints a text ("" for none) and ends all ranks, or at least this one; callable from any thread.
        hosts: of the ranks, by rank, where they are known.
        result: path of the result file.

    Attributes:
        clock: this rank's, for what it is doing.
        round: the round in progress of this session, from 1; `before`: rounds of the sessions before.
        others: the client ranks that are there.
        longest: seconds of the longest round so far.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        limit: float,
        halt: Callable[[str], None],
        hosts: Sequence[str] = (),
        result: str = "",
    ) -> None:
        self.clock, self.round, self.before, self.longest = Clock(), 0, 0, 0.0
        self.others = list(range(1, size))
        self._rank, self._limit, self._halt, self._hosts, self._result = rank, limit, halt, hosts, result
        self._since: float | None = None
        self._waiting: set[int] = set()
        self._said = False
        self._armed: tuple[float, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None

    def begins(self, following: bool = True) -> None:
        """A round begins: the following one, or the same once more."""
        now = time.monotonic()
        if self._since is not None:
            self.longest = max(self.longest, now - self._since)
        self._since, self._said = now, False
        self._waiting.clear()
        self.round += int(following)
        if self._limit:
            self._start()

    def ends(self) -> None:
        """There is no further round."""
        self._since = None

    def arm(self, seconds: float, act: Callable[[], None]) -> None:
        """Calls `act`, in another thread, unless `disarm` is called within so many seconds."""
        self._armed = (time.monotonic() + seconds, act)
        self._start()

    def disarm(self) -> None:
        """What was to end has ended."""
        self._armed = None

    @property
    def overdue(self) -> bool:
        """Whether the round takes too long already."""
        return bool(self._limit) and self._since is not None and time.monotonic() - self._since > self._limit

    def waits(self, rank: int, round_: int) -> None:
        """Rank `rank` waits for others in that round: it is not late."""
        if round_ == self.round:
            self._waiting.add(rank)

    def remedy(self) -> str:
        """What to do after a run that ended before its time."""
        path = self._result
        if path and not Path(path.removesuffix(".h5") + ".ckpt.h5").exists():
            return f"there is no checkpoint yet: begin again with --out {path} --force"
        return f"continue with --resume {path or 'RESULT'}, which holds the finished rounds"

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK)
            armed, since, now = self._armed, self._since, time.monotonic()
            if armed is not None and now > armed[0]:
                self._armed = None
                armed[1]()
            if not self._limit or since is None or now - since <= self._limit:
                continue
            if not self._said:
                self._say()
            if now - since > self._limit + GRACE + ALONE * bool(self._rank) and self._since == since:
                self._since = None
                self._halt("" if self._rank else f"zofl_mpi: {self.sentence()}")

    def sentence(self) -> str:
        """Why rank 0 ends the run: which ranks are late, as far as is known."""
        late = [self._named(rank) for rank in self.others if rank not in self._waiting]
        doing = self.clock.doing
        if not self.others:
            who = f"this process is {self._busy()}"
        elif doing is None or doing[1] == "compute":
            who = f"late: {self._named(0)}, the server, which is computing its own part"
        else:
            shown = ", ".join(late[:16]) + (f" and {len(late) - 16} more" if len(late) > 16 else "")
            who = f"late: {shown or 'none any more'} ({len(late)} of {len(self.others)} client ranks; the others wait)"
            if len(late) == len(self.others) > 1:  # this rank may be held inside MPI, where it hears of none
                who = f"late: {shown}, or some of them (none of {len(self.others)} client ranks has said that it waits)"
        what = f"round {self.before + self.round} takes longer than --round-timeout {self._limit:g} s"
        return f"{what}; {who}; {self.remedy()}"

    def _say(self) -> None:
        """A late rank says what it is doing, once."""
        self._said = True
        doing = self.clock.doing
        if self._rank and doing is not None and doing[1] == "compute":
            sys.stderr.write(f"zofl_mpi: {self._named(self._rank)} is late: {self._busy()}\n")
            sys.stderr.flush()

    def _busy(self) -> str:
        doing = self.clock.doing
        if doing is None:
            return "computing outside the steps"
        step, what, since = doing
        words = {"compute": "computing", "wait": "waiting in", "comm": "sending in"}[what]
        return f"{words} step {step!r} since {time.perf_counter() - since:.1f} s"

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}" if rank < len(self._hosts) else f"rank {rank}"
