"""Mistakes of a user: exit status 2, one line that names the flag or file, the value, and what to do; no traceback."""

import gzip
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import LIMIT, Capsys, Mpirun, Patch, environment, run_process
from tests.launch import here, threads
from tests.launch import refused as refused_here
from tests.unit.made import idx
from zofl_mpi.data import images
from zofl_mpi.data.published import IDX_FILES
from zofl_mpi.engine import device
from zofl_mpi.run import records

Refused = Callable[..., str]

FAMILY = "zofl_mpi.zo_hfl"
TINY = ["--rounds", "1", "--tau", "1", "--quiet"]


def one_line(text: str) -> str:
    """The one sentence that a user is told."""
    assert text.startswith("zofl_mpi: ") and text.count("\n") == 1 and text.endswith("\n"), text
    return text.removeprefix("zofl_mpi: ").rstrip()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Each test has a cache of its own."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(name="refused")
def fixture_refused(capsys: Capsys, folder: Path) -> Refused:
    """refused(*arguments): the sentence that a run with them ends in, in this process; no result is left."""

    def run(*arguments: object) -> str:
        before = set(folder.glob("*.h5"))
        told = refused_here(capsys, FAMILY, *TINY, *arguments)
        assert set(folder.glob("*.h5")) == before
        return told

    return run


WRONG = {
    "--bta 0.5": "unknown flag --bta; the nearest is --beta; --help lists all",
    "--beta 1.5": "--beta 1.5: must be a fraction of the clients, above 0 and at most 1",
    "--data none.npz": "--data none.npz: there is no such file",
}


def test_a_process_ends_with_status_2_and_one_line(mpirun: Mpirun, folder: Path) -> None:
    """Under mpirun only rank 0 speaks; what mpirun itself adds about the status does not count."""
    arguments, words = next(iter(WRONG.items()))
    done = mpirun(3, "-m", FAMILY, *TINY, *arguments.split(), cwd=folder)
    own = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("zofl_mpi")]
    assert done.returncode == 2 and done.stdout.strip() == "" and "Traceback" not in done.stderr
    assert one_line("".join(own)).startswith(words) and list(folder.glob("*.h5")) == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_ranks_end_with_status_2_and_rank_0_speaks(folder: Path, ranks: int) -> None:
    ended = threads(ranks, [(FAMILY, [*TINY, *arguments.split()]) for arguments in WRONG])
    for one, words in zip(ended, WRONG.values(), strict=True):
        assert one.status == 2 and one.stdout == "" and one_line(one.stderr).startswith(words)
    assert list(folder.glob("*.h5")) == []


def test_singletons_in_place_of_ranks_are_refused_with_the_remedy(folder: Path) -> None:
    """A launcher of another MPI starts N processes that do not see each other: rank 0 of them speaks."""
    done = run_process([sys.executable, "-m", FAMILY, *TINY], cwd=folder, env={"PMI_SIZE": "4", "PMI_RANK": "0"})
    assert done.returncode == 2 and list(folder.glob("*.h5")) == []
    words = one_line(done.stderr)
    assert words.startswith("started as 4 separate processes that do not see each other")
    assert "use the mpirun of the MPI in this environment" in words


def test_an_output_that_takes_nothing_is_one_sentence() -> None:
    """As on a full disk; status 1, and the result is valid."""
    command = [sys.executable, "-m", FAMILY, "--rounds", "1", "--tau", "1", "--out", "run.h5", "--quiet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        )
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("standard output cannot be written (No space left on device)")
    assert records.load("run.h5").length == 1


@pytest.mark.parametrize("family", ["zofl_mpi.zo_hfl", "zofl_mpi.fedrzo"])
def test_a_smoothing_radius_that_moves_nothing_is_refused(capsys: Capsys, family: str) -> None:
    """Mutation: the estimate is of two equal points."""
    assert here(family, "--rounds", 1, "--quiet", "--eta", "1e-30", "--x0", "random") == 1
    assert "--eta 1e-30: x + eta v = x in float" in one_line(capsys.readouterr().err)


def test_cuda_is_refused_where_there_is_none(refused: Refused) -> None:
    if device.visible("auto"):
        pytest.skip("there is a CUDA device here")
    assert "--device cuda" in refused("--device", "cuda")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('beta = "half"\n', "--beta half: must be a number"),
        ("tau = [1, 2]\n", "must be one number, or 10"),
        ("method = 3\n", "--method 3"),
        ("problem = [1]\n", "--problem"),
        ("tau = []\n", "--tau"),
    ],
)
def test_a_wrong_value_in_a_config_file_is_told_like_a_flag(
    capsys: Capsys, folder: Path, content: str, words: str
) -> None:
    (folder / "run.toml").write_text(content)
    assert words in refused_here(capsys, FAMILY, "--config", "run.toml")


def test_an_existing_result_is_not_overwritten_unless_forced(refused: Refused, folder: Path, capsys: Capsys) -> None:
    out = folder / "run.h5"
    out.write_text("mine")
    assert refused("--out", out) == f"--out {out} exists: choose another name or add --force"
    told = refused("--out", out, "--force")
    assert told.startswith(f"--out {out}: --force replaces results only, and {out} is not an HDF5 file")
    assert told.endswith("; remove it yourself") and out.read_text() == "mine"
    out.unlink()
    for flags, rounds in (([], 2), (["--force"], 1)):
        assert here(FAMILY, *TINY, "--rounds", rounds, "--out", out, *flags) == 0
        assert records.load(out).length == rounds
    before, _ = out.read_bytes(), capsys.readouterr()
    assert refused("--out", out) == f"--out {out} exists: choose another name or add --force"
    assert out.read_bytes() == before


