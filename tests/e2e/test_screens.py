"""Screens of 60 columns: each command folds its lines on a terminal, and leaves them whole in a pipe."""

import fcntl
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import LIMIT, Terminal, environment

WIDTH = 60
RUN = ("zofl_mpi.zo_hfl", "--rounds", "3", "--tau", "1", "--m", "3", "--checkpoint-every", "auto")
GRID = """
module = "zofl_mpi.zo_hfl"
ranks = 3
folder = "results/grid"
name = "s{seed}"

[fixed]
rounds = 200
tau = 1
m = 3
eval-every = 20
dtype = "float32"

[axes]
seed = [1, 2]
"""


def whole(folder: Path, *words: str) -> str:
    """What a command prints into pipes."""
    command, env = [sys.executable, "-m", *words], environment()
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    ).stdout


def rows(folder: Path, words: Sequence[str], width: int = WIDTH) -> list[str]:
    """What it prints on a terminal so wide, without the marks that draw its bar."""
    with Terminal() as terminal:
        fcntl.ioctl(terminal.writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        env = {name: value for name, value in environment().items() if name != "COLUMNS"} | {"TERM": "xterm"}
        out = terminal.writer
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True
        )
        text = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", terminal.read(""))
    process.wait(LIMIT)
    return [row.rstrip() for row in re.split(r"[\r\n]+", text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two results and a grid."""
    made = tmp_path_factory.mktemp("screens")
    (made / "toy.toml").write_text(GRID)
    for name, gamma in (("a.h5", "0.1"), ("b.h5", "0.2")):
        whole(made, *RUN, "--gamma", gamma, "--out", name, "--quiet")
    return made


@pytest.mark.parametrize(
    "words",
    [
        (*RUN, "--out", "c.h5"),
        (*RUN, "--dry-run"),
        ("zofl_mpi.run.grid", "toy.toml"),
        ("zofl_mpi.report.same", "a.h5", "b.h5"),
        ("zofl_mpi.doctor",),
        ("zofl_mpi",),
        ("zofl_mpi.zo_hfl", "--help"),
        ("zofl_mpi.check", "--help"),
        ("zofl_mpi.report.same", "--help"),
    ],
    ids=["run", "dry run", "grid", "same", "doctor", "list", "help of a run", "help of check", "help of same"],
)
def test_each_row_fits_the_terminal(folder: Path, words: tuple[str, ...]) -> None:
    """A word that is longer than a row stays whole. Mutation: any `show` of these commands that is a `print`."""
    shown = rows(folder, words)
    assert len(shown) > 1 and [row for row in shown if len(row) > WIDTH and " " in row.strip()] == []


def test_a_pipe_gets_whole_lines(folder: Path) -> None:
    """Mutation: lines folded at 80 columns where there is no terminal."""
    listed = whole(folder, "zofl_mpi.run.grid", "toy.toml").splitlines()
    assert len(listed) == 3 and all(len(line) > 80 for line in listed[:2])
    assert len(whole(folder, "zofl_mpi.report.same", "a.h5", "b.h5").splitlines()) == 1


def test_a_folded_command_can_be_pasted(folder: Path) -> None:
    """Mutations: rows without a backslash; the state of the run in the command's own row."""
    listed = whole(folder, "zofl_mpi.run.grid", "toy.toml").splitlines()[0]
    shown = rows(folder, ("zofl_mpi.run.grid", "toy.toml"))
    first = next(k for k, row in enumerate(shown) if row.startswith(("mpirun", "python")))
    last = next(k for k in range(first, len(shown)) if not shown[k].endswith("\\"))
    assert last > first
    pasted = "\n".join(["printf '%s ' \\", *shown[first : last + 1]])
    said = subprocess.run(["sh", "-c", pasted], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    assert listed.split()[2:] == said.split()
