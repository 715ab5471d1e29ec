"""What earlier versions of 1.x have written is opened, drawn and continued, with the same bits."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.make import HERE, RUNS, command
from tests.launch import here
from zofl_mpi.report.__main__ import main as report
from zofl_mpi.run import records
from zofl_mpi.run.records import checkpoint_path

families = pytest.mark.parametrize("family", RUNS)


def content(path: Path) -> dict[str, Any]:
    """All numbers of a result but its clocks."""
    run = records.load(path)
    numbers = {**run.rounds, **run.clients, **run.final}
    return {name: np.asarray(value) for name, value in numbers.items() if name != "seconds"}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = [(one[name], other[name]) for name in one]
    return one.keys() == other.keys() and all((a.dtype, a.tobytes()) == (b.dtype, b.tobytes()) for a, b in pairs)


@families
def test_a_result_is_read_and_drawn(family: str, tmp_path: Path) -> None:
    path = HERE / f"{family}.h5"
    run = records.load(path)
    assert run.attrs["schema"] == 1 and run.attrs["status"] == "done" and run.length == 4
    assert run.config["rounds"] == 4 and run.final and run.units["seconds"] == "s"
    assert {"test_loss", "test_accuracy"} <= run.table().columns.to_list() | run.rounds.keys()
    report([str(path), str(HERE / f"{family}-half.h5"), "--out", str(tmp_path / "page.html")])
    report([str(path), "--out", str(tmp_path / "figure.png")])
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@families
def test_a_checkpoint_is_continued_with_the_same_bits(family: str, tmp_path: Path) -> None:
    """Where this processor computes the whole run with the bits that are stored. Elsewhere rounding differs: float64's
    1e-16, times n / eta of an estimate (3e4), times the Lipschitz constants (below 10) of two rounds' steps."""
    half, fresh = tmp_path / "half.h5", tmp_path / "fresh.h5"
    shutil.copy(HERE / f"{family}-half.h5", half)
    shutil.copy(checkpoint_path(HERE / f"{family}-half.h5"), checkpoint_path(half))
    words = command(family, 4, fresh)
    assert here(words[2], *words[3:]) == 0
    if records.load(fresh).attrs["data"] != records.load(half).attrs["data"]:
        pytest.skip("this processor begins the network with other bits")
    assert here(words[2], "--resume", half, "--rounds", 4, "--quiet") == 0
    stored, found = content(HERE / f"{family}.h5"), content(half)
    if same(stored, content(fresh)):
        assert same(stored, found)
    assert stored.keys() <= found.keys()
    for name, value in stored.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
