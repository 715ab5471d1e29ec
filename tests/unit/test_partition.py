"""Data sets and splits: who holds what is complete, disjoint, a function of the seed alone, and seen on one scale."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.made import complaint
from zofl_mpi.data import Dataset, Federation, Raw, partition
from zofl_mpi.data.partition import as_dataset
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

INF = float("inf")
SCHEMES = ("by_class", "by_mix")


def raw(n: int, classes: int = 10, official_test: int = 0) -> Raw:
    """Inputs tell the row's number; labels are random."""
    labels = Streams(n)(1).integers(classes, size=n)
    return Raw(np.arange(n, dtype=np.float64).reshape(n, 1), labels, classes, official_test=official_test)


def split(pool: Raw, seed: int = 1, **options) -> Federation:
    return partition.split(pool, Streams(seed), **({"m": 10, "alpha": 1.0} | options))


def rows(federation: Federation) -> list[np.ndarray]:
    parts = [federation.test, federation.server, *federation.clients]
    return [part.rows for part in parts]


POOL = raw(5000)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    n=st.integers(300, 900),
    classes=st.integers(2, 6),
    m=st.integers(1, 12),
    alpha=st.sampled_from([0.3, 1.0, 30.0, INF]),
    scheme=st.sampled_from(["by_class", "by_mix"]),
    test=st.floats(0.05, 0.4),
    server=st.floats(0.05, 0.5),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_sample_belongs_to_one_part_and_sizes_are_as_asked(n, classes, m, alpha, scheme, test, server, seed):
    pool = raw(n, classes)
    options = {"test_fraction": test, "server_fraction": server, "min_samples": 2}
    federation = split(pool, seed, m=m, alpha=alpha, partition=scheme, **options)
    parts = rows(federation)
    held = np.concatenate(parts)
    assert len(np.unique(held)) == len(held)
    left_over = n - len(held)
    sizes = [len(part) for part in parts]
    assert sizes[0] == round(test * n)
    assert sizes[1] == round(server * (n - sizes[0]))
    rest = n - sizes[0] - sizes[1]
    if alpha == INF:
        assert left_over == 0
        assert set(sizes[2:]) <= {rest // m, rest // m + 1}
    elif scheme == "by_mix":
        assert sizes[2:] == [rest // m] * m
        assert left_over == rest % m
    else:
        assert left_over == 0
        assert min(sizes[2:]) >= 2
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
    np.testing.assert_array_equal(
        federation.counts, [np.bincount(pool.labels[part], minlength=classes) for part in parts[2:]]
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("alpha", [0.5, INF])
def test_a_validation_part_is_nobody_elses_and_leaves_the_test_part_as_it_is(scheme, alpha):
    """Mutations: drawn from the pool, from the clients' part alone, from the stream of another part; the mean over it;
    weights of the clients' samples alone."""
    first, without = (split(POOL, m=m, alpha=alpha, partition=scheme, min_samples=1) for m in (3, 9))
    for k in (0, 1):  # test part and server do not depend on the clients
        np.testing.assert_array_equal(rows(first)[k], rows(without)[k])
    share_0 = rows(split(POOL, m=9, alpha=alpha, partition=scheme, min_samples=1, validation=0.0))
    for part, same in zip(rows(without), share_0, strict=True):  # a share of 0 draws nothing, and the seed is all
        np.testing.assert_array_equal(part, same)
    for part, other in zip(
        share_0, rows(split(POOL, 2, m=9, alpha=alpha, partition=scheme, min_samples=1)), strict=True
    ):
        assert not np.array_equal(part, other)
    federation = split(POOL, m=9, alpha=alpha, partition=scheme, min_samples=1, validation=0.2)
    assert without.validation is None
    shares = np.array([*map(len, without.clients)]) / 4500  # the server's samples count, too
    np.testing.assert_allclose(without.weights, shares, rtol=1e-15)
    scaled = split(POOL, m=9, alpha=alpha, partition=scheme, min_samples=1, validation=0.2, pixels="standardize")
    train = np.concatenate(rows(scaled)[1:]) if scheme == "by_class" else np.array([])
    if len(train):  # by_mix leaves some over; the validation part does not count
        assert scaled.validation.scale == scaled.server.scale == pytest.approx(1 / train.std())
        assert scaled.validation.shift == scaled.test.shift == pytest.approx(-train.mean() / train.std())
    test, server, *clients = rows(federation)
    np.testing.assert_array_equal(test, rows(without)[0])
    kept = federation.validation.rows
    assert len(kept) == 900 and len(server) == 1080  # of 4500, and of 3600
    np.testing.assert_array_equal(kept, np.sort(kept))
    taken = np.concatenate([test, kept, server, *clients])
    assert len(set(taken)) == len(taken) and len(taken) > 5000 - 9  # by_mix leaves fewer than m over
    train = np.setdiff1d(np.arange(5000), test)
    order = Streams(1)(Purpose.VALIDATION).permutation(4500)
    np.testing.assert_array_equal(kept, train[np.sort(order[:900])])


def test_the_last_classes_can_be_the_clients_alone():
    """Mutations: the first classes; a share of all classes; samples of the lacking classes lost; other order."""
    federation, without = split(POOL, alpha=INF, server_lacks=3), split(POOL, alpha=INF)
    test, server, *clients = rows(federation)
    np.testing.assert_array_equal(test, rows(without)[0])
    train = np.setdiff1d(np.arange(5000), test)
    known = np.isin(POOL.labels[train], range(7))
    assert federation.server.counts()[7:].sum() == 0 and federation.server.counts()[:7].all()
    assert len(server) == round(0.3 * known.sum())
    np.testing.assert_array_equal(np.sort(np.concatenate([server, *clients])), train)
    assert all(np.all(np.diff(client) > 0) for client in clients) and federation.counts[:, 7:].all()
    for same, other in zip(rows(split(POOL, alpha=INF, server_lacks=0)), rows(without), strict=True):
        np.testing.assert_array_equal(same, other)


def test_the_official_test_part_is_the_end_of_the_pool():
    federation = split(raw(1000, official_test=200), official_split=True)
    np.testing.assert_array_equal(federation.test.rows, np.arange(800, 1000))
    assert len(federation.server) == 240
    assert max(client.rows.max() for client in federation.clients) < 800


def test_each_sample_is_as_likely_as_any_other_in_every_part():
    pool, seeds = raw(100, 2), 200
    hits = np.zeros((3, 100))
    for seed in range(seeds):
        federation = split(pool, seed, m=2, alpha=INF)
        for hit, part in zip(hits, (federation.test, federation.server, federation.clients[0]), strict=True):
            hit[part.rows] += 1
    for hit, share in zip(hits, (0.1, 0.27, 0.32), strict=True):
        assert abs(hit / seeds - share).max() < 5 * np.sqrt(share * (1 - share) / seeds)


def proportions(alpha: float, m: int, draws: int) -> np.ndarray:
    logs = partition._log_gammas(Streams(4)(1), alpha, (draws, m))
    return np.diff(partition._cumulative(logs, alpha, np.ones(m, bool)), axis=1, prepend=0)


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 20.0])
def test_proportions_have_the_mean_and_variance_of_a_dirichlet(alpha):
    m, draws = 4, 8000
    p = proportions(alpha, m, draws)
    variance = (1 / m) * (1 - 1 / m) / (m * alpha + 1)
    assert abs(p.mean(axis=0) - 1 / m).max() < 5 * np.sqrt(variance / draws)
    squares = (p - 1 / m) ** 2
    assert (abs(squares.mean(axis=0) - variance) < 5 * squares.std(axis=0) / np.sqrt(draws)).all()


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1.0, 1e16, 1e308])
def test_proportions_are_numbers_for_every_alpha(alpha):
    p = proportions(alpha, 6, 300)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    if alpha < 1e-100:
        assert (p.max(axis=1) == 1).all()
        assert len(set(p.argmax(axis=1))) == 6
    if alpha > 1e10:
        np.testing.assert_allclose(p, 1 / 6, rtol=1e-6)


