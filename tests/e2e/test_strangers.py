"""A result or a checkpoint that somebody else made runs nothing, and writes nowhere, that the command does not name."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import ROOT, Capsys, Patch
from tests.launch import here
from tests.unit.test_messages import changed
from zofl_mpi.engine import messages
from zofl_mpi.errors import UserError
from zofl_mpi.methods.zo_hfl import ZOHFLState
from zofl_mpi.run import records
from zofl_mpi.run.loop.client_memory import Memory
from zofl_mpi.run.records import checkpoint_path
from zofl_mpi.run.records.hdf5 import set_attributes

sys.path.insert(0, str(ROOT / "analysis"))  # as where Python runs the scripts
from shared import restore

sys.path.remove(str(ROOT / "analysis"))

FAMILY = "zofl_mpi.zo_hfl"
FLAGS = ["--tau", "3", "--m", "3", "--y0", "last", "--quiet"]
MARK = """
from pathlib import Path

Path("imported").touch()
from zofl_mpi.methods.fedavg import FedAvg as C
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "run.h5"
    assert here(FAMILY, *FLAGS, "--rounds", 2, "--out", out) == 0
    return out


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A result with its checkpoint, in the current folder, beside a module that leaves a mark where it is imported."""
    for path in (made, checkpoint_path(made)):
        shutil.copy(path, tmp_path)
    (tmp_path / "stranger_mod.py").write_text(MARK)
    monkeypatch.delitem(sys.modules, "stranger_mod", raising=False)
    return tmp_path / made.name


def rewrite(path: Path, **entries: Any) -> None:
    """Changes entries of the configuration in a result or a checkpoint; None removes one."""
    if path.name.endswith(".ckpt.h5"):
        forge(path, config=changed_config(records.load_checkpoint(path).attrs["config"], entries))
        return
    with h5py.File(path, "r+") as file:
        set_attributes(file, {"config": changed_config(file.attrs["config"], entries)})


def changed_config(stored: str, entries: dict[str, Any]) -> str:
    config = json.loads(stored) | entries
    return json.dumps({name: value for name, value in config.items() if value is not None})


def forge(path: Path, payload: dict[str, messages.Bytes] | None = None, **attrs: Any) -> None:
    """Replaces arrays and attributes of a checkpoint, whose checksums are right: a stranger can compute them, too."""
    found = records.load_checkpoint(path)
    path.unlink()  # no previous one is left that could be read in its place
    kept = {name: value for name, value in {**found.attrs, **attrs}.items() if value is not None}
    records.save_checkpoint(path, {**found.payload, **(payload or {})}, kept)


def resume(capsys: Capsys, *arguments: object) -> tuple[int, str]:
    capsys.readouterr()
    status = here(FAMILY, "--resume", *arguments, "--rounds", 4, "--quiet")
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return status, told


@pytest.mark.parametrize("name", ["state", "memory/0"])
def test_a_checkpoint_that_names_another_class_builds_nothing(copy: Path, capsys: Capsys, name: str) -> None:
    """Mutations: the class is imported by its name; it is read only after rows were cut off."""
    message: Any = ZOHFLState(np.zeros(3)) if name == "state" else Memory({})
    command = {"args": ["touch", "executed"]}
    block = changed(message, module="subprocess", name="Popen", values=command, arrays=[])
    forge(checkpoint_path(copy), {name: block})
    before = copy.read_bytes()
    status, told = resume(capsys, copy)
    assert status == 2 and told.count("\n") == 1
    assert f"--resume {copy}: the checkpoint cannot be continued from: it holds a Popen" in told
    assert not Path("executed").exists() and copy.read_bytes() == before


@pytest.mark.parametrize("flag", ["method", "problem"])
def test_a_class_of_ones_own_is_imported_only_where_the_command_names_it(copy: Path, capsys: Capsys, flag: str) -> None:
    """Mutation: the checkpoint's name is enough."""
    rewrite(checkpoint_path(copy), **{flag: "stranger_mod:C"})
    status, told = resume(capsys, copy)
    assert status == 2 and told.count("\n") == 1 and not Path("imported").exists()
    assert f"--{flag} stranger_mod:C, which is user-defined: used only where the command names it" in told
    assert told.endswith(
        f"if you trust it: python -m {FAMILY} --resume {copy} --rounds 4 --quiet --{flag} stranger_mod:C\n"
    )
    resume(capsys, copy, f"--{flag}", "stranger_mod:C")
    assert Path("imported").exists()


