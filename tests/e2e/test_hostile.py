"""Files, names and classes that no run of ours makes: status 2 or 1, one sentence, nothing of somebody's lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.conftest import ROOT, Capsys, Patch
from tests.launch import here
from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records

FAMILY = "zofl_mpi.zo_hfl"
TINY = ["--m", "3", "--quiet"]
OWN = """
import os
from dataclasses import dataclass
import numpy as np
from zofl_mpi import Method, Setting, column

@dataclass(frozen=True)
class State:
    x: np.ndarray

@dataclass(frozen=True)
class Report:
    loss: float = column("1", "nothing")

@dataclass(frozen=True)
class Own(Method):
    setting: Setting
    {fields}

    def start(self):
        return State(np.zeros(3))

    def round(self, state, r, clients):
        if r == 2 and os.environ.get("HARM"):
            with open("run.h5", "r+b") as file:
                exec(os.environ["HARM"])
        return State(state.x + 1)

    def evaluate(self, state, r, clients):
        return Report(0.0)
    {functions}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(fields: str = "", functions: str = "", name: str = "own") -> list[str]:
    """Flags of a method of one's own, in a module that this writes."""
    sys.modules.pop(name, None)
    Path(f"{name}.py").write_text(OWN.format(fields=fields, functions=functions))
    return ["--method", f"{name}:Own"]


def told(capsys: Capsys, status: int, *arguments: object) -> str:
    """The sentence that a command ends with, in this process."""
    capsys.readouterr()
    assert here(FAMILY, *TINY, *arguments) == status
    said = capsys.readouterr().err
    assert said.startswith("zofl_mpi: ") and said.count("\n") == 1 and "Traceback" not in said, said
    return said


