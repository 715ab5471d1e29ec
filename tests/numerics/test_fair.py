"""[B] 5.3: values by slow formulas, closed forms, federated solvers, a class that few hold, the limits of lam.

All for both models, 5.1's network and softmax regression. Docstrings name the mutations to catch.
"""

import math

import numpy as np
import pytest

from zofl_mpi.data import Dataset, Federation
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.problems.fair import Fair, FairSoftmax
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.run.command.family import Site
from zofl_mpi.settings.fedrzo import PROBLEMS
from zofl_mpi.settings.given import problem_on

STREAMS = Streams(29)
p, C, m, Q = 5, 4, 3, 2
GENERATOR = STREAMS(Purpose.SYNTHETIC)
BYTES = GENERATOR.integers(0, 256, (150, p), dtype=np.uint8)
LABELS = GENERATOR.choice(C, 150, p=[0.4, 0.3, 0.2, 0.1]).astype(np.uint8)
SHUFFLED = GENERATOR.permutation(150)
ROWS = [SHUFFLED[:40], SHUFFLED[40:97], SHUFFLED[97:][LABELS[SHUFFLED[97:]] != 2]]  # the last lacks class 2
CLIENTS = tuple(Dataset(BYTES, LABELS, C, rows, scale=1 / 100, shift=-0.7) for rows in ROWS)
COUNTS = np.array([[sum(int(LABELS[r] == c) for r in rows) for c in range(C)] for rows in ROWS])
MODELS = {"fair": Fair, "fair_softmax": FairSoftmax}
SETS = ["free", "simplex"]
both = pytest.mark.parametrize("model", MODELS)


def problem(model, counts=COUNTS, features=p, **settings):
    size = {"hidden": Q} if model == "fair" else {}
    return MODELS[model](features, counts, **({"lam": 0.5, "dtype": np.float64} | size | settings))


def points(model, k, t=0):
    return STREAMS(Purpose.START, t=t).standard_normal((k, problem(model).n))


def weights(k):
    return STREAMS(Purpose.START, t=9).standard_normal((k, C))


def sample(model, x, data, j):
    """Label and loss of one sample, and whether it is classified correctly; from the formulas."""
    row = j if data.rows is None else data.rows[j]
    U = data.inputs[row] * data.scale + data.shift
    c = int(data.labels[row])
    if model == "fair":
        Z, w, v = x[: Q * p], x[Q * p :], 1 if c % 2 == 0 else -1
        output = sum(w[q] * max(0.0, sum(Z[q * p + f] * U[f] for f in range(p))) for q in range(Q))
        return c, (v - output) ** 2 / 2, v * output > 0
    logits = [sum(x[k * p + f] * U[f] for f in range(p)) for k in range(data.classes)]
    return c, math.log(sum(math.exp(t) for t in logits)) - logits[c], logits[c] == max(logits)


def sums(model, x, data):
    """(C,) the summed losses of each class, sample by sample."""
    found = [0.0] * C
    for j in range(len(data)):
        c, loss, _ = sample(model, x, data, j)
        found[c] += loss
    return np.array(found)


def own_losses(model, x, i):
    """(C,) m/N_c times the sum of client i's losses of class c."""
    return m * sums(model, x, CLIENTS[i]) / COUNTS.sum(axis=0)


def average(model, x):
    """(C,) L(x): the mean loss of each class over the samples of all clients."""
    return sum(sums(model, x, data) for data in CLIENTS) / COUNTS.sum(axis=0)


def upper_value(model, x, y, lam=0.5):
    """(1/m) sum_i f_i(x, y), from the definition."""
    return sum(y @ own_losses(model, x, i) - lam / 2 * (y @ y) for i in range(m)) / m