def test_a_method_of_ones_own_that_is_named_again_goes_on(copy: Path, capsys: Capsys, tmp_path: Path) -> None:
    """Its state's class is that of the method's base, which the module only imports. Mutation: own modules alone."""
    out, flags = tmp_path / "own.h5", ["--method", "stranger_mod:C"]
    assert here(FAMILY, *flags, "--m", "3", "--rounds", 2, "--quiet", "--out", out) == 0
    assert resume(capsys, out)[0] == 2
    assert resume(capsys, out, *flags) == (0, "")
    config = tmp_path / "own.toml"
    config.write_text('method = "stranger_mod:C"')
    assert resume(capsys, out, "--config", config) == (0, "")


def test_flags_of_one_command_do_not_come_from_a_file(copy: Path, capsys: Capsys) -> None:
    """Mutations: one of them is taken."""
    entries = {"out": "victim.h5", "force": True, "dry_run": True, "resume": "victim.h5", "config": "victim.h5"}
    victim = Path("victim.h5")
    victim.write_text("mine")
    rewrite(checkpoint_path(copy), **entries)
    assert resume(capsys, copy) == (0, "")
    assert victim.read_text() == "mine" and records.load(copy).length == 4


@pytest.mark.parametrize("value", [["3", "--out", "victim.h5", "--force"], "--force"], ids=["list", "word"])
def test_a_value_that_the_command_line_would_take_for_a_flag_is_refused(copy: Path, capsys: Capsys, value: Any) -> None:
    victim = Path("victim.h5")
    victim.write_text("mine")
    rewrite(checkpoint_path(copy), tau=value)
    status, told = resume(capsys, copy)
    assert status == 2 and "its configuration has tau = '--" in told and victim.read_text() == "mine"
    rewrite(checkpoint_path(copy), tau=[3.0], data="~/texts")
    status, told = resume(capsys, copy)
    assert status == 2 and "made with --data ~/texts, which is user-defined" in told


def test_folders_do_not_come_from_a_file(copy: Path, capsys: Capsys) -> None:
    """Mutation: the data folder of the checkpoint is searched."""
    rewrite(checkpoint_path(copy), data_dir="/nowhere")
    status, told = resume(capsys, copy)
    assert status == 0 and told.count("\n") == 1
    assert "was made with --data-dir /nowhere; no folder is taken from the file of another user or machine" in told
    assert json.loads(h5py.File(checkpoint_path(copy)).attrs["config"])["data_dir"] == ""


def test_a_run_of_ones_own_goes_on_with_its_folder_under_a_seal(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """Mutations: the folder must be typed again; without a word; also where another user's seal is in the file."""
    out, data = tmp_path / "run.h5", tmp_path / "data"
    data.mkdir()
    assert here(FAMILY, *FLAGS, "--rounds", 2, "--data-dir", data, "--out", out) == 0
    capsys.readouterr()
    assert here(FAMILY, "--resume", out, "--rounds", 3) == 0
    told = capsys.readouterr()
    assert f"folder    --data-dir {data}, as your run before named it" in told.out and told.err == ""
    assert json.loads(h5py.File(checkpoint_path(out)).attrs["config"])["data_dir"] == str(data)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert here(FAMILY, "--resume", out, "--rounds", 4) == 0
    told = capsys.readouterr()
    assert "folder    " not in told.out
    assert f"to use it: python -m {FAMILY} --resume {out} --rounds 4 --data-dir {data}\n" in told.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", "{"),
        ("config", "[" * 100_000),
        ("config", '{"method": "zo_hfl", "problem": "nothing"}'),
        ("config", '{"method": "zo_hfl", "problem": "softmax", "unknown": 1}'),
        ("round", -1),
        ("steps", "["),
    ],
)
def test_damaged_attributes_of_a_checkpoint_are_one_sentence(copy: Path, capsys: Capsys, name: str, value: Any) -> None:
    forge(checkpoint_path(copy), **{name: value if len(str(value)) < 60_000 else None})
    before = copy.read_bytes()
    status, told = resume(capsys, copy)
    assert status == 2 and told.count("\n") == 1 and told.startswith("zofl_mpi: "), told
    assert copy.read_bytes() == before


def test_an_analysis_imports_no_class_that_only_a_result_names(copy: Path) -> None:
    """Mutation: `setting_of` takes the result's configuration as it stands."""
    rewrite(copy, method="stranger_mod:C")
    with pytest.raises(UserError, match=r"C, which is user-defined: .* add --own stranger_mod:C"):
        restore.setting_of(records.load(copy), FAMILY)
    assert not Path("imported").exists()
    rewrite(copy, method="zo_hfl", data="mine.npz")
    with pytest.raises(UserError, match=r"mine\.npz, which is user-defined"):
        restore.setting_of(records.load(copy), FAMILY)
    rewrite(copy, data="digits", out="victim.h5", data_dir="/nowhere")
    setting, method = restore.setting_of(records.load(copy), FAMILY)
    assert setting.m == 3 and type(method).__name__ == "ZOHFL"
