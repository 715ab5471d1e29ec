"""[B] 5.3: values by a slow formula, closed forms, the limits of lam on the simplex, class means from mini-batches."""

import math

import numpy as np
import pytest

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.problems import fair
from zofl_mpi.problems.fair import Fair
from zofl_mpi.run.streams import Purpose, Streams

STREAMS = Streams(29)
p, C, m = 5, 4, 3
GENERATOR = STREAMS(Purpose.SYNTHETIC)
BYTES = GENERATOR.integers(0, 256, (150, p), dtype=np.uint8)
LABELS = GENERATOR.choice(C, 150, p=[0.4, 0.3, 0.2, 0.1]).astype(np.uint8)
SHUFFLED = GENERATOR.permutation(150)
ROWS = [
    SHUFFLED[:40],
    SHUFFLED[40:97],
    np.array([r for r in SHUFFLED[97:] if LABELS[r] != 2]),
]  # the last lacks class 2
CLIENTS = tuple(Dataset(BYTES, LABELS, C, rows, scale=1 / 100, shift=-0.7) for rows in ROWS)
BATCH = np.array([3, 30, 3, 0, 17, 29])  # a position twice: batches are drawn with replacement
SETS = ["free", "simplex"]


def problem(**settings):
    return Fair(p, C, **({"lam": 0.5, "dtype": np.float64} | settings))


def points(k, t=0):
    return STREAMS(Purpose.START, t=t).standard_normal((k, C * p))


def weights(k):
    return STREAMS(Purpose.START, t=9).standard_normal((k, C))


def sample_loss(x, data, j):
    """The cross-entropy of one sample, and its label."""
    row = j if data.rows is None else data.rows[j]
    U = data.inputs[row] * data.scale + data.shift
    logits = [sum(x[c * p + f] * U[f] for f in range(p)) for c in range(C)]
    return math.log(sum(math.exp(t) for t in logits)) - logits[data.labels[row]], int(data.labels[row])


def slow(x, data):
    """(C,) the mean loss of each class, sample by sample."""
    sums, counts = [0.0] * C, [0] * C
    for j in range(len(data)):
        loss, c = sample_loss(x, data, j)
        sums[c] += loss
        counts[c] += 1
    return np.array([s / n if n else 0.0 for s, n in zip(sums, counts, strict=True)])


def average(x):
    """(C,) L(x)."""
    return sum(slow(x, data) for data in CLIENTS) / m


def upper_value(x, y, lam=0.5):
    """(1/m) sum_i f_i(x, y), from the definition."""
    return sum(y @ slow(x, data) - lam / 2 * (y @ y) for data in CLIENTS) / m


@pytest.mark.parametrize("i", range(m))
def test_class_losses_are_class_means(i):
    """0 for a class that is missing. Mutations: 1/N_i for 1/N_ic; log 2; (p, C) layout; scale or shift left out."""
    x = points(2)
    found = problem().class_losses(x, CLIENTS[i])
    np.testing.assert_allclose(found, [slow(row, CLIENTS[i]) for row in x], rtol=1e-12)
    assert found.dtype == np.float64
    assert (found[:, 2] == 0).all() == (i == 2)


