"""[A]'s figure 1: the areas of its discs are the counts in the results."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.made import CELLS, Grids, check_figure
from zofl_mpi.run import records


@pytest.mark.parametrize("columns", [1, 2])
def test_figure_1_is_drawn_from_a_grid_and_from_results(made: Grids, columns: int, wrote: Any) -> None:
    inches = 3.5 * columns
    told = wrote("a_fig1", made("a_table"), "--columns", str(columns))
    assert told.out.split() == [str(told.path("_digits.pdf")), str(told.path("_digits.png"))]
    check_figure(told.path("_digits"), inches)
    result = made("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="1").out
    told = wrote("a_fig1", [str(result), "--columns", str(columns)])
    check_figure(told.stem, inches)


def test_the_areas_of_figure_1_are_the_counts(made: Grids, script: Any) -> None:
    runs = [records.load(made("a_table").member(cell=cell, method="zo_hfl", seed="1").out) for cell in CELLS]
    figure = script("a_fig1").draw(runs, 2)
    for run, panel in zip(runs, figure.axes, strict=True):
        discs = panel.collections[0]
        clients, classes = np.nonzero(run.counts)
        assert np.array_equal(np.asarray(discs.get_offsets()), np.stack([clients, classes], axis=1))
        areas, counts = discs.get_sizes(), np.asarray(run.counts)[clients, classes]
        assert np.allclose(areas / areas.max(), counts / counts.max())
        assert np.allclose(areas / counts, figure.axes[0].collections[0].get_sizes().max() / runs[0].counts.max())
        assert f"({counts.sum():,} samples)" in panel.get_title()


def test_figure_1_needs_one_finished_result_a_cell(place: Grids, wrote: Any, refuses: Any) -> None:
    place("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="1").out.unlink()
    wrote("a_fig1", place("a_table"))
    place("a_table").member(cell="a0.1-b0.5", method="fedavg", seed="1").out.unlink()
    (line,) = refuses("a_fig1", place("a_table"))
    assert line.startswith("a_fig1: digits, alpha 0.1: no result is finished")
    told = wrote("a_fig1", place("a_table"), "--partial")
    check_figure(told.path("_digits"), 7.0)