def distance(federation: Federation, pool: Raw) -> float:
    """Largest total variation distance between a client's mix of classes and the pool's."""
    counts = federation.counts
    mix = counts / counts.sum(axis=1, keepdims=True)
    return float(abs(mix - np.bincount(pool.labels) / len(pool.labels)).sum(axis=1).max() / 2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_clients_become_alike_as_alpha_grows(scheme):
    pool = raw(20_000, 5)
    apart = [distance(split(pool, m=5, alpha=alpha, partition=scheme), pool) for alpha in (0.1, 1.0, 1e4, INF)]
    assert apart[0] > 0.4
    assert apart[0] > apart[1] > 0.1 > apart[2]
    assert apart[3] < 0.05
    if scheme == "by_class":  # equal pieces, and whole classes
        even, uneven = (split(pool, m=5, alpha=alpha, min_samples=1).counts for alpha in (1e12, 1e-3))
        assert (even.max(axis=0) - even.min(axis=0)).max() <= 1 and ((uneven > 0).sum(axis=0) == 1).any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_samples_of_a_class_are_shuffled_before_they_are_dealt(scheme):
    federation = split(POOL, m=2, alpha=100.0, partition=scheme)
    for label in range(POOL.classes):
        first, second = (client.rows[POOL.labels[client.rows] == label] for client in federation.clients)
        assert abs(first.mean() - second.mean()) < 5 * 5000 / np.sqrt(12) * np.sqrt(1 / len(first) + 1 / len(second))


@pytest.mark.parametrize("pixels", ["unit", "raw", "standardize"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("alpha", [0.5, INF])
def test_without_a_servers_share_the_clients_hold_all_training_samples(alpha, scheme, pixels):
    federation = split(POOL, m=9, alpha=alpha, partition=scheme, server_fraction=0.0, pixels=pixels)
    test, server, *clients = rows(federation)
    np.testing.assert_array_equal(test, rows(split(POOL, m=9, alpha=alpha, partition=scheme))[0])
    assert len(federation.server) == 0 and server.dtype == np.int64
    assert federation.server.features == 1 and federation.server.classes == 10
    np.testing.assert_array_equal(np.sort(np.concatenate([test, *clients])), np.arange(5000))
    assert federation.weights.sum() == pytest.approx(1)
    assert not federation.server.counts().any() and federation.counts.sum() == 4500
    assert federation.server.fingerprint() == federation.test.fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"m": 316}, ["--m 316", "3150 samples", "at most 315 clients", "--min-samples 10"]),
        ({"m": 4000, "min_samples": 1, "alpha": INF}, ["--m 4000", "at most 3150"]),
        ({"alpha": 0.0}, ["--alpha 0.0", "above 0", "inf"]),
        ({"alpha": float("nan")}, ["--alpha nan", "above 0"]),
        ({"test_fraction": 0.0}, ["--test-fraction 0.0", "between 0 and 1"]),
        ({"test_fraction": 1e-5}, ["--test-fraction 1e-05", "0 of 5000", "empty"]),
        ({"server_fraction": -0.1}, ["--server-fraction -0.1", "between 0 and 1, both excluded, or 0 for no part"]),
        ({"server_fraction": 1e-5}, ["--server-fraction 1e-05", "0 of 4500", "empty"]),
        ({"server_fraction": 0.99999}, ["--server-fraction 0.99999", "4500 of 4500", "empty"]),
        ({"server_lacks": 10}, ["--server-lacks 10", "0 or more, and below 10 classes"]),
        ({"validation": -0.1}, ["--validation -0.1", "between 0 and 1, both excluded, or 0 for no part"]),
        ({"validation": 1e-5}, ["--validation 1e-05", "0 of 4500", "empty"]),
        ({"validation": 0.99}, ["--m 10", "too few to give each --min-samples 10"]),
        ({"official_split": True}, ["--split official", "no official test part"]),
        ({"m": 40, "alpha": 0.01}, ["--alpha 0.01", "40 clients", "fewer than 10", "--m", "--min-samples"]),
    ],
)
def test_an_argument_out_of_range_is_named_with_what_is_allowed(options, words):
    said = complaint(split, POOL, **options)
    for word in words:
        assert word in said


