"""--eval-samples in whole runs: the same bits on any number of ranks, the same iterates, kept by a continuation."""

import numpy as np

from tests.e2e.made import *
from zofl_mpi.run import evaluation

DIGITS = ["--m", "5", "--alpha", "0.5", "--tau", "2", "--batch", "4", "--eval-every", "2", "--quiet"]
FEDNEST = ["--method", "fednest", "--T", "1", "--N", "1", "--batch", "4", "--batch-lower", "4"]
COMMANDS = {
    "zo_hfl": ("zofl_mpi.zo_hfl", DIGITS),
    "fedavg": ("zofl_mpi.zo_hfl", ["--method", "fedavg", *DIGITS, "--personal", "--validation", "0.1"]),
    "fedrzo": ("zofl_mpi.fedrzo", ["--m", "5", "--H", "2", "--probe", "3", "--eval-every", "2", "--quiet"]),
    "fednest": ("zofl_mpi.fedrzo", [*FEDNEST, "--eval-every", "2", "--quiet"]),
}


@pytest.fixture
def dear(monkeypatch: Patch) -> None:
    """No evaluation is cheap."""
    monkeypatch.setattr(evaluation, "CHEAP", 0.0)


@pytest.mark.parametrize("name", COMMANDS)
def test_fewer_samples_move_reports_alone_and_are_the_same_on_any_number_of_ranks(
    name: str, dear: None, tmp_path: Path
) -> None:
    """Mutations: samples drawn by rank; the clients' training data cut, too; a part read whole."""
    family, words = COMMANDS[name]
    one, five, whole = (tmp_path / f"{kind}.h5" for kind in ("one", "five", "whole"))
    assert here(family, *words, "--rounds", 3, "--out", one) == 0
    assert run_module(5, family, *words, "--rounds", 3, "--out", five) == 0
    assert differences(one, five) == []
    assert here(family, *words, "--rounds", 3, "--out", whole, "--eval-samples", 0) == 0
    some, full = records.load(one), records.load(whole)
    assert 0 < some.attrs["eval_samples"] < 180 and full.attrs["eval_samples"] == 0
    assert some.config["eval_samples"] == "auto" and full.config["eval_samples"] == 0
    assert np.array_equal(some.final["x"], full.final["x"])
    for column in ("test_loss", "objective"):
        assert some.rounds[column][-1] != full.rounds[column][-1]
    given = tmp_path / "given.h5"
    assert here(family, *words, "--rounds", 3, "--out", given, "--eval-samples", some.attrs["eval_samples"]) == 0
    assert np.array_equal(records.load(given).rounds["test_loss"], some.rounds["test_loss"], equal_nan=True)


def test_a_continued_run_keeps_what_it_began_with(dear: None, tmp_path: Path, capsys: Capsys) -> None:
    """Whatever its --rounds now. Mutation: auto by the new rounds."""
    out, family = tmp_path / "run.h5", "zofl_mpi.zo_hfl"
    assert here(family, *DIGITS, "--rounds", 2, "--out", out) == 0
    began = records.load(out).attrs["eval_samples"]
    fresh = tmp_path / "fresh.h5"
    assert here(family, *DIGITS, "--rounds", 40, "--out", fresh) == 0
    assert records.load(fresh).attrs["eval_samples"] not in (0, began)
    assert run_module(3, family, "--resume", out, "--rounds", 4, "--quiet") == 0
    exact = tmp_path / "exact.h5"
    assert here(family, *DIGITS, "--rounds", 4, "--out", exact, "--eval-samples", began) == 0
    losses = [records.load(path).rounds["test_loss"] for path in (out, exact)]
    assert np.array_equal(*losses, equal_nan=True)
    assert f"--eval-samples was auto, is now {began}" in refused(
        capsys, family, "--resume", out, "--rounds", 5, "--eval-samples", began
    )


def test_a_line_tells_it_where_auto_takes_fewer(dear: None, capsys: Capsys, tmp_path: Path) -> None:
    """Not with --quiet, and not where all are read."""
    loud = [word for word in DIGITS if word != "--quiet"]
    given = [[*loud, "--eval-samples", number] for number in ("9", "0")]
    for words, told in ((loud, 1), (DIGITS, 0), (given[0], 0), (given[1], 0)):
        assert here("zofl_mpi.zo_hfl", *words, "--rounds", 2, "--out", tmp_path / "a.h5", "--force") == 0
        assert capsys.readouterr().out.count("of the 180 test samples: a tenth of the training's cost") == told
    assert here("zofl_mpi.zo_hfl", *loud, "--rounds", 2, "--dry-run") == 0
    assert "samples of each part that an evaluation reads" in capsys.readouterr().out
