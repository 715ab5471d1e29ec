"""tests/run.sh itself, with stand-ins for what takes long: what it runs and reports, and that it ends all of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import LIMIT, ROOT, Completed, environment, run_process

# The second process of "pytest" is in a session of its own, as those that tests start; the third heeds no SIGTERM.
HANGS = """
echo $$ >one; setsid bash -c 'echo $$ >two; while :; do sleep 1000; done' &
setsid bash -c 'trap "" TERM; echo $$ >three; while :; do sleep 1000; done' &
while :; do sleep 1000; done
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of run.sh alone, whose tools note their names; HANGS if the file `hangs` is there."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests/run.sh", tmp_path / "tests")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/environment.sh").write_text("echo environment >>ran\n")
    tools = tmp_path / ".venv/bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(f"PATH={tools}:$PATH\n")
    for name in ("ruff", "mypy", "python", "mpirun"):
        (tools / name).write_text(f'#!/bin/bash\necho {name} "$@" >>ran\n' + (HANGS if name == "python" else ""))
        (tools / name).chmod(0o755)
    return tmp_path


def stand_in(checkout: Path, name: str, script: str) -> None:
    (checkout / ".venv/bin" / name).write_text(f'#!/bin/bash\necho {name} "$@" >>ran\n{script}\n')


def run(checkout: Path, *words: str) -> Completed:
    return run_process(["bash", str(checkout / "tests/run.sh"), *words], cwd=checkout)


def alive(pid: int) -> bool:
    """Whether it runs: one that nobody has waited for yet is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("number", "group"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_run_that_is_ended_leaves_no_process(checkout: Path, number: int, group: bool) -> None:
    """TERM to the script, as from a job's end; SIGINT to its process group, as Ctrl-C does.

    Mutations: no trap; a command in the foreground; its process group alone; no SIGKILL; a status of 0.
    """
    script = subprocess.Popen(
        ["bash", "tests/run.sh"], cwd=checkout, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL
    )
    noted = [checkout / name for name in ("one", "two", "three")]
    try:
        end = time.monotonic() + LIMIT
        while not all(file.exists() and file.read_text().endswith("\n") for file in noted):
            assert time.monotonic() < end and script.poll() is None
            time.sleep(0.01)
        pids = [int(file.read_text()) for file in noted]
        (os.killpg if group else os.kill)(script.pid, number)
        assert script.wait(LIMIT) == 128 + number
        assert [pid for pid in pids if alive(pid)] == []
        assert "mpirun" not in (checkout / "ran").read_text()
    finally:
        script.kill()
        for file in noted:
            if file.exists() and alive(int(file.read_text())):
                os.kill(int(file.read_text()), signal.SIGKILL)


def test_every_check_is_made_and_one_failure_is_the_run_s(checkout: Path) -> None:
    """Mutations: the status of the last check; the first failure ends the script; a check is left out."""
    stand_in(checkout, "python", "")
    assert run(checkout).returncode == 0
    stand_in(checkout, "mypy", "exit 1")
    (checkout / "ran").unlink()
    done = run(checkout)
    assert done.returncode == 1
    assert "failed (status 1)" in done.stdout and done.stdout.count("passed") == 6
    ran = (checkout / "ran").read_text().splitlines()
    assert [line.split()[0] for line in ran] == ["environment", "ruff", "ruff", "mypy", "python", *["mpirun"] * 3]
    assert [line.split()[2] for line in ran[-3:]] == ["2", "3", "5"]


def test_an_unknown_word_runs_nothing(checkout: Path) -> None:
    done = run(checkout, "fast")
    assert done.returncode == 2 and "choose all, quick or foreign" in done.stderr
    assert not (checkout / "ran").exists()
