"""[C]'s figure 3 from tiny real results: a panel for each thing that changes."""

import statistics
from typing import Any

import numpy as np

from tests.analysis.made import Grids, check_difference, same


def test_figure_3_has_a_panel_for_each_thing_that_changes(made: Grids, script: Any, wrote: Any) -> None:
    """m = 6 with all clients is a point of two. Mutations: non-iid cells in the panel of m; the control of another."""
    module = script("c_fig3")
    told = wrote("c_fig3", made("c_clients"))
    rows = told.rows
    points = {"alpha": ["0.3", "10.0"], "m": ["4.0", "6.0"], "beta": ["0.5", "1.0"]}
    assert [(row["panel"], row["value"]) for row in rows[::2]] == [(k, x) for k, each in points.items() for x in each]
    cells = ["alpha0.3", "alpha10", "m4", "m6", "beta0.5", "m6"]
    for row, cell in zip(rows, [cell for cell in cells for _ in range(2)], strict=True):
        mine = made("c_clients").lasts(cell=cell, method=row["method"])
        assert same(row["accuracy_mean_percent"], statistics.mean(mine))
        if row["method"] == "heron":
            frozen = made("c_clients").lasts(cell=cell, method="heron-frozen")
            check_difference(row, ("less_frozen_mean", "less_frozen_sd"), mine, frozen)
        else:
            assert row["less_frozen_mean"] == ""
    figure = module.draw(module.arranged(made("c_clients").groups(*module.STUDY.axes)))
    assert [panel.get_xlabel() for panel in figure.axes] == list(module.PANELS.values())
    for k, (key, panel) in enumerate(zip(points, figure.axes, strict=True)):
        heron, frozen = panel.get_lines()
        assert [heron.get_label(), frozen.get_label()] == ["HERON", "HERON, frozen client"]
        assert heron.get_xdata().tolist() == [float(x) for x in points[key]]
        means = [statistics.mean(made("c_clients").lasts(cell=c, method="heron")) for c in cells[2 * k : 2 * k + 2]]
        assert np.allclose(heron.get_ydata(), means)
