"""[B]'s figure 2: its problems, and grids that it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import grid_files
from tests.analysis.written import made_up_results
from zofl_mpi import fedrzo

HYPER = grid_files("b_levels")[1]


def test_figure_2_knows_problems_that_there_are(script: Any) -> None:
    """Mutation: a problem renamed in the package alone."""
    assert set(script("b_fig2").PANELS) <= set(fedrzo.PROBLEMS)


def test_figure_2_of_one_problem_has_one_panel(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(script("shared.files"), "keep", lambda figure, out: drawn.append(figure))
    with made_up_results():
        script("b_fig2").main(["--grid", str(HYPER), "--out", str(tmp_path / "f")])
    assert [panel.get_ylabel() for panel in drawn[0].axes] == ["test loss (nat)"]


def test_figure_2_refuses_a_grid_without_local_steps(tmp_path: Path, refuses: Any) -> None:
    text = HYPER.read_text().replace("{H}", "{steps}")
    text = text.replace("H = [1, 5]", "steps = { 1 = { H = 1 }, 5 = { H = 5 } }")
    (tmp_path / "other.toml").write_text(text)
    assert "has the axis steps" in refuses("b_fig2", ["--grid", str(tmp_path / "other.toml")])[0]


def test_one_seed_has_no_interval(script: Any) -> None:
    assert np.isnan(script("b_fig2").half_width(np.ones((1, 4)))).all()