def colours(n: int = 1300) -> Raw:
    """Three channels of five bytes with means and spreads of their own; more rows than one chunk."""
    chance = Streams(5)(1)
    tops = np.repeat([50, 120, 256], 5)
    return Raw(chance.integers(tops, size=(n, 15)).astype(np.uint8), chance.integers(3, size=n), 3, 0, 255, 3)


RAW = colours()
ALL = np.arange(len(RAW.labels))


def seen(data: Dataset, dtype: type = np.float64) -> np.ndarray:
    return data.take(np.arange(len(data)), dtype)[0]


def test_pixels_are_those_of_the_unit_interval_or_as_stored():
    np.testing.assert_allclose(seen(as_dataset(RAW, "unit", ALL)), RAW.inputs / 255, rtol=1e-15)
    digits = Raw(np.array([[0, 8, 16]], np.uint8), np.array([0]), 1, levels=16)
    assert seen(as_dataset(digits, "unit", ALL[:1])).tolist() == [[0, 0.5, 1]]
    np.testing.assert_array_equal(seen(as_dataset(RAW, "raw", ALL)), RAW.inputs)
    floats = Raw(np.array([[300.0, -2.0]]), np.array([0]), 1)
    for pixels in ("unit", "raw"):
        np.testing.assert_array_equal(seen(as_dataset(floats, pixels, ALL[:1])), floats.inputs)


