"""[A]'s figure 1: the areas of its discs are the counts in the results."""

from typing import Any

import numpy as np

from tests.analysis.made import CELLS, Grids, check_figure
from zofl_mpi.run import records


def test_the_areas_of_figure_1_are_the_counts(made: Grids, script: Any) -> None:
    runs = [records.load(made("a_table").member(cell=cell, method="zo_hfl", seed="1").out) for cell in CELLS]
    figure = script("a_fig1").draw(runs)
    for run, panel in zip(runs, figure.axes, strict=True):
        discs = panel.collections[0]
        clients, classes = np.nonzero(run.counts)
        assert np.array_equal(np.asarray(discs.get_offsets()), np.stack([clients, classes], axis=1))
        areas, counts = discs.get_sizes(), np.asarray(run.counts)[clients, classes]
        assert np.allclose(areas / areas.max(), counts / counts.max())
        assert np.allclose(areas / counts, figure.axes[0].collections[0].get_sizes().max() / runs[0].counts.max())
        assert f"({counts.sum():,} samples)" in panel.get_title()


def test_figure_1_needs_one_finished_result_a_cell(place: Grids, wrote: Any) -> None:
    place("a_table").member(cell="a0.1-b0.5", method="zo_hfl", seed="1").out.unlink()
    told = wrote("a_fig1", place("a_table"), "--partial")
    check_figure(told.path("_digits"), 7.0)
