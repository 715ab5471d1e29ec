"""Execution of a grid's runs as processes: several at a time, with progress, stopped by signals."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, NamedTuple, Self, final

from zofl_mpi.errors import UserError, plain
from zofl_mpi.run.grid.file import Grid, GridRun
from zofl_mpi.run.grid.forked import Forked, forks
from zofl_mpi.run.grid.state import command, held, judged, state_of, typed
from zofl_mpi.run.loop.screen import columns, fold, show
from zofl_mpi.run.loop.signals import STATUS
from zofl_mpi.run.records import output_path
from zofl_mpi.run.records.lock import lock, lock_path

LABELS = {
    "already": "finished before",
    "done": "done",
    "failed": "failed",
    "elsewhere": "running elsewhere",
    "stopped": "stopped",
    "left": "not begun",
}
"""Outcomes of a run: {word: as a user reads it}."""


class RunOutcome(NamedTuple):
    """Outcome of a run: one of LABELS, its last words, and its exit status (1 if it failed without one)."""

    run: GridRun
    word: str
    sentence: str = ""
    status: int = 0


class Child(NamedTuple):
    """A run in progress; its log is open and locked, and its output begins there at `start`."""

    run: GridRun
    process: subprocess.Popen[bytes] | Forked
    log: IO[bytes]
    start: int
    since: float  # time.monotonic()


@final
class Runner:
    """Runs of a grid, `jobs` at a time. A signal ends them after the round in progress, a second one at once."""

    def __init__(self, grid: Grid, runs: Sequence[GridRun], launcher: Sequence[str], jobs: int) -> None:
        self._grid, self._waiting, self._launcher, self._jobs = grid, list(runs), launcher, jobs
        self._children: list[Child] = []
        self._passed_on = 0
        self.outcomes: list[RunOutcome] = []  # of all that have ended or were not to be begun
        self.heard: list[int] = []  # the signals so far

    def add(self, runs: Sequence[GridRun]) -> None:
        """Further runs, for another `run`."""
        self._waiting += runs

    def run(self, screen: Screen) -> None:
        """Runs until all have ended; after a signal, until those in progress have."""
        try:
            with _listening(self.heard), screen:
                while self._children or (self._waiting and not self.heard):
                    self._begin_next(screen)
                    self._pass_on()
                    self._collect(screen)
                    screen.tick(self.outcomes, self._children)
        finally:  # also after a mistake of this program, no run is left alone
            for child in self._children:
                child.process.send_signal(signal.SIGUSR1)
            for child in self._children:
                child.process.wait()
        self.outcomes += [RunOutcome(run, "left") for run in self._waiting]
        self._waiting.clear()

    def _begin_next(self, screen: Screen) -> None:
        while self._waiting and len(self._children) < self._jobs and not self.heard:
            run = self._waiting.pop(0)
            try:
                begun = begin(self._grid, run, self._launcher, [child.log for child in self._children])
            except (OSError, UserError) as exc:
                begun = RunOutcome(run, "failed", f"cannot be started: {exc}", 1)
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

    def _note(self, outcome: RunOutcome, screen: Screen) -> None:
        self.outcomes.append(outcome)
        screen.ended(self.outcomes)


def begin(grid: Grid, run: GridRun, launcher: Sequence[str], others: Sequence[IO[bytes]] = ()) -> Child | RunOutcome:
    """Start or resume an incomplete run; `others`: logs of the runs in progress."""
    word, sentence = state_of(grid, run)
    if word not in NOTHING_TO_DO:
        with ExitStack() as unless_started:
            log = unless_started.enter_context(opened(run.log))
            try:
                lock(log.fileno())  # children inherit it with the file
                word, sentence = judged(grid, run)  # another may have done it just now
            except BlockingIOError:
                word, sentence = "running", f"another has the lock of {run.log}"
            if word not in NOTHING_TO_DO:
                child = _started(grid, run, word, launcher, log, others)
                unless_started.pop_all()
                return child
    return RunOutcome(run, NOTHING_TO_DO[word], sentence, int(word == "other"))


def opened(log: Path) -> IO[bytes]:
    """A run's log, to be written at its end (OSError: it is a link, or no file)."""
    number = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    file = os.fdopen(number, "ab")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "the log is no file: rename it", str(log))
    return file


NOTHING_TO_DO = {"finished": "already", "running": "elsewhere", "other": "failed"}
"""Outcomes of runs in states in which there is nothing to do."""


