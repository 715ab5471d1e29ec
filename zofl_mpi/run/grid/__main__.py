"""A grid of runs, from a file in TOML (`run.grid.file`): listed, run, continued.

    python -m zofl_mpi.run.grid jobs/a_table1.toml              # the runs that are done, the commands of the others
    python -m zofl_mpi.run.grid jobs/a_table1.toml --run        # does it; after an interruption, the rest
    sbatch --array=0-107 jobs/grid.sbatch jobs/a_table1.toml    # on a cluster: every run a job of its own

The state of a run is read from its result alone: it is finished if its result is, with the configuration of the file.
A result of another configuration is never touched. Any number of grid runners may work on one folder. A runner holds
the lock of its run's log; the run holds it too, in case its runner is killed. A list imports no module or user-defined
class, unless --trust is given; --run does. With [tune] in the file, --run tries the steps with one seed, then runs the
best of them with further seeds (`run.grid.tune`).
"""

import argparse
import re
import shlex
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zofl_mpi.errors import UserError, demand, plain, printing, refused
from zofl_mpi.run.grid.file import Grid, GridRun, known_flags, read, selected_runs
from zofl_mpi.run.grid.runner import LABELS, Runner, RunOutcome, Screen, say
from zofl_mpi.run.grid.state import command, state_of, typed
from zofl_mpi.run.grid.tune import planned
from zofl_mpi.run.loop.screen import show
from zofl_mpi.run.loop.signals import STATUS

RANK_COUNT = re.compile(r"-n\d*$|--?np(=|$)|--ntasks(=|$)")
"""A launcher's word that gives the number of ranks: -n 3, -n3, -np 3, --np 3, --ntasks=3."""


def listing(grid: Grid, runs: Mapping[int, GridRun], launcher: Sequence[str]) -> Iterator[str]:
    """Yields a line per run, then why some are left alone or begin anew, then how many are in which state."""
    notes, count = [], Counter[str]()
    for k, run in runs.items():
        word, sentence = state_of(grid, run)
        count[word] += 1
        yield f"{k:>{len(str(max(runs)))}}  {word:<11}  {typed(command(grid, run, word, launcher))}"
        if word in ("begun", "broken", "other"):
            notes.append(f"{run.name}: {sentence}")
    yield from notes
    to_do = count["missing"] + count["begun"] + count["broken"]
    numbers = [f"{count['finished']} finished", f"{count['interrupted']} to resume", f"{to_do} to do"]
    further = {"running": "running", "other": "in the way"}
    numbers += [f"{count[word]} {text}" for word, text in further.items() if count[word]]
    yield f"{_runs(len(runs))}: {', '.join(numbers)}"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def perform(
    grid: Grid, runs: Mapping[int, GridRun], launcher: Sequence[str], jobs: int, only: Sequence[str] | None = None
) -> Runner:
    """Runs all that is not complete; returns the runner (UserError: no launcher, or no folder for results).

    Args:
        only: the part of a study with [tune] whose best steps are run with further seeds; None: without these.
    """
    if launcher and not shutil.which(launcher[0]):
        raise UserError(f"{launcher[0]} is not found; load the MPI's module, name another --launcher, or use --ranks 1")
    try:
        grid.folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UserError(f"the folder {grid.folder} cannot be made ({exc.strerror}); give another --results") from exc
    runner = Runner(grid, list(runs.values()), launcher, jobs)
    runner.run(Screen(len(runs)))
    known = {} if only is None else _planned(grid, only, _tried(runner, only))
    if more := [run for k, run in known.items() if k not in runs]:
        runner.add(more)
        runner.run(Screen(len(runs) + len(more)))
    return runner


def _tried(runner: Runner, only: Sequence[str]) -> bool:
    """True if each run of a grid has ended: what failed is no choice."""
    return not only and all(outcome.word in ("already", "done", "failed") for outcome in runner.outcomes)