@both
@pytest.mark.parametrize("i", range(m))
def test_class_losses_are_a_clients_share_of_the_mean_over_all(model, i):
    """Mutations: 1/N_ic or 1/N_i for m/N_c; m left out; log 2; no 1/2; the targets' sign; w first in x; scale or shift
    left out; a ridge."""
    x = points(model, 2)
    found = problem(model).class_losses(x, CLIENTS[i])
    np.testing.assert_allclose(found, [own_losses(model, row, i) for row in x], rtol=1e-12)
    assert found.dtype == np.float64
    assert (found[:, 2] == 0).all() == (i == 2)


@both
def test_a_class_that_one_client_holds_has_its_own_mean_loss(model):
    """At x = 0 each class's loss is log 10, or 1/2, whoever holds it: 2.303, not the 0.461 of a mean over five clients
    of whom four have none. Mutations: the mean of the clients' class means, a missing class counted as 0; N_c of at
    least 2."""
    labels = np.array([0, 1, 3, 4, 5, 6, 7, 8, 9] * 5 + [2])
    rows = [*np.split(np.arange(45), 5)]
    rows[3] = np.append(rows[3], 45)
    data = [Dataset(STREAMS(Purpose.NOISE).standard_normal((46, p)), labels, 10, r) for r in rows]
    counts = np.stack([part.counts() for part in data])
    own = problem(model, counts, lam=2.0)
    expected = 0.5 if model == "fair" else math.log(10)
    np.testing.assert_allclose(2.0 * own.solution(np.zeros(own.n), data), expected, rtol=1e-12)


@both
def test_the_solution_is_the_mean_losses_over_lam(model):
    """The closed form, with a class that nobody has, too. Mutations: a division by 0; the mean of the clients' class
    means; lam squared; 1; lam/2."""
    some = [data.subset(np.flatnonzero(data.labels[data.rows] != 3)) for data in CLIENTS]
    own, x = problem(model, COUNTS * np.array([1, 1, 1, 0]), lam=0.3), points(model, 1)[0]
    y = own.solution(x, some)
    assert y[3] == 0 and (y[:3] > 0).all() and own.curvature(x) == (0.3, 0.3)
    np.testing.assert_allclose(problem(model).solution(x, CLIENTS), average(model, x) / 0.5, rtol=1e-12)


def test_the_start_is_section_51s_or_a_small_one():
    """Mutation: a standard deviation of 1."""
    own, network = problem("fair"), ReLUNet(p, Q, lam=0.0, dtype=np.float64)
    assert (own.n, own.x0) == (network.n, network.x0) == (Q * p + Q, "random")
    np.testing.assert_array_equal(*[each.initial(STREAMS(Purpose.START)) for each in (own, network)])
    spread = FairSoftmax(100, np.ones((2, 10), np.int64)).initial(STREAMS(Purpose.START))
    assert 0.008 < spread.std() < 0.012


