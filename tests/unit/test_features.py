"""Random convolutional features: what they are, when they are made anew, and whose statistics scale them."""

from dataclasses import replace

import numpy as np
import pytest

from zofl_mpi.data import Raw, cache, features, partition
from zofl_mpi.data.features import image_shape, random_features, standardised
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

STREAMS = Streams(3)
GENERATOR = STREAMS(Purpose.SYNTHETIC)
IMAGES = Raw(
    GENERATOR.integers(0, 256, (40, 2 * 6 * 6), dtype=np.uint8),
    np.arange(40) % 3,
    3,
    official_test=9,
    levels=255,
    channels=2,
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Four filters of 3 x 3 pixels."""
    monkeypatch.setattr(features, "FILTERS", 4)
    monkeypatch.setattr(features, "SIZE", 3)


def plain(raw: Raw) -> np.ndarray:
    """The definition, for an even number of positions."""
    shape = image_shape(raw.inputs.shape[1], raw.channels)
    x = (raw.inputs / raw.levels).reshape(-1, *shape)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    responses = np.maximum(np.einsum("bcijuv,kcuv->bkij", windows, features.filters(raw.channels).astype(float)), 0)
    B, k, side, _ = responses.shape
    cells = responses.reshape(B, k, 2, side // 2, 2, side // 2)
    return cells.mean(axis=(3, 5)).reshape(B, -1)


def test_features_are_pooled_positive_correlations(monkeypatch):
    """Mutations: colours interleaved; a convolution that flips; pooling before the ReLU; a block's end left out."""
    monkeypatch.setattr(features, "IMAGES_AT_ONCE", 7)
    made = random_features(IMAGES)
    np.testing.assert_allclose(made.inputs, plain(IMAGES), rtol=1e-5, atol=1e-6)
    assert (made.inputs.dtype, made.levels, made.channels) == (np.float32, None, 1)
    assert (made.classes, made.official_test) == (3, 9)
    assert np.array_equal(made.labels, IMAGES.labels)


def test_floats_are_filtered_as_they_are():
    stored = replace(IMAGES, inputs=(IMAGES.inputs / 255).astype(np.float32), levels=None)
    np.testing.assert_allclose(random_features(stored).inputs, random_features(IMAGES).inputs, rtol=1e-5)


def test_filters_have_mean_zero_and_norm_one_and_are_the_same_each_time():
    drawn = features.filters(5)
    assert drawn.shape == (4, 5, 3, 3)
    np.testing.assert_allclose(drawn.sum(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(np.square(drawn).sum(axis=(1, 2, 3)), 1, rtol=1e-5)
    assert np.array_equal(features.filters(5), drawn)


def test_the_cache_keeps_one_entry_for_each_set_of_images(tmp_path, monkeypatch):
    """Mutation: the images' own key left out of the key."""
    base = cache.identify("squares", lambda: IMAGES)
    other = cache.identify("others", lambda: IMAGES)
    cache.prepare(base, tmp_path)
    found = features.sources(base, tmp_path)
    assert len({found.key, features.sources(other).key, base.key}) == 3
    cache.prepare(found, tmp_path)
    monkeypatch.setattr(features, "random_features", lambda *_: pytest.fail("made anew"))
    cache.prepare(features.sources(base, tmp_path), tmp_path)
    np.testing.assert_allclose(cache.open_entry(found, tmp_path).inputs, plain(IMAGES), rtol=1e-5, atol=1e-6)


def test_the_training_part_alone_sets_the_scale():
    """Mutations: statistics of all samples, of the server's, or of the validation part too; that part left out, or on
    the scale of the images; the factor left out; shift before scale."""
    raw = random_features(IMAGES)
    raw.inputs[:, 3] = 7.0  # a feature that does not vary
    options = {"m": 2, "alpha": np.inf, "pixels": "raw", "official_split": True, "min_samples": 1}
    assert standardised(partition.split(raw, STREAMS, **options)).validation is None
    federation = partition.split(raw, STREAMS, validation=0.2, **options)
    raw.inputs[-9:] += 1000.0  # the test part
    seen = standardised(federation)
    np.testing.assert_array_equal(seen.validation.rows, federation.validation.rows)
    np.testing.assert_array_equal(seen.validation.scale, seen.server.scale)
    np.testing.assert_array_equal(seen.validation.shift, seen.server.shift)
    training = np.concatenate([part.take(np.arange(len(part)), np.float64)[0] for part in (seen.server, *seen.clients)])
    assert len(training) == 25
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-6)
    assert np.square(training).sum(axis=1).mean() == pytest.approx(100.0)
    variances = training.var(axis=0)
    assert variances[3] == 0
    np.testing.assert_allclose(np.delete(variances, 3), 100.0 / 15, rtol=1e-6)
    assert np.all(seen.test.take(np.arange(9), np.float64)[0][:, np.arange(16) != 3] > 100)
    assert seen.clients[1].inputs is raw.inputs
    assert [len(part) for part in seen.clients] == [len(part) for part in federation.clients]


def test_moments_of_rows_in_chunks_are_those_of_all(monkeypatch):
    monkeypatch.setattr(partition, "MOMENT_ROWS", 7)
    inputs = (1e6 + GENERATOR.standard_normal((30, 4))).astype(np.float64)
    rows = np.arange(5, 28)
    for ours, theirs in zip(
        partition.column_moments(inputs, rows), (inputs[rows].mean(0), inputs[rows].var(0)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_a_table_is_no_image_and_others_are_square_or_have_the_shape_that_is_stored():
    assert image_shape(784, 1) == (1, 28, 28) and image_shape(3072, 3) == (3, 32, 32)
    assert image_shape(600, 1, (1, 20, 30)) == (1, 20, 30)
    for size, channels in ((65, 1), (3072, 1), (64, 3)):
        with pytest.raises(UserError, match=rf"{size} numbers.* no square image"):
            image_shape(size, channels)
    with pytest.raises(
        UserError, match=r"a table's row of 64 numbers, no image: .* \(samples, channels, height, width\)"
    ):
        image_shape(64, 1, (64,))
    wide = Raw(np.ones((4, 160), np.uint8), np.arange(4), 4, levels=255, shape=(1, 20, 8))
    assert random_features(wide).inputs.shape == (4, features.FILTERS * features.POOL**2)
    with pytest.raises(UserError, match="pixels or more, not 50 x 2"):
        random_features(replace(wide, inputs=np.ones((4, 100), np.uint8), shape=(1, 50, 2)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"FILTERS": 10**12}, "4000000000000 features of 40 images take .* GiB, this machine has"),
        ({"SIZE": 6}, "needs images of 7 x 7 pixels or more, not 6 x 6"),
    ],
)
def test_images_too_small_and_features_beyond_memory_are_refused(monkeypatch, change, text):
    monkeypatch.setattr(features, *next(iter(change.items())))
    with pytest.raises(UserError, match=text):
        random_features(IMAGES)