def test_a_result_in_a_missing_folder_is_refused(refused: Refused, folder: Path) -> None:
    out = folder / "no" / "run.h5"
    assert refused("--out", out).startswith(f"--out {out}: there is no folder")
    assert refused("--out", folder).startswith(f"--out {folder} is a folder")


def written(folder: Path, packed: bool = False) -> list[Path]:
    """Small files in MNIST's format: training images and labels, test images and labels."""
    rng = np.random.default_rng(1)
    arrays = [rng.integers(256, size=(60, 28, 28)), rng.integers(10, size=60)]
    arrays += [rng.integers(256, size=(20, 28, 28)), rng.integers(10, size=20)]
    (folder / "mnist").mkdir()
    paths = [folder / "mnist" / (name + ".gz" * packed) for name in IDX_FILES]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return paths


def test_a_packed_file_is_unpacked_no_further_than_its_format_goes(
    refused: Refused, folder: Path, monkeypatch: Patch
) -> None:
    """A few kilobytes that unpack into a disk's worth. Mutation: all is unpacked, and then counted."""
    monkeypatch.setattr(images, "MAX_IDX_SAMPLES", 100)
    path = written(folder, packed=True)[0]
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + bytes(1 << 20)))
    assert f"{path} holds more than {16 + 100 * 28 * 28} bytes" in refused("--data", "mnist", "--data-dir", folder)


def test_an_array_that_no_memory_holds_is_refused_before_it_is_unpacked(refused: Refused) -> None:
    """72 TiB by its entry in the archive, or by its own header alone."""
    np.savez("own.npz", x=X, y=Y)
    content = bytearray(Path("own.npz").read_bytes())
    header = content.index(b"(80, 3)")
    content[header : header + 30] = b"(6600000000000, 3), }         "[:30]
    Path("own.npz").write_bytes(content)
    assert "own.npz" in refused("--data", "own.npz", "--m", 2)
    with zipfile.ZipFile("own.npz", "w") as file:
        for name, array in (("x", X), ("y", Y)):
            stored = io.BytesIO()
            np.save(stored, array)
            file.writestr(f"{name}.npy", stored.getvalue())
        file.infolist()[0].file_size = 72 << 40
    assert "x and y take 73728.0 GiB unpacked, this machine has" in refused("--data", "own.npz", "--m", 2)


@pytest.mark.parametrize("name", ["n" * 300, "n" * 245])
def test_a_long_name_is_told_or_used(refused: Refused, name: str) -> None:
    if len(name) > 255:
        assert "there is no such file" in refused("--data", f"{name}.npz")
        assert "cannot be read (File name too long)" in refused("--config", name)
        return
    np.savez(f"{name}.npz", x=X, y=Y)
    assert here(FAMILY, *TINY, "--data", f"{name}.npz", "--m", 2) == 0
    assert Path(f"results/zo_hfl-{name[:100]}-s1.h5").exists()


X, Y = np.ones((80, 3), np.float32), np.arange(80) % 2


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (Y + 1, "y means classes 0 to 2, and class 0 has no samples (samples by class: 1: 40, 2: 40)"),
        (7 * Y, "classes 0 to 7, and 6 classes, 1 among them, have no samples (samples by class: 0: 40, 7: 40)"),
        (Y > 0, ""),
    ],
)
def test_classes_without_samples_are_told_and_booleans_are_two(capsys: Capsys, labels: Any, words: str) -> None:
    """Every time, not only when the file comes into the cache."""
    np.savez("own.npz", x=X, y=labels)
    for _ in range(2):
        assert here(FAMILY, *TINY, "--data", "own.npz", "--m", 2) == 0
        told = capsys.readouterr().err
        assert words in told and ("warning" in told) == bool(words)
    assert records.load("results/zo_hfl-own-s1.h5").counts.shape[1] == labels.max() + 1


def test_good_files_are_run(folder: Path) -> None:
    """So the refusals above are about what is wrong with them."""
    written(folder)
    np.savez("own.npz", x=X, y=Y)
    mnist, own = ["--data", "mnist", "--data-dir", folder, "--m", 2], ["--data", "own.npz", "--m", 2]
    cases = {
        "zo_hfl-mnist-s1.h5": mnist,
        "zo_hfl-own-s1.h5": own,
        "zo_hfl-own-s1-2.h5": [*own, "--problem", "softmax"],  # the usual one
        "zo_hfl-mlp-own-s1.h5": [*own, "--problem", "mlp"],
        "zo_hfl-toy-s1.h5": ["--problem", "toy", "--m", "2"],  # without data
    }
    for name, given in cases.items():
        assert here(FAMILY, *TINY, *given) == 0
        assert Path("results", name).exists(), name
    assert len(list(folder.glob("results/zo_hfl-*.h5"))) == 2 * len(cases)  # each with its checkpoint
