"""Grids: what a file means, what is wrong with one, how far a run is, and what becomes of a run's process."""

import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import h5py
import pytest

from tests.conftest import Patch
from tests.unit.made import complaint
from zofl_mpi.errors import UserError
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid import __main__ as grid_main
from zofl_mpi.run.grid import file as grid_file
from zofl_mpi.run.grid import runner as grid_runner
from zofl_mpi.run.grid.axes import OURS
from zofl_mpi.run.grid.runner import Runner, RunOutcome, Screen
from zofl_mpi.run.grid.state import command, typed
from zofl_mpi.run.records import Recorder, checkpoint_path, hdf5
from zofl_mpi.run.records.hdf5 import set_attributes

ROOT = Path(__file__).resolve().parents[2]
HEAD = 'module = "zofl_mpi.zo_hfl"\n'
TOY = HEAD + 'fixed = { problem = "toy", rounds = 6, tau = 3 }\n'


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., grid.Grid]:
    """read(text): the grid of a file toy.toml with this content; its results go to tmp_path."""

    def made(text: str, **more: Any) -> grid.Grid:
        (tmp_path / "toy.toml").write_text(text)
        return grid.read(tmp_path / "toy.toml", **{"results": tmp_path, **more})

    return made


def test_a_grid_is_the_product_of_its_axes_the_last_changes_fastest(read: Callable[..., grid.Grid]) -> None:
    axes = "[axes]\nseed = [1, 2]\n[axes.cell]\nhalf = { beta = 0.5 }\nall = {}\n"
    found = read(HEAD + "ranks = 3\n" + TOY.removeprefix(HEAD) + axes)
    assert (found.module, found.ranks) == ("zofl_mpi.zo_hfl", 3)
    assert found.axes == {"seed": ("1", "2"), "cell": ("half", "all")}
    assert [run.name for run in found.runs] == ["1-half", "1-all", "2-half", "2-all"]
    fixed = {"problem": "toy", "rounds": 6, "tau": 3}
    assert [run.flags for run in found.runs] == [
        fixed | {"seed": 1, "beta": 0.5},
        fixed | {"seed": 1},
        fixed | {"seed": 2, "beta": 0.5},
        fixed | {"seed": 2},
    ]
    assert found.runs[2].coordinates == {"seed": "2", "cell": "half"}
    assert found.runs[2].out == found.folder / "2-half.h5"
    assert found.runs[2].log == found.folder / "2-half.log"


def test_an_axis_comes_before_fixed_and_lambda_is_lam(read: Callable[..., grid.Grid]) -> None:
    (run,) = read(TOY + "axes.long.long = { rounds = 9, lambda = 2 }\n").runs
    assert run.flags["rounds"] == 9 and run.flags["lam"] == 2
    for key in ("gamma-local", "gamma_local"):
        (run,) = read(TOY + f"axes = {{ {key} = [0.5] }}\n").runs
        assert run.flags["gamma_local"] == 0.5 and run.coordinates == {key: "0.5"}


def test_combinations_are_skipped_by_all_given_entries_a_list_means_any(read: Callable[..., grid.Grid]) -> None:
    found = read(TOY + "[axes]\nseed = [1, 2, 3]\ntau = [5, 6]\n[[skip]]\nseed = [1, 3]\ntau = 6\n[[skip]]\nseed = 2\n")
    assert [run.name for run in found.runs] == ["1-5", "3-5"]
    assert found.axes["seed"] == ("1", "2", "3")


STEPS = """
[axes.method]
zo_hfl = { method = "zo_hfl" }
fedavg = { method = "fedavg" }
server_sgd = { method = "server_sgd" }
[axes.local]
gamma-local = [0.1, 1]
[axes.server]
gamma = [0.5, 2.0]
[when]
local = { method = ["zo_hfl", "fedavg"] }
server = { "method seed" = [["zo_hfl", 1], ["zo_hfl", 2], ["server_sgd", 2]] }
"""
"""Axes that some runs alone have."""


def test_an_axis_that_a_run_does_not_have_sets_nothing_and_is_left_out_of_its_name(
    read: Callable[..., grid.Grid],
) -> None:
    """Mutations: a product with all entries; the text before an axis kept; the last condition alone."""
    text = (
        'name = "{method}+local-{local}+server-{server}-s{seed}"\noptional = ["tau"]\n' + TOY + "axes.seed = [1, 2]\n"
    )
    found = read(text + STEPS)
    assert [run.name for run in found.runs if run.coordinates["seed"] == "1"] == [
        *(f"zo_hfl+local-{local}+server-{server}-s1" for local in ("0.1", "1") for server in ("0.5", "2.0")),
        "fedavg+local-0.1-s1",
        "fedavg+local-1-s1",
        "server_sgd-s1",
    ]
    alone = [run for run in found.runs if run.coordinates["method"] == "server_sgd"]
    assert [run.name for run in alone] == ["server_sgd-s1", "server_sgd+server-0.5-s2", "server_sgd+server-2.0-s2"]
    assert alone[0].coordinates == {"seed": "1", "method": "server_sgd", "local": "", "server": ""}
    assert alone[1].flags == {"problem": "toy", "rounds": 6, "seed": 2, "method": "server_sgd", "gamma": 0.5}
    assert found.axes["local"] == ("", "0.1", "1")


