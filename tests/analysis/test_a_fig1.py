"""[A]'s figure 1: the areas of its discs are the counts in the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.analysis.made import CELLS, Grids, check_figure, refused
from zofl_mpi.run import records


@pytest.mark.parametrize("columns", [1, 2])
def test_figure_1_is_drawn_from_a_grid_and_from_results(
    made: Grids, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    inches = 3.5 * columns
    script("a_fig1").main(made("a_table").words(tmp_path / "f", "--columns", str(columns)))
    assert capsys.readouterr().out.split() == [str(tmp_path / "f_digits.pdf"), str(tmp_path / "f_digits.png")]
    check_figure(tmp_path / "f_digits", inches)
    result = made("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="1").out
    script("a_fig1").main([str(result), "--columns", str(columns), "--out", str(tmp_path / "one")])
    check_figure(tmp_path / "one", inches)


def test_the_areas_of_figure_1_are_the_counts(made: Grids, script: Any) -> None:
    runs = [records.load(made("a_table").member(cell=cell, method="zo_hfl", seed="1").out) for cell in CELLS]
    figure = script("a_fig1").draw(runs, 2)
    largest = max(int(run.counts.max()) for run in runs if run.counts is not None)
    for run, panel in zip(runs, figure.axes, strict=True):
        discs = panel.collections[0]
        clients, classes = np.nonzero(run.counts)
        assert np.array_equal(np.asarray(discs.get_offsets()), np.stack([clients, classes], axis=1))
        areas, counts = discs.get_sizes(), np.asarray(run.counts)[clients, classes]
        assert np.allclose(areas / areas.max(), counts / counts.max())
        assert np.allclose(areas / counts, figure.axes[0].collections[0].get_sizes().max() / runs[0].counts.max())
        assert f"({counts.sum():,} samples)" in panel.get_title()
    assert largest >= runs[0].counts.max()
    plt.close(figure)


def test_figure_1_needs_one_finished_result_a_cell(
    place: Grids, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    place("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="1").out.unlink()
    script("a_fig1").main(place("a_table").words(tmp_path / "f"))
    place("a_table").member(cell="a0.1-b0.5", method="fedavg", seed="1").out.unlink()
    (line,) = refused(script("a_fig1").main, place("a_table").words(tmp_path / "g"), capsys)
    assert line.startswith("a_fig1: digits, alpha 0.1: no result is finished")
    script("a_fig1").main(place("a_table").words(tmp_path / "g", "--partial"))
    check_figure(tmp_path / "g_digits", 7.0)
