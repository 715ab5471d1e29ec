"""--track: the columns of a run from the command line, read back by TensorBoard's own reader."""

import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import Capsys, Patch
from tests.launch import here, refused
from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.grid import file

WORDS = ["--method", "fedavg", "--m", "3", "--eval-every", "2", "--quiet"]


def steps(folder: Path) -> dict[str, list[int]]:
    found = EventAccumulator(str(folder)).Reload()
    return {tag: [each.step for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_the_columns_are_beside_the_result_or_in_the_folder(tmp_path: Path) -> None:
    """Also of a continued run. Mutations: a folder that is not the one named; a row before the continuation."""
    out = tmp_path / "a.h5"
    assert here("zofl_mpi.zo_hfl", *WORDS, "--rounds", 3, "--out", out, "--track", "tensorboard") == 0
    found = steps(tmp_path / "a.tensorboard")
    assert found["test_accuracy"] == [1, 2, 3] and found["seconds"] == [1, 2, 3]
    assert "track" not in records.load(out).config
    words = ["--rounds", 5, "--quiet", "--track", f"tensorboard:{tmp_path / 'tb'}"]
    assert here("zofl_mpi.zo_hfl", "--resume", out, *words) == 0
    assert steps(tmp_path / "tb")["seconds"] == [4, 5]


def test_what_cannot_be_tracked_is_refused_before_the_first_round(
    tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    (tmp_path / "file").touch()
    out = ["--out", str(tmp_path / "a.h5")]
    told = refused(capsys, "zofl_mpi.zo_hfl", *WORDS, *out, "--track", f"tensorboard:{tmp_path}/file")
    assert "is a file" in told
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert "pip install 'zofl_mpi[tensorboard]'" in refused(
        capsys, "zofl_mpi.zo_hfl", *WORDS, *out, "--track", "tensorboard"
    )
    assert not (tmp_path / "a.h5").exists()


def test_each_run_of_a_grid_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    """Mutation: runs that write into one folder, each over the last one's columns."""
    monkeypatch.chdir(tmp_path)
    fixed = '[fixed]\nmethod = "fedavg"\nm = 3\nrounds = 2\ntau = 2\ntrack = "tensorboard'
    grid = f'module = "zofl_mpi.zo_hfl"\nfolder = "r"\nname = "s{{seed}}"\n{fixed}"\n[axes]\nseed = [1, 2]\n'
    Path("g.toml").write_text(grid)
    subprocess.run([sys.executable, "-m", "zofl_mpi.run.grid", "g.toml", "--run"], check=True, timeout=240)
    assert [steps(Path(f"r/s{seed}.tensorboard"))["seconds"] for seed in (1, 2)] == [[1, 2]] * 2
    Path("g.toml").write_text(grid.replace('"tensorboard"', '"tensorboard:tb"'))
    with pytest.raises(UserError, match="track = 'tensorboard:tb': all runs would write into one folder; name no fol"):
        file.read("g.toml")
