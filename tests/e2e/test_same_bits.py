"""The same run on any number of ranks: every number of the result, clocks aside, has the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch import Runs
from tests.tools.agreement import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
USUAL = ["--rounds", 4, "--eval-every", 2, "--seed", 1, "--alpha", 0.5, "--beta", 0.5]
TOY = ["--rounds", 4, "--x0", "random", "--problem"]
FLOAT64 = ["--dtype", "float64", "--samples", "separate", "--radius", 0.1, "--x0", "random"]
NETWORK = ["--method", "fedavg", "--problem", "cnn", "--batch", 32, "--tau", 2, "--m", 3, "--data"]
MNIST = ["--alpha", 0.1, "--data", "mnist", "--data-dir"]
RUNS: dict[str, tuple[list[int], list[Any]]] = {
    "digits": ([0, 1, 2, 3, 5], USUAL),
    "vectors": ([0, 3], [*USUAL, "--exchange", "solutions"]),
    "memories": ([0, 3], [*USUAL, "--y0", "last"]),
    "idle": ([0, 5], [*USUAL, "--m", 2, "--tau", 3]),
    "many": ([0, 3], [*USUAL, "--m", 13, "--tau", 3, "--min-samples", 1]),
    "float64": ([0, 3], [*USUAL, *FLOAT64, "--pixels", "standardize", "--divide", "participants"]),
    "toy": ([0, 3], [*TOY, "toy"]),
    "corner": ([0, 3], [*TOY, "corner"]),
    "caps": ([0, 3], [*TOY, "caps"]),
    "network": ([0, 3], [*USUAL, *NETWORK]),
    "mnist": ([0, 1, 2, 3, 5], [*USUAL, *MNIST]),
    "mnist-vectors": ([3], [*USUAL, "--exchange", "solutions", *MNIST]),
    "one": ([0], [*USUAL, "--tau", 2]),
    "two": ([0], [*USUAL, "--tau", 2, "--seed", 2]),
}
"""Name -> on how many ranks, and flags; idle: 2 of 5 ranks have nothing to do. All on so many ranks are one start."""


def mnist_of(request: pytest.FixtureRequest) -> Path | None:
    """The data folder, if MNIST is in it and its test is among those that run."""
    try:
        folder: Path = request.getfixturevalue("data_dir")
    except pytest.skip.Exception:
        return None
    wanted = any("mnist" in item.name for item in request.session.items)
    return folder if wanted and (folder / "mnist").is_dir() else None


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """results(name, ranks): the result on so many ranks; 0 is without mpirun."""
    folder = tmp_path_factory.mktemp("same_bits")
    images = np.add.outer(np.arange(300), np.arange(784)) * 7 % 256
    np.savez(folder / "images.npz", x=images.astype(np.uint8), y=np.arange(300) % 10)
    commands = {name: flags for name, (_, flags) in RUNS.items()}
    commands["network"] = [*commands["network"], folder / "images.npz"]
    data = mnist_of(request)
    left_out = () if data else ("mnist", "mnist-vectors")
    for name in ("mnist", "mnist-vectors"):
        commands[name] = [*commands[name], data]
    return Runs(folder, FAMILY, commands, lambda n: [k for k, (on, _) in RUNS.items() if n in on and k not in left_out])


def agree(results: Runs, name: str, ranks: list[int]) -> Path:
    """All of these runs are the one without mpirun."""
    alone = results(name, 0)
    assert np.linalg.norm(records.load(alone).final["x"]) > 0
    for count in ranks:
        found = records.load(results(name, count))
        assert found.attrs["ranks"] == count and found.length == 4
        assert differences(alone, results(name, count)) == [], f"{count} ranks"
    return alone


def test_digits_have_the_same_bits_on_any_number_of_ranks(results: Runs) -> None:
    """And sending solutions in place of scalars gives the same model, but for the bytes."""
    alone = agree(results, "digits", [1, 2, 3, 5])
    vectors = agree(results, "vectors", [3])
    assert differences(alone, vectors, bytes_too=False) == []
    assert differences(alone, vectors) == ["clients/bytes_up"]


def test_clients_that_remember_have_the_same_bits(results: Runs) -> None:
    alone = agree(results, "memories", [3])
    assert differences(alone, results("digits", 0)) != []


def test_idle_ranks_and_ranks_with_many_clients_change_no_bit(results: Runs) -> None:
    """2 clients on 5 ranks, of which 2 have nothing to do; 13 clients on 3 ranks."""
    agree(results, "idle", [5])
    agree(results, "many", [3])


def test_float64_and_other_options_have_the_same_bits(results: Runs) -> None:
    agree(results, "float64", [3])


@pytest.mark.parametrize("problem", ["toy", "corner", "caps"])
def test_toy_problems_have_the_same_bits(results: Runs, problem: str) -> None:
    assert records.load(results(problem, 3)).attrs["ranks"] == 3
    assert differences(results(problem, 0), results(problem, 3)) == []


def test_a_network_has_the_same_bits(results: Runs) -> None:
    """One client after the other, as the result says."""
    alone = agree(results, "network", [3])
    assert records.load(alone).attrs["kernel"] == "torch cpu"


def test_another_seed_is_another_run(results: Runs) -> None:
    """So the tests above can fail."""
    assert {"final/x", "rounds/test_loss"} <= set(differences(results("one", 0), results("two", 0)))


@pytest.mark.slow
def test_mnist_has_the_same_bits_on_any_number_of_ranks(results: Runs, data_dir: Path) -> None:
    if not (data_dir / "mnist").is_dir():
        pytest.skip(f"no mnist/ in {data_dir}")
    alone = agree(results, "mnist", [1, 2, 3, 5])
    assert differences(alone, results("mnist-vectors", 3), bytes_too=False) == []
