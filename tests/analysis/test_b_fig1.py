"""[B]'s figure 1 from tiny real results: the numbers are those computed by hand."""

import math
from typing import Any

import pytest

from tests.analysis.made import group_of

SUM = ["--rows", "H", "--lines", "reading", "--column", "test_loss", "--log"]


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
