"""Runs in few processes: a start of Python costs more than a small run, and one of n ranks n times as much.

`here` and `launch(0, ...)` run in this process, `launch(n, ...)` all of its command lines in one start of n ranks,
`threads(n, ...)` on threads of this process, and `Runs` many results on any number of ranks. None of the runs may end
in an abort: it would take the others along. As a module this is what the ranks run: python -m tests.launch FOLDER.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from threadpoolctl import threadpool_limits

from zofl_mpi.engine.device import THREADS
from zofl_mpi.run import cli

Command = tuple[str, Sequence[object]]
"""A family's module and its arguments."""
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


@dataclass(frozen=True)
class Ended:
    """A command line that has ended.

    Attributes:
        status: exit status, the same on all ranks.
        stdout, stderr: what the ranks printed, rank by rank.
    """

    status: int
    stdout: str
    stderr: str


def launch(
    ranks: int,
    commands: Sequence[Command],
    timeout: float = 300.0,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Ended]:
    """What became of the command lines, run one after the other on so many ranks; 0 is in this process."""
    if ranks == 0:
        assert cwd is None and env is None
        return [_captured(*command) for command in commands]
    from tests.conftest import start

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        words = [[module, [str(word) for word in arguments]] for module, arguments in commands]
        (place / "commands.json").write_text(json.dumps(words))
        for _ in range(2):
            done = start(ranks, "-m", "tests.launch", folder, timeout=timeout, cwd=cwd, env=dict(env or {}))
            if NO_LAUNCHER not in done.stderr:
                break
        found = [[_text(place / f"{k}-{r}.{end}") for r in range(ranks)] for k in range(len(words)) for end in ENDS]
        parts = [dict(zip(ENDS, found[k : k + len(ENDS)], strict=True)) for k in range(0, len(found), len(ENDS))]
        told = "\n".join(f"{words[k]}\n{''.join(part['err'])}" for k, part in enumerate(parts) if "" in part["status"])
        assert done.returncode == 0 and "Warning" not in done.stderr, f"{done.stderr}\n{told}"
        assert all(len(set(part["status"])) == 1 for part in parts), [part["status"] for part in parts]
        return [Ended(int(part["status"][0]), "".join(part["out"]), "".join(part["err"])) for part in parts]


def threads(ranks: int, commands: Sequence[Command]) -> list[Ended]:
    """What became of the command lines on ranks that are threads of this process; see `tests.threads`."""
    from tests.threads import run_module

    def status(module: str, arguments: Sequence[object]) -> int:
        with undisturbed():
            return run_module(ranks, module, *arguments)

    return [_captured(*command, status) for command in commands]


ENDS = ("status", "out", "err")
NO_LAUNCHER = "PMIx server's listener thread failed to start"
"""What mpirun says that ends before it has started any rank: seen once in 6,000 tests of a busy machine."""


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def here(module: str, *arguments: object) -> int:
    """The exit status of a command line that runs in this process and prints as it does."""
    with undisturbed():
        return _status(module, arguments)


def refused(capsys: Any, module: str, *arguments: object) -> str:
    """The one sentence that a command line in this process ends in."""
    capsys.readouterr()
    assert here(module, *arguments, "--quiet") == 2
    told = capsys.readouterr()
    assert told.err.startswith("zofl_mpi: ") and told.err.count("\n") == 1 and told.out == "", told
    return str(told.err.removeprefix("zofl_mpi: ").rstrip())


def _status(module: str, arguments: Sequence[object]) -> int:
    try:
        cli.main(module, [*map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def _captured(
    module: str, arguments: Sequence[object], run: Callable[[str, Sequence[object]], int] | None = None
) -> Ended:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run(module, arguments) if run else here(module, *arguments)
    return Ended(status, out.getvalue(), err.getvalue())


@contextmanager
def undisturbed() -> Iterator[None]:
    """A run sets signal handlers and threads; afterwards they are as they were. One thread, as the numerics."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    variables = {name: os.environ.get(name) for name in THREADS}
    with threadpool_limits(1):
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


class Runs:
    """Runs of a family by name, made when the first of them is asked for: all on so many ranks are one start.

    Args:
        commands: name -> arguments without --out and --quiet.
        wanted: ranks -> the names of those that run on so many; all of them if it is not given.
        processes: numbers of ranks that are processes under mpirun; others are threads, and 0 is neither.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        commands: Mapping[str, Sequence[object]],
        wanted: Callable[[int], Iterable[str]] | None = None,
        processes: Sequence[int] = (1, 3),
    ) -> None:
        self.processes = processes
        self.folder, self.module, self.commands = folder, module, commands
        self.wanted = wanted or (lambda ranks: commands)
        self.done: dict[int, dict[str, Ended]] = {}

    def __call__(self, name: str, ranks: int) -> Path:
        """The result of a run on so many ranks; 0 is in this process."""
        if ranks not in self.done:
            self.done[ranks] = self._made(ranks)
        return self.path(name, ranks)

    def path(self, name: str, ranks: int) -> Path:
        return self.folder / f"{name}-{ranks}.h5"

    def _made(self, ranks: int) -> dict[str, Ended]:
        names = list(self.wanted(ranks))
        runs = [(self.module, [*self.commands[n], "--quiet", "--out", self.path(n, ranks)]) for n in names]
        perform = launch if ranks in (0, *self.processes) else threads
        ended = dict(zip(names, perform(ranks, runs), strict=True))
        failed = {name: one.stderr for name, one in ended.items() if one.status or "arning" in one.stderr}
        assert not failed, failed
        return ended


def _rank(folder: Path) -> None:
    """All command lines, on this rank: what each prints is kept, line by line, and its status when it has ended."""
    rank = next((os.environ[name] for name in RANK if name in os.environ), "0")

    def opened(k: int, end: str) -> TextIO:
        return (folder / f"{k}-{rank}.{end}").open("w", buffering=1)

    words: list[list[Any]] = json.loads((folder / "commands.json").read_text())
    for k, (module, arguments) in enumerate(words):
        with opened(k, "out") as out, opened(k, "err") as err, redirect_stdout(out), redirect_stderr(err):
            status = _status(module, arguments)
        (folder / f"{k}-{rank}.status").write_text(str(status))


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
