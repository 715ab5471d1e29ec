"""[B]'s figure 1 from tiny real results: the numbers are those computed by hand."""

import math
import statistics
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import EVALUATED, Grids, Made, group_of

SUM = ["--rows", "H", "--lines", "reading", "--column", "test_loss", "--log"]


def groups_of(module: Any, grids: Made, *more: str) -> tuple[list[Any], Any]:
    """A script's groups, and its flags."""
    flags = module.parser().parse_args(grids.words(grids.folder, *more))
    return grids.groups("data", flags.rows, flags.lines), flags


def test_figure_1_tells_first_last_and_how_soon(made: Grids, wrote: Any) -> None:
    told = wrote("b_fig1", made("b_figure"))
    rows = told.rows
    assert "5 rounds; 2 seeds" in told.out and told.out.split()[-1] == str(told.path(".png"))
    assert [(row["eta"], row["H"]) for row in rows] == [(e, h) for e in ("0.1", "0.01") for h in ("1", "6")]
    at = np.array(EVALUATED) - 1
    for row in rows:
        values = made("b_figure").column("objective", eta=row["eta"], H=row["H"])
        assert np.isnan(np.delete(values, at, axis=1)).all()
        assert float(row["first"]) == pytest.approx(values[:, 0].mean(), rel=1e-14)
        assert float(row["last"]) == pytest.approx(values[:, -1].mean(), rel=1e-14)
        assert float(row["last_sd"]) == pytest.approx(statistics.stdev(values[:, -1]), rel=1e-12)
        others = [made("b_figure").column("objective", eta=row["eta"], H=h).mean(axis=0)[at] for h in ("1", "6")]
        level = max(curve[-1] for curve in others if curve[-1] < curve[0])
        mine = values.mean(axis=0)[at]
        soon = [r for r, value in zip(EVALUATED, mine, strict=True) if value <= level]
        assert row["reached_in_round"] == (str(float(soon[0])) if soon else "")
        assert row["in_local_steps"] == (str(soon[0] * float(row["H"])) if soon else "")
        assert (row["rounds"], row["seeds"], row["seeds_planned"]) == ("5", "2", "2")


def test_the_lines_and_bands_of_figure_1_are_mean_least_and_largest(made: Grids, script: Any) -> None:
    module = script("b_fig1")
    groups, flags = groups_of(module, made("b_figure"))
    figure = module.draw(groups, flags)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["digits, η = 0.1", "digits, η = 0.01"]
    for panel, eta in zip(figure.axes, ("0.1", "0.01"), strict=True):
        for line, band, steps in zip(panel.get_lines(), panel.collections, ("1", "6"), strict=False):
            values = made("b_figure").column("objective", eta=eta, H=steps)[:, np.array(EVALUATED) - 1]
            assert line.get_label() == f"H = {steps}" and line.get_xdata().tolist() == EVALUATED
            assert np.allclose(line.get_ydata(), values.mean(axis=0), rtol=1e-14)
            heights = band.get_paths()[0].vertices[:, 1]
            assert heights.min() == values.min() and heights.max() == values.max()


def test_the_sum_is_drawn_beside_the_mean(made: Grids, script: Any, wrote: Any) -> None:
    module = script("b_fig1")
    told = wrote("b_fig1", made("b_scales"), *SUM)
    assert told.path(".pdf").read_bytes().startswith(b"%PDF")
    for row in told.rows:
        values = made("b_scales").column("test_loss", H=row["H"], reading=row["reading"])
        assert float(row["last"]) == pytest.approx(values[:, -1].mean(), rel=1e-14)
    groups, flags = groups_of(module, made("b_scales"), *SUM)
    figure = module.draw(groups, flags)
    assert {panel.get_yscale() for panel in figure.axes} == {"log"}
    assert [line.get_label() for line in figure.axes[0].get_lines()[:2]] == ["mean, γ = 1e-5", "sum, γ = 1e-5"]


@pytest.mark.parametrize(
    ("values", "level", "expected"),
    [([3, 2, 1, 1], 2.0, 2.0), ([3, 2, 1, 1], 0.5, math.nan), ([3, 2, 1, 1], math.nan, math.nan), ([1, 2], 1.5, 1.0)],
)
def test_a_level_is_reached_in_the_first_round_below_it(
    script: Any, values: list[float], level: float, expected: float
) -> None:
    module = script("b_fig1")
    found = module.reach(group_of(values), "test_accuracy", level)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
