"""When zeroth order pays: the theory's curves against simulated steps, and the shares of planted tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import refused, table_of
from zofl_mpi.errors import UserError
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.quadratic import QuadraticData

RESULTS = Path(__file__).resolve().parents[2] / "analysis" / "results"


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_equal_curvatures_lose_one_part_in_d_a_step(script: Any, steps: int) -> None:
    """Mutations: the factor d^2 / (d (d + 2)); the second moment's diagonal term."""
    d = 12
    assert script("pays").remaining(np.ones(d), 1 / d, steps) == pytest.approx((1 - 1 / d) ** steps, rel=1e-12)


def test_the_curve_is_the_mean_of_simulated_two_point_steps(script: Any) -> None:
    """Two-point steps on `QuadraticData`, 1,500 paths; tolerance: 4 standard errors of a mean. Mutation: h for h^2."""
    d, gamma, steps, paths = 5, 0.08, 10, 1500
    h = np.geomspace(0.1, 1, d)
    bowl = QuadraticData(np.diag(h), np.zeros(d), np.zeros((1, d)))
    generator, left = np.random.default_rng(7), np.empty(paths)
    for k in range(paths):
        x = generator.choice([-1.0, 1.0], d) / np.sqrt(h)
        before = bowl.value(x)
        for _ in range(steps):
            x = x - gamma * zo.central(bowl.value, x, zo.direction(generator, d), 1e-3)
        left[k] = bowl.value(x) / before
    error = left.std(ddof=1) / math.sqrt(paths)
    assert script("pays").remaining(h, gamma, steps) == pytest.approx(left.mean(), abs=4 * error)


def test_the_best_step_closes_more_with_every_direction_and_less_where_curvatures_differ(script: Any) -> None:
    closed = script("pays").closed
    assert 0 < closed(100, 0.1) < closed(100, 1) < closed(100, 10) < 1
    assert closed(100, 1) < closed(1, 1) == pytest.approx(1 - math.exp(-1), abs=5e-3)


def test_shares_of_a_planted_table(script: Any, tmp_path: Path) -> None:
    """Mutations: the gap's ends exchanged; a row of another setting; the row's own directions not taken; of two
    rows the last one."""
    pays = script("pays")
    header = "method,cell,score,directions_per_parameter,accuracy_by_seed_percent\n"
    lines = ("z,b,99,9,", "z,a,30,2.5,29 31", "control,a,20,,21 19", "first,a,60,,", "")
    (tmp_path / "t.csv").write_text(header + "\n".join(lines))
    study = pays.Study("t", "ZO-HFL", "a title", {"cell": "a"}, "score", "control", "first", {"z": math.nan})
    (row,) = pays.rows_of(study, tmp_path)
    assert (row["share_percent"], row["directions_per_parameter"]) == (25.0, 2.5)
    assert (row["ahead_mean"], row["ahead_sd"]) == (10.0, pytest.approx(8**0.5))
    (tmp_path / "t.csv").write_text(header + "\n".join((*lines[:2], lines[1], *lines[2:])))
    with pytest.raises(UserError, match=r"t\.csv: a title has several rows of z; run its script again"):
        pays.rows_of(study, tmp_path)
    (tmp_path / "t.csv").write_text(header + "\n".join(lines))
    fixed = pays.Study("t", "FedRZO", "a title", {"cell": "a"}, "score", 70.0, "first", {"z": 0.5})
    (row,) = pays.rows_of(fixed, tmp_path)
    assert (row["share_percent"], row["directions_per_parameter"]) == (400.0, 0.5)
    assert row["ahead_mean"] == -40 and math.isnan(row["ahead_sd"])


def test_the_tables_of_this_repository_are_drawn(script: Any, tmp_path: Path) -> None:
    """Every study's table is there; one without directions would leave a gap."""
    script("pays").main(["--out", str(tmp_path / "pays")])
    rows = table_of(tmp_path / "pays.csv")
    assert rows == table_of(RESULTS / "pays.csv") and (tmp_path / "pays.png").exists()
    assert {r["family"] for r in rows} == {"ZO-HFL", "FedRZO", "HERON-SFL"}
    assert all(float(r["directions_per_parameter"]) > 0 and math.isfinite(float(r["share_percent"])) for r in rows)


def test_what_is_missing_is_told(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = script("pays").main
    (line,) = refused(main, ["--tables", str(tmp_path), "--out", str(tmp_path / "out")], capsys)
    assert "cannot read" in line and "run the study's script first" in line
    (tmp_path / "a_tuned.csv").write_text("method,best\nzo_hfl,True\n")
    (line,) = refused(main, ["--tables", str(tmp_path), "--out", str(tmp_path / "out")], capsys)
    assert "has no row of server_sgd, scaffold; run its grid again" in line
