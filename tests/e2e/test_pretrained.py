"""A run that begins with the last model of another one: its values, what is held out, damaged files, continued runs."""

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.launch import here, refused
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.heron_sfl"
NETWORK = ["--data", "digits", "--problem", "split_cnn", "--channels", "4", "6", "--strides", "2", "1", "--cut", "1"]
USUAL = [*NETWORK, "--batch", "16", "--h", "4", "--validation", "0.1", "--quiet"]
FLEET = [*USUAL, "--pretrained", "first.h5", "--client-parts", "own", "--lr-server", "0"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of other clients than the tests'."""
    path = tmp_path_factory.mktemp("pretrained") / "first.h5"
    words = [*USUAL, "--method", "cse_fsl", "--m", "1", "--rounds", "3", "--lr-client", "0.1", "--lr-server", "0.1"]
    assert here(FAMILY, *words, "--out", path) == 0
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: Patch, first: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(first, "first.h5")


@pytest.mark.parametrize("norm", [[], ["--trainable", "norm"]])
def test_a_run_begins_with_the_last_model_of_the_other(norm: list[str]) -> None:
    """Without steps it scores the same; what does not train is the other's too. Mutations: random values anywhere."""
    assert here(FAMILY, *FLEET, *norm, "--lr-client", "0", "--rounds", "1", "--out", "a.h5") == 0
    before, now = records.load("first.h5"), records.load("a.h5")
    for name in ("test_loss", "test_accuracy", "validation_loss"):
        assert now.rounds[name][-1] == pytest.approx(before.rounds[name][-1], rel=1e-5)
    trains = slice(36, 44) if norm else slice(0, 44)  # a convolution of 36, then 4 scales and 4 shifts
    expected = np.concatenate([before.final["theta"][trains], before.final["theta"][44:]])
    assert np.array_equal(now.final["theta"], expected)
    assert np.array_equal(now.final["theta_s"], before.final["theta_s"])


def test_a_run_begins_with_a_model_that_was_trained_without_a_head() -> None:
    """The head is then as the network makes it. Mutations: such a result refused; the head left undefined."""
    words = [*USUAL, "--method", "decomfl", "--m", "1", "--rounds", "2", "--lr-client", "0.1", "--eval-every", "1"]
    assert here(FAMILY, *words, "--out", "whole.h5") == 0
    still = [*USUAL, "--pretrained", "whole.h5", "--lr-server", "0", "--lr-client", "0", "--rounds", "1"]
    for name, method in (("a.h5", "heron"), ("b.h5", "decomfl")):
        assert here(FAMILY, *still, "--method", method, "--m", "2", "--out", name) == 0
    whole, a, b = (records.load(name) for name in ("whole.h5", "a.h5", "b.h5"))
    assert np.array_equal(a.final["theta"][:44], whole.final["theta"]) and len(a.final["theta"]) > 44
    assert np.array_equal(b.final["theta"], whole.final["theta"]) and np.isfinite(a.final["theta"]).all()
    assert b.rounds["test_loss"][-1] == pytest.approx(whole.rounds["test_loss"][-1], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--seed 2", "network and held-out samples must be those of that run: --seed was 1, is now 2"),
        ("--validation 0.2", "--validation was 0.1, is now 0.2"),
        ("--channels 4 5", "--channels was 4 6, is now 4 5"),
        ("--head pooled", "--head was linear, is now pooled"),
        ("--pretrained none.h5", "there is no file none.h5"),
        ("--shift tint", "--shift tint: images of 1 channel cannot be tinted; take other sensors"),
        ("--shift blur --pixels raw", "--shift blur: sensors see images with pixels in [0, 1]; take --pixels unit"),
        ("--shift red", "--shift red: must be one or more values, each one of clean, invert, gain, tint, contrast"),
        ("--uplink seeds", "--uplink seeds: with --client-parts own no model goes up; take dense"),
        ("--state average", "--client-parts own: --state average averages what the clients hold; take keep or reset"),
        ("--method fsl_sage", "--client-parts own: must be average: the server aligns the heads that it sends"),
        ("--method decomfl", "--client-parts own: must be average: it has no meaning here"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(capsys: Capsys, arguments: str, words: str) -> None:
    assert words in refused(capsys, FAMILY, *FLEET, *arguments.split(), "--rounds", "1", "--out", "a.h5")


@pytest.mark.parametrize("columns", [50, 64])
def test_sensors_see_no_table(capsys: Capsys, columns: int) -> None:
    """Mutation: synthetic columns of a square number are an image."""
    table = ["--problem", "split_mlp", "--data", "synthetic", "--synthetic-features", columns, "--out", "a.h5"]
    told = refused(capsys, FAMILY, *table, "--client-parts", "own", "--shift", "blur")
    assert f"--shift blur: sensors see images, and --data synthetic is a table of {columns} columns" in told


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "its last model has 0 numbers in theta_s, this network takes"),
        (np.zeros(3, np.float32), "its last model has 3 numbers in theta_s"),
        (np.full(154, np.nan, np.float32), "its last model has numbers that are not finite in theta_s"),
    ],
    ids=["unfinished", "short", "diverged"],
)
def test_a_result_without_that_model_is_refused(capsys: Capsys, value: Any, words: str) -> None:
    with h5py.File("first.h5", "r+") as file:
        size = file["final/theta_s"].size
        del file["final/theta_s"]
        if value is not None:
            file["final/theta_s"] = np.resize(value, size) if np.isnan(value).any() else value
    assert words in refused(capsys, FAMILY, *FLEET, "--rounds", "1", "--out", "a.h5")


def test_a_continued_run_takes_the_file_only_where_it_is_named_again(capsys: Capsys) -> None:
    """And is then the uninterrupted one, own parts and all. Mutations: a path from a file; parts that begin anew."""
    words = [*FLEET, "--shift", "invert", "blur", "--trainable", "first", "--lr-client", "0.05", "--eval-every", "1"]
    for rounds, out in ((2, "a.h5"), (4, "whole.h5")):
        assert here(FAMILY, *words, "--rounds", rounds, "--out", out) == 0
    told = refused(capsys, FAMILY, "--resume", "a.h5", "--rounds", "4", "--quiet")
    assert "was made with --pretrained first.h5, which is user-defined" in told
    assert here(FAMILY, "--resume", "a.h5", "--rounds", "4", "--quiet", "--pretrained", "first.h5") == 0
    assert differences(Path("a.h5"), Path("whole.h5")) == []
