"""The figure on caps: ZO-HFL ends at the kink, the surrogate at 0."""

from typing import Any

import numpy as np

from tests.analysis.made import check_figure


def test_the_figure_is_drawn_and_tells_where_the_descents_end(wrote: Any) -> None:
    """Mutations: the excess at the start; the surrogate with ZO-HFL's steps."""
    told = wrote("a_caps", ["--eta", "0.3", "0.05", "--rounds", "150", "--seeds", "1"])
    assert "a kink" in told.out
    check_figure(told.stem, 7.0)
    rows = told.rows
    assert [row["method"] for row in rows] == ["ZO-HFL", "ZO-HFL", "first-order surrogate"]
    wide, narrow, first = (float(row["distance_mean"]) for row in rows)
    assert narrow < 0.1 and narrow < first / 5 and wide < first / 3
    assert float(rows[2]["excess_mean"]) > 20 * float(rows[1]["excess_mean"])


def test_the_surrogate_goes_to_zero(script: Any) -> None:
    points = script("a_caps").surrogate(2000)
    assert np.linalg.norm(points[-1]) < 1e-3 and points[0].tolist() == [2.5] * 4