def _started(
    grid: Grid, run: GridRun, word: str, launcher: Sequence[str], log: IO[bytes], others: Sequence[IO[bytes]]
) -> Child:
    if word == "broken":
        output_path.set_aside(run.out, ".broken")
    words = command(grid, run, word, launcher)
    log.write(f"$ {typed(words)}\n".encode())
    log.flush()
    start = log.tell()  # before the run can say anything
    process: subprocess.Popen[bytes] | Forked
    if not launcher and forks():
        process = Forked(grid.module, words, log, others)
    else:
        nothing, both = subprocess.DEVNULL, subprocess.STDOUT
        # In a session of its own: Ctrl-C at the terminal is for this process, which passes it on in its way.
        process = subprocess.Popen(words, stdin=nothing, stdout=log, stderr=both, start_new_session=True)
    return Child(run, process, log, start, time.monotonic())


def ended(grid: Grid, child: Child, stopping: bool) -> RunOutcome:
    """Outcome of a run with an ended process; `stopping`: it was sent a signal."""
    run, status = child.run, child.process.wait()
    status = 128 - status if status < 0 else status
    own, last = _last_words(child)
    if status and stopping:
        _let_ranks_end(run.out)
    word, sentence = judged(grid, run)
    if status == STATUS or (status and stopping and (not own or own.startswith("zofl_mpi: SIG"))):
        return RunOutcome(run, "stopped", sentence, status)
    if status:
        return RunOutcome(run, "failed", f"exit status {status}: {own or last} ({run.log})", status)
    if word != "finished":
        return RunOutcome(run, "failed", f"exit status 0, but {sentence} ({run.log})", 1)
    return RunOutcome(run, "done", f"it took {timedelta(seconds=round(time.monotonic() - child.since))}")


def _let_ranks_end(out: Path) -> None:
    """Waits while a run's ranks write its checkpoint: a launcher that a signal ends may leave before them."""
    for _ in range(50):
        if not held(lock_path(out)):
            return
        time.sleep(0.1)


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
    """A bar over the grid on a terminal, else a line at every start and every end."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        self._total, self._since, self._end, self._draws = total, time.monotonic(), 0.0, sys.stdout.isatty()
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # a narrow screen cuts off names, not the count
        note = TextColumn("{task.fields[note]}", markup=False, table_column=rest)
        columns = TextColumn("run"), MofNCompleteColumn(), BarColumn(bar_width=12), note
        # drawn by `tick`: a process with threads is not forked safely
        self._bar = Progress(*columns, auto_refresh=False, disable=not self._draws, expand=True)
        self._bar.add_task("", total=total, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        self._bar.console.show_cursor(True)  # whoever is killed could not bring it back
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def begun(self, child: Child) -> None:
        if not self._draws:
            say(f"{child.run.name}: running, see {child.run.log}")

    def ended(self, outcomes: Sequence[RunOutcome]) -> None:
        """Shows the last of these, which has just come."""
        last, done = outcomes[-1], sum(outcome.word == "done" for outcome in outcomes)
        if done:
            now = time.monotonic()
            self._end = now + (now - self._since) / done * (self._total - len(outcomes))
        text = plain(f"{last.run.name}: {LABELS[last.word]}, {last.sentence}")
        if self._draws and last.word not in ("done", "already"):
            self._bar.console.print(fold(text, columns()), markup=False, highlight=False, soft_wrap=True)
        elif not self._draws and last.word != "already":
            say(f"[{len(outcomes)}/{self._total}] {text}; {self._numbers(outcomes)}")

    def tick(self, outcomes: Sequence[RunOutcome], children: Sequence[Child]) -> None:
        """Draws the bar; called ten times a second."""
        note = f"{self._numbers(outcomes)}  {', '.join(child.run.name for child in children)}"
        self._bar.update(self._bar.task_ids[0], completed=len(outcomes), note=note, refresh=True)

    def _numbers(self, outcomes: Sequence[RunOutcome]) -> str:
        failed = sum(outcome.word == "failed" for outcome in outcomes)
        left = timedelta(seconds=round(max(0.0, self._end - time.monotonic())))
        return f"{failed} failed" + (f", {left} left" if self._end else "")


def say(text: str) -> None:
    """Prints a line; an output that is closed or full does not end the runs in progress."""
    with suppress(OSError):
        show(plain(text))