def ended(*arguments: object) -> str:
    """The sentence of a command that ends with status 2, in a process of its own: its end counts, too."""
    command = [sys.executable, "-m", FAMILY, *TINY, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, (done.returncode, done.stderr)
    return done.stderr


def test_a_file_that_hdf5_cannot_open_crashes_no_interpreter(folder: Path) -> None:
    """HDF5's own objects must not outlive Python. Mutations: an exception keeps the frames of the failed opening, or of
    the check that refused a data set of virtual sources."""
    (folder / "text.h5").write_text("text\n")
    assert "--force replaces results only" in ended("--out", "text.h5", "--force", "--rounds", 1)
    (folder / "link.h5").symlink_to("text.h5")
    shutil.copy("text.h5", "link.ckpt.h5")
    assert "is not an HDF5 file" in ended("--resume", "link.h5")
    assert here(FAMILY, *TINY, "--rounds", 1, "--out", "torn.h5") == 0
    torn = (folder / "torn.h5").read_bytes()[:3000]
    (folder / "torn.h5").write_bytes(torn)
    assert "is damaged" in ended("--out", "torn.h5", "--force", "--rounds", 1)
    for name in ("torn.ckpt.h5", "torn.ckpt.h5.previous"):
        (folder / name).write_bytes(b"garbage" * 100)
    assert "is not an HDF5 file" in ended("--resume", "torn.h5")
    assert (folder / "torn.h5").read_bytes() == torn
    assert here(FAMILY, *TINY, "--rounds", 1, "--out", "virtual.h5") == 0
    with h5py.File("virtual.h5", "r+") as file:
        layout = h5py.VirtualLayout((3,), "f8")
        layout[:] = h5py.VirtualSource("torn.h5", "x", (3,))
        file.create_virtual_dataset("final/y", layout)
    for words in (["--resume", "virtual.h5"], ["--out", "virtual.h5", "--force"]):
        assert "final/y names another file for its numbers" in ended(*words, "--rounds", 2)


@pytest.mark.parametrize("every", [0, 3, 10])
@pytest.mark.parametrize("harm", ["file.truncate(0)", "file.truncate(1000)", "file.write(bytes(5000))"])
def test_a_result_that_is_changed_while_it_grows_is_told_and_written_anew(
    capsys: Capsys, monkeypatch: Patch, harm: str, every: int
) -> None:
    """Mutations: nobody looks at what was written; no checkpoint of the state that the result has lost."""
    monkeypatch.setenv("HARM", harm)
    method = own()
    said = told(capsys, 1, *method, "--rounds", 6, "--checkpoint-every", every, "--out", "run.h5")
    assert "it was changed while this run wrote it; continue with: python -m zofl_mpi.zo_hfl --resume run.h5" in said
    monkeypatch.delenv("HARM")
    assert here(FAMILY, "--resume", "run.h5", *method, "--rounds", 6, "--quiet") == 0
    assert "rows of rounds 1 to " in capsys.readouterr().err
    found = records.load("run.h5")
    assert found.length == 6 and found.final["x"].tolist() == [6.0] * 3


def test_rows_after_the_finished_rounds_are_not_read() -> None:
    """A full disk or a kill may leave a part of them behind. Mutation: tables as long as the file has them."""
    assert here(FAMILY, *TINY, "--rounds", 3, "--out", "run.h5") == 0
    with h5py.File("run.h5", "r+") as file:
        file["rounds"].attrs.modify("done", np.int64(2))
    found = records.load("run.h5")
    tables = [*found.rounds.values(), *found.clients.values(), *found.ranks.values()]
    assert found.length == 2 and {len(table) for table in tables} == {2}


def test_names_that_no_file_can_have_are_one_sentence(capsys: Capsys) -> None:
    long = "a" * 300
    for flag, name in (
        ("--out", f"{long}.h5"),
        ("--out", f"{long}/a.h5"),
        ("--resume", long),
        ("--resume", "b" * 5000),
    ):
        assert "File name too long; choose another name" in told(capsys, 2, flag, name)
    assert told(capsys, 2, "--resume", "/") == "zofl_mpi: --resume / is a folder: name a file in it\n"
    assert "--resume . is a folder: name a file in it" in told(capsys, 2, "--resume", ".")
    for flag in ("--pretrained", "--config", "--data", "--data-dir"):
        family = "zofl_mpi.heron_sfl" if flag == "--pretrained" else FAMILY
        data = "mnist" if flag == "--data-dir" else "digits"
        name = f"{long}.npz" if flag == "--data" else long
        words = ["--data", data, flag, name] if flag != "--data" else [flag, name]
        assert here(family, *words, "--rounds", 1, "--quiet") == 2
        assert capsys.readouterr().err.count("\n") == 1


LOCKS = ["my notes\n", "[]", '{"process": Infinity}', '{"process": "7"}', '{"since": "x"}']
LOCKS += ['{"host": "\\u001b[31m"}', "[" * 4000]


@pytest.mark.parametrize("text", LOCKS)
def test_a_file_that_is_no_lock_is_neither_removed_nor_printed(capsys: Capsys, folder: Path, text: str) -> None:
    """Mutations: any file that nobody holds is a stale lock, or one with some of a lock's entries; its words are shown
    as they are."""
    (folder / "run.lock").write_text(text)
    said = told(capsys, 2, "--rounds", 1, "--out", "run.h5")
    assert "which is no lock: rename that" in said and "\x1b" not in said
    assert (folder / "run.lock").read_text() == text and not (folder / "run.h5").exists()


def test_a_folder_where_a_checkpoint_is_made_is_one_sentence(capsys: Capsys, folder: Path) -> None:
    (folder / "run.ckpt.h5.tmp").mkdir()
    said = told(capsys, 1, "--rounds", 2, "--checkpoint-every", 1, "--out", "run.h5")
    assert "cannot write run.ckpt.h5: Is a directory" in said and records.load("run.h5").length >= 1


@pytest.mark.parametrize(
    "text", ["m = " + "9" * 5000, "tau = " + "[" * 5000 + "]" * 5000, 'a = "' + "x" * 2_000_000 + '"'], ids=len
)
def test_a_configuration_beyond_all_bounds_is_one_sentence(capsys: Capsys, folder: Path, text: str) -> None:
    (folder / "a.toml").write_text(text)
    assert "--config a.toml" in told(capsys, 2, "--config", "a.toml")
    with pytest.raises(UserError, match=r"a\.toml: (is not TOML|must be a file)"):
        grid.read("a.toml")


def test_devices_and_pipes_are_no_configurations(capsys: Capsys, folder: Path) -> None:
    """They would be read for ever."""
    os.mkfifo(folder / "pipe")
    for name in ("/dev/zero", "pipe", "."):
        assert f"--config {name}: must be a file of at most" in told(capsys, 2, "--config", name)


def test_a_grid_of_millions_of_runs_is_refused_at_once(folder: Path) -> None:
    numbers = list(range(3000))
    (folder / "g.toml").write_text(f'module = "{FAMILY}"\n[axes]\nseed = {numbers}\ntau = {numbers}\n')
    with pytest.raises(UserError, match="its axes have 9000000 runs, at most 20000 make a grid"):
        grid.read("g.toml")


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.toml")), ids=lambda path: path.stem)
def test_a_grid_for_a_gpu_says_so(path: Path) -> None:
    """On a CPU it would begin weeks of work."""
    assert ("not for a CPU" in path.read_text()) == ('device = "cuda"' in path.read_text())


# --- methods of somebody's own


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("def directions(self, r): return np.zeros(5)", "directions gave a ndarray; a run calls directions(rounds)"),
        ("def directions(self): return 3", "directions failed (TypeError:"),
        ("def plan(self, r, i): return {}", "plan failed (TypeError:"),
        ("def costs(self): return [1]", "costs gave a list; a run calls costs()"),
        ("def work(self): return 5", "work gave a int"),
    ],
)
def test_a_function_that_has_the_name_of_a_hook_is_told_before_the_first_round(
    capsys: Capsys, function: str, words: str
) -> None:
    """Mutations: asked after the last round; of its signature alone."""
    said = told(capsys, 2, *own(functions=function), "--rounds", 1)
    assert words in said and "give yours another name" in said and not list(Path().glob("*.h5"))


def test_a_report_that_fails_at_the_end_costs_no_result(capsys: Capsys) -> None:
    """It did well before the first round. Mutation: the result is finished afterwards."""
    late = """def directions(self, rounds):
        if os.path.exists("run.h5"):
            raise ValueError("late")"""
    assert here(FAMILY, *own(functions=late), *TINY, "--rounds", 2, "--out", "run.h5") == 0
    assert "directions(2) failed (ValueError: late" in capsys.readouterr().err
    assert records.load("run.h5").attrs["status"] == "done"


def test_a_flag_that_the_problem_has_is_told_with_its_owner(capsys: Capsys) -> None:
    said = told(capsys, 2, *own("mu: float = 1.0"), "--rounds", 1)
    assert "on --problem softmax: --mu is a flag of ProximalTerms (hierarchy) and of Own (method)" in said
    assert "give the field of your own class another name" in said


def test_states_of_two_classes_are_refused_in_the_first_round(capsys: Capsys) -> None:
    """No checkpoint of them could be continued."""
    function = "def round(self, state, r, clients): return Report(0.0)"
    said = told(capsys, 1, *own(functions=function), "--rounds", 2)
    assert "round returned a Report for a State" in said
