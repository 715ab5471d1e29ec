"""--eval-samples in whole runs: the same bits on any number of ranks, the same iterates, and none are left out."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Capsys
from tests.launch import here, refused
from tests.threads import run_module
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

DIGITS = ["--m", "5", "--alpha", "0.5", "--tau", "2", "--batch", "4", "--eval-every", "2", "--quiet"]
FEDNEST = ["--method", "fednest", "--T", "1", "--N", "1", "--batch", "4", "--batch-lower", "4"]
COMMANDS = {
    "zo_hfl": ("zofl_mpi.zo_hfl", DIGITS),
    "fedavg": ("zofl_mpi.zo_hfl", ["--method", "fedavg", *DIGITS, "--personal", "--validation", "0.1"]),
    "fedrzo": ("zofl_mpi.fedrzo", ["--m", "5", "--H", "2", "--probe", "3", "--eval-every", "2", "--quiet"]),
    "fednest": ("zofl_mpi.fedrzo", [*FEDNEST, "--eval-every", "2", "--quiet"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_fewer_samples_move_reports_alone_and_are_the_same_on_any_number_of_ranks(name: str, tmp_path: Path) -> None:
    """Mutations: samples drawn by rank; the clients' training data cut, too; a part read whole; all by default cut."""
    family, words = COMMANDS[name]
    one, five, whole = (tmp_path / f"{kind}.h5" for kind in ("one", "five", "whole"))
    assert here(family, *words, "--rounds", 3, "--out", one, "--eval-samples", 20) == 0
    assert run_module(5, family, *words, "--rounds", 3, "--out", five, "--eval-samples", 20) == 0
    assert differences(one, five) == []
    assert here(family, *words, "--rounds", 3, "--out", whole) == 0
    some, full = records.load(one), records.load(whole)
    assert some.config["eval_samples"] == 20 and full.config["eval_samples"] == 0
    assert np.array_equal(some.final["x"], full.final["x"])
    for column in ("test_loss", "objective"):
        assert some.rounds[column][-1] != full.rounds[column][-1]


def test_a_continued_run_keeps_its_number(tmp_path: Path, capsys: Capsys) -> None:
    """Mutation: a flag that may change."""
    out, exact, family = tmp_path / "run.h5", tmp_path / "exact.h5", "zofl_mpi.zo_hfl"
    assert here(family, *DIGITS, "--rounds", 2, "--out", out, "--eval-samples", 9) == 0
    assert run_module(3, family, "--resume", out, "--rounds", 4, "--quiet") == 0
    assert here(family, *DIGITS, "--rounds", 4, "--out", exact, "--eval-samples", 9) == 0
    losses = [records.load(path).rounds["test_loss"] for path in (out, exact)]
    assert np.array_equal(*losses, equal_nan=True)
    told = refused(capsys, family, "--resume", out, "--rounds", 5, "--eval-samples", 8)
    assert "--eval-samples was 9, is now 8" in told
