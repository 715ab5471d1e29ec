"""Data sets: rows, counts, weights, and the scale that inputs are seen on."""

from __future__ import annotations

import numpy as np
import pytest

from zofl_mpi.data import Dataset, Federation, Raw
from zofl_mpi.data.partition import as_dataset, split
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError


def colours(n: int = 1300) -> Raw:
    """Three channels of five bytes with means and spreads of their own; more rows than one chunk."""
    chance = Streams(5)(1)
    tops = np.repeat([50, 120, 256], 5)
    return Raw(chance.integers(tops, size=(n, 15)).astype(np.uint8), chance.integers(3, size=n), 3, 0, 255, 3)


RAW = colours()
ALL = np.arange(len(RAW.labels))


def seen(data: Dataset, dtype: type = np.float64) -> np.ndarray:
    return data.take(np.arange(len(data)), dtype)[0]


def test_subset_of_a_subset_takes_the_rows_of_the_first():
    data = Dataset(np.arange(10.0).reshape(10, 1), np.arange(10) % 3, 3)
    part = data.subset(np.array([9, 4, 7, 1])).subset(np.array([3, 0]))
    inputs, labels = part.take(np.array([1, 0, 1]), np.float32)
    assert inputs.dtype == np.float32
    assert inputs.ravel().tolist() == [9, 1, 9]
    assert labels.tolist() == [0, 1, 0]
    assert len(part) == 2
    assert part.features == 1
    assert part.inputs is data.inputs


def test_counts_name_every_class_even_an_absent_one():
    data = Dataset(np.zeros((5, 1)), np.array([0, 2, 2, 0, 2], np.uint8), 4)
    assert data.counts().tolist() == [2, 0, 3, 0]
    assert data.subset(np.array([0, 1])).counts().tolist() == [1, 0, 1, 0]


def test_weights_count_the_servers_samples_too():
    data = Dataset(np.zeros((10, 1)), np.zeros(10, int), 1)
    rows = np.arange(10)
    federation = Federation(
        data.subset(rows[:3]), (data.subset(rows[3:5]), data.subset(rows[5:9])), data.subset(rows[9:])
    )
    np.testing.assert_allclose(federation.weights, [2 / 9, 4 / 9], rtol=1e-15)
    np.testing.assert_array_equal(federation.counts, [[2], [4]])


def test_unit_pixels_lie_in_the_unit_interval():
    data = as_dataset(RAW, "unit", ALL)
    np.testing.assert_allclose(seen(data), RAW.inputs / 255, rtol=1e-15)
    digits = Raw(np.array([[0, 8, 16]], np.uint8), np.array([0]), 1, levels=16)
    assert seen(as_dataset(digits, "unit", ALL[:1])).tolist() == [[0, 0.5, 1]]


def test_raw_pixels_are_the_stored_ones():
    np.testing.assert_array_equal(seen(as_dataset(RAW, "raw", ALL)), RAW.inputs)


@pytest.mark.parametrize("pixels", ["unit", "raw"])
def test_floats_are_taken_as_they_are(pixels):
    floats = Raw(np.array([[300.0, -2.0]]), np.array([0]), 1)
    np.testing.assert_array_equal(seen(as_dataset(floats, pixels, ALL[:1])), floats.inputs)


def test_standardized_bytes_have_mean_0_and_variance_1_in_each_channel_over_the_training_rows():
    train = ALL[100:1250:2]
    data = as_dataset(RAW, "standardize", train)
    planes = seen(data)[train].reshape(len(train), 3, 5)
    np.testing.assert_allclose(planes.mean(axis=(0, 2)), 0, atol=1e-13)
    np.testing.assert_allclose(planes.var(axis=(0, 2)), 1, rtol=1e-13)
    assert abs(seen(data).mean()) > 1e-4  # the other rows do not count


def test_standardized_bytes_do_not_depend_on_the_order_of_the_rows():
    backwards = as_dataset(RAW, "standardize", ALL[::-1])
    forwards = as_dataset(RAW, "standardize", ALL)
    np.testing.assert_array_equal(forwards.scale, backwards.scale)
    np.testing.assert_array_equal(forwards.shift, backwards.shift)


def test_standardized_floats_survive_a_large_offset():
    values = Streams(6)(1).standard_normal((900, 4)) + 1e8
    data = as_dataset(Raw(values, np.zeros(900, int), 1), "standardize", ALL[:900])
    assert isinstance(data.scale, float)
    assert abs(1 / data.scale - values.std()) < 1e-6
    assert abs(seen(data).mean()) < 1e-6


def test_a_constant_channel_becomes_zero():
    grey = Raw(np.full((4, 2), 9, np.uint8), np.zeros(4, int), 1, levels=255)
    np.testing.assert_array_equal(seen(as_dataset(grey, "standardize", ALL[:4])), 0)


def test_a_variance_beyond_the_floats_is_told():
    huge = Raw(np.array([[1e300], [-1e300]]), np.zeros(2, int), 1)
    with pytest.raises(UserError, match="--pixels standardize: the variance"):
        as_dataset(huge, "standardize", ALL[:2])


def test_an_unknown_scale_is_told_with_the_known_ones():
    with pytest.raises(UserError, match="--pixels bytes: it must be one of unit, raw, standardize"):
        as_dataset(RAW, "bytes", ALL)


def test_a_split_standardizes_over_server_and_clients_together():
    federation = split(RAW, Streams(1), m=3, alpha=float("inf"), pixels="standardize")
    train = np.concatenate([seen(part) for part in (federation.server, *federation.clients)])
    planes = train.reshape(-1, 3, 5)
    np.testing.assert_allclose(planes.mean(axis=(0, 2)), 0, atol=1e-13)
    np.testing.assert_allclose(planes.var(axis=(0, 2)), 1, rtol=1e-13)
    np.testing.assert_array_equal(federation.test.scale, federation.server.scale)
