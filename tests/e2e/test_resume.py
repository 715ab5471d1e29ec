"""A run that is continued is the run that was never interrupted; what cannot be continued is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.launch import Runs, here, refused
from tests.threads import run_module
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.run.records import checkpoint_path

FAMILY = "zofl_mpi.zo_hfl"
FLAGS = ["--tau", *"3141592653", "--beta", "0.5", "--y0", "last", "--eval-every", "5"]
"""y0 = last: the clients' memories count; unequal work: so does where they live. A run of 5 rounds evaluates the fifth,
so the one of 9 must do so too."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """9 rounds without a break, and the first 5 of them; for copies only."""
    commands = {str(rounds): (FAMILY, [*FLAGS, "--rounds", rounds]) for rounds in (9, 5)}
    return Runs(tmp_path_factory.mktemp("runs"), commands)


@pytest.fixture
def whole(runs: Runs) -> Path:
    return runs("9", 0)


@pytest.fixture
def part(runs: Runs, tmp_path: Path) -> Path:
    """A copy of the first 5 rounds, with its checkpoint."""
    five, out = runs("5", 0), tmp_path / "run.h5"
    shutil.copy(five, out)
    shutil.copy(checkpoint_path(five), checkpoint_path(out))
    return out


def resume(*arguments: object) -> int:
    """The exit status of a continuation in this process."""
    return here(FAMILY, "--resume", *arguments, "--quiet")


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_a_continued_run_is_the_uninterrupted_one_on_any_number_of_ranks(whole: Path, part: Path, ranks: int) -> None:
    """As processes: tests/e2e/test_heron.py."""
    assert run_module(ranks, FAMILY, "--resume", part, "--rounds", 9) == 0
    assert differences(whole, part) == []
    assert records.load(part).attrs["status"] == "done"


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_the_moments_of_a_server_rule_go_on(tmp_path: Path, method: str, capsys: Capsys) -> None:
    """On clients that a file tells. Mutations: moments that begin anew; a file whose clients have changed goes on."""
    x, y = np.arange(400.0).reshape(100, 4) % 7, np.arange(100) % 4
    np.savez(tmp_path / "own.npz", x=x, y=y, client=np.arange(100) % 5)
    flags = ["--method", method, "--server-rule", "adam", "--eta-g", 0.1, "--tau", 2, "--beta", 0.5, "--eval-every", 2]
    flags += ["--partition", "natural", "--data", tmp_path / "own.npz", "--quiet", "--out"]
    assert here(FAMILY, "--rounds", 4, *flags, tmp_path / "whole.h5") == 0
    assert run_module(5, FAMILY, "--rounds", 2, *flags, tmp_path / "part.h5") == 0
    again = ["--resume", tmp_path / "part.h5", "--rounds", 4, "--data", tmp_path / "own.npz"]
    shutil.copy(tmp_path / "own.npz", tmp_path / "kept.npz")
    np.savez(tmp_path / "own.npz", x=x, y=y, client=np.arange(100) * 7 % 5)
    assert run_module(3, FAMILY, *again) == 2
    told = capsys.readouterr().err
    assert "data or network are not those that the run began with" in told and "another version" not in told
    shutil.copy(tmp_path / "kept.npz", tmp_path / "own.npz")
    assert run_module(3, FAMILY, *again) == 0
    assert differences(tmp_path / "whole.h5", tmp_path / "part.h5") == []
    assert {"moments/m", "moments/v"} <= set(records.load(tmp_path / "whole.h5").final)


def test_another_name_leaves_the_first_result_untouched_and_one_that_exists_is_refused_unless_forced(
    whole: Path, part: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """The checkpoint names its run, too. Mutation: a checkpoint of the replaced result is left behind."""
    before = part.read_bytes(), checkpoint_path(part).read_bytes()
    assert resume(checkpoint_path(part), "--rounds", 9, "--out", tmp_path / "new.h5") == 0
    assert (part.read_bytes(), checkpoint_path(part).read_bytes()) == before
    assert differences(whole, tmp_path / "new.h5") == [] and checkpoint_path(tmp_path / "new.h5").exists()
    other = tmp_path / "other.h5"
    other.write_text("mine")
    assert f"--out {other} exists" in refused(capsys, FAMILY, "--resume", part, "--rounds", 9, "--out", other)
    told = refused(capsys, FAMILY, "--resume", part, "--rounds", 9, "--out", other, "--force")
    assert "--force replaces results only" in told
    assert other.read_text() == "mine"
    other.unlink()
    assert here(FAMILY, *FLAGS, "--seed", "2", "--rounds", "2", "--out", other, "--quiet") == 0
    stale = checkpoint_path(other).read_bytes()
    assert resume(part, "--rounds", 9, "--out", other, "--force", "--checkpoint-every", 0) == 0
    assert differences(whole, other) == []
    assert not checkpoint_path(other).exists() or checkpoint_path(other).read_bytes() != stale
    none = tmp_path / "none.h5"
    assert f"--resume {none}" in (told := refused(capsys, FAMILY, "--resume", none)) and "there is no file" in told


@pytest.mark.parametrize("damage", ["gone", "torn", "empty"])
def test_a_run_whose_result_is_lost_goes_on_from_its_checkpoint(
    whole: Path, part: Path, damage: str, capsys: Capsys
) -> None:
    """Mutations: a lost result refused; the rows of later rounds at the places of the first; the damaged file gone;
    a second resume that refuses; the new file of another run than its checkpoints."""
    before = part.read_bytes()
    torn = {"gone": b"", "torn": before[:3000], "empty": b""}[damage]
    part.write_bytes(torn)
    if damage == "gone":
        part.unlink()
    assert resume(part, "--rounds", 7, "--eval-every", 5) == 0
    assert "in which the rows of rounds 1 to 5 are missing" in capsys.readouterr().err
    kept = part.with_name(part.name + ".damaged")
    assert not kept.exists() if damage == "gone" else kept.read_bytes() == torn
    assert resume(part, "--rounds", 9) == 0
    found, full = records.load(part), records.load(whole)
    assert json.loads(found.attrs["missing_rounds"]) == [1, 5]
    np.testing.assert_array_equal(found.rounds["round"], [np.nan] * 5 + [6, 7, 8, 9])
    np.testing.assert_array_equal(found.clients["bytes_up"][5:], full.clients["bytes_up"][5:])
    assert found.final["x"].tobytes() == full.final["x"].tobytes()


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_run_whose_checkpoint_is_damaged_goes_on_from_the_previous_one(
    whole: Path, tmp_path: Path, damage: str, capsys: Capsys
) -> None:
    """Mutations: the damage not seen; no word of it; rows of rounds after the previous checkpoint kept."""
    out = tmp_path / "run.h5"
    assert here(FAMILY, *FLAGS, "--rounds", 5, "--checkpoint-every", 2, "--out", out, "--quiet") == 0
    newest = checkpoint_path(out)
    if damage == "gone":
        newest.unlink()
    else:
        with h5py.File(newest, "r+") as file:
            file["payload/state"][-1] ^= 4
    assert resume(out, "--rounds", 9) == 0
    said = capsys.readouterr().err
    assert f"{newest}.previous is read in its place" in said
    assert damage == "gone" or "the checksum of state is not the one stored" in said
    assert differences(whole, out) == []


def test_a_finished_run_has_nothing_to_do(part: Path, capsys: Capsys) -> None:
    """And each start tells what came before its first round. Mutation: the last start's attribute for the first's."""
    before = records.load(part)
    assert resume(part) == 0
    after = records.load(part)
    assert (
        "finished  nothing was left to do; for more rounds: python -m zofl_mpi.zo_hfl --resume"
        in capsys.readouterr().out
    )
    assert (after.length, after.attrs["status"]) == (5, "done")
    np.testing.assert_array_equal(after.final["x"], before.final["x"])
    assert resume(part, "--rounds", 6) == 0
    run = records.load(part)
    first, *_, last = (session["seconds_start"] for session in json.loads(run.attrs["sessions"]))
    assert 0 < first == before.attrs["seconds_start"] == run.attrs["seconds_start"] < last  # a process grows older
    assert f"start     {last:.1f} s before the first round" in capsys.readouterr().out


def test_rows_after_the_checkpoint_are_made_again(whole: Path, part: Path, tmp_path: Path, capsys: Capsys) -> None:
    """A run that was killed 4 rounds after its checkpoint; that of another run is refused, even if it has the same
    configuration: it was made by a run whose result this is not."""
    early, other = tmp_path / "early.ckpt.h5", tmp_path / "other.h5"
    shutil.copy(checkpoint_path(part), early)
    for _ in range(2):
        assert resume(part, "--rounds", 9) == 0
        assert differences(whole, part) == []
        shutil.copy(early, checkpoint_path(part))
    shutil.copy(whole, other)
    shutil.copy(early, checkpoint_path(other))
    assert resume(other, "--rounds", 9) == 2
    assert "its checkpoint belongs to another run" in capsys.readouterr().err


CHANGED = ["--eta was 0.1, is now 0.2", "6.0 5.0 3.0, is now 1.0 2.0", "--seed was 1, is now 5"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--rounds 9 --eta 0.2 --tau 1 2 --seed 5", ["the checkpoint belongs to another configuration", *CHANGED]),
        ("--method zofl_mpi.zo_hfl:ZOHFL", ["that run has --method ", "zofl_mpi.zo_hfl:ZOHFL"]),
        ("--problem toy", ["that run has --problem ", "toy"]),
        ("--rounds 4", ["--rounds 4: 5 rounds are done already; ask for more: --rounds 105"]),
    ],
)
def test_another_run_than_that_of_the_checkpoint_is_refused_with_the_differences(
    part: Path, capsys: Capsys, flags: str, words: list[str]
) -> None:
    before = part.read_bytes()
    told = refused(capsys, FAMILY, "--resume", part, *flags.split())
    assert [each for each in words if each not in told] == [] and "--rounds was" not in told
    assert part.read_bytes() == before


def test_the_kernel_may_be_named_but_not_be_another(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    """A later release may choose otherwise for "auto": whoever names the kernel of the result can go on."""
    pytest.importorskip("numba")
    monkeypatch.setattr("zofl_mpi.problems.softmax.Softmax.prepare", lambda *given: None)  # nothing is compiled
    out = tmp_path / "run.h5"
    assert here(FAMILY, "--method", "fedavg", "--rounds", "2", "--out", out, "--quiet") == 0
    assert resume(out, "--rounds", 3, "--kernel", "numpy") == 0  # what auto takes
    assert resume(out, "--rounds", 4, "--kernel", "numba") == 2
    told = capsys.readouterr().err
    assert "its kernel was numpy, here it is numba" in told and "name the kernel by --kernel" in told


def test_auto_keeps_the_kernel_of_the_result_whatever_it_would_take_today(tmp_path: Path, monkeypatch: Patch) -> None:
    """However many rounds follow. Mutations: the kernel chosen anew; one that depends on the rounds."""
    pytest.importorskip("numba")
    for least, kernel in ((10**6, "numpy"), (1, "numba")):
        monkeypatch.setattr("zofl_mpi.problems.kernels.softmax.COMPILED_FROM_N", least)
        out = tmp_path / f"{kernel}.h5"
        assert here(FAMILY, "--method", "fedavg", "--tau", 4, "--quiet", "--out", out, "--rounds", 2) == 0
        monkeypatch.setattr("zofl_mpi.problems.kernels.softmax.COMPILED_FROM_N", 10**6 + 1 - least)
        assert resume(out, "--rounds", 4) == 0
        run = records.load(out)
        assert [s["kernel"] for s in json.loads(run.attrs["sessions"])] == [kernel, kernel]
        assert run.attrs["kernel"] == kernel and run.length == 4 and run.attrs["kernel_choice"].startswith(kernel)
        assert run.config["kernel"] == "auto"


def spoil(path: Path) -> None:
    """Every byte after the signature and the superblock is another."""
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    content[96:] ^= 0x5A
    path.write_bytes(content.tobytes())


@pytest.mark.parametrize(
    ("which", "damage", "words"),
    [
        ("result", lambda path: path.write_text("rounds,loss\n1,0.5\n"), "is not an HDF5 file"),
        ("checkpoint", Path.unlink, "there is no file"),
        ("checkpoint", spoil, "is damaged"),
        ("checkpoint", lambda path: path.write_bytes(b""), "is damaged"),
    ],
)
def test_a_missing_or_damaged_file_is_refused_by_name(
    part: Path, capsys: Capsys, which: str, damage: Callable[[Path], None], words: str
) -> None:
    damaged = part if which == "result" else checkpoint_path(part)
    other = checkpoint_path(part) if which == "result" else part
    before = other.read_bytes()
    damage(damaged)
    sentence = refused(capsys, FAMILY, "--resume", part, "--rounds", 9)
    assert str(damaged) in sentence and words in sentence
    assert other.read_bytes() == before
