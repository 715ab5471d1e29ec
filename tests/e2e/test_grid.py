"""Grids run for real: toy problems, without MPI unless it is what is tested."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import LIMIT, Completed, Terminal, environment, run_process
from tests.e2e.made import rounds_of, wait_until
from zofl_mpi.report.same import differences
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid import __main__

COMMAND = [sys.executable, "-m", "zofl_mpi.run.grid", "toy.toml"]
TOY = """module = "zofl_mpi.zo_hfl"
folder = "out"
[fixed]
problem = "toy"
rounds = 6
tau = 3
checkpoint-every = 2
[axes]
seed = [1, 2]
[axes.cell]
half = { beta = 0.5 }
all = {}
"""
LONG = TOY.replace("rounds = 6", "rounds = 5000\nschedule-h = 'constant'")
"""Some seconds a run."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, with toy.toml in it."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    (tmp_path / "toy.toml").write_text(TOY)
    return tmp_path


def runner(*words: object) -> Completed:
    """A grid runner as a process."""
    return run_process([*COMMAND, *map(str, words)])


def inside(*words: object) -> Completed:
    """A grid runner in this process; its runs are processes."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = __main__.main(["toy.toml", *map(str, words)])
    return Completed([*map(str, words)], status, out.getvalue(), err.getvalue())


def sentence_of(*words: object) -> str:
    """The sentence of a command that is refused."""
    done = inside(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("zofl_mpi: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("zofl_mpi: ").rstrip()


def started(*words: object) -> subprocess.Popen[str]:
    """A grid runner at work, in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_a_grid_is_listed_run_and_then_done(folder: Path) -> None:
    before = runner()
    flags = "--problem toy --rounds 6 --tau 3 --checkpoint-every 2"
    assert before.stdout.splitlines() == [
        f"0  missing      python -m zofl_mpi.zo_hfl {flags} --seed 1 --beta 0.5 --out out/1-half.h5",
        f"1  missing      python -m zofl_mpi.zo_hfl {flags} --seed 1 --out out/1-all.h5",
        f"2  missing      python -m zofl_mpi.zo_hfl {flags} --seed 2 --beta 0.5 --out out/2-half.h5",
        f"3  missing      python -m zofl_mpi.zo_hfl {flags} --seed 2 --out out/2-all.h5",
        "4 runs: 0 finished, 0 to resume, 4 to do",
    ]
    assert before.returncode == 0 and not Path("out").exists()
    (folder / "toy.toml").write_text(TOY.replace('"toy"', '"softmax"'))
    lines = inside("--data-dir", "some where").stdout.splitlines()
    assert [line.count("--data-dir 'some where'") for line in lines] == [1, 1, 1, 1, 0]
    (folder / "toy.toml").write_text(TOY)

    done = runner("--run", "--jobs", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "4 runs: 4 done"
    typed = before.stdout.splitlines()[2].split("missing", 1)[1].replace("out/2-half.h5", "typed.h5").split()
    assert run_process([sys.executable, *typed[1:]]).returncode == 0
    assert differences("typed.h5", "out/2-half.h5") == []
    assert "result    out/1-all.h5" in Path("out/1-all.log").read_text()

    kept = {path: path.stat().st_mtime_ns for path in Path("out").glob("*.h5")}
    again = inside("--run")
    assert again.returncode == 0 and again.stdout == "4 runs: 4 finished before\n"
    assert {path: path.stat().st_mtime_ns for path in Path("out").glob("*.h5")} == kept
    assert inside().stdout.splitlines()[-1] == "4 runs: 4 finished, 0 to resume, 0 to do"


def test_a_longer_grid_continues_and_what_differs_is_left_alone(folder: Path) -> None:
    assert inside("--index", 1).returncode == 0
    (folder / "toy.toml").write_text(TOY.replace("rounds = 6", "rounds = 9"))
    assert inside("--only", "cell=all").stdout.splitlines()[-1] == "2 runs: 0 finished, 1 to resume, 1 to do"
    assert inside("--run", "--index", 1).returncode == 0 and rounds_of("out/1-all.h5") == 9
    assert "--resume out/1-all.h5" in Path("out/1-all.log").read_text()
    (folder / "toy.toml").write_text(TOY.replace("tau = 3", "tau = 4"))
    kept = Path("out/1-all.h5").read_bytes()
    done = inside("--run", "--index", 1)
    assert done.returncode == 1 and Path("out/1-all.h5").read_bytes() == kept
    told = "1-all: result of another configuration: --tau was 3.0, is now 4.0; "
    assert done.stdout.splitlines()[-2].startswith(f"failed: {told}")
    listed = inside("--only", "cell=all", "--only", "seed=1").stdout.splitlines()
    assert listed[0].startswith("1  other ") and listed[1].startswith(told)
    assert listed[2] == "1 run: 0 finished, 0 to resume, 0 to do, 1 in the way"


def test_a_run_by_its_number_gives_its_status(folder: Path) -> None:
    (folder / "toy.toml").write_text(TOY.replace("half = {", "half = { eta = -1,"))
    single = inside("--index", 2, "--results", "new")
    assert single.returncode == 2 and "--eta -1.0: must be a smoothing radius" in single.stdout


def test_an_interrupted_grid_goes_on_with_the_bits_of_an_undisturbed_one(folder: Path) -> None:
    (folder / "toy.toml").write_text(LONG)
    with started("--run", "--only", "seed=1", "--jobs", 2) as process:
        wait_until(lambda: rounds_of("out/1-half.h5") > 5 and rounds_of("out/1-all.h5") > 5)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C
        told = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 130, told
    assert told.splitlines()[-2:] == ["2 runs: 2 stopped", "the same command continues"]
    reached = rounds_of("out/1-half.h5")
    assert 5 < reached < 5000

    (folder / "toy.toml").write_text(LONG.replace("5000", str(reached + 20)))
    assert inside("--index", 0).returncode == 0
    assert inside("--index", 0, "--results", "whole").returncode == 0
    final = [records.load(f"{folder}/1-half.h5").final["x"].tobytes() for folder in ("out", "whole")]
    assert final[0] == final[1] and rounds_of("out/1-half.h5") == reached + 20


def test_a_run_under_mpirun_is_told_in_the_way_it_understands(folder: Path, mpirun: Callable[..., Completed]) -> None:
    """mpirun kills its ranks a quarter of a second after a SIGTERM; SIGUSR1 reaches them."""
    (folder / "toy.toml").write_text(LONG)
    with started("--index", "1", "--ranks", "2") as process:
        wait_until(lambda: rounds_of("out/1-all.h5") > 5)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 75, told
    found = records.load("out/1-all.h5")
    assert found.attrs["status"] == "interrupted"
    assert int(records.load_checkpoint("out/1-all.ckpt.h5").attrs["round"]) == found.length


STUDY = """module = "zofl_mpi.zo_hfl"
folder = "out"
ranks = 2
fixed = { data = "digits", m = 4, rounds = 4, eval-every = 2, validation = 0.2, tau = 5, method = "fedavg" }
axes.gamma-local = [0.001, 0.1, 1e200]
tune = { over = ["gamma-local"], by = "validation_accuracy", seed = 1, then = [1, 2] }
"""


def test_a_study_chooses_its_steps_and_runs_the_best_with_further_seeds(folder: Path, mpirun: object) -> None:
    """On two ranks, in one command, resumed. Mutations: the lowest accuracy; a choice before all steps are tried;
    further seeds of all steps; a run that fails ends the study; edges in no word."""
    (folder / "toy.toml").write_text(STUDY)
    waits = "all runs: {} of 3 runs with seed 1 are finished; then the best has further seeds"
    assert inside().stdout.splitlines()[-2:] == ["3 runs: 0 finished, 0 to resume, 3 to do", waits.format(0)]
    assert inside("--run", "--only", "gamma-local=0.001").stdout.splitlines()[-1] == waits.format(1)
    assert "none of these runs is chosen yet" in sentence_of("--only", "seed=2")

    done = inside("--run", "--jobs", 2)
    assert done.returncode == 1 and "4 runs: 1 finished before, 2 done, 1 failed" in done.stdout
    ended = {name: records.load(f"out/1-{name}.h5").rounds["validation_accuracy"] for name in ("0.001", "0.1")}
    worse, best = (float(np.nanmean(values)) for values in ended.values())
    assert worse < best and {path.name for path in Path("out").glob("2-*.log")} == {"2-0.1.log"}
    told = f"all runs: gamma-local 0.1 is the best of 3 by validation_accuracy, {best:.4g}; 1 of them did not finish"
    assert done.stdout.splitlines()[-1] == told

    (folder / "toy.toml").write_text(STUDY.replace(", 1e200", ""))
    again = inside("--run").stdout.splitlines()
    assert again[0] == "3 runs: 3 finished before" and "at an edge of gamma-local" in again[1]
    assert re.search(r"^3 +finished +mpirun -n 2 .*--seed 2 .*--gamma-local 0.1", inside("--only", "seed=2").stdout)
    figure = run_process([sys.executable, "-m", "zofl_mpi.report", "toy.toml", "--out", "all.svg"])
    assert figure.returncode == 0 and "is the best of 2" in figure.stderr
    assert "% mean and 95 % t interval, n = 2 seeds" in Path("all.tex").read_text()


def test_a_run_outlives_its_grid_runner_and_nobody_begins_it_again(folder: Path) -> None:
    (folder / "toy.toml").write_text(LONG)
    with started("--index", "1") as process:
        wait_until(lambda: rounds_of("out/1-all.h5") > 5)
        (own,) = children(process.pid)
        process.kill()
    try:
        assert inside("--only", "seed=1").stdout.splitlines()[1].startswith("1  running ")
        other = inside("--index", 1)
        assert other.returncode == 0 and other.stdout.splitlines()[-1] == "1 run: 1 running elsewhere"
    finally:
        os.kill(own, signal.SIGUSR1)
    found = grid.read("toy.toml")
    wait_until(lambda: grid.state_of(found, found.runs[1])[0] == "interrupted")
    assert Path("out/1-all.log").read_text().count("$ ") == 1


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--jobs 0", "--jobs 0: must be a whole number, at least 1"),
        ("--index 4", "--index 4: must be one of the numbers 0 to 3 of the list"),
        ("--only sed=1", "--only sed=1: unknown axis 'sed'; the nearest is seed; there are seed, cell"),
        ("--only seed=3", "--only seed=3: unknown entry of the axis seed '3'; there are 1, 2"),
        ("--only seed=1 --only seed=2", "--only seed=1 seed=2: no run has all of these"),
        ("--data-dir data", "--data-dir data: the problem of run 1-half reads no files; leave the flag out"),
        ("--run --launcher nosuchrun", "nosuchrun is not found; load the MPI's module, name another --launcher"),
        ("--launcher 'srun", "--launcher 'srun: No closing quotation"),
        ("--run --results toy.toml/x", "the folder toy.toml/x cannot be made (Not a directory); give another"),
    ],
)
def test_a_wrong_option_is_told_in_one_sentence(words: str, sentence: str) -> None:
    assert sentence_of(*words.split()).startswith(sentence)


def test_a_reader_who_leaves_gets_no_traceback(folder: Path) -> None:
    (folder / "toy.toml").write_text(TOY.replace("[1, 2]", str(list(range(400)))))
    shell = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m zofl_mpi.run.grid toy.toml | head -1"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert shell.stdout.startswith("  0  missing") and shell.stderr == ""


def test_on_a_terminal_a_bar_counts_the_runs_and_failures_stand_above_it(folder: Path) -> None:
    (folder / "toy.toml").write_text(TOY.replace("half = {", "half = { gamma = 1e200,"))
    env = environment() | {"TERM": "xterm", "COLUMNS": "200"}
    with Terminal() as terminal:
        out = terminal.writer
        words = [*COMMAND, "--run", "--only", "seed=1"]
        process = subprocess.Popen(words, env=env, stdout=out, stderr=out, start_new_session=True)
        seen = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", terminal.read(""))
    assert process.wait(LIMIT) == 1
    assert "run 0/2 " in seen and "run 2/2 " in seen and "1 failed, 0:00:0" in seen
    assert "1-half: failed, exit status 1: zofl_mpi: round" in seen
    assert seen.rstrip().endswith("2 runs: 1 done, 1 failed")
