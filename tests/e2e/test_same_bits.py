"""The same run on any number of ranks: every number of the result, clocks aside, has the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.agreement import differences
from tests.conftest import Completed
from zofl_mpi.run import records

Mpirun = Callable[..., Completed]
RUN = ["-m", "zofl_mpi.zo_hfl", "--rounds", "4", "--eval-every", "2", "--seed", "1", "--alpha", "0.5", "--beta", "0.5"]


def result(mpirun: Mpirun, folder: Path, ranks: int, *flags: object) -> Path:
    """The result of a run on that many ranks; 0 is without mpirun."""
    out = folder / f"{'-'.join(map(str, flags)).replace('/', '_')}-{ranks}.h5"
    done = mpirun(ranks, *RUN, *flags, "--out", out, timeout=100)
    assert done.returncode == 0, done.stderr
    found = records.load(out)
    assert found.attrs["ranks"] == max(1, ranks) and found.length == 4
    return out


def agree(mpirun: Mpirun, folder: Path, ranks: list[int], *flags: object) -> Path:
    """All of these runs are the one without mpirun."""
    alone = result(mpirun, folder, 0, *flags)
    assert np.linalg.norm(records.load(alone).final["x"]) > 0
    for count in ranks:
        assert differences(alone, result(mpirun, folder, count, *flags)) == [], f"{count} ranks"
    return alone


def test_digits_have_the_same_bits_on_any_number_of_ranks(mpirun: Mpirun, tmp_path: Path) -> None:
    """And sending solutions in place of scalars gives the same model, but for the bytes."""
    alone = agree(mpirun, tmp_path, [1, 2, 3, 5])
    vectors = agree(mpirun, tmp_path, [3], "--exchange", "solutions")
    assert differences(alone, vectors, bytes_too=False) == []
    assert differences(alone, vectors) == ["clients/bytes_up"]


def test_clients_that_remember_have_the_same_bits(mpirun: Mpirun, tmp_path: Path) -> None:
    alone = agree(mpirun, tmp_path, [3], "--y0", "last")
    assert differences(alone, result(mpirun, tmp_path, 0)) != []


def test_idle_ranks_and_ranks_with_many_clients_change_no_bit(mpirun: Mpirun, tmp_path: Path) -> None:
    """2 clients on 5 ranks, of which 2 have nothing to do; 13 clients on 3 ranks."""
    agree(mpirun, tmp_path, [5], "--m", 2, "--tau", 3)
    agree(mpirun, tmp_path, [3], "--m", 13, "--tau", 3, "--min-samples", 1)


def test_float64_a_bias_and_other_options_have_the_same_bits(mpirun: Mpirun, tmp_path: Path) -> None:
    flags = ["--dtype", "float64", "--bias", "--samples", "separate", "--radius", 0.1, "--x0", "random"]
    agree(mpirun, tmp_path, [3], *flags, "--pixels", "standardize", "--divide", "participants")


@pytest.mark.parametrize("problem", ["toy", "corner"])
def test_toy_problems_have_the_same_bits(mpirun: Mpirun, tmp_path: Path, problem: str) -> None:
    run = ["-m", "zofl_mpi.zo_hfl", "--problem", problem, "--rounds", 4, "--x0", "random"]
    paths = [tmp_path / f"{ranks}.h5" for ranks in (0, 3)]
    for ranks, path in zip((0, 3), paths, strict=True):
        done = mpirun(ranks, *run, "--out", path)
        assert done.returncode == 0, done.stderr
    assert differences(*paths) == []


def test_a_network_has_the_same_bits(mpirun: Mpirun, tmp_path: Path) -> None:
    """With a convolution that is computed by spectra, as the result says."""
    images = np.add.outer(np.arange(300), np.arange(784)) * 7 % 256
    np.savez(tmp_path / "images.npz", x=images.astype(np.uint8), y=np.arange(300) % 10)
    flags = ["--method", "fedavg", "--problem", "cnn", "--data", tmp_path / "images.npz", "--batch", 32, "--tau", 2]
    alone = agree(mpirun, tmp_path, [3], *flags, "--m", 3)
    assert records.load(alone).attrs["kernel"] == "torch cpu fourier"


def test_another_seed_is_another_run(mpirun: Mpirun, tmp_path: Path) -> None:
    """So the tests above can fail."""
    one, two = (result(mpirun, tmp_path, 0, "--tau", 2, "--seed", seed) for seed in (1, 2))
    assert {"final/x", "rounds/test_loss"} <= set(differences(one, two))


@pytest.mark.slow
def test_mnist_has_the_same_bits_on_any_number_of_ranks(mpirun: Mpirun, tmp_path: Path, data_dir: Path) -> None:
    if not (data_dir / "mnist").is_dir():
        pytest.skip(f"no mnist/ in {data_dir}")
    flags = ["--data", "mnist", "--data-dir", data_dir, "--alpha", 0.1]
    alone = agree(mpirun, tmp_path, [1, 2, 3, 5], *flags)
    vectors = result(mpirun, tmp_path, 3, *flags, "--exchange", "solutions")
    assert differences(alone, vectors, bytes_too=False) == []
