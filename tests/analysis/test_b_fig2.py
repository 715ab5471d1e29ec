"""[B]'s figure 2 from tiny real results: means, and Student's intervals computed by hand."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.analysis.made import Grids
from zofl_mpi import fedrzo


def test_figure_2_knows_problems_that_there_are(script: Any) -> None:
    """Mutation: a problem renamed in the package alone."""
    assert set(script("b_fig2").PANELS) <= set(fedrzo.PROBLEMS)


def test_figure_2_of_one_problem_has_one_panel(made: Grids, script: Any) -> None:
    figure = script("b_fig2").draw(made("b_levels").groups("H", "goal", names=("hyper",)))
    assert [panel.get_ylabel() for panel in figure.axes] == ["test loss (nat)"]


def test_figure_2_refuses_a_grid_without_local_steps(made: Grids, tmp_path: Path, refuses: Any) -> None:
    text = made("b_levels").path("hyper").read_text().replace("{H}", "{steps}")
    text = text.replace("H = [1, 5]", "steps = { 1 = { H = 1 }, 5 = { H = 5 } }")
    (tmp_path / "other.toml").write_text(text)
    assert "has the axis steps" in refuses("b_fig2", ["--grid", str(tmp_path / "other.toml")])[0]


def test_one_seed_has_no_interval(script: Any) -> None:
    assert np.isnan(script("b_fig2").half_width(np.ones((1, 4)))).all()
