"""[A]'s figure 2 from tiny real results: lines and bands are means, least and largest numbers."""

import statistics
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import CELLS, Grids, check_figure


def test_the_axis_of_figure_2_is_logarithmic_on_demand(made: Grids, script: Any) -> None:
    module = script("a_fig2")
    groups = made("a_taus").groups("cell", "tau")
    for log, scale in ((False, "linear"), (True, "log")):
        figure = module.draw(groups, "tau", "test_accuracy", log)
        assert {panel.get_yscale() for panel in figure.axes} == {scale}
        assert figure.axes[0].get_ylabel() == "test accuracy (%)"
        assert max(figure.axes[0].get_lines()[0].get_ydata()) > 1


@pytest.mark.parametrize("more", [[], ["--column", "test_accuracy"], ["--column", "objective", "--log"]])
def test_figure_2_is_drawn_and_tells_the_last_numbers(made: Grids, more: list[str], wrote: Any) -> None:
    told = wrote("a_fig2", made("a_taus"), *more)
    check_figure(told.stem, 7.0)
    values = [v[-1] for v in made("a_taus").column("train_loss", cell="a0.1-b0.5", tau="9")]
    line = ["digits", "a0.1-b0.5", "9", f"{statistics.mean(values):.4g}", f"{statistics.stdev(values):.4g}", "2"]
    assert more or line in [line.split() for line in told.out.split("\n")]


def test_the_lines_and_bands_of_figure_2_are_mean_least_and_largest(made: Grids, script: Any) -> None:
    module = script("a_fig2")
    figure = module.draw(made("a_taus").groups("cell", "tau"), "tau", "train_loss", False)
    for panel, cell in zip(figure.axes, CELLS, strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}
        for line, band, tau in zip(lines.values(), panel.collections, ("2", "9"), strict=True):
            values = made("a_taus").column("train_loss", cell=cell, tau=tau)
            assert line.get_label() == f"τ = {tau}"
            assert line.get_xdata().tolist() == [1, 2, 3]  # the first, every second and the last round
            assert np.allclose(line.get_ydata(), values.mean(axis=0), rtol=1e-14)
            heights = band.get_paths()[0].vertices[:, 1]
            assert heights.min() == values.min() and heights.max() == values.max()


def test_figure_2_says_which_line_lacks_a_seed(place: Grids, script: Any) -> None:
    place("a_taus").member(cell="a0.1-b0.5", tau="9", seed="1").out.unlink()
    groups = place("a_taus").groups("cell", "tau", words=("--partial",))
    figure = script("a_fig2").draw(groups, "tau", "train_loss", False)
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["digits, α = 1000, β = 0.9", "digits, α = 0.1, β = 0.5\nτ = 9 (1 of 2 seeds)"]
