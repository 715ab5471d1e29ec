"""Whatever happens to a rank, all end soon with one message; finished rounds are kept; a resume gives the same bits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agreement import differences
from tests.conftest import Completed, environment, run_process
from zofl_mpi.run import records

HERE = Path(__file__).parent
RUN = [
    "-m",
    "zofl_mpi.zo_hfl",
    "--method",
    "planted:Planted",
    "--rounds",
    "8",
    "--checkpoint-every",
    "2",
    "--eval-every",
    "3",
]
RUN += ["--y0", "last", "--tau", "3"]  # y0 = last: the clients' memories must come back too
LAUNCHER = str(Path(sys.executable).parent / "mpirun")
LIMIT = 10.0
"""Seconds within which a job must end."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run.h5"
    command = [sys.executable, *RUN, "--out", str(path)]
    subprocess.run(command, cwd=HERE, env=environment(), check=True, capture_output=True, timeout=60)
    return path


def start(mpirun: Callable[..., Completed], ranks: int, *arguments: object, **plant: str) -> Completed:
    env = {"PLANT" if k == "kind" else f"PLANT_{k.upper()}": v for k, v in plant.items()}
    return mpirun(ranks, *arguments, cwd=HERE, timeout=40, env=env)


def resumes_to_the_same_bits(mpirun: Callable[..., Completed], out: Path, undisturbed: Path, ranks: int = 4) -> bool:
    again = start(mpirun, ranks, "-m", "zofl_mpi.zo_hfl", "--resume", out)
    assert again.returncode == 0, again.stderr
    assert differences(undisturbed, out) == []
    return True


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raise", r"round 6: client 3 \(rank {rank}\) failed in step 'solve', item 0: ArithmeticError: planted"),
        ("system_exit", r"round 6: client 3 \(rank {rank}\) failed in step 'solve', item 0: SystemExit: 3"),
        ("nan", r"round 6: client 3: f_2 is not finite"),
    ],
)
def test_a_failing_client_ends_the_job_and_is_named(
    mpirun: Callable[..., Completed], tmp_path: Path, undisturbed: Path, kind: str, words: str, ranks: int
) -> None:
    out = tmp_path / "run.h5"
    done = start(mpirun, ranks, *RUN, "--out", out, kind=kind)
    assert done.returncode not in (0, None)
    assert done.seconds < LIMIT
    assert re.search(words.format(rank=2 if ranks else 0), done.stderr), done.stderr
    assert "the 5 finished rounds are in" in done.stderr
    assert done.stderr.count("zofl_mpi:") == 1
    assert records.load(out).length == 5
    assert resumes_to_the_same_bits(mpirun, out, undisturbed)


@pytest.mark.parametrize("kind", ["kill_client", "kill_server"])
def test_a_killed_rank_ends_the_job_and_finished_rounds_are_kept(
    mpirun: Callable[..., Completed], tmp_path: Path, undisturbed: Path, kind: str
) -> None:
    out = tmp_path / "run.h5"
    done = start(mpirun, 3, *RUN, "--out", out, kind=kind)
    assert done.returncode not in (0, None)
    assert done.seconds < LIMIT
    assert re.search(r"rank (2|0).*signal 9|KILLED BY SIGNAL: 9|EXIT CODE: 9", done.stderr + done.stdout, re.S)
    assert records.load(out).length == 5
    assert resumes_to_the_same_bits(mpirun, out, undisturbed)


