"""Whatever happens to a rank, all end soon with one message; finished rounds are kept; a resume gives the same bits."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LIMIT, Completed, environment
from tests.e2e.made import rounds_of, wait_until
from tests.e2e.planted import FAMILY, HERE, LAUNCHER, OWN, RUN, planted
from tests.threads import run_module
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

Run = Callable[..., Completed]
"""run(ranks, *arguments, kind=..., file=...): the family's command, with what is planted."""


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A run in this process, its ranks threads; 1 is without MPI."""
    monkeypatch.syspath_prepend(str(HERE))

    def run(ranks: int, *arguments: object, **plant: str) -> Completed:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in planted(plant).items():
                patch.setenv(name, value)
            status = run_module(ranks, FAMILY, *arguments)
        return Completed([FAMILY, *map(str, arguments)], status, *capsys.readouterr())

    return run


@pytest.fixture
def run_job(mpirun: Callable[..., Completed]) -> Run:
    """A job under mpirun."""

    def run(ranks: int, *arguments: object, **plant: str) -> Completed:
        return mpirun(ranks, "-m", FAMILY, *arguments, cwd=HERE, env=planted(plant))

    return run


@pytest.fixture
def resumes(run_here: Run, unharmed: Path) -> Callable[..., bool]:
    """resumes(out): to the same bits as the undisturbed run, on another number of ranks."""

    def check(out: Path, ranks: int = 4) -> bool:
        again = run_here(ranks, "--resume", out, *OWN)
        assert again.returncode == 0, again.stderr
        assert differences(unharmed, out) == []
        return True

    return check


CLIENT = "client 3 (rank {rank}) failed in step 'solve', item 0: "
GPU = "out of memory on the GPU: 2.00 GiB more were asked for, 1.19 GiB of 139.81 GiB are free"
HOST = "out of memory on the host: 1.00 EiB more"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("kind", "words", "end"),
    [
        ("raise", f"{CLIENT}ArithmeticError: planted", ""),
        ("system_exit", f"{CLIENT}SystemExit: 3", ""),
        ("nan", f"{CLIENT}f_2 is not finite; smaller --gamma", ""),
        ("gpu_memory", CLIENT + GPU, "; a smaller --batch (now 64) takes less"),
        ("host_memory", CLIENT + HOST, "; a smaller --batch (now 64) takes less"),
        ("server_memory", f"the server is {HOST}", "; a smaller --server-batch (now 256) takes less"),
    ],
)
def test_a_failure_on_one_rank_is_told_in_a_sentence_and_costs_no_finished_round(
    run_here: Run, tmp_path: Path, resumes: Callable[..., bool], kind: str, words: str, end: str, ranks: int
) -> None:
    """Mutations: the traceback told; the flags of the server for a client; ranks that wait for the one that failed."""
    out = tmp_path / "run.h5"
    done = run_here(ranks, *RUN, "--out", out, kind=kind)
    assert done.returncode == 1
    *traceback, told = done.stderr.splitlines()
    assert bool(traceback) == (kind in ("raise", "system_exit")) and "zofl_mpi: " not in "".join(traceback), done.stderr
    assert told.startswith(f"zofl_mpi: round 6: {words.format(rank=2 if ranks > 1 else 0)}"), told
    assert f"{end}; the 5 finished rounds are in {out}; continue with: " in told, told
    assert told.endswith(f"--resume {out} --method planted:Planted"), told
    assert records.load(out).length == 5
    assert resumes(out)


@pytest.mark.parametrize("kind", ["kill_client", "kill_server"])
def test_a_killed_rank_ends_the_job_and_finished_rounds_are_kept(
    run_job: Run, tmp_path: Path, resumes: Callable[..., bool], kind: str
) -> None:
    out = tmp_path / "run.h5"
    done = run_job(3, *RUN, "--out", out, kind=kind)
    assert done.returncode not in (0, None)
    assert re.search(r"rank (2|0).*signal 9|KILLED BY SIGNAL: 9|EXIT CODE: 9", done.stderr + done.stdout, re.S)
    assert 4 <= records.load(out).length <= 5  # those of the checkpoint; the row after it may wait
    assert resumes(out)


def test_an_error_at_the_server_ends_the_clients_that_wait_with_its_traceback(run_job: Run, tmp_path: Path) -> None:
    out = tmp_path / "run.h5"
    done = run_job(3, *RUN, "--out", out, kind="raise_server")
    assert done.returncode != 0 and records.load(out).length == 5
    assert "planted at the server" in done.stderr and "planted.py" in done.stderr


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raise_server", "round 6: ArithmeticError: planted at the server"),
        ("exit_server", "round 6: SystemExit: 0"),
        ("foreign", "round 6: TypeError: step 'solve' is no method of the running method"),
        ("vanish", "was deleted or replaced by another run"),
        ("unread", "round 6: RuntimeError: step 'solve' was asked while replies to 'personal' are unread"),
    ],
)
def test_a_mistake_at_the_server_ends_all_ranks_and_is_named(
    run_here: Run, tmp_path: Path, kind: str, words: str, ranks: int
) -> None:
    out = tmp_path / "run.h5"
    done = run_here(ranks, *RUN, "--out", out, kind=kind, file=str(out))
    assert done.returncode == 1 and words in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("kernel", 2, "planted on one rank (rank 1 on"),
        ("early_memory", 1, "zofl_mpi: rank 1 is out of memory on the host: 1.00 EiB more were asked for"),
    ],
)
def test_a_mistake_on_one_rank_before_the_rounds_ends_all(
    run_here: Run, tmp_path: Path, kind: str, status: int, words: str
) -> None:
    done = run_here(3, *RUN, "--out", tmp_path / "run.h5", kind=kind)
    assert done.returncode == status and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(("ranks", "number"), [(0, signal.SIGTERM), (3, signal.SIGTERM), (3, signal.SIGUSR1)])
def test_a_signal_ends_the_run_after_the_round_with_a_checkpoint_and_status_75(
    tmp_path: Path, resumes: Callable[..., bool], number: int, ranks: int
) -> None:
    """The third round is held up until the signal is on its way."""
    out = tmp_path / "run.h5"
    command = [sys.executable, "-m", FAMILY, *RUN, "--checkpoint-every", "0", "--out", str(out)]
    if ranks:
        command = [LAUNCHER, "-n", str(ranks), *command]
    env = environment() | {"PLANT": "held", "PLANT_FILE": str(tmp_path / "go on")}
    process = subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: out.exists() and rounds_of(out) >= 2)
        if number == signal.SIGTERM and ranks:  # as srun does; Open MPI's mpirun would kill its ranks 0.2 s later
            for child in ranks_of(out):
                os.kill(child, number)
        else:
            process.send_signal(number)
        (tmp_path / "go on").touch()
        stdout, stderr = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 75, stderr
    assert "continue with: " in stdout, stdout + stderr
    assert records.checkpoint_path(out).exists()
    assert records.load(out).attrs["status"] == "interrupted"
    assert resumes(out, ranks=2)


def ranks_of(out: Path) -> list[int]:
    """The processes of the run that writes `out`, without its launcher."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(out).encode() in words and Path(words[0].decode()).name.startswith("python"):
            found.append(int(folder.name))
    return found