def test_standardized_bytes_have_mean_0_and_variance_1_in_each_channel_over_the_training_rows():
    """In whatever order. Mutation: the statistics of all rows."""
    train = ALL[100:1250:2]
    data, backwards = (as_dataset(RAW, "standardize", rows) for rows in (train, train[::-1]))
    planes = seen(data)[train].reshape(len(train), 3, 5)
    np.testing.assert_allclose(planes.mean(axis=(0, 2)), 0, atol=1e-13)
    np.testing.assert_allclose(planes.var(axis=(0, 2)), 1, rtol=1e-13)
    assert abs(seen(data).mean()) > 1e-4  # the other rows do not count
    np.testing.assert_array_equal(data.scale, backwards.scale)
    np.testing.assert_array_equal(data.shift, backwards.shift)


def test_odd_values_are_standardized_too():
    """Mutation: a constant told by its variance alone, which rounding makes 1e-34 where the mean of 0.1s is not 0.1."""
    values = Streams(6)(1).standard_normal((900, 4)) + 1e8
    data = as_dataset(Raw(values, np.zeros(900, int), 1, shape=(1, 2, 2)), "standardize", ALL[:900])
    assert isinstance(data.scale, float)
    assert abs(1 / data.scale - values.std()) < 1e-6 and abs(seen(data).mean()) < 1e-6
    grey = Raw(np.full((4, 2), 9, np.uint8), np.zeros(4, int), 1, levels=255)
    np.testing.assert_array_equal(seen(as_dataset(grey, "standardize", ALL[:4])), 0)
    for shape in ((1, 1, 3), (3,)):
        tenths = Raw(np.full((7, 3), 0.1), np.zeros(7, int), 1, shape=shape)
        np.testing.assert_array_equal(seen(as_dataset(tenths, "standardize", ALL[:7])), 0)
    for shape in ((1, 1, 1), (1,)):
        huge = Raw(np.array([[1e300], [-1e300]]), np.zeros(2, int), 1, shape=shape)
        with pytest.raises(UserError, match="--pixels standardize: the variance"):
            as_dataset(huge, "standardize", ALL[:2])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_each_column_of_a_table_has_its_own_mean_and_variance(dtype):
    """Over the training rows. Mutations: one mean for all columns; a division by 255; statistics of all rows; a
    constant column that is not 0 in the other rows."""
    values = Streams(7)(1).integers([2, 50, 256, 7], size=(9000, 4)).astype(dtype)
    train = np.arange(0, 9000, 2)
    values[train, 3] = 5
    table = Raw(values, np.zeros(9000, int), 1, levels=None, shape=(4,))
    data = as_dataset(table, "standardize", train)
    own = values[train].astype(np.float64)
    expected = (values - own.mean(axis=0)) / np.where(own.std(axis=0) > 0, own.std(axis=0), np.inf)
    np.testing.assert_allclose(seen(data), expected, rtol=1e-12, atol=1e-12)
    assert not seen(data)[:, 3].any() and values[1::2, 3].std() > 1
    for pixels in ("unit", "raw"):
        np.testing.assert_array_equal(seen(as_dataset(table, pixels, train)), values)


