"""Random convolutional features: what they are, when they are made anew, and whose statistics scale them."""

from dataclasses import replace

import numpy as np
import pytest

from zofl_mpi.data import Raw, cache, features, partition
from zofl_mpi.data.features import Filters, image_shape, random_features, standardised
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

STREAMS = Streams(3)
GENERATOR = STREAMS(Purpose.SYNTHETIC)
SMALL = Filters(4, 3, pool=2)
PIXELS = GENERATOR.integers(0, 256, (40, 2 * 6 * 6), dtype=np.uint8)
IMAGES = Raw(PIXELS, np.arange(40) % 3, 3, official_test=9, levels=255, channels=2)


def plain(raw: Raw, filters: Filters) -> np.ndarray:
    """The definition, for an even number of positions."""
    shape = image_shape(raw.inputs.shape[1], raw.channels)
    x = (raw.inputs / raw.levels).reshape(-1, *shape)
    windows = np.lib.stride_tricks.sliding_window_view(x, (filters.filter_size, filters.filter_size), axis=(2, 3))
    responses = np.maximum(np.einsum("bcijuv,kcuv->bkij", windows, filters.draw(raw.channels).astype(float)), 0)
    B, k, side, _ = responses.shape
    cells = responses.reshape(B, k, filters.pool, side // filters.pool, filters.pool, side // filters.pool)
    return cells.mean(axis=(3, 5)).reshape(B, -1)


def test_features_are_pooled_positive_correlations(monkeypatch):
    """Mutations: colours interleaved; a convolution that flips; pooling before the ReLU; a block's end left out."""
    monkeypatch.setattr(features, "BLOCK", 7)
    made = random_features(IMAGES, SMALL)
    np.testing.assert_allclose(made.inputs, plain(IMAGES, SMALL), rtol=1e-5, atol=1e-6)
    assert (made.inputs.dtype, made.levels, made.channels) == (np.float32, None, 1)
    assert (made.classes, made.official_test) == (3, 9)
    assert np.array_equal(made.labels, IMAGES.labels)
    floats = replace(IMAGES, inputs=(IMAGES.inputs / 255).astype(np.float32), levels=None)
    np.testing.assert_allclose(random_features(floats, SMALL).inputs, made.inputs, rtol=1e-5, atol=1e-6)


def test_filters_have_mean_zero_and_norm_one_and_depend_on_their_seed_alone():
    drawn = Filters(8, 5, features_seed=2).draw(3)
    assert drawn.shape == (8, 3, 5, 5)
    np.testing.assert_allclose(drawn.sum(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(np.square(drawn).sum(axis=(1, 2, 3)), 1, rtol=1e-5)
    assert np.array_equal(Filters(8, 5, pool=3, features_seed=2).draw(3), drawn)
    assert not np.isclose(Filters(8, 5, features_seed=1).draw(3), drawn).any()
    assert np.array_equal(np.abs(Filters(8, 1).draw(1)), np.ones((8, 1, 1, 1)))


def test_the_cache_keeps_one_entry_for_each_set_of_images_and_parameters(tmp_path, monkeypatch):
    """Mutations: a parameter, or the images' own key, left out of the key."""
    base = cache.identify("squares", lambda: IMAGES)
    other = cache.identify("others", lambda: IMAGES)
    cache.prepare(base, tmp_path)
    changes = ({}, {"filters": 5}, {"filter_size": 2}, {"pool": 1}, {"features_seed": 1})
    keys = [features.sources(base, replace(SMALL, **change)).key for change in changes]
    keys += [features.sources(other, SMALL).key, base.key]
    assert len(set(keys)) == len(keys)
    found = features.sources(base, SMALL, tmp_path)
    assert found.key == keys[0]
    cache.prepare(found, tmp_path)
    monkeypatch.setattr(features, "random_features", lambda *_: pytest.fail("made anew"))
    cache.prepare(features.sources(base, SMALL, tmp_path), tmp_path)
    np.testing.assert_allclose(cache.open(found, tmp_path).inputs, plain(IMAGES, SMALL), rtol=1e-5, atol=1e-6)


def test_the_training_part_alone_sets_the_scale():
    """Mutations: statistics of all samples, or of the server's; the factor left out; shift before scale."""
    raw = random_features(IMAGES, SMALL)
    raw.inputs[:, 3] = 7.0  # a feature that does not vary
    federation = partition.split(raw, STREAMS, m=2, alpha=np.inf, pixels="raw", official_split=True, min_samples=1)
    raw.inputs[-9:] += 1000.0  # the test part
    seen = standardised(federation, squared_norm=50.0)
    training = np.concatenate([part.take(np.arange(len(part)), np.float64)[0] for part in (seen.server, *seen.clients)])
    assert len(training) == 31
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-6)
    assert np.square(training).sum(axis=1).mean() == pytest.approx(50.0)
    variances = training.var(axis=0)
    assert variances[3] == 0
    np.testing.assert_allclose(np.delete(variances, 3), 50.0 / 15, rtol=1e-6)
    assert np.all(seen.test.take(np.arange(9), np.float64)[0][:, np.arange(16) != 3] > 100)
    assert seen.clients[1].inputs is raw.inputs
    assert [len(part) for part in seen.clients] == [len(part) for part in federation.clients]


def test_a_validation_part_is_seen_on_the_scale_of_those_who_train():
    """Mutations: left out; on the scale of the images; with a share of its own in mean and variance."""
    raw = random_features(IMAGES, SMALL)
    options = {"m": 2, "alpha": np.inf, "official_split": True, "min_samples": 1}
    with_part = partition.split(raw, STREAMS, validation=0.2, **options)
    seen = standardised(with_part)
    assert standardised(partition.split(raw, STREAMS, **options)).validation is None
    np.testing.assert_array_equal(seen.validation.rows, with_part.validation.rows)
    np.testing.assert_array_equal(seen.validation.scale, seen.server.scale)
    np.testing.assert_array_equal(seen.validation.shift, seen.server.shift)
    training = np.concatenate([part.take(np.arange(len(part)), np.float64)[0] for part in (seen.server, *seen.clients)])
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-6)


def test_moments_of_rows_in_chunks_are_those_of_all(monkeypatch):
    monkeypatch.setattr(features, "CHUNK", 7)
    inputs = (1e6 + GENERATOR.standard_normal((30, 4))).astype(np.float64)
    rows = np.arange(5, 28)
    for ours, theirs in zip(features._moments(inputs, rows), (inputs[rows].mean(0), inputs[rows].var(0)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_images_are_square():
    assert image_shape(784, 1) == (1, 28, 28) and image_shape(3072, 3) == (3, 32, 32)
    for count, channels in ((65, 1), (3072, 1), (64, 3)):
        with pytest.raises(UserError, match=rf"{count} numbers.* no square image"):
            image_shape(count, channels)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"filters": 0}, "--filters 0: must be"),
        ({"filter_size": 0}, "--filter-size 0: must be"),
        ({"pool": 0}, "--pool 0: must be"),
        ({"filter_size": 7}, "--filter-size 7: .* 0 positions along images of 6 x 6"),
        ({"filters": 10**12}, "--filters 1000000000000: .* GiB, this machine has"),
        ({"filter_size": 5, "pool": 3}, "--filter-size 5: .* 2 positions along images of 6 x 6, --pool 3"),
    ],
)
def test_parameters_that_cannot_be_are_named(change, text):
    with pytest.raises(UserError, match=text):
        random_features(IMAGES, replace(SMALL, **change))
