"""End a run whose round takes too long (--round-timeout), and name the late ranks."""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from zofl_mpi.engine.ledger import Clock
from zofl_mpi.engine.processes import Process, is_stopped

LOOK = 0.2  # seconds between two readings of the clock
GRACE = 2.0  # seconds for waiting ranks to report after the timeout; the others are late
TURN, NEXT, LAST = 1.0, 3.0, 3
"""Rank 0 ends the run first. If it is seen to be stopped, the node's next rank does so TURN seconds later. If that
cannot be seen, rank 1 follows after NEXT seconds, rank 2 after one more, and all after LAST more.
"""
FRAMES = 8  # innermost frames that a late rank prints
IDLE = 0.01  # share of CPU time below which this process counts as stopped


@final
@dataclass(eq=False)
class Watch:
    """One rank's deadlines, watched by a thread; none by default."""

    rank: int = 0
    size: int = 1
    limit: float = 0.0  # seconds allowed for a round; 0: no limit
    # prints a text ("": none), ends the given stopped processes, then all ranks, or at least this one;
    # callable from any thread
    halt: Callable[[str, Sequence[Process]], None] = lambda text, stopped: None
    hosts: Sequence[str] = ()  # by rank, where known
    result: str = ""  # path of the result file
    neighbours: Mapping[int, Process] = field(default_factory=dict)  # other ranks of this node, by rank
    stop: Callable[[], str] = lambda: ""  # the signal that asked to end the run after the round; "": none
    resume: str = ""  # command that resumes the run
    begin: str = ""  # command that restarts it
    clock: Clock = field(default_factory=Clock, init=False)  # this rank's deadline for its present step
    round: int = field(default=0, init=False)  # round in progress in this session, from 1
    before: int = field(default=0, init=False)  # rounds of earlier sessions
    longest: float = field(default=0.0, init=False)  # seconds of the longest round so far
    others: list[int] = field(init=False)  # remaining ranks beside rank 0

    def __post_init__(self) -> None:
        self.others = list(range(1, self.size))
        self._since: float | None = None
        self._waiting: set[int] = set()
        self._said = self._ended = False
        self._thread: threading.Thread | None = None
        self._computes = 0

    def begins(self, following: bool = True) -> None:
        """Record that a round begins: the next one, or a repetition."""
        now = time.monotonic()
        if self._since is not None:
            self.longest = max(self.longest, now - self._since)
        self._since, self._said = now, False
        self._waiting.clear()
        self.round += int(following)
        if self.limit and self._thread is None:
            self._computes = threading.get_ident()
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def ends(self) -> None:
        """Record that no further round follows: the thread ends."""
        self._since, self._ended = None, True

    @property
    def overdue(self) -> bool:
        """True if the round is already overdue."""
        return bool(self.limit) and self._since is not None and time.monotonic() - self._since > self.limit

    def waits(self, rank: int, round_: int) -> None:
        """Record that a rank waits for others in that round: it is not late."""
        if round_ == self.round:
            self._waiting.add(rank)

    def remedy(self) -> str:
        """Advice after a run that ended early."""
        if self.result and not self.has_checkpoint:
            return f"there is no checkpoint yet; begin again with: {self.begin}"
        return f"continue with: {self.resume}"

    @property
    def has_checkpoint(self) -> bool:
        """True if the run has written a checkpoint."""
        return Path(self.result.removesuffix(".h5") + ".ckpt.h5").exists()

    def _look(self) -> None:
        before, used = time.monotonic(), time.process_time()
        while not self._ended:
            time.sleep(LOOK)
            since, now, computed = self._since, time.monotonic(), time.process_time()
            held, before, idle, used = now - before, now, computed - used, computed
            if since is not None and held > GRACE and idle < IDLE * held:  # this process itself was stopped
                since = self._since = since + held
            if self.limit and since is not None and now - since > self.limit:
                self._late(since, now - since - self.limit)

    def _late(self, since: float, seconds: float) -> None:
        """Report this rank's step, `seconds` past the deadline, and end the run if it is its turn."""
        doing = self.clock.doing
        if not self._said and self.rank and doing is not None and doing[1] == "compute":
            line = f"zofl_mpi: {self._named(self.rank)} is late: {self._busy()}, at this point of its code:"
            print(f"{line}\n{self._stack()}", file=sys.stderr, flush=True)
        self._said = True
        if seconds <= GRACE:
            return
        stopped = self.stopped()
        if seconds > GRACE + self._turn(stopped) and self._since == since:
            self._since = None
            speaks = self.rank <= LAST or self._first(stopped)
            self.halt(f"zofl_mpi: {self.sentence()}" if speaks else "", [*stopped.values()])

    def stopped(self) -> dict[int, Process]:
        """Other ranks of this node that a signal or a debugger holds."""
        return {rank: process for rank, process in sorted(self.neighbours.items()) if is_stopped(process)}

    def _turn(self, stopped: Mapping[int, Process]) -> float:
        """Seconds after which this rank ends the run if the ranks before it have not."""
        if self.rank == 0:
            return 0.0
        if 0 in stopped:
            return TURN if self._first(stopped) else 2 * TURN
        return NEXT + min(self.rank - 1, LAST) * TURN

    def _first(self, stopped: Mapping[int, Process]) -> bool:
        """True if no lower rank of this node is running."""
        return all(rank > self.rank or rank in stopped for rank in self.neighbours)

    def sentence(self) -> str:
        """Reason for ending the run: the ranks that are late, as far as known."""
        late = [self._named(rank) for rank in self.others if rank not in self._waiting]
        doing, stopped = self.clock.doing, [self._named(rank) for rank in self.stopped()]
        if stopped:
            who = f"late: {', '.join(stopped)}, stopped by a signal or a debugger"
        elif self.rank:
            who = f"late: {self._named(0)}, the server, which does not answer (its process or its node may be held up)"
        elif not self.others:
            who = f"this process is {self._busy()}"
        elif doing is None or doing[1] == "compute":
            who = f"late: {self._named(0)}, the server, which is computing its own part"
        else:
            count, of = len(late), len(self.others)
            shown = ", ".join(late[:16]) + (f" and {count - 16} more" if count > 16 else "")
            who = f"late: {shown or 'none any more'} ({count} of {of} ranks beside 0; the others wait)"
            if count == of > 1:  # this rank may hang inside MPI and hear of none
                who = f"late: {shown}, or some of them (none of {of} ranks beside 0 has said that it waits)"
        what = f"round {self.before + self.round} takes longer than --round-timeout {self.limit:g} s"
        return f"{what}; {who}; {self.remedy()}"

    def _busy(self) -> str:
        doing = self.clock.doing
        if doing is None:
            return "computing outside the steps"
        step, what, since = doing
        words = {"compute": "computing", "wait": "waiting in", "comm": "sending in"}[what]
        return f"{words} step {step!r} since {time.perf_counter() - since:.1f} s"

    def _stack(self) -> str:
        """The innermost frames of the thread that runs the rounds."""
        frame = sys._current_frames().get(self._computes)
        return "".join(traceback.format_stack(frame, FRAMES) if frame else [])

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}" if rank < len(self.hosts) else f"rank {rank}"
