"""The commands that continue a run, as one types them."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Patch
from zofl_mpi import zo_hfl
from zofl_mpi.errors import UserError
from zofl_mpi.run.command import again, stored
from zofl_mpi.run.command.plan import parse_plan
from zofl_mpi.run.loop import progress


def commands(monkeypatch: Patch, started: list[str] | None, *arguments: str, ranks: int = 3) -> list[list[str]]:
    """The words of the two commands of a run with these arguments, by a launcher with those words."""
    monkeypatch.setattr(progress, "outermost_launcher", lambda: None if started is None else 77)
    monkeypatch.setattr(Path, "read_text", lambda path: "\0".join(started or []) + "\0")
    plan = parse_plan(zo_hfl, arguments)
    return [shlex.split(each) for each in again.commands(plan, "results/a b.h5", ranks)]


def test_they_have_the_launcher_and_what_no_file_gives(monkeypatch: Patch) -> None:
    """Mutations: no launcher; no folder; --survive left out; a path that the shell would split."""
    run = ["--data", "mnist", "--data-dir", "my data", "--rounds", "3", "--round-timeout", "9", "--out", "x.h5"]
    program = ["python", "-m", "zofl_mpi.zo_hfl"]
    resume, begin = commands(monkeypatch, ["/venv/bin/prterun", "-n", "3", "--x", *program, *run], *run)
    assert resume[:7] == ["mpirun", "-n", "3", "--x", *program]
    assert resume[7:] == ["--resume", "results/a b.h5", "--data-dir", "my data", "--round-timeout", "9.0"]
    assert begin == ["mpirun", "-n", "3", "--x", *program, *run[:-2], "--out", "results/a b.h5", "--force"]
    for started, before in (
        (["mpirun", "-n", "3", "zo-hfl", *run], ["mpirun", "-n", "3"]),
        (["mpirun", "-n", "2", "bash", "script.sh"], ["mpirun", "-n", "3"]),
        (None, ["srun", "--mpi=pmi2", "-n", "3"]),
    ):
        monkeypatch.setenv("SLURM_MPI_TYPE", "pmi2")
        assert commands(monkeypatch, started, *run)[0] == [*before, *resume[4:]]
    assert commands(monkeypatch, None, *run, ranks=1)[0] == resume[4:]


def test_a_job_script_says_its_own(monkeypatch: Patch) -> None:
    monkeypatch.setenv(again.RESUME, "sbatch a --resume b")
    monkeypatch.setenv(again.BEGIN, "sbatch a")
    assert commands(monkeypatch, None) == [["sbatch", "a", "--resume", "b"], ["sbatch", "a"]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/zofl_mpi"


def opened(folders: Any) -> dict[str, str]:
    import json

    return stored._unsealed(json.dumps(folders))


def test_a_folder_is_taken_from_a_file_under_ones_own_seal_alone(home: Path, monkeypatch: Patch) -> None:
    """Mutations: any file's folder; another user's; a secret that others can read, or that a link leads to."""
    kept = stored.sealed({"data_dir": "data", "tau": 5})
    full = {"data_dir": os.path.abspath("data")}
    assert opened(kept) == full and (home / "secret").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in home.iterdir()] == ["secret"] and stored.sealed({"data_dir": ""}) == {}
    others: list[Any] = [{**kept, "data_dir": "/etc"}, full, {**full, "seal": ""}, {**full, "seal": 3}, [], "x", None]
    for other in others:
        assert opened(other) == {}
    secret = (home / "secret").read_bytes()
    (home / "secret").chmod(0o640)
    assert opened(kept) == {} and stored.sealed({"data_dir": "data"}) == {}
    (home / "secret").rename(home / "other")
    (home / "secret").symlink_to("other")
    (home / "other").chmod(0o600)
    assert opened(kept) == {}
    (home / "secret").unlink()
    (home / "secret").write_bytes(secret[::-1])
    (home / "secret").chmod(0o600)
    assert opened(kept) == {}  # another user, or another machine
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert stored.sealed({"data_dir": "data"}) == {}


def test_without_a_home_nothing_is_sealed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("state", str(tmp_path / "file/state")):
        (tmp_path / "file").touch()
        monkeypatch.setattr("platformdirs.user_state_dir", lambda name, place=place: place)
        assert stored.sealed({"data_dir": "data"}) == {} and [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_an_own_folder_that_is_there_is_used_and_the_advice_is_complete(tmp_path: Path) -> None:
    """Mutations: a folder that has gone is used; the command of the advice lacks what was typed."""
    config = {"method": "zo_hfl", "data_dir": "there"}
    own = {"data_dir": str(tmp_path)}
    assert stored.safe_config(config, {}, "a.h5", own=own)["data_dir"] == str(tmp_path)
    assert "data_dir" not in stored.safe_config(config, {}, "a.h5", own={"data_dir": str(tmp_path / "gone")})
    with pytest.raises(UserError, match=r"if you trust it: python -m x --resume a.h5 --method a:B$"):
        stored.safe_config({"method": "a:B"}, {}, "a.h5", command="python -m x --resume a.h5")
