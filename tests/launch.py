"""Runs in few processes: a start of Python costs more than a small run, and one of n ranks n times as much.

`here` and `launch(0, ...)` run in this process, `launch(n, ...)` all of its command lines in one start of n ranks,
`threads(n, ...)` on threads of this process, and `Runs` many results on any number of ranks. None of the runs may end
in an abort: it would take the others along. As a module this is what the ranks run: python -m tests.launch FOLDER.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from threadpoolctl import ThreadpoolController

from zofl_mpi.engine.device import THREADS
from zofl_mpi.run.command import cli
from zofl_mpi.run.records import checkpoint_path

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


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """BLAS and OpenMP with one thread; their libraries are looked for (4 ms) only if something was imported since."""
    return _libraries(len(sys.modules)).limit(limits=1)  # type: ignore[no-any-return]


@contextmanager
def undisturbed() -> Iterator[None]:
    """A run sets signal handlers and threads; afterwards they are as they were. One thread, as the numerics."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    variables = {name: os.environ.get(name) for name in THREADS}
    with one_thread():
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
    """Runs by name, each made when it is first asked for; on 0 ranks in this process, on others as threads.

    Args:
        commands: name -> a family's module and its arguments without --out and --quiet.
        processes: ranks -> the names of those that are processes under mpirun on so many, all of them one start.
    """

    def __init__(
        self, folder: Path, commands: Mapping[str, Command], processes: Mapping[int, Sequence[str]] | None = None
    ) -> None:
        self.folder, self.commands, self.processes = folder, commands, processes or {}

    def __call__(self, name: str, ranks: int) -> Path:
        """The result of a run on so many ranks."""
        if not (found := self.folder / f"{name}-{ranks}.h5").exists():
            self._perform(ranks, [(each, self._whole(each, f"{each}-{ranks}")) for each in self._with(name, ranks)])
        return found

    def continued(self, name: str, begun: int, ranks: int, rounds: tuple[int, int], *more: object) -> Path:
        """The result of a run of rounds[0] rounds on `begun` ranks, {name}-half.h5, then up to rounds[1] on others."""
        if not (found := self.folder / f"{name}-part-{ranks}.h5").exists():
            names = self._with(name, ranks)
            for each in names:
                if not (half := self.folder / f"{each}-half.h5").exists():
                    self._perform(begun, [(each, [*self._whole(each, f"{each}-half"), "--rounds", rounds[0]])])
                for path in (half, checkpoint_path(half)):
                    shutil.copy(path, self.folder / path.name.replace("half", f"part-{ranks}"))
            again = ["--rounds", rounds[1], "--quiet", *more]
            outs = [self.folder / f"{each}-part-{ranks}.h5" for each in names]
            self._perform(ranks, [(each, ["--resume", out, *again]) for each, out in zip(names, outs, strict=True)])
        return found

    def _with(self, name: str, ranks: int) -> Sequence[str]:
        together = self.processes.get(ranks, ())
        return together if name in together else [name]

    def _whole(self, name: str, out: str) -> list[object]:
        return [*self.commands[name][1], "--quiet", "--out", self.folder / f"{out}.h5"]

    def _perform(self, ranks: int, runs: list[tuple[str, list[object]]]) -> None:
        perform = launch if ranks == 0 or runs[0][0] in self.processes.get(ranks, ()) else threads
        ended = perform(ranks, [(self.commands[name][0], words) for name, words in runs])
        failed = {name: one for (name, _), one in zip(runs, ended, strict=True) if one.status or "arning" in one.stderr}
        assert not failed, failed


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
