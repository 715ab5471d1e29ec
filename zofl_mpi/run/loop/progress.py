"""Progress on the screen: a bar on a terminal, else a line every few rounds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast, final

from zofl_mpi.engine.clients import Clients, Participants, Replies, Step
from zofl_mpi.engine.processes import stat

if TYPE_CHECKING:
    from rich.console import RenderableType

LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "hydra", "srun", "prun")
"""Parts of the names of commands that start ranks."""
DAEMONS = ("orted", "prted", "slurmstepd")
"""Names of launcher processes that start a node's ranks, maybe on another node."""
RENAMED = {"prterun": "mpirun", "mpiexec.hydra": "mpiexec"}
"""{process of a launcher: the command as typed}."""
WIDE = 120
"""Minimum screen columns to show the rounds' bar beside the words."""
SHORT = 0.5
"""Seconds below which a step outside rounds is not shown."""
QUIET_SECONDS = 5.0
"""Maximum seconds of a start without a line, unless its steps are longer."""
LONG_RUN_SECONDS = 600.0
"""Seconds from which the first round announces the expected duration."""


class Progress:
    """Shows nothing (--quiet); context manager and base of the visible forms."""

    _pace = 0.0
    _rounds = 0
    _before = 0  # rounds of earlier sessions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def step(self, name: str, total: int = 0, done: int = 0) -> None:
        """Show a step outside rounds, such as a part of the start or an evaluation; "": none.

        It has `total` parts (0: unknown), of which `done` are done.
        """

    def advance(self) -> None:
        """Show that one more part of the step is done."""

    def begin(self, done: int, rounds: int) -> None:
        """Show that the rounds begin, after `done` of `rounds` in earlier sessions."""
        self._before, self._rounds = done, rounds

    def update(self, done: int, note: str, seconds: float) -> None:
        """Show `done` finished rounds; `note` is the last evaluation, `seconds` the round's time."""

    def pace(self, done: int, seconds: float) -> tuple[str, str]:
        """Seconds per round, and the remaining time. Recent rounds weigh more: rounds grow with H = tau sqrt(r + 1)."""
        self._pace = 0.9 * self._pace + 0.1 * seconds if self._pace else seconds
        return f"{self._pace:.3f} s/round", f"{timedelta(seconds=round((self._rounds - done) * self._pace))} left"

    def long(self, done: int, seconds: float) -> str:
        """A notice after a session's first round if the rest takes long; else ""."""
        left = (self._rounds - done) * seconds
        if done > self._before + 1 or left < LONG_RUN_SECONDS:
            return ""
        shorter = "a smaller --rounds or model, fewer local steps, or more ranks (mpirun -n) shorten it"
        return f"long      a round took {seconds:.1f} s, so the run takes about {left / 60:.0f} minutes: {shorter}"


@final
class Lines(Progress):
    """Prints a line at the first and last round, in between every 5 seconds, later every 20th of the time."""

    def __init__(self) -> None:
        self._start, self._next = time.monotonic(), 0.0
        self._last = self._start  # of a line

    def step(self, name: str, total: int = 0, done: int = 0) -> None:
        if name and not self._rounds and time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            print(f"start     {name.removeprefix('start: ')}", flush=True)

    def update(self, done: int, note: str, seconds: float) -> None:
        (pace, left), now = self.pace(done, seconds), time.monotonic()
        if now < self._next and done < self._rounds:
            return
        self._next = now + max(5.0, (now - self._start) / 20)  # a day's log has 160 lines
        if told := self.long(done, seconds):
            print(told, flush=True)
        print(f"round {done:>{len(str(self._rounds))}}/{self._rounds}  {note}  {pace}  {left}", flush=True)


@final
class Bar(Progress):
    """A line for the rounds and one for the current step, redrawn a few times a second, with a spinner.

    `terminal` is the device to draw on; None: standard output. A launcher forwards its ranks' output line by line, but
    a bar is one line without end: under a launcher it is drawn on the terminal itself.
    """

    def __init__(self, terminal: str | None) -> None:
        from rich import progress as rich
        from rich.console import Console
        from rich.text import Text

        class OneLine(rich.ProgressColumn):
            """All of a task in one line, cut off at the screen's edge, not wrapped."""

            def render(self, task: rich.Task) -> Text:
                total = "?" if task.total is None else int(task.total)
                each = (f"{task.description} {int(task.completed)}/{total}", task.fields["left"], task.fields["note"])
                return Text(" ".join(filter(None, each)), no_wrap=True, overflow="ellipsis")

        class Table(rich.Progress):
            """Omits steps that end at once, which would flicker."""

            def get_renderables(self) -> Iterator[RenderableType]:
                rounds, steps = self.tasks[:1], self.tasks[1:]
                self.columns = tuple(narrow if console.width < WIDE else wide)
                for each in (rounds, [step for step in steps if (step.elapsed or 0.0) > SHORT]):
                    yield self.make_tasks_table(each)

        narrow: list[str | rich.ProgressColumn] = [rich.SpinnerColumn(finished_text=" "), OneLine()]
        wide: list[str | rich.ProgressColumn] = [
            narrow[0],
            rich.TextColumn("{task.description}"),
            rich.MofNCompleteColumn(),
            rich.BarColumn(bar_width=24),
            rich.TextColumn("{task.fields[note]}"),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.fields[left]}"),
        ]
        self._file = open(terminal, "w") if terminal else None  # noqa: SIM115  (closed by __exit__)
        width = os.get_terminal_size(self._file.fileno()).columns or 100 if self._file else None
        console = Console(file=self._file, force_terminal=True, width=width)
        self._bar = Table(
            *wide,
            redirect_stderr=terminal is None and sys.stderr.isatty(),  # otherwise a file may receive it
            console=console,
            refresh_per_second=4,
        )
        self._step: rich.TaskID | None = None
        self._task = self._bar.add_task("round", start=False, total=None, note="", left="")

    def __enter__(self) -> Self:
        self._bar.start()
        self._bar.console.show_cursor(True)  # a killed run could not restore it
        return self

    def __exit__(self, *exc: object) -> None:
        self.step("")
        self._bar.stop()
        if self._file:
            self._file.close()

    def step(self, name: str, total: int = 0, done: int = 0) -> None:
        if self._step is not None:
            self._bar.remove_task(self._step)
        self._step = self._bar.add_task(name, total=total or None, completed=done, note="", left="") if name else None

    def advance(self) -> None:
        if self._step is not None:
            self._bar.advance(self._step)

    def begin(self, done: int, rounds: int) -> None:
        super().begin(done, rounds)
        self.step("")
        self._bar.start_task(self._task)
        self._bar.update(self._task, total=rounds, completed=done)

    def update(self, done: int, note: str, seconds: float) -> None:
        pace, left = self.pace(done, seconds)
        self._bar.update(self._task, completed=done, note=f"{note}  {pace}", left=left)
        if told := self.long(done, seconds):
            self._bar.console.print(told, markup=False, highlight=False)


