"""[C]'s figure 4 from tiny real results: mu, n_p, and a level for each control."""

import statistics
from typing import Any

import numpy as np

from tests.analysis.made import Grids, check_difference, same


def test_figure_4_has_mu_and_n_p_and_a_level_for_each_control(made: Grids, script: Any, wrote: Any) -> None:
    """Mutations: the control of the other size; all n_p in the panel of mu."""
    module = script("c_fig4")
    told = wrote("c_fig4", made("c_estimates"))
    rows = told.rows
    assert len(rows) == 2 * 4
    where = [(size, cell) for size in ("size1", "size2") for cell in ("frozen", "mu1e-3", "mu10", "np3")]
    for row, (size, cell) in zip(rows, where, strict=True):
        mine, frozen = (made("c_estimates").lasts(size=size, cell=c) for c in (cell, "frozen"))
        assert same(row["accuracy_mean_percent"], statistics.mean(mine)) and row["cut"] == size[-1]
        if cell != "frozen":
            check_difference(row, ("less_frozen_mean", "less_frozen_sd"), mine, frozen)
            assert (float(row["mu"]), float(row["n_p"])) == (
                10.0 if cell == "mu10" else 1e-3,
                3 if cell == "np3" else 1,
            )
    groups = made("c_estimates").groups(*module.STUDY.axes)
    for group in groups:
        other = module.control(group, groups)
        assert (other is None) == (group.entry("cell") == "frozen")
        assert other is None or other.where == {"size": group.entry("size"), "cell": "frozen"}
    figure = module.draw(groups)
    for panel, x, pair in zip(figure.axes, ([1e-3, 10.0], [1, 3]), ("mu10", "np3"), strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}
        for size, word in (("size1", "1 block at the client"), ("size2", "2 blocks at the client")):
            assert lines[f"HERON, {word}"].get_xdata().tolist() == x
            means = [statistics.mean(made("c_estimates").lasts(size=size, cell=c)) for c in ("mu1e-3", pair)]
            assert np.allclose(lines[f"HERON, {word}"].get_ydata(), means)
            level = statistics.mean(made("c_estimates").lasts(size=size, cell="frozen"))
            assert np.allclose(lines[f"frozen client, {word}"].get_ydata(), level)
