"""Runs of a grid as processes: some at a time, ended by signals, watched."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import IO, NamedTuple, final

from zofl_mpi.run.grid.file import Grid, GridRun
from zofl_mpi.run.grid.state import command, judged, locks, state_of, typed
from zofl_mpi.run.signals import STATUS

LABELS = {
    "already": "finished before",
    "done": "done",
    "failed": "failed",
    "elsewhere": "running elsewhere",
    "stopped": "stopped",
    "left": "not begun",
}
"""Outcomes of a run: {word: as a user reads it}."""


class Outcome(NamedTuple):
    """Outcome of a run: one of LABELS, its last words, and its exit status (1 if it failed without one)."""

    run: GridRun
    word: str
    sentence: str = ""
    status: int = 0


class Child(NamedTuple):
    """A run in progress; its log is open and locked, and its output begins there at `start`."""

    run: GridRun
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    start: int
    since: float  # time.monotonic()


@final
class Runner:
    """Runs of a grid, `jobs` at a time. A signal ends them after the round in progress, a second one at once.

    Attributes:
        outcomes: of all that have ended or were not to be begun.
        heard: the signals so far.
    """

    def __init__(self, grid: Grid, runs: Sequence[GridRun], launcher: Sequence[str], jobs: int) -> None:
        self._grid, self._waiting, self._launcher, self._jobs = grid, list(runs), launcher, jobs
        self._children: list[Child] = []
        self._passed_on = 0
        self.outcomes: list[Outcome] = []
        self.heard: list[int] = []

    def run(self, screen: Screen) -> None:
        """Runs until all have ended; after a signal, until those in progress have."""
        try:
            with _listening(self.heard):
                while self._children or (self._waiting and not self.heard):
                    self._begin_next(screen)
                    self._pass_on()
                    self._collect(screen)
        finally:  # also after a mistake of this program, no run is left alone
            for child in self._children:
                child.process.send_signal(signal.SIGUSR1)
            for child in self._children:
                child.process.wait()
        self.outcomes += [Outcome(run, "left") for run in self._waiting]

    def _begin_next(self, screen: Screen) -> None:
        while self._waiting and len(self._children) < self._jobs and not self.heard:
            run = self._waiting.pop(0)
            try:
                begun = begin(self._grid, run, self._launcher)
            except OSError as exc:
                begun = Outcome(run, "failed", f"cannot be started: {exc}", 1)
            if isinstance(begun, Child):
                self._children.append(begun)
                screen.begun(begun)
            else:
                self._note(begun, screen)

    def _pass_on(self) -> None:
        """Sends SIGUSR1, whichever signal was heard (mpirun kills its ranks at others); at a second signal SIGTERM."""
        if len(self.heard) > self._passed_on:
            for child in self._children:
                child.process.send_signal(signal.SIGTERM if self._passed_on else signal.SIGUSR1)
            self._passed_on = len(self.heard)

    def _collect(self, screen: Screen) -> None:
        time.sleep(0.1)
        for child in [c for c in self._children if c.process.poll() is not None]:
            self._children.remove(child)
            outcome = ended(self._grid, child, bool(self.heard))
            child.log.close()
            if outcome.status == STATUS and not self.heard:  # a scheduler may signal the runs alone: then all must end
                self.heard.append(signal.SIGUSR1)
            self._note(outcome, screen)

    def _note(self, outcome: Outcome, screen: Screen) -> None:
        self.outcomes.append(outcome)
        screen.ended(self.outcomes)


def begin(grid: Grid, run: GridRun, launcher: Sequence[str]) -> Child | Outcome:
    """Starts or continues a run that is not complete."""
    word, sentence = state_of(grid, run)
    if word not in IDLE:
        with ExitStack() as unless_started:
            log = unless_started.enter_context(run.log.open("ab"))
            if locks(log):
                word, sentence = judged(grid, run)  # another may have done it just now
            else:
                word, sentence = "running", f"another has the lock of {run.log}"
            if word not in IDLE:
                child = _started(grid, run, word, launcher, log)
                unless_started.pop_all()
                return child
    return Outcome(run, IDLE[word], sentence, int(word == "other"))


IDLE = {"finished": "already", "running": "elsewhere", "other": "failed"}
"""Outcomes of runs in states in which there is nothing to do."""


def _started(grid: Grid, run: GridRun, word: str, launcher: Sequence[str], log: IO[bytes]) -> Child:
    if word == "broken":
        os.replace(run.out, run.out.with_name(run.out.name + ".broken"))
    words = command(grid, run, word, launcher)
    log.write(f"$ {typed(words)}\n".encode())
    log.flush()
    start = log.tell()  # before the run can say anything
    nothing, both = subprocess.DEVNULL, subprocess.STDOUT
    # In a session of its own: Ctrl-C at the terminal is for this process, which passes it on in its way.
    process = subprocess.Popen(words, stdin=nothing, stdout=log, stderr=both, start_new_session=True)
    return Child(run, process, log, start, time.monotonic())


def ended(grid: Grid, child: Child, stopping: bool) -> Outcome:
    """Outcome of a run whose process has ended; `stopping`: it was sent a signal."""
    run, status = child.run, child.process.returncode
    status = 128 - status if status < 0 else status
    own, last = _last_words(child)
    word, sentence = judged(grid, run)
    if status == STATUS or (status and stopping and not own):
        return Outcome(run, "stopped", sentence, status)
    if status:
        return Outcome(run, "failed", f"exit status {status}: {own or last} ({run.log})", status)
    if word != "finished":
        return Outcome(run, "failed", f"exit status 0, but {sentence} ({run.log})", 1)
    return Outcome(run, "done", f"it took {timedelta(seconds=round(time.monotonic() - child.since))}")


def _last_words(child: Child) -> tuple[str, str]:
    """The run's own last sentence, "" if it died without one; and the log's last line, which may be the launcher's."""
    with child.run.log.open("rb") as file:
        file.seek(max(child.start, child.run.log.stat().st_size - 20_000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if any(map(str.isalpha, line))]
    ours = [line for line in lines if line.startswith("zofl_mpi: ") and not line.startswith("zofl_mpi: warning")]
    return (ours or [""])[-1], (lines or ["it said nothing"])[-1]


@contextmanager
def _listening(heard: list[int]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [signal.signal(number, lambda got, frame: heard.append(got)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@final
class Screen:
    """Prints a line at the start and at the end of every run."""

    def __init__(self, total: int) -> None:
        self._total, self._since, self._end = total, time.monotonic(), 0.0

    def begun(self, child: Child) -> None:
        """Prints which run was started."""
        say(f"{child.run.name}: running, see {child.run.log}")

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Prints the last of these, how many have failed, and how long the others may take."""
        last, count = outcomes[-1], Counter(outcome.word for outcome in outcomes)
        if count["done"]:
            now = time.monotonic()
            self._end = now + (now - self._since) / count["done"] * (self._total - len(outcomes))
        if last.word != "already":
            left = timedelta(seconds=round(max(0.0, self._end - time.monotonic())))
            numbers = f"{count['failed']} failed" + (f", {left} left" if self._end else "")
            say(f"[{len(outcomes)}/{self._total}] {last.run.name}: {LABELS[last.word]}, {last.sentence}; {numbers}")


def say(text: str) -> None:
    """Prints a line; a closed output does not end the runs in progress."""
    with suppress(BrokenPipeError):
        print(text, flush=True)