def report(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    """Yields a line per run that did not end well, then how many ended how."""
    for outcome in outcomes:
        if outcome.word in ("failed", "elsewhere", "stopped"):
            yield f"{LABELS[outcome.word]}: {outcome.run.name}: {outcome.sentence}"
    count = Counter(outcome.word for outcome in outcomes)
    numbers = ", ".join(f"{count[word]} {text}" for word, text in LABELS.items() if count[word])
    yield f"{_runs(len(outcomes))}: {numbers}"
    if count["stopped"] or count["left"]:
        yield "the same command continues"


def exit_status(runner: Runner, single: bool) -> int:
    """0; 1 if a run failed (`single`: its own status); 75 if stopped by a signal, 130 if by Ctrl-C."""
    if any(outcome.word in ("stopped", "left") for outcome in runner.outcomes):
        return 130 if runner.heard[0] == signal.SIGINT else STATUS
    failed = [outcome.status for outcome in runner.outcomes if outcome.word == "failed"]
    return (failed[0] if single else 1) if failed else 0


@printing
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 after one sentence on standard error, else see `exit_status`."""
    given = _parser().parse_args(arguments)
    try:
        grid, runs, launcher = _read(given)
        if not (given.run or given.index is not None):
            for line in (*listing(grid, runs, launcher), *planned(grid)[1]):
                show(plain(line))
            return 0
        runner = perform(grid, runs, launcher, given.jobs, given.only if given.index is None else None)
    except UserError as error:
        return refused(error)
    choices = planned(grid, _tried(runner, given.only))[1] if given.index is None else []
    for line in (*report(runner.outcomes), *choices):
        say(line)
    return exit_status(runner, given.index is not None)


def _parser() -> argparse.ArgumentParser:
    about = "List the runs of a grid, or run those that are not done."
    epilog = "A signal (SIGTERM, SIGUSR1, Ctrl-C) ends the runs in progress after their round, with a checkpoint."
    parser = argparse.ArgumentParser(prog="python -m zofl_mpi.run.grid", description=about, epilog=epilog)
    parser.add_argument("file", type=Path, help="the grid, in TOML; see python -m pydoc zofl_mpi.run.grid.file")
    parser.add_argument("--run", action="store_true", help="start missing runs and resume interrupted ones")
    parser.add_argument(
        "--index",
        type=int,
        metavar="K",
        help="do run number K of the list, as a task of a Slurm array; exit with its status",
    )
    parser.add_argument("--trust", action="store_true", help="import the grid's user-defined methods and problems")
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=ENTRY[,ENTRY]", help="select runs")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="number of simultaneous runs (default: 1)")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of each run (default: the file's)")
    parser.add_argument(
        "--launcher",
        help="command that starts a run's ranks (default: mpirun); it gets -n N of --ranks, unless it names a number",
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder of the results (default: the file's)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the data sets, for every run")
    return parser


def _read(given: argparse.Namespace) -> tuple[Grid, dict[int, GridRun], list[str]]:
    """Returns the grid, the chosen runs by their numbers, and the launcher."""
    for name in ("jobs", "ranks"):
        value = getattr(given, name)
        demand(value is None or value >= 1, name, value, "a whole number, at least 1")
    grid = read(given.file, given.results, trust=given.trust or given.run or given.index is not None)
    if given.data_dir is not None:
        grid = replace(grid, runs=tuple(_with_data(grid, run, given.data_dir) for run in grid.runs))
    runs = _planned(grid, given.only)
    if not runs:
        raise UserError(f"--only {' '.join(given.only)}: none of these runs is chosen yet; run the others first")
    if given.index is not None:
        demand(given.index in runs, "index", given.index, f"one of the numbers {min(runs)} to {max(runs)} of the list")
        runs = {given.index: runs[given.index]}
    return grid, runs, _launcher(given.launcher, given.ranks, grid.ranks)


def _planned(grid: Grid, only: Sequence[str], tried: bool = False) -> dict[int, GridRun]:
    """{number: run} of a part of what a study consists of, as far as its results tell."""
    known = planned(grid, tried)[0]
    return {k: run for k, run in selected_runs(grid, only).items() if k in known}


def _launcher(given: str | None, ranks: int | None, usual: int) -> list[str]:
    """Words that start a run's ranks; a launcher without a number of ranks gets that of --ranks."""
    if given is None:
        ranks = ranks or usual
        return ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    try:
        words = shlex.split(given)
    except ValueError as exc:
        raise UserError(f"--launcher {given}: {exc}; write it as in a shell") from exc
    if ranks is None or not words or any(map(RANK_COUNT.match, words)):
        return words
    return [*words, "-n", str(ranks)]


def _with_data(grid: Grid, run: GridRun, folder: str) -> GridRun:
    if "data_dir" not in known_flags(grid.module, run.flags):
        raise UserError(f"--data-dir {folder}: the problem of run {run.name} reads no files; leave the flag out")
    return replace(run, flags=run.flags | {"data_dir": folder})


if __name__ == "__main__":
    sys.exit(main())