def test_f_is_the_weighted_sum():
    """Mutations: lam |y|^2; the sign; the weights of another class."""
    x, y = points(3), weights(3)
    found = problem().f(1, x, y, CLIENTS[1])
    expected = [w @ slow(row, CLIENTS[1]) - 0.25 * (w @ w) for row, w in zip(x, y, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.dtype == np.float64


@pytest.mark.parametrize("batch", [None, BATCH])
def test_points_together_are_points_alone(batch):
    """Mutation: a softmax over the classes of all models; rows of x and y mixed up."""
    own, x, y = problem(), points(4), weights(4)
    alone = [own.f(0, x[k : k + 1], y[k : k + 1], CLIENTS[0], batch)[0] for k in range(4)]
    np.testing.assert_allclose(own.f(0, x, y, CLIENTS[0], batch), alone, rtol=1e-13)


@pytest.mark.parametrize("batch", [None, BATCH])
@pytest.mark.parametrize("i", range(m))
def test_gradient_h_by_central_differences(i, batch):
    """h_i = -f_i, on a mini-batch as on all samples. Mutations: the sign; lam/2; all data whatever the batch is."""
    own, x, (y, direction) = problem(), points(1), weights(2)
    h = [-own.f(i, x, (y + s * direction)[None], CLIENTS[i], batch)[0] for s in (1e-4, -1e-4)]
    slope = (h[0] - h[1]) / 2e-4
    assert own.gradient_h(i, x[0], y, CLIENTS[i], batch) @ direction == pytest.approx(slope, rel=1e-9)


def test_blocks_change_nothing(monkeypatch):
    """Mutation: the last block counted as a whole one."""
    own, x, y = problem(), points(1), weights(1)
    before = own.f(0, x, y, CLIENTS[0]), own.score(x[0], y[0], CLIENTS[0])
    monkeypatch.setattr(fair, "BLOCK", 7)
    assert own.f(0, x, y, CLIENTS[0]) == pytest.approx(before[0], rel=1e-12)
    assert own.score(x[0], y[0], CLIENTS[0]) == pytest.approx(before[1], rel=1e-12)


@pytest.mark.parametrize("i", range(m))
def test_batches_of_one_average_to_the_whole(i):
    """Over all N_i batches of size 1, exactly. Mutations: the batch's own class means; N_i or B left out."""
    own, data, x, y = problem(), CLIENTS[i], points(1), weights(1)
    singles = [np.array([j]) for j in range(len(data))]
    losses = [own.class_losses(x, data, batch)[0] for batch in singles]
    np.testing.assert_allclose(np.mean(losses, axis=0), own.class_losses(x, data)[0], rtol=1e-12)
    values = [own.f(i, x, y, data, batch)[0] for batch in singles]
    assert np.mean(values) == pytest.approx(own.f(i, x, y, data)[0], rel=1e-12)
    slopes = [own.gradient_h(i, x[0], y[0], data, batch) for batch in singles]
    np.testing.assert_allclose(np.mean(slopes, axis=0), own.gradient_h(i, x[0], y[0], data), rtol=1e-11)


def test_a_batch_is_the_mean_of_its_samples():
    """So batches of any size are unbiased. Mutation: a repeated position counted once."""
    own, x = problem(), points(1)
    singles = [own.class_losses(x, CLIENTS[0], np.array([j]))[0] for j in BATCH]
    np.testing.assert_allclose(own.class_losses(x, CLIENTS[0], BATCH)[0], np.mean(singles, axis=0), rtol=1e-12)


def test_the_solution_is_the_mean_loss_over_lam():
    """Mutations: clients weighted by size; a missing class left out of the mean; lam squared."""
    own, x = problem(), points(1)[0]
    y = own.solution(x, CLIENTS)
    np.testing.assert_allclose(y, average(x) / 0.5, rtol=1e-12)
    slopes = [own.gradient_h(i, x, y, data) for i, data in enumerate(CLIENTS)]
    np.testing.assert_allclose(np.mean(slopes, axis=0), 0, atol=1e-12)


def test_the_mean_of_the_clients_minimisers_is_the_solution_where_it_is_said_to_be():
    """What `homogeneous` promises, and that the simplex breaks it. Mutation: homogeneous for both."""
    x = 3 * points(1)[0]
    for y_set in SETS:
        own = problem(y_set=y_set)
        mean = np.mean([own.solution(x, [data]) for data in CLIENTS], axis=0)
        assert np.allclose(mean, own.solution(x, CLIENTS), rtol=1e-10) == own.homogeneous == (y_set == "free")


def test_the_solution_on_the_simplex_is_a_maximiser():
    """Against 50 other points of it, and the first-order condition. Mutations: P(L); P(L)/lam; minimiser."""
    own, x = problem(y_set="simplex", lam=5.0), points(1)[0]
    y = own.solution(x, CLIENTS)
    assert y.sum() == pytest.approx(1) and (y >= 0).all() and (y > 0).sum() > 1
    best = upper_value(x, y, 5.0)
    slope = average(x) - 5.0 * y
    assert slope @ y == pytest.approx(slope.max(), rel=1e-12)  # no vertex is better to first order
    assert all(upper_value(x, z, 5.0) < best for z in STREAMS(Purpose.START, t=5).dirichlet(np.ones(C), 50))


def test_small_lam_picks_the_worst_class_large_lam_none():
    """Mutations: lam and 1/lam exchanged; the best class."""
    x = points(1)[0]
    small, large = (problem(y_set="simplex", lam=lam).solution(x, CLIENTS) for lam in (1e-6, 1e6))
    np.testing.assert_allclose(small, np.eye(C)[average(x).argmax()], atol=1e-12)
    np.testing.assert_allclose(large, 1 / C, atol=1e-5)
    worst = problem(y_set="simplex", lam=1e-9).implicit(x, CLIENTS)
    assert worst == pytest.approx(average(x).max(), rel=1e-8)


@pytest.mark.parametrize("y_set", SETS)
def test_the_implicit_objective(y_set):
    """|L|^2/(2 lam) on R^C; f at the solution on both. Mutations: |L|^2/lam; y of the other set."""
    own, x = problem(y_set=y_set, lam=5.0), points(1)[0]
    y = own.solution(x, CLIENTS)
    found = own.implicit(x, CLIENTS)
    assert found == pytest.approx(upper_value(x, y, 5.0), rel=1e-12)
    if y_set == "free":
        assert found == pytest.approx(average(x) @ average(x) / 10.0, rel=1e-12)


@pytest.mark.parametrize("y_set", SETS)
def test_danskin(y_set):
    """The implicit objective's slope is that of f(., y(x)) at a fixed y. Mutation: an inexact maximiser."""
    own, (x, direction) = problem(y_set=y_set, lam=5.0), points(2)
    y, h = own.solution(x, CLIENTS), 1e-4
    whole = (own.implicit(x + h * direction, CLIENTS) - own.implicit(x - h * direction, CLIENTS)) / (2 * h)
    frozen = (upper_value(x + h * direction, y, 5.0) - upper_value(x - h * direction, y, 5.0)) / (2 * h)
    assert abs(whole) > 1e-3
    assert whole == pytest.approx(frozen, rel=1e-5)


def test_curvature_is_that_of_h():
    """The Hessian in y is lam I, for every client. Mutation: 1; lam/2."""
    own, x, y = problem(lam=0.3), points(1)[0], weights(1)[0]
    assert own.curvature(x) == (0.3, 0.3)
    for i, data in enumerate(CLIENTS):
        columns = [own.gradient_h(i, x, y + e, data) - own.gradient_h(i, x, y, data) for e in np.eye(C)]
        np.testing.assert_allclose(columns, 0.3 * np.eye(C), atol=1e-12)


def test_projections_and_starts():
    x, y = points(1)[0], weights(1)[0]
    free, simplex = problem(), problem(y_set="simplex")
    assert free.project(0, x) is x
    assert free.project_lower(x, y) is y
    inside = simplex.project_lower(x, y)
    assert inside.sum() == pytest.approx(1) and (inside >= 0).all()
    np.testing.assert_allclose(simplex.project_lower(x, inside), inside, atol=1e-15)
    np.testing.assert_array_equal(simplex.initial_lower(), np.full(C, 0.25))
    np.testing.assert_array_equal(free.initial_lower(), np.zeros(C))
    assert (free.n, free.n_lower) == (C * p, C)
    assert free.flops_evaluation(64) == 2 * 64 * C * p
    spread = Fair(100, 10).initial(STREAMS(Purpose.START))
    assert spread.dtype == np.float32 and 0.008 < spread.std() < 0.012


def test_score_and_the_worst_class():
    """Of the classes that are there. Mutations: argmin; one worst for the other; a missing class counted."""
    own, x = problem(), points(1)[0]
    for data in CLIENTS:
        inputs, labels = data.take(np.arange(len(data)), np.float64)
        hits = (inputs @ x.reshape(C, p).T).argmax(axis=1) == labels
        present = np.unique(labels)
        found = own.score(x, weights(1)[0], data)
        assert found["loss"] == pytest.approx(np.mean([sample_loss(x, data, j)[0] for j in range(len(data))]))
        assert found["accuracy"] == pytest.approx(hits.mean())
        assert found["worst_class_loss"] == pytest.approx(slow(x, data).max())
        assert found["worst_class_accuracy"] == pytest.approx(min(hits[labels == c].mean() for c in present))
    perfect = Dataset(np.eye(p)[:2], np.array([0, 1]), C)
    assert own.score(np.eye(C, p).ravel(), np.zeros(C), perfect)["worst_class_accuracy"] == 1.0


def test_float32_stays_float32_and_close():
    """Mutations: gradients in float64 whatever dtype is; losses in float32."""
    single, double = problem(dtype=np.float32), problem()
    x, y = points(2).astype(np.float32), weights(2).astype(np.float32)
    for batch in (None, BATCH):
        g = single.gradient_h(1, x[0], y[0], CLIENTS[1], batch)
        assert g.dtype == np.float32
        np.testing.assert_allclose(g, double.gradient_h(1, x[0], y[0], CLIENTS[1], batch), rtol=1e-5, atol=1e-6)
        F = single.f(1, x, y, CLIENTS[1], batch)
        assert F.dtype == np.float64
        np.testing.assert_allclose(F, double.f(1, x, y, CLIENTS[1], batch), rtol=1e-5)
    assert single.initial_lower().dtype == np.float32


def test_large_logits_do_not_overflow():
    """Mutation: a softmax as it is written."""
    assert np.isfinite(problem().f(0, 1e6 * points(1), weights(1), CLIENTS[0])).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lam": 0.0}, "--lam 0.0: must be a number above 0"),
        ({"lam": math.inf}, "--lam inf: must be a number above 0"),
        ({"y_set": "ball"}, "--y-set ball: must be free or simplex"),
        ({"dtype": np.float16}, "softmax regression runs in float32 or float64"),
    ],
)
def test_bad_arguments_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        problem(**settings)
