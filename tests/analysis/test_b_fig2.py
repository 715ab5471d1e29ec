"""[B]'s figure 2 from tiny real results: means, and Student's intervals computed by hand."""

import math
import statistics
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.analysis.made import Grids, Made, check_figure
from zofl_mpi import fedrzo


def column(grids: Made, stem: str, name: str) -> list[list[float]]:
    """Straight from the files: the evaluated numbers, for each seed."""
    found = []
    for seed in (1, 2, 3):
        with h5py.File(grids.results / f"{stem}-s{seed}.h5") as file:
            found.append([float(v) for v in file["rounds"][name][()] if not math.isnan(v)])
    return found


def test_figure_2_draws_means_with_students_intervals_or_single_seeds(made: Grids, script: Any) -> None:
    """Mutations: the interval of one run in place of the mean's; a normal quantile; n in place of n - 1; the seeds of
    another line; a mean that is drawn thrice."""
    figure = script("b_fig2").draw(made("b_levels").groups("H", "goal", names=("hyper", "fair")))
    wanted = [
        ("hyper-1", "test_loss", "$H$ = 1"),
        ("hyper-5", "test_loss", "$H$ = 5"),
        ("fair-1-fair", "objective_exact", "$H$ = 1"),
        ("fair-5-fair", "objective_exact", "$H$ = 5"),
        ("fair-5-fair", "test_worst_class_loss", "classes weighted by $y$"),
        ("fair-5-mean", "test_worst_class_loss", "classes' mean loss"),
    ]
    lines = [line for panel in figure.axes for line in panel.lines if not line.get_label().startswith("_")]
    assert [len(panel.lines) for panel in figure.axes] == [2, 8, 8]  # with those of three seeds
    assert [len(panel.collections) for panel in figure.axes] == [2, 0, 0]
    assert [panel.get_yscale() for panel in figure.axes] == ["linear", "log", "log"]
    bands = list(figure.axes[0].collections)
    for k, (line, (stem, name, label)) in enumerate(zip(lines, wanted, strict=True)):
        values = column(made("b_levels"), stem, name)
        assert line.get_label() == label and line.get_xdata().tolist() == [1, 2, 3]
        assert line.get_ydata() == pytest.approx(np.mean(values, axis=0), rel=1e-12)
        if stem.startswith("hyper"):
            last = [v[-1] for v in values]
            half = 4.302652729911275 * statistics.stdev(last) / math.sqrt(3)
            heights = [y for x, y in bands[k].get_paths()[0].vertices if x == 3]
            assert min(heights) == pytest.approx(statistics.mean(last) - half, rel=1e-9)
            assert max(heights) == pytest.approx(statistics.mean(last) + half, rel=1e-9)
        else:
            panel = list(line.axes.lines)
            thin = panel[panel.index(line) + 1 :][:3]
            np.testing.assert_array_equal([t.get_ydata() for t in thin], values)
            assert {t.get_color() for t in thin} == {line.get_color()}


def test_figure_2_tells_and_writes_its_numbers(made: Grids, wrote: Any) -> None:
    """Mutations of the count of seeds: compared with another seed's run, or with the mean."""
    told = wrote("b_fig2", made("b_levels"), names=("hyper", "fair"))
    assert told.path(".txt").read_text() in told.out
    check_figure(told.stem)
    body = [line.split() for line in told.out.split("\n")]
    values = column(made("b_levels"), "hyper-5", "test_loss")
    half = 4.302652729911275 * statistics.stdev([v[-1] for v in values]) / math.sqrt(3)
    means = np.mean(values, axis=0)
    level = np.mean(column(made("b_levels"), "hyper-1", "test_loss"), axis=0)[-1]
    first = 1 + int(np.flatnonzero(means <= level)[0])
    others = column(made("b_levels"), "hyper-1", "test_loss")
    below = sum(a[-1] < b[-1] for a, b in zip(values, others, strict=True))
    numbers = [f"{means[0]:.4g}", f"{means[-1]:.4g}", f"{half:.4g}", "3", str(below), str(first)]
    assert ["hyperparameter", "test_loss", "H", "=", "5", *numbers] in body
    for said in ("hyperparameter: 3 rounds; 3 seeds", "fair: 3 rounds; 3 seeds", "m 3"):
        assert said in " ".join(told.out.split())


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