class _Shown:
    def __init__(self, clients: Clients, progress: Progress, name: str) -> None:
        self._clients, self._progress, self._name = clients, progress, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    def ask(self, step: Step, message: Any, *, to: Participants = None, **how: Any) -> Replies:
        to = range(self._clients.m) if to is None else list(to)
        return self._each(len(to), self._clients.ask(step, message, to=to, **how))

    def ask_each(self, step: Step, each: Mapping[int, Any], **how: Any) -> Replies:
        return self._each(len(each), self._clients.ask_each(step, each, **how))

    def _each(self, count: int, replies: Replies) -> Replies:
        self._progress.step(self._name, count)
        for reply in replies:
            self._progress.advance()
            yield reply


def with_progress(clients: Clients, progress: Progress, name: str) -> Clients:
    """The clients during an evaluation of that name; the progress counts their replies."""
    return cast(Clients, _Shown(clients, progress, name))


def progress(quiet: bool) -> Progress:
    """The form of progress that suits the output."""
    if quiet:
        return Progress()
    on_screen, terminal = screen()
    return Bar(terminal) if on_screen else Lines()


def announce(ranks: int) -> None:
    """Announce the start: MPI with many ranks takes seconds before the bar appears; 0: no MPI."""
    _, terminal = screen()
    with open(terminal, "w") if terminal else nullcontext(sys.stdout) as file:
        print(f"start     {f'connecting {ranks} ranks' if ranks > 1 else 'loading'}", file=file, flush=True)


def say(words: str) -> None:
    """Print a line on a launcher's terminal, if there is one, below a bar; else on standard error."""
    _, terminal = screen()
    with open(terminal, "w") if terminal else nullcontext(sys.stderr) as file:
        print(f"\n{words}" if terminal else words, file=file, flush=True)


def screen() -> tuple[bool, str | None]:
    """True if a person watches, and the terminal's device (None: standard output).

    Daemons give ranks pseudo-terminals whose output goes to a log; only `srun --pty` has a person at the other end.
    """
    if launcher := outermost_launcher():
        terminal = terminal_of(launcher)
        return terminal is not None, terminal
    watched = "SLURM_PTY_PORT" in os.environ or outermost_launcher(DAEMONS) is None
    return sys.stdout.isatty() and watched, None


def terminal_of(launcher: int) -> str | None:
    """Terminal of a launcher's own standard output; None if it has none.

    A rank's own output is no evidence: Open MPI gives its ranks a pseudo-terminal even when writing to a file, MPICH
    always a pipe.
    """
    try:
        target = os.readlink(f"/proc/{launcher}/fd/1")
    except OSError:
        return None
    return target if target.startswith(("/dev/pts/", "/dev/tty")) and os.access(target, os.W_OK) else None


def outermost_launcher(names: Sequence[str] = LAUNCHERS) -> int | None:
    """Process id of the outermost ancestor with one of these names; None: none."""
    outermost, pid = None, os.getppid()
    with suppress(OSError, ValueError):
        while pid > 1:
            name = Path(f"/proc/{pid}/comm").read_text()
            if any(launcher in name for launcher in names):
                outermost = pid
            pid = int(stat(pid)[1])
    return outermost


def launcher_words(arguments: Sequence[str], ranks: int) -> list[str]:
    """The launcher's words before the program, such as `mpirun -n 3`; empty without a launcher."""
    launcher = outermost_launcher()
    if launcher is None:  # on this node: `srun` may have started ranks on several
        kind = os.environ.get("SLURM_MPI_TYPE")
        return ["srun", *([f"--mpi={kind}"] if kind else []), "-n", str(ranks)] if ranks > 1 else []
    try:
        words = Path(f"/proc/{launcher}/cmdline").read_text().rstrip("\0").split("\0")
    except (OSError, ValueError):
        words = []
    end = len(words) - len(arguments)
    if end < 2 or words[end:] != [*arguments]:  # a script or an appfile: its words do not belong to the run
        return ["mpirun", "-n", str(ranks)]
    before = words[: end - 3] if words[end - 2] == "-m" else words[: end - 1]
    name = Path(before[0]).name
    return [RENAMED.get(name, name), *before[1:]]