def test_only_keeps_the_runs_of_any_of_its_tables_in_the_grids_order(read: Callable[..., grid.Grid]) -> None:
    """Mutations: all of its tables; their order; a run twice; every combination of the entries on several axes."""
    axes = "axes = { seed = [1, 2, 3], tau = [5, 6, 7], beta = [0.1, 0.2] }\n"
    only = '[[only]]\nseed = 2\n"beta tau" = [[0.2, 7], [0.1, 5]]\n[[only]]\nseed = [1, 2]\ntau = 5\n'
    found = read(TOY + axes + only + "[[skip]]\nseed = 1\nbeta = 0.2\n")
    assert [run.name for run in found.runs] == ["1-5-0.1", "2-5-0.1", "2-5-0.2", "2-7-0.2"]


def test_flags_of_chosen_runs_come_before_their_axes_own_and_a_later_table_before_an_earlier(
    read: Callable[..., grid.Grid],
) -> None:
    """Mutations: the axes' flags last; any entry in place of all; the first table last."""
    first = "[[set]]\nseed = [1, 3]\ntau = 6\nflags = { tau = 7, rounds = 9 }\n"
    second = "[[set]]\nseed = 3\nflags = { rounds = 4 }\n"
    found = read(TOY + "[axes]\nseed = [1, 2, 3]\ntau = [5, 6]\n" + first + second).runs
    assert [run.name for run in found] == ["1-5", "1-6", "2-5", "2-6", "3-5", "3-6"]
    assert [run.flags["tau"] for run in found] == [5, 7, 5, 6, 5, 7]
    assert [run.flags["rounds"] for run in found] == [6, 9, 6, 6, 4, 4]


def test_an_optional_flag_is_dropped_where_the_method_lacks_it(read: Callable[..., grid.Grid]) -> None:
    axes = '[axes]\nbeta = [0.5]\nmethod = ["zo_hfl", "server_sgd"]\n'
    fixed = 'fixed = { problem = "toy" }\n'
    first, second = read(HEAD + 'optional = ["beta"]\n' + fixed + axes).runs
    assert first.flags["beta"] == 0.5 and "beta" not in second.flags
    with pytest.raises(UserError, match=r"run 0\.5-server_sgd: unknown flag --beta"):
        read(HEAD + fixed + axes)


