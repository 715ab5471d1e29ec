"""Directions per parameter: as many as a run draws, shared ones once, over the numbers that they perturb."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch import here
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.split import estimates, pieces
from zofl_mpi.run import records

SPLIT = ["--problem", "split_resnet", "--data", "digits", "--m", "2", "--width", "2", "--batch", "300", "--h", "2"]
RUNS = {
    "zo_hfl": ["zofl_mpi.zo_hfl", "--m", "4", "--beta", "0.5"],
    "fedrzo_nn": ["zofl_mpi.fedrzo", "--problem", "max_affine", "--m", "3", "--H", "2", "--n-p", "3"],
    "fedrzo_bl": ["zofl_mpi.fedrzo", "--method", "fedrzo_bl", "--problem", "bilevel_bowls", "--m", "3", "--H", "2"],
    "heron": ["zofl_mpi.heron_sfl", *SPLIT, "--n-p", "2"],
    "head": ["zofl_mpi.heron_sfl", *SPLIT, "--head-gradient", "exact"],
    "ho_sfl": ["zofl_mpi.heron_sfl", "--method", "ho_sfl", *SPLIT, "--estimate", "central"],
    "decomfl": ["zofl_mpi.heron_sfl", "--method", "decomfl", *SPLIT, "--n-p", "2"],
    "fedkseed": ["zofl_mpi.heron_sfl", "--method", "fedkseed", *SPLIT, "--seeds", "3"],
    "cse_fsl": ["zofl_mpi.heron_sfl", "--method", "cse_fsl", *SPLIT],
}
ROUNDS = 3


@pytest.mark.parametrize("name", RUNS)
def test_the_number_is_of_the_directions_that_a_run_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutations: n_p, H, h, rounds or participants left out; shared ones counted a client; the head's numbers."""
    met: set[bytes] = set()
    lengths: set[int] = set()

    trial, along = list[bool](), pieces.Piecewise.along

    @contextmanager
    def tried(*args: Any) -> Iterator[None]:
        """The pass that only measures memory."""
        with along(*args):
            trial.append(True)
            yield
            trial.pop()

    def note(v: Any) -> Any:
        if trial:
            return v
        met.add(np.asarray(v).tobytes())
        lengths.add(len(v))
        return v

    monkeypatch.setattr(pieces.Piecewise, "along", tried)
    direction, drawn = zo.direction, estimates.drawn
    monkeypatch.setattr(zo, "direction", lambda *args, **kwargs: note(direction(*args, **kwargs)))
    monkeypatch.setattr(estimates, "drawn", lambda *args: map(note, drawn(*args)))
    piece = pieces.PiecewiseDirections.__call__  # of so short directions all
    monkeypatch.setattr(pieces.PiecewiseDirections, "__call__", lambda *args: note(piece(*args)))
    command = [*RUNS[name], "--rounds", str(ROUNDS), "--out", str(tmp_path / "a.h5"), "--eval-every", "100"]
    assert here(*command) == 0
    attrs = records.load(tmp_path / "a.h5").attrs
    count, closing = len(met), capsys.readouterr().out
    assert here(*command, "--dry-run") == 0
    lines = [
        line for out in (closing, capsys.readouterr().out) for line in out.splitlines() if "directions for" in line
    ]
    if name == "cse_fsl":
        assert not lines and not count and "directions_per_parameter" not in attrs
        return
    (n,) = lengths
    words = ["drawn", f"{count:,} directions for {n:,} parameters ({count / n:.2g} each)"]
    assert [line.split(maxsplit=1) for line in lines] == [words, words]
    assert attrs["directions_per_parameter"] == count / n