@both
def test_f_is_the_weighted_sum(model):
    """Mutations: lam |y|^2; the sign; the weights of another class."""
    x, y = points(model, 3), weights(3)
    found = problem(model).f(1, x, y, CLIENTS[1])
    expected = [w @ own_losses(model, row, 1) - 0.25 * (w @ w) for row, w in zip(x, y, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.dtype == np.float64


@both
def test_the_mean_of_the_clients_minimisers_is_the_solution_where_it_is_said_to_be(model):
    """What `homogeneous` promises, and that the simplex breaks it. Mutation: homogeneous for both."""
    x = 3 * points(model, 1)[0]
    for y_set in SETS:
        own = problem(model, y_set=y_set)
        mean = np.mean([own.solution(x, [data]) for data in CLIENTS], axis=0)
        assert np.allclose(mean, own.solution(x, CLIENTS), rtol=1e-10) == own.homogeneous == (y_set == "free")


@both
def test_the_solution_on_the_simplex_is_a_maximiser(model):
    """Against 50 other points of it, and the first-order condition. Mutations: P(L); P(L)/lam; minimiser."""
    own, x = problem(model, y_set="simplex", lam=5.0), points(model, 1)[0]
    y = own.solution(x, CLIENTS)
    assert y.sum() == pytest.approx(1) and (y >= 0).all() and (y > 0).sum() > 1
    best = upper_value(model, x, y, 5.0)
    slope = average(model, x) - 5.0 * y
    assert slope @ y == pytest.approx(slope.max(), rel=1e-12)  # no vertex is better to first order
    assert all(upper_value(model, x, z, 5.0) < best for z in STREAMS(Purpose.START, t=5).dirichlet(np.ones(C), 50))


@both
def test_projections_starts_and_costs(model):
    """Mutations: the start of the other set; FLOPs of a gradient step; x by classes in the network."""
    x, y = points(model, 1)[0], weights(1)[0]
    free, simplex = problem(model), problem(model, y_set="simplex")
    assert free.project(0, x) is x
    assert free.project_lower(x, y) is y
    inside = simplex.project_lower(x, y)
    assert inside.sum() == pytest.approx(1) and (inside >= 0).all()
    np.testing.assert_allclose(simplex.project_lower(x, inside), inside, atol=1e-15)
    np.testing.assert_array_equal(simplex.initial_lower(), np.full(C, 0.25))
    np.testing.assert_array_equal(free.initial_lower(), np.zeros(C))
    units, biases = (Q, Q) if model == "fair" else (C, 0)
    assert (free.n, free.n_lower) == (units * p + biases, C)
    assert free.kernel_name(64) == "numpy"
    assert problem(model, dtype=np.float32).initial_lower().dtype == np.float32


@both
def test_score_and_the_worst_class(model):
    """Of the classes that are there. Mutations: argmin; one worst for the other; a missing class counted; the training
    samples' counts."""
    own, x = problem(model), points(model, 1)[0]
    for data in CLIENTS:
        told = [sample(model, x, data, j) for j in range(len(data))]
        of = {c: [(loss, hit) for k, loss, hit in told if k == c] for c in {k for k, *_ in told}}
        found = own.score(x, weights(1)[0], data)
        assert found["loss"] == pytest.approx(np.mean([loss for _, loss, _ in told]))
        assert found["accuracy"] == pytest.approx(np.mean([hit for *_, hit in told]))
        means = {c: np.mean(pairs, axis=0) for c, pairs in of.items()}
        assert found["worst_class_loss"] == pytest.approx(max(loss for loss, _ in means.values()))
        assert found["worst_class_accuracy"] == pytest.approx(min(hit for _, hit in means.values()))


def test_scores_of_models_that_are_known():
    """Mutations: an output of 0 is right; the other parity."""
    two = Dataset(np.eye(p)[:2], np.array([0, 1]), C)
    assert problem("fair_softmax").score(np.eye(C, p).ravel(), np.zeros(C), two)["worst_class_accuracy"] == 1.0
    one = problem("fair", hidden=1)
    always = one.score(np.ones(p + 1), np.zeros(C), two)  # the output is 1
    assert always == {"loss": 1.0, "accuracy": 0.5, "worst_class_loss": 2.0, "worst_class_accuracy": 0.0}
    assert one.score(np.zeros(p + 1), np.zeros(C), two)["accuracy"] == 0.0


def test_large_logits_do_not_overflow():
    """Mutation: a softmax as it is written."""
    assert np.isfinite(problem("fair_softmax").f(0, 1e6 * points("fair_softmax", 1), weights(1), CLIENTS[0])).all()


@both
def test_the_run_gives_the_counts_of_all_clients(model):
    """Mutations: the server's or the test part's counts; those of one client."""
    server, test = CLIENTS[0].subset(np.arange(5)), CLIENTS[1].subset(np.arange(7))
    federation = Federation(server, CLIENTS, test)
    flags = {"lam": 0.5, "y_set": "free", "hidden": Q}
    site = Site(flags, SingleProcess(), STREAMS, "float64", "cpu")
    own, x = problem_on(MODELS[model], site, federation), points(model, 1)[0]
    np.testing.assert_allclose(own.solution(x, CLIENTS), average(model, x) / 0.5, rtol=1e-12)
    assert PROBLEMS[model].groups["problem"] is MODELS[model]
    assert list(PROBLEMS[model].roles) == ["Bilevel"]