def test_folder_and_name_have_defaults(tmp_path: Path, read: Callable[..., grid.Grid]) -> None:
    axes = "[axes]\nseed = [1]\nalpha = [inf]\n"
    text = HEAD + axes
    assert [run.out for run in read(text, results=None).runs] == [Path("results/toy/1-inf.h5")]
    text = 'folder = "there"\nname = "{alpha}_s{seed}"\n' + HEAD + axes
    assert [run.out for run in read(text, results=None).runs] == [Path("there/inf_s1.h5")]
    assert [run.out for run in read(text, results="here").runs] == [Path("here/inf_s1.h5")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("axes = ", "is not TOML ("),
        ("modul = 'x'\n" + TOY, "unknown key 'modul'; the nearest is module; there are module, ranks, folder, name"),
        ("fixed = {}\naxes = { seed = [1] }\n", "the key module is missing"),
        ("module = 'nowhere'\naxes = { seed = [1] }\n", 'module = "nowhere" is user-defined'),
        ("module = 'json'\naxes = { seed = [1] }\n", 'module = "json" is user-defined'),
        ("ranks = '3'\n" + TOY, "ranks = '3': must be a whole number"),
        (TOY, "has no axes"),
        (TOY + "axes.seed = []\n", "axis seed has no entries"),
        (TOY + "axes.seed = 3\n", "axis seed = 3: must be a list of values of --seed, or a table of entries"),
        (TOY + "axes.seed = [1, 1]\n", "axis seed has the entry 1 twice"),
        (TOY + "axes.seeds = [1]\n", "run 1: unknown flag --seeds; the nearest is --seed; correct it"),
        (TOY + "axes.cell.a = { tau = { x = 1 } }\n", "run a: flags: 'tau' is a table"),
        (TOY + "axes.cell.a = { gamma-local = 1, gamma_local = 2 }\n", "entry 'a' sets --gamma-local twice"),
        (TOY + "axes.method = ['fedavgg']\n", "run fedavgg: --method fedavgg: must be one of zo_hfl"),
        (TOY + "axes = { tau = [1], a.b = { tau = 2 } }\n", "run 1-b: axis tau and axis a both set --tau"),
        ("name = 'same'\n" + TOY + "axes.seed = [1, 2]\n", "2 runs have the name 'same'"),
        ("name = '{sed}'\n" + TOY + "axes.seed = [1]\n", "name = '{sed}': unknown axis 'sed'; the nearest is seed"),
        ("ranks = 1000000\n" + TOY + "axes.seed = [1]\n", "ranks = 1000000: must be a whole number from 1 to 65536"),
        ("name = '{seed:9999999999}'\n" + TOY + "axes.seed = [1]\n", "{seed} has a format of its own"),
        ("name = '{seed!r}'\n" + TOY + "axes.seed = [1]\n", "{seed} has a format of its own"),
        (f"name = '{'{seed}' * 201}'\n" + TOY + "axes.seed = [1]\n", "a run's name has at most 200 characters"),
        (TOY + f"axes.s.{'ä' * 101} = {{ seed = 1 }}\n", "is not TOML"),
        (TOY + f'axes.s."{"ä" * 101}" = {{ seed = 1 }}\n', "a run's name has at most 200 bytes"),
        ("name = '{seed'\n" + TOY + "axes.seed = [1]\n", "name = '{seed': expected '}'"),
        (HEAD + "axes.data = ['a/b.npz']\n", "'a/b.npz' cannot name a file; give the axis a table of entries"),
        ("name = 'a.ckpt'\n" + TOY + "axes.seed = [1]\n", "'a.ckpt' cannot name a file"),
        (TOY + "axes.seed = [1]\n[[skip]]\nsed = 1\n", "skip: unknown axis 'sed'; the nearest is seed"),
        (TOY + "axes.seed = [1]\n[[skip]]\nseed = 4\n", "skip: unknown entry of the axis seed '4'; there are 1"),
        (TOY + "axes.seed = [1]\n[[skip]]\n", "skip = {}: must be a table of axes and entries"),
        (TOY + "axes.seed = [1]\n[[skip]]\nseed = 1\n", "every run is left out by [[skip]]"),
        (TOY + "axes.seed = [1]\n[[set]]\nsed = 1\nflags = {}\n", "set: unknown axis 'sed'; the nearest is seed"),
        (TOY + "axes.seed = [1]\n[[set]]\nflags = { tau = 1 }\n", "set = {}: must be a table of axes and entries"),
        (TOY + "axes.seed = [1]\n[[set]]\nseed = 1\n", "set: flags is None: must be a table of flags, as"),
        (
            TOY + "axes.seed = [1]\n[[set]]\nseed = 1\nflags = { ta = 1 }\n",
            "run 1: unknown flag --ta; the nearest is --tau",
        ),
        ("set = [1]\n" + TOY + "axes.seed = [1]\n", "set = 1: must be a table of axes and entries"),
        ("optional = ['bta']\n" + TOY + "axes.beta = [1]\n", "optional: no run has and sets the flag --bta"),
        *(
            (TOY + f"axes.a.b = {{ {key} = 'x' }}\n", f"axis a, entry 'b' sets --{key}, which the grid runner sets")
            for key in (each.replace("_", "-") for each in OURS)
        ),
        *(
            (
                HEAD
                + "tune = { over = ['tau'], by = 'validation_accuracy', seed = 1, then = [1] }\n".replace(*given)
                + f"axes = {{ tau = [1]{more} }}\n",
                words,
            )
            for given, more, words in (
                (("over", "ovr"), "", "tune: unknown key 'ovr'; the nearest is over"),
                (("['tau']", "[]"), "", "tune: over = []: must be a list of axes of steps"),
                (("['tau']", "['taus']"), "", "tune: over: unknown axis 'taus'; the nearest is tau"),
                (("validation_", "test_"), "", "tune: by = 'test_accuracy': must be a column of the validation part"),
                (("seed = 1", "seed = true"), "", "tune: seed = True, then = [1]: must be a whole number and a list"),
                (("then = [1]", "then = 1"), "", "tune: seed = 1, then = 1: must be a whole number and a list"),
                (("", ""), ", seed = [1]", "tune: [tune] gives the seeds; remove the axis seed"),
            )
        ),
        (TOY + "axes.seed = [1]\nwhen.sed = { seed = 1 }\n", "when: unknown axis 'sed'; the nearest is seed"),
        (
            TOY + "axes.seed = [1]\naxes.tau = [5]\nwhen.tau = { seed = 2 }\n",
            "when: unknown entry of the axis seed '2'",
        ),
        (TOY + "axes.seed = [1]\naxes.tau = [5]\nwhen.tau = 3\n", "when = 3: must be a table of axes and entries"),
        (
            TOY + "axes = { seed = [1], tau = [5], beta = [1] }\nwhen = { tau = { seed = 1 }, beta = { tau = 5 } }\n",
            "when: beta depends on tau, which only some runs have; name axes that all have",
        ),
        (TOY + "axes = { seed = [1], x0.'' = { tau = 1 } }\n", "axis x0 has an entry without a name; give it one"),
        (
            TOY + "axes = { seed = [1, 2], tau = [5] }\nwhen.tau = { seed = 1 }\nonly = [{ seed = 2, tau = 5 }]\n",
            "only = {'seed': 2, 'tau': 5}: no run has all of these; correct or remove it",
        ),
        (TOY + "axes.seed = [1]\n[[only]]\n'seed sed' = [[1, 1]]\n", "only: unknown axis 'sed'; the nearest is seed"),
        (
            TOY + "axes = { seed = [1], tau = [5] }\n[[only]]\n'seed tau' = [[1]]\n",
            "only: seed tau: has [1]; each of its values must be a list of 2 entries",
        ),
        (
            TOY + "axes = { seed = [1], tau = [5] }\n[[only]]\n'seed tau' = [[1, 5]]\nseed = 1\n",
            "only: names the axis seed twice; remove one",
        ),
        (
            f"only = [{{ 'seed tau' = {[[1, 5]] * 150}, 'beta m' = {[[1, 4]] * 150} }}]\n"
            + TOY
            + "axes = { seed = [1], tau = [5], beta = [1], m = [4] }\n",
            "its axes have 22500 runs, at most 20000",
        ),
        (HEAD + "fixed = { out = 'x' }\naxes.seed = [1]\n", "fixed sets --out, which the grid runner sets itself"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(read: Callable[..., grid.Grid], text: str, words: str) -> None:
    told = complaint(read, text)
    assert re.match(r"\S+toy\.toml: ", told) and words in told
    with pytest.raises(UserError, match=r"none\.toml: cannot be read"):
        grid.read("none.toml")


@pytest.mark.parametrize("path", sorted(ROOT.glob("jobs/*.toml")), ids=lambda path: path.name)
def test_a_grid_of_jobs_is_readable_and_has_as_many_runs_as_it_says(path: Path) -> None:
    """The commands at its top name this file, scripts that exist, and as many tasks as there are runs."""
    found, text = grid.read(path, trust=True), path.read_text()
    assert all((ROOT / file).is_file() for file in re.findall(r"\b(?:analysis|jobs)/[\w/]+\.(?:py|sbatch|toml)", text))
    count = len(found.runs)
    assert f" {count} {'run' if count == 1 else 'runs'} of {found.runs[0].flags['rounds']} rounds" in text
    assert re.search(rf"sbatch --array=0-{count - 1} jobs/(grid|gpu)\.sbatch jobs/{path.name}[ \n]", text)
    assert found.folder == Path("results") / path.stem
    assert f"python -m zofl_mpi.run.grid jobs/{path.name}" in text


@pytest.fixture
def one(read: Callable[..., grid.Grid]) -> grid.Grid:
    """A grid of one run, of 6 rounds."""
    return read(TOY + 'axes.s.run = { seed = 1, eval-every = 2, x0 = "zero" }\n')


def write(found: grid.Grid, done: int, status: str, *, saved: int | None = None, **config: Any) -> Path:
    """The result of its run, as one with this configuration would leave it."""
    (run,) = found.runs
    stored = {**grid_file.resolved(found.module, run.flags), **config}
    recorder = Recorder.create(run.out, attrs={"config": stored}, m=2, ranks=1, rounds=6)
    for r in range(done):
        recorder.append({"round": r + 1.0})
    if saved is not None:
        records.save_checkpoint(checkpoint_path(run.out), {"state": b""}, {"round": saved, "config": stored})
    if status == "done":
        recorder.finish({})
    elif status == "killed":
        recorder.abandon()
    else:
        recorder.close(status)
    return run.out


def state(found: grid.Grid) -> tuple[str, str]:
    return grid.state_of(found, found.runs[0])


@pytest.mark.parametrize(
    ("done", "status", "saved", "word"),
    [
        (6, "done", 6, "finished"),
        (6, "done", None, "finished"),
        (4, "interrupted", 4, "interrupted"),
        (5, "killed", 4, "interrupted"),
        (6, "killed", 6, "interrupted"),
        (3, "killed", None, "begun"),
        (0, "interrupted", None, "begun"),
    ],
)
def test_the_state_of_a_run_is_read_from_its_result(
    one: grid.Grid, done: int, status: str, saved: int | None, word: str
) -> None:
    before = sorted(one.folder.iterdir())
    assert state(one)[0] == "missing" and sorted(one.folder.iterdir()) == before
    write(one, done, status, saved=saved, data_dir="elsewhere", device="cpu", checkpoint_every=3)  # change no number
    assert state(one)[0] == word


@pytest.mark.parametrize("status", ["done", "interrupted"])
def test_a_result_of_another_configuration_is_named_and_no_work(one: grid.Grid, status: str) -> None:
    write(one, 6, status, saved=6, tau=[4.0], eval_every=5)
    assert state(one) == (
        "other",
        "result of another configuration: --eval-every was 5, is now 2; --tau was 4.0, is now 3.0; "
        "remove it or give another --results",
    )


def test_what_followed_from_a_budget_is_no_other_configuration(one: grid.Grid) -> None:
    """Mutations: every flag that differs is free; z of --epsilon is compared with the 0 that was typed."""
    path = write(one, 6, "done", tau=[4.0], eval_every=5)
    with h5py.File(path, "r+") as file:
        set_attributes(file, {"derived_flags": "tau"})
    assert "--eval-every was 5, is now 2; remove" in state(one)[1]
    with h5py.File(path, "r+") as file:
        set_attributes(file, {"derived_flags": "tau eval_every"})
    assert state(one)[0] == "finished"


@pytest.mark.parametrize(("done", "status", "word"), [(4, "done", "finished"), (4, "interrupted", "interrupted")])
@pytest.mark.parametrize("derived", ["tau rounds", "tau"])
def test_a_result_that_its_budget_ended_is_finished(
    one: grid.Grid, done: int, status: str, word: str, derived: str
) -> None:
    """Fewer rounds than the grid's, as the result itself says. Mutations: any shorter result; one that was stopped; one
    whose budget gave another flag alone; one that is longer than the grid's."""
    with h5py.File(write(one, done, status, saved=4), "r+") as file:
        set_attributes(file, {"derived_flags": derived})
    found, sentence = state(one)
    assert found == (word if derived == "tau rounds" else "interrupted")
    assert ("its budget ended it" in sentence) == (found == "finished")


def test_a_result_longer_than_the_grid_is_no_work_whatever_its_budget(one: grid.Grid) -> None:
    with h5py.File(write(one, 7, "done"), "r+") as file:
        set_attributes(file, {"derived_flags": "rounds"})
    assert state(one)[0] == "other"


def test_a_flag_that_an_older_result_lacks_counts_only_if_the_grid_sets_it(one: grid.Grid) -> None:
    path = write(one, 6, "done")
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["config"])
        del config["samples"]
        set_attributes(file, {"config": config})
    assert state(one)[0] == "finished"
    with h5py.File(path, "r+") as file:
        del config["x0"]
        set_attributes(file, {"config": config})
    assert "--x0 was not there, is now zero" in state(one)[1]


@pytest.mark.parametrize(
    ("rounds", "saved", "word", "words"),
    [
        (8, 6, "interrupted", "6 of 8 rounds are done, 6 of them in the checkpoint"),
        (8, None, "other", "--rounds was 6, is now 8, and it has no checkpoint; remove it"),
        (5, 6, "other", "--rounds was 6, is now 5; remove it or give another --results"),
    ],
)
def test_a_finished_run_may_be_made_longer_not_shorter(
    read: Callable[..., grid.Grid], rounds: int, saved: int | None, word: str, words: str
) -> None:
    write(read(TOY + "axes.s.run = {}\n"), 6, "done", saved=saved)
    found = read(TOY.replace("rounds = 6", f"rounds = {rounds}") + "axes.s.run = {}\n")
    assert state(found)[0] == word and words in state(found)[1]
    found.runs[0].out.unlink()
    checkpoint_path(found.runs[0].out).unlink(missing_ok=True)
    write(read(TOY + "axes.s.run = {}\n"), 5, "interrupted", saved=5)
    assert state(read(TOY.replace("rounds = 6", "rounds = 4") + "axes.s.run = {}\n"))[0] == "other"


@pytest.mark.parametrize(
    "text",
    [
        'module = "theirs"\n[axes]\nseed = [1]\n',
        HEAD + 'fixed = { method = "theirs:Own" }\n[axes]\nseed = [1]\n',
        HEAD + '[axes]\nproblem = ["theirs:Own"]\n',
    ],
)
def test_a_list_imports_nothing_of_a_strangers(
    read: Callable[..., grid.Grid], tmp_path: Path, monkeypatch: Patch, text: str
) -> None:
    """Mutations: flags are looked up by importing their class; the module is not asked about; trust changes nothing."""
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    assert "is user-defined" in complaint(read, text) and not (tmp_path / "ran").exists()
    complaint(read, text, trust=True)  # it has no such class
    assert (tmp_path / "ran").exists()


def test_half_written_files_are_distinguished_from_files_of_somebody_else(one: grid.Grid, monkeypatch: Patch) -> None:
    path = write(one, 6, "done")
    complete = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(hdf5, "_opened", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
        assert state(one)[0] == "other", "what may not be read is not broken"
    for content in (b"", bytes(5000), complete[:3000]):
        path.write_bytes(content)
        assert state(one)[0] == "broken", content[:8]
    path.write_bytes(b"my notes")
    assert state(one)[0] == "other"
    path.unlink()
    with h5py.File(path, "w") as file:
        file["mine"] = 3
    assert state(one)[0] == "other"
    path.unlink()
    path.mkdir()
    assert state(one)[0] == "other"


def test_a_run_is_running_while_its_log_is_locked_or_its_result_is_written(one: grid.Grid) -> None:
    (run,) = one.runs
    with run.log.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert state(one)[0] == "running"
    assert state(one)[0] == "missing"
    config = grid_file.resolved(one.module, run.flags)
    recorder = Recorder.create(run.out, attrs={"config": config}, m=2, ranks=1, rounds=6)
    assert state(one) == ("running", f"{run.out} is being written")
    recorder.close()
    assert state(one)[0] == "begun"


def test_a_command_can_be_typed(one: grid.Grid) -> None:
    (run,) = one.runs
    flags = "--problem toy --rounds 6 --tau 3 --seed 1 --eval-every 2 --x0 zero"
    for word, target in {
        "missing": f"--out {run.out}",
        "broken": f"--out {run.out}",
        "begun": f"--out {run.out} --force",
        "interrupted": f"--resume {run.out}",
    }.items():
        shown = typed(command(one, run, word, ["mpirun", "-n", "3"]))
        assert shown == f"mpirun -n 3 python -m zofl_mpi.zo_hfl {flags} {target}"
    assert typed(command(one, run, "missing", [])).startswith("python -m")


@pytest.fixture
def go(tmp_path: Path, read: Callable[..., grid.Grid]) -> Callable[..., Runner]:
    """go(script): three runs whose launcher is this shell script; $name is the run's name.

    The signals come once as many runs as go on at a time have made files ready-NAME, each when the one before has been
    passed on.
    """

    def run(script: str, jobs: int = 1, signals: tuple[int, ...] = ()) -> Runner:
        for file in tmp_path.glob("ready-*"):
            file.unlink()
        launcher = tmp_path / "launcher"
        launcher.write_text(
            f'#!/bin/bash\ncd {tmp_path}\nfor name; do :; done\nname=$(basename "$name" .h5)\n{script}\n'
        )
        launcher.chmod(0o755)
        found = read(TOY + "axes.seed = [1, 2, 3]\n")
        runner = Runner(found, found.runs, [str(launcher)], jobs)
        over = threading.Event()

        def send() -> None:
            for k, number in enumerate(signals):
                while runner._passed_on < k or len(list(tmp_path.glob("ready-*"))) < jobs:
                    if over.wait(0.01):
                        return
                signal.raise_signal(number)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            runner.run(Screen(3))
        finally:
            over.set()
            sender.join()
        return runner

    return run


def words(runner: Runner) -> list[str]:
    return [outcome.word for outcome in runner.outcomes]


def test_no_failure_is_lost_and_each_is_reported_in_the_run_s_own_words(
    go: Callable[..., Runner], tmp_path: Path
) -> None:
    """Of this start; without words of its own the last line with letters. Status 0 needs a finished result."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    runner = go('echo "zofl_mpi: round 3: too large"; echo "zofl_mpi: warning: x"; echo ---; echo "mpirun: x"; exit 7')
    assert words(runner) == ["failed"] * 3
    last = runner.outcomes[-1]
    assert last.status == 7
    assert last.sentence == f"exit status 7: zofl_mpi: round 3: too large ({last.run.log})"
    report = list(grid_main.report(runner.outcomes))
    assert [line.split(": ")[:2] for line in report[:3]] == [["failed", "1"], ["failed", "2"], ["failed", "3"]]
    assert report[3:] == ["3 runs: 3 failed"]
    assert (grid_main.exit_status(runner, False), grid_main.exit_status(runner, True)) == (1, 7)
    assert "exit status 2: it said nothing (" in go("exit 2").outcomes[1].sentence
    told = go('echo "segmentation fault"; echo ----; kill -SEGV $$').outcomes[0].sentence
    assert "exit status 139: segmentation fault (" in told
    runner = go("true")
    assert words(runner) == ["failed"] * 3 and grid_main.exit_status(runner, True) == 1
    assert runner.outcomes[0].sentence.startswith("exit status 0, but there is no result ")
    (tmp_path / "2.log").unlink()
    (tmp_path / "2.log").mkdir()
    runner = go("exit 3")
    assert [outcome.status for outcome in runner.outcomes] == [3, 1, 3]
    assert "cannot be started" in runner.outcomes[1].sentence
    assert [signal.getsignal(number) for number in numbers] == before


def test_what_a_run_says_at_once_is_heard(go: Callable[..., Runner], monkeypatch: Patch) -> None:
    """Mutation: where its words begin in the log is looked up once it runs."""

    class Late(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **named: Any) -> None:
            super().__init__(*words, **named)
            time.sleep(0.3)

    monkeypatch.setattr(grid_runner, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Late}))
    assert go('echo "at once"; exit 3').outcomes[0].sentence.startswith("exit status 3: at once (")


@pytest.mark.parametrize("jobs", [1, 2])
def test_so_many_runs_at_a_time_and_no_more(go: Callable[..., Runner], tmp_path: Path, jobs: int) -> None:
    together = f"until [[ $(grep -c + events) -ge {jobs} ]]; do sleep 0.05; done; sleep 0.3"  # and for one too many
    go(f"echo + >>events; {together}; echo - >>events; exit 1", jobs)
    events = [1 if line == "+" else -1 for line in (tmp_path / "events").read_text().split()]
    assert max(itertools.accumulate(events)) == jobs and len(events) == 6


PATIENT = """trap 'asked=1; echo asked >>$name' USR1; trap 'echo killed >>$name; exit 1' TERM
touch ready-$name
for i in {1..2000}; do
    sleep 0.05
    if [[ $asked ]] && ((++rounds > 6 * name)); then echo saved >>$name; exit 75; fi
done
"""
"""Ends a while after it was asked to; the later, the larger its name is."""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_runs_as_one_sigusr1_and_nothing_more_is_begun(
    go: Callable[..., Runner], tmp_path: Path, number: int, status: int
) -> None:
    runner = go(PATIENT, jobs=2, signals=(number,))
    assert words(runner) == ["stopped", "stopped", "left"]
    assert [(tmp_path / name).read_text() for name in "12"] == ["asked\nsaved\n"] * 2
    assert grid_main.exit_status(runner, False) == status
    assert list(grid_main.report(runner.outcomes))[-2:] == [
        "3 runs: 2 stopped, 1 not begun",
        "the same command continues",
    ]


def test_a_failure_after_a_signal_is_still_a_failure(go: Callable[..., Runner]) -> None:
    """And a second signal ends a run that does not heed the first."""
    stubborn = "trap '' USR1; trap 'exit 1' TERM; touch ready-$name; for i in {1..2000}; do sleep 0.05; done"
    assert words(go(stubborn, signals=(signal.SIGINT, signal.SIGINT))) == ["stopped", "left", "left"]
    failing = "trap 'echo zofl_mpi: disk full; exit 1' USR1; touch ready-$name; for i in {1..2000}; do sleep 0.05; done"
    runner = go(failing, signals=(signal.SIGTERM,))
    assert words(runner) == ["failed", "left", "left"]


@pytest.mark.parametrize(
    ("launcher", "ranks", "words"),
    [
        ("srun --mpi=pmix", 3, "srun --mpi=pmix -n 3"),
        ("srun --mpi=pmix", None, "srun --mpi=pmix"),
        *((f"mpirun {count}", 3, f"mpirun {count}") for count in ("-n 4", "-n4", "-np 4", "--np 4", "--ntasks=4")),
        ("mpirun --map-by node:X -x NP", 3, "mpirun --map-by node:X -x NP -n 3"),
        (None, 3, "mpirun -n 3"),
        (None, None, "mpirun -n 2"),
        (None, 1, ""),
    ],
)
def test_a_launcher_without_a_number_gets_that_of_ranks(launcher: str | None, ranks: int | None, words: str) -> None:
    """Else --jobs 2 --ranks 3 starts each run on a whole allocation. Mutations: no -n; two; the file's number."""
    assert " ".join(grid_main._launcher(launcher, ranks, 2)) == words


def test_a_launcher_that_leaves_before_its_ranks_has_no_failed_run(go: Callable[..., Runner], tmp_path: Path) -> None:
    """As Slurm's scancel ends mpirun: the run has said which signal it heard, and still writes. Mutations: its sentence
    is that of a failure; its state is looked at while it writes."""
    ranks = "(until flock -n 9; do :; done; touch locked; sleep 0.5; rm $name.lock; touch saved-$name) 9>$name.lock &"
    heard = "echo zofl_mpi: SIGTERM: the run ends after this round; until [[ -e locked ]]; do sleep 0.01; done; exit 1"
    wait = "for i in {1..2000}; do sleep 0.05; done"
    runner = go(f"trap '{ranks} {heard}' USR1; touch ready-$name; {wait}", signals=(signal.SIGTERM,))
    assert words(runner) == ["stopped", "left", "left"] and (tmp_path / "saved-1").exists()


def test_a_run_that_was_asked_to_stop_by_another_ends_all(go: Callable[..., Runner], tmp_path: Path) -> None:
    """A scheduler may signal the ranks and not this process; the others hear of it once."""
    others = "until [[ -e ready-1 && -e ready-2 ]]; do sleep 0.05; done"
    runner = go(f"if [[ $name == 3 ]]; then {others}; exit 75; fi\n{PATIENT}", jobs=3)
    assert words(runner) == ["stopped"] * 3
    assert [(tmp_path / name).read_text() for name in "12"] == ["asked\nsaved\n"] * 2
    assert grid_main.exit_status(runner, False) == 75


def test_a_run_whose_log_is_locked_is_left_to_the_other(go: Callable[..., Runner], tmp_path: Path) -> None:
    with (tmp_path / "2.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        runner = go("echo $name >>ran; exit 75")
        assert (tmp_path / "ran").read_text() == "1\n"
        (tmp_path / "ran").unlink()
        runner = go("echo $name >>ran; exit 1")
    assert words(runner) == ["failed", "elsewhere", "failed"]
    assert (tmp_path / "ran").read_text() == "1\n3\n"
    assert "running elsewhere: 2: " in "\n".join(grid_main.report(runner.outcomes))


def test_what_another_has_just_finished_is_not_begun(one: grid.Grid, monkeypatch: Patch) -> None:
    monkeypatch.setattr(grid_runner, "state_of", lambda *given: ("missing", "when it was looked at"))
    runner = Runner(one, one.runs, ["no such launcher"], 1)
    runner.run(Screen(1))
    assert words(runner) == ["failed"] and "No such file or directory" in runner.outcomes[0].sentence
    write(one, 6, "done")
    runner = Runner(one, one.runs, ["no such launcher"], 1)
    runner.run(Screen(1))
    assert words(runner) == ["already"]
    with one.runs[0].log.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its lock is free


def test_a_broken_result_is_kept_under_another_name(go: Callable[..., Runner], tmp_path: Path) -> None:
    """Also where an earlier one is kept already. Mutation: the earlier one is replaced."""
    (tmp_path / "1.h5").write_bytes(b"")
    (tmp_path / "1.h5.broken").write_bytes(b"an earlier one")
    (tmp_path / "2.h5").write_text("mine")
    runner = go("test -e $name.h5 && echo zofl_mpi: it is there; exit 1")
    assert (tmp_path / "1.h5.broken").read_bytes() == b"an earlier one"
    assert (tmp_path / "1.h5.broken1").exists() and not (tmp_path / "1.h5").exists()
    assert (tmp_path / "2.h5").read_text() == "mine" and not (tmp_path / "2.log").exists()
    assert ["it is there" in outcome.sentence for outcome in runner.outcomes] == [False] * 3
    assert words(runner) == ["failed"] * 3 and grid_main.exit_status(runner, False) == 1


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_log_that_is_no_file_starts_no_run(one: grid.Grid, tmp_path: Path, kind: str) -> None:
    """And nothing waits for it. Mutations: a link is followed; whoever reads the lock waits for a pipe's writer."""
    theirs, log = tmp_path / "theirs", one.runs[0].log
    theirs.write_text("mine")
    {"link": lambda: log.symlink_to(theirs), "pipe": lambda: os.mkfifo(log), "folder": log.mkdir}[kind]()
    runner = Runner(one, one.runs, ["true"], 1)
    runner.run(Screen(1))
    assert words(runner) == ["failed"] and "cannot be started" in runner.outcomes[0].sentence
    assert theirs.read_text() == "mine"


def test_names_of_a_grid_are_shown_plainly(one: grid.Grid, capsys: pytest.CaptureFixture[str]) -> None:
    screen, run = Screen(1), replace(one.runs[0], name="\x1b[31mred\nzofl_mpi: forged")
    screen.ended([RunOutcome(run, "failed", "\x1b[2J", 1)])
    said = capsys.readouterr().out
    assert "\x1b" not in said and said.count("\n") == 1


def test_lines_tell_how_many_failed_and_how_long_it_may_take(
    one: grid.Grid, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    clock = iter([0.0, 60.0, 60.0, 90.0])
    monkeypatch.setattr(grid_runner, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # this module's alone
    screen, (run,) = Screen(6), one.runs
    outcomes = [
        RunOutcome(run, "already"),
        RunOutcome(run, "failed", "why", 1),
        RunOutcome(run, "done", "it took 0:01:00"),
    ]
    screen.ended(outcomes[:1])
    screen.ended(outcomes)
    assert capsys.readouterr().out == "[3/6] run: done, it took 0:01:00; 1 failed, 0:03:00 left\n"


@pytest.mark.parametrize("width", [60, 100])
def test_a_narrow_screen_keeps_the_count_and_the_time(
    one: grid.Grid, capsys: pytest.CaptureFixture[str], monkeypatch: Patch, width: int
) -> None:
    """Mutation: all columns share what is missing, so that long names hide how many runs are done."""
    for name, value in {"COLUMNS": str(width), "TERM": "xterm", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(grid_runner.sys.stdout, "isatty", lambda: True)
    child: Any = SimpleNamespace(run=replace(one.runs[0], name="fedavg-mnist-alpha-0.1-seed-0" * 2))
    with Screen(120) as screen:
        screen.tick([RunOutcome(one.runs[0], "done", "")] * 17, [child, child])
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    line = re.split(r"[\r\n]", shown.strip())[-1]
    assert "run  17/120 " in line and "0 failed" in line and len(line) <= width