def test_an_error_of_the_method_at_the_server_ends_all_ranks_with_its_traceback(
    mpirun: Callable[..., Completed], tmp_path: Path
) -> None:
    out = tmp_path / "run.h5"
    done = start(mpirun, 3, *RUN, "--out", out, kind="raise_server")
    assert done.returncode != 0
    assert done.seconds < LIMIT
    assert "planted at the server" in done.stderr
    assert "planted.py" in done.stderr
    assert records.load(out).length == 5


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("exit_server", "round 6: SystemExit: 0"),
        ("unread", "round 6: RuntimeError: step 'solve' was asked while replies to 'personal' are unread"),
        ("foreign", "round 6: TypeError: step 'solve' is no method of the running method"),
        ("vanish", "was deleted or replaced by another run"),
    ],
)
def test_a_mistake_at_the_server_ends_all_ranks_and_is_named(
    mpirun: Callable[..., Completed], tmp_path: Path, kind: str, words: str, ranks: int
) -> None:
    out = tmp_path / "run.h5"
    done = start(mpirun, ranks, *RUN, "--out", out, kind=kind, file=str(out))
    assert done.returncode != 0
    assert done.seconds < LIMIT
    assert words in done.stderr, done.stderr


def test_a_mistake_on_one_rank_before_the_rounds_ends_all(mpirun: Callable[..., Completed], tmp_path: Path) -> None:
    done = start(mpirun, 3, *RUN, "--out", tmp_path / "run.h5", kind="plan")
    assert done.returncode != 0
    assert done.seconds < LIMIT
    assert "planted in the plan of one rank (rank 1 on" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("a small file system is made by mount, which needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"mount is not allowed here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_job_and_costs_no_finished_round(
    mpirun: Callable[..., Completed], small_disk: Path, undisturbed: Path
) -> None:
    out = small_disk / "run.h5"
    done = start(mpirun, 3, *RUN, "--out", out, kind="fill", folder=str(small_disk))
    assert done.returncode != 0
    assert done.seconds < LIMIT
    assert "No space left on device" in done.stderr
    assert str(small_disk) in done.stderr
    assert records.load(out).length >= 5
    (small_disk / "filler").unlink()
    assert resumes_to_the_same_bits(mpirun, out, undisturbed)


def test_a_data_file_missing_on_one_rank_ends_all_with_its_name(tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = [
        sys.executable,
        "-m",
        "zofl_mpi.zo_hfl",
        "--data",
        "mnist",
        "--rounds",
        "2",
        "--out",
        str(tmp_path / "run.h5"),
    ]
    good, bad = f"ZOFL_DATA={data_dir}", f"ZOFL_DATA={tmp_path / 'empty'}"
    ranks = [["-n", "1", "env", folder, *run] for folder in (good, bad, good)]
    done = run_process([LAUNCHER, *ranks[0], ":", *ranks[1], ":", *ranks[2]])
    assert done.returncode != 0
    assert done.seconds < LIMIT
    assert "train-images-idx3-ubyte" in done.stderr
    assert "rank 1 on" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run.h5").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("ranks", [0, 3])
def test_a_signal_ends_the_run_after_the_round_with_a_checkpoint_and_status_75(
    mpirun: Callable[..., Completed], tmp_path: Path, undisturbed: Path, number: int, ranks: int
) -> None:
    out = tmp_path / "run.h5"
    command = [sys.executable, *RUN, "--checkpoint-every", "0", "--out", str(out)]
    if ranks:
        command = [LAUNCHER, "-n", str(ranks), *command]
    env = environment() | {"PLANT": "slow"}
    process = subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: out.exists() and lengths(out) >= 2)
        if number == signal.SIGTERM and ranks:  # as srun does; Open MPI's mpirun would kill its ranks 0.2 s later
            for child in ranks_of(out):
                os.kill(child, number)
        else:
            process.send_signal(number)
        stdout, stderr = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 75, stderr
    assert "continue with --resume" in stdout, stdout + stderr
    assert records.checkpoint_path(out).exists()
    assert records.load(out).attrs["status"] == "interrupted"
    assert resumes_to_the_same_bits(mpirun, out, undisturbed, ranks=2)


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


def lengths(path: Path) -> int:
    try:
        return records.load(path).length
    except Exception:
        return 0


def wait_for(ready: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "the run did not get going"
        time.sleep(0.02)
