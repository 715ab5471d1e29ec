"""The figure of one run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import refused
from tests.conftest import Capsys
from zofl_mpi.run import records


@pytest.mark.parametrize("columns", [("test_accuracy", "test_loss"), ("objective",), ()])
def test_the_figure_of_a_run_is_drawn_also_while_it_runs(
    tmp_path: Path, columns: tuple[str, ...], script: Any, capsys: Capsys
) -> None:
    recorder = records.Recorder.create(tmp_path / "a.h5", attrs={"config": {}}, m=2, ranks=1, rounds=9)
    for r in range(3):
        row = {"round": r + 1.0, **{name: 0.5 for name in columns if r != 1}}
        recorder.append(row, steps=["solve"], bytes_up=np.full((1, 2), 8), seconds_compute=0.5)
    script("a_run").main([str(tmp_path / "a.h5")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("first", "told", "top"), [(9.0, "start 5.3 s, round 1 9 s", 1.6), (2.9, "start 5.3 s", None)])
def test_a_first_round_that_loads_does_not_hide_the_others(
    tmp_path: Path, script: Callable[[str], Any], first: float, told: str, top: float | None
) -> None:
    """Mutations: the panel as high as the first round; its time, or the start's, in no word."""
    recorder = records.Recorder.create(tmp_path / "a.h5", attrs={"config": {}}, m=2, ranks=1, rounds=9)
    recorder.begins(5.3)
    for r, wall in enumerate((first, 0.8, 1.0)):
        recorder.append({"round": r + 1.0, "seconds": wall}, steps=["solve"], seconds_compute=0.5)
    recorder.close()
    figure = script("a_run").draw(records.load(tmp_path / "a.h5"))
    panel = figure.axes[0]
    assert panel.get_legend().get_title().get_text() == told
    assert panel.get_ylim()[1] == top if top else panel.get_ylim()[1] > first


@pytest.mark.parametrize(("name", "sentence"), [("new", "has no finished round yet"), ("none", "there is no file")])
def test_a_result_that_cannot_be_drawn_is_one_sentence(
    tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    records.Recorder.create(tmp_path / "new.h5", attrs={}, m=2, ranks=1, rounds=9).close()
    (line,) = refused(script("a_run").main, [str(tmp_path / f"{name}.h5")], capsys)
    assert line.startswith("a_run: ") and sentence in line