@pytest.mark.parametrize(
    ("pool", "pixels", "words"),
    [
        (Raw(np.ones((2, 4), np.uint8), np.zeros(2, int), 1, levels=16), "unit", "images, divided by 16"),
        (Raw(np.ones((2, 4)), np.zeros(2, int), 1, shape=(1, 2, 2)), "unit", "images, as stored"),
        (Raw(np.ones((2, 4)), np.zeros(2, int), 1, shape=(4,)), "unit", "a table of 4 columns, as stored"),
        (
            Raw(np.ones((2, 4)), np.zeros(2, int), 1, shape=(4,)),
            "standardize",
            "a table of 4 columns, each with mean 0",
        ),
        (Raw(np.ones((2, 4)), np.zeros(2, int), 1, shape=(1, 2, 2)), "standardize", "images, each channel with mean 0"),
    ],
)
def test_the_start_says_the_scale_and_who_holds_how_many(pool, pixels, words):
    assert partition.scaling(pool, pixels).startswith(words)
    federation = split(POOL, m=3, alpha=INF, validation=0.2, pixels=pixels)
    sizes = [len(part) for part in (federation.server, federation.validation, federation.test)]
    assert federation.in_words().startswith(
        f"server {sizes[0]:,}, 3 clients 2,520 (840 each), validation {sizes[1]}, test {sizes[2]}; a table of 1 column"
    )


def test_the_server_can_have_a_number_of_samples():
    """Those that the fraction draws. Mutations: of all samples; a number beside the fraction; a stream of its own."""
    by_number, by_share = split(POOL, server_samples=1350), split(POOL, server_fraction=0.3)
    for part, other in zip(rows(by_number), rows(by_share), strict=True):
        np.testing.assert_array_equal(part, other)
    assert len(split(POOL, server_samples=7, server_fraction=0.0).server) == 7
    assert len(split(POOL, server_samples=7, server_lacks=3).server) == 7
    for wrong in (-1, 4500):
        said = complaint(split, POOL, server_samples=wrong)
        assert said.startswith(f"--server-samples {wrong}: must be 0 or more, and below the 4500 samples")


@pytest.mark.parametrize(("classes", "alpha"), [(3, 0.2), (40, 1.0), (1500, 0.5)])
def test_a_mix_is_without_the_classes_that_ran_out(classes, alpha):
    """As if all mixes were made anew then. Mutations: a mix that is not renewed, or for its own client alone."""
    pool = np.bincount(Streams(classes)(1).integers(classes, size=2 * classes + 90), minlength=classes)
    found = partition._counts_by_mix(pool, Streams(5), 11, alpha)
    chance, left = Streams(5)(Purpose.PARTITION), pool.copy()
    logs = partition._log_gammas(chance, alpha, (11, classes))
    counts = np.zeros_like(found)
    for turn in chance.random((int(pool.sum()) // 11, 11)):
        for client, point in enumerate(turn):
            mix = partition._cumulative(logs[client : client + 1], alpha, left > 0)[0]
            label = np.searchsorted(mix, point, side="right")
            counts[client, label] += 1
            left[label] -= 1
    np.testing.assert_array_equal(found, counts)
    assert (counts.sum(axis=0) <= pool).all()
