"""The unbiased square of a mean and its jackknife error by brute force. Docstrings name the mutations to catch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics.stationarity import gradient_squared

Array = np.ndarray[Any, Any]
STREAMS = Streams(5)
N, n = 7, 4


def copies(count: int = N) -> Array:
    return STREAMS(Purpose.START, t=count).standard_normal((count, n))


SHIFTS = pytest.mark.parametrize("shift", [0.0, STREAMS(Purpose.START, r=1).standard_normal(n)], ids=["none", "some"])


def pairs(g: Array, shift: Any) -> float:
    """The definition: products of different copies only."""
    every = [(g[j] + shift) @ (g[k] + shift) for j in range(len(g)) for k in range(len(g)) if j != k]
    return float(np.mean(every))


@SHIFTS
@pytest.mark.parametrize("count", [2, 3, N])
def test_the_value_is_the_mean_over_pairs_of_different_copies(count: int, shift: Any) -> None:
    """Mutations: N^2 in the denominator; the squares left in; the shift added once."""
    g = copies(count)
    assert gradient_squared(g, shift).value == pytest.approx(pairs(g, shift), rel=1e-12, abs=1e-12)


@SHIFTS
@pytest.mark.parametrize("count", [3, 4, N])
def test_the_error_is_the_jackknifes(count: int, shift: Any) -> None:
    """Every value without one copy, computed anew. Mutations: (N - 1)/N left out or turned round; one row too few;
    the copy's own square in what is left out."""
    g = copies(count)
    left = np.array([pairs(np.delete(g, j, axis=0), shift) for j in range(count)])
    expected = math.sqrt((count - 1) / count * np.sum((left - left.mean()) ** 2))
    assert gradient_squared(g, shift).error == pytest.approx(expected, rel=1e-10)


@SHIFTS
def test_it_is_unbiased_exactly(shift: Any) -> None:
    """All 4^3 ways of drawing three copies out of four vectors, averaged. Mutation: the square of the mean."""
    values = copies(4)
    drawn = [gradient_squared(values[list(which)], shift).value for which in itertools.product(range(4), repeat=3)]
    truth = np.sum((values.mean(axis=0) + shift) ** 2)
    assert np.mean(drawn) == pytest.approx(truth, rel=1e-12)
    biased = [
        np.sum((values[list(which)].mean(axis=0) + shift) ** 2) for which in itertools.product(range(4), repeat=3)
    ]
    assert abs(np.mean(biased) - truth) > 0.1


def test_its_error_is_of_the_right_size() -> None:
    """Its mean square over 2000 repetitions is the variance of the value, to a fifth. Mutation: that of one copy."""
    g = 1.0 + STREAMS(Purpose.NOISE).standard_normal((2000, 20, n))
    told = [gradient_squared(one) for one in g]
    variance = np.var([one.value for one in told])
    assert np.mean([one.error**2 for one in told]) == pytest.approx(variance, rel=0.2)


def test_equal_copies_have_no_error_and_no_bias() -> None:
    g = np.tile(copies(1), (5, 1))
    found = gradient_squared(g, 2.0)
    assert found.value == pytest.approx(np.sum((g[0] + 2) ** 2)) and found.error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_copies_tell_nothing(count: int) -> None:
    """Mutation: a division by zero."""
    found = gradient_squared(copies(count))
    assert math.isnan(found.value) and math.isnan(found.error)


def test_two_copies_have_a_value_and_no_error() -> None:
    found = gradient_squared(copies(2))
    assert math.isfinite(found.value) and math.isnan(found.error)


def test_it_may_be_negative_where_the_truth_is_zero() -> None:
    """Mutation: clipped at 0, which would be a bias."""
    assert gradient_squared(np.array([[1.0], [-1.0], [1.0]])).value == pytest.approx(-1 / 3)
