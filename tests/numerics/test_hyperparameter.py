"""[B] 5.2: values by a slow formula, derivatives by differences, the structural facts, Newton's method, the bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest

from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.problems import hyperparameter
from zofl_mpi.problems.hyperparameter import Hyperparameter
from zofl_mpi.run.command.flags import from_flags

STREAMS = Streams(23)
m, p, C = 3, 6, 4
GENERATOR = STREAMS(Purpose.SYNTHETIC)
BYTES = GENERATOR.integers(0, 256, (200, p), dtype=np.uint8)
LABELS = GENERATOR.integers(0, C, 200).astype(np.uint8)
SHUFFLED = GENERATOR.permutation(200)
ROWS = [np.sort(part) for part in np.split(SHUFFLED[:150], [30, 73])]  # 30, 43, 77 samples
SCALES = {
    "bytes": {"scale": 1 / 255},
    "standardised": {"scale": 1 / 80, "shift": -1.5},
    "per feature": {"scale": GENERATOR.uniform(0.002, 0.02, p), "shift": GENERATOR.standard_normal(p)},
    "per feature, no shift": {"scale": GENERATOR.uniform(0.002, 0.02, p)},
}


def clients(name="bytes"):
    return tuple(Dataset(BYTES, LABELS, C, rows, **SCALES[name]) for rows in ROWS)


CLIENTS = clients()
X = np.array([0.05, 0.2, 0.11])
BATCH = np.array([3, 5, 3, 0, 4])  # a position twice: batches are drawn with replacement


def problem(data=CLIENTS, **settings):
    return Hyperparameter.of(data, **({"dtype": np.float64} | settings))


def lower(x=X, data=CLIENTS):
    return hyperparameter._Average([problem(data).parts(d)[1] for d in data], float(x.mean()))


def points(k, t=0):
    return STREAMS(Purpose.START, t=t).standard_normal((k, p))


def slow(y, data, positions):
    """The mean of log(1 + exp(-v U.y)), sample by sample."""
    total = 0.0
    for j in positions:
        row = j if data.rows is None else data.rows[j]
        U = data.inputs[row] * np.asarray(data.scale) + np.asarray(data.shift)
        v = 1 if data.labels[row] % 2 == 0 else -1
        total += math.log(1 + math.exp(-v * sum(U * y)))
    return total / len(positions)


def mean_gradient(y, x, data=CLIENTS):
    """Of (1/m) sum_i h_i(x, y), by the problem's own gradients."""
    own = problem(data)
    return np.mean([own.gradient_h(i, x, y, own.parts(d)[1]) for i, d in enumerate(data)], axis=0)


def hessian(y, x, data=CLIENTS):
    """Of the same, column by column from central differences of the gradient."""
    step = 1e-5
    columns = [
        (mean_gradient(y + step * e, x, data) - mean_gradient(y - step * e, x, data)) / (2 * step) for e in np.eye(p)
    ]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("size", [1, 4, 5, 77, 1000])
@pytest.mark.parametrize("share", [0.2, 0.1, 1 / 3, 0.37, 0.9])
def test_the_parts_are_a_split_in_the_right_proportion(size, share):
    """Mutations: floor(j share) alone; round; a part that holds the other's samples."""
    data = Dataset(BYTES, LABELS, C, np.arange(3, 3 + size))
    upper, lower = replace(problem(), held_out=share).parts(data)
    assert sorted([*upper.rows, *lower.rows]) == list(range(3, 3 + size))
    assert abs(len(upper) - share * size) < 1
    held_out = [j for j in range(size) if math.floor((j + 1) * share) > math.floor(j * share)]
    assert (upper.rows - 3).tolist() == held_out
    assert (np.diff(upper.rows) <= math.ceil(1 / share)).all()  # spread evenly, however the samples are sorted


def test_parts_that_are_kept_cannot_be_changed():
    """Also of a data set without rows: every fifth sample is held out. Mutation: positions taken for rows."""
    upper, lower = problem().parts(Dataset(BYTES, LABELS, C))
    assert upper.rows.tolist() == list(range(4, 200, 5)) and len(lower) == 160
    with pytest.raises(ValueError, match="read-only"):
        upper.rows[0] = 0


@pytest.mark.parametrize("batch", [None, BATCH])
@pytest.mark.parametrize("name", SCALES)
def test_f_is_the_mean_logistic_loss(name, batch):
    """Mutations: sum; the targets' sign; scale or shift left out; a label's own parity of a byte; x_i |y|^2 added."""
    data, y = clients(name)[1], points(3)
    own = problem(clients(name))
    found = own.f(1, np.stack([X, X + 1, 2 * X]), y, data, batch)
    positions = range(len(data)) if batch is None else batch
    np.testing.assert_allclose(found, [slow(row, data, positions) for row in y], rtol=1e-12)
    assert found.dtype == np.float64


@pytest.mark.parametrize("start", [100.0, 1e4])
def test_newton_converges_from_afar(start):
    """There all Hessians are nearly ridge I, and full steps go wild. Mutation: no halving."""
    with np.errstate(all="ignore"):
        far = lower().minimiser(start * points(1)[0], 1e-12)
    np.testing.assert_allclose(far, problem().solution(X, CLIENTS), rtol=1e-9, atol=1e-12)


def test_a_warm_start_saves_hessians(monkeypatch):
    """A solution is its own, a close one costs one Hessian. Mutations: the start ignored; the inverse never kept."""
    labels = (BYTES @ np.arange(p) < np.median(BYTES @ np.arange(p))).astype(np.uint8)
    data = tuple(replace(d, labels=labels) for d in CLIENTS)  # nearly separable: y is large, and Newton has some way
    made, x = [], X / 100
    original = hyperparameter._Average.hessian
    monkeypatch.setattr(hyperparameter._Average, "hessian", lambda self, y: made.append(1) or original(self, y))
    y = problem(data).solution(x, data)
    assert len(made) >= 3
    made.clear()
    np.testing.assert_array_equal(lower(x, data).minimiser(y, 1e-11), y)
    assert made == []
    close = lower(1.001 * x, data).minimiser(y, 1e-11)
    assert len(made) == 1
    assert np.linalg.norm(close - y) > 1e-5


def test_the_hessian_is_the_derivative_of_the_gradient():
    """Mutations: sigma for sigma'; the factor of the inputs applied once; 1/m twice."""
    for name in SCALES:
        data, y = clients(name), points(1)[0]
        np.testing.assert_allclose(lower(X, data).hessian(y), hessian(y, X, data), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", SCALES)
def test_curvature_bounds_the_hessian(name):
    """For each client alone; that of the mean: test_contract_bilevel.py. Mutations: lambda_max/4 of another matrix;
    max(x) left out; all samples of a client."""
    data = clients(name)
    own = problem(data)
    least, most = own.curvature(X)
    assert least == pytest.approx(X.mean(), rel=1e-12)
    tops = []
    for part in (own.parts(d)[1] for d in data):
        inputs, _ = part.take(np.arange(len(part)), np.float64)
        tops.append(np.linalg.eigvalsh(inputs.T @ inputs / len(part))[-1] / 4)
    assert max(tops) <= own.smoothness <= 1.02 * max(tops)
    assert most == own.smoothness + X.max()


def test_the_power_iteration_is_not_caught_by_symmetry():
    """One-hot inputs: every axis is an eigenvector, the mean input is none. Mutation: start e_1."""
    inputs = np.diag([1.0, 5.0, 3.0, 2.0]).repeat(2, axis=0) * np.tile([1.0, -1.0], 4)[:, None]
    data = Dataset(inputs, np.zeros(8, np.int64), 2)
    assert hyperparameter._largest_eigenvalue(data) == pytest.approx(25 / 4, rel=1e-5)
    assert hyperparameter._largest_eigenvalue(Dataset(0 * inputs, data.labels, 2)) == 0


def test_projection_start_sizes_and_score():
    """Mutations: the parity turned round; the training part only; a margin of 0 a hit."""
    own = problem(mu=0.1, x_start=0.3)
    np.testing.assert_array_equal(own.project(0, X), [0.1, 0.2, 0.11])
    assert replace(own, dtype=np.float32).project(0, X.astype(np.float32)).dtype == np.float32
    np.testing.assert_array_equal(own.initial(STREAMS(Purpose.START)), [0.3, 0.3, 0.3])
    assert (own.n, own.n_lower, own.homogeneous, own.x0) == (3, 6, False, "random")
    own, y, data = problem(), points(1)[0], CLIENTS[2]
    inputs, labels = data.take(np.arange(len(data)), np.float64)
    found = own.score(X, y, data)
    assert found["loss"] == pytest.approx(slow(y, data, range(len(data))), rel=1e-12)
    assert found["accuracy"] == np.mean((inputs @ y > 0) == (labels % 2 == 0))
    assert own.score(X, np.zeros(p), data) == {"loss": pytest.approx(math.log(2)), "accuracy": 0.0}


def test_smoothness_is_in_float64_and_nothing_overflows():
    """Mutations: a smoothness of float32; log(1 + exp(t)) as it is written."""
    assert problem(dtype=np.float32).smoothness == problem().smoothness
    own, y = problem(), 1e5 * points(1)
    assert np.isfinite(own.f(0, X[None], y, CLIENTS[0])).all()
    assert np.isfinite(own.gradient_h(0, X, y[0], CLIENTS[0])).all()


@pytest.mark.parametrize("x", [[0.1, -0.2, 0.05], [0.0, 0.0, 0.0], [np.nan, 1.0, 1.0]])
def test_a_mean_that_is_not_positive_is_refused(x):
    own, words = problem(), r"^the mean of the regularisers x came to .*smaller --eta or --gamma.*--mu"
    for ask in (own.curvature, lambda x: own.solution(x, CLIENTS)):
        with pytest.raises(UserError, match=words):
            ask(np.array(x))
    assert own.curvature(np.array([-0.1, 0.2, 0.05]))[0] == pytest.approx(0.05)  # one may be negative


def test_no_convergence_is_told(monkeypatch):
    monkeypatch.setattr(hyperparameter, "NEWTON_STEPS", 1)
    with pytest.raises(UserError, match=r"a gradient of .* only, not to 1\.0e-12: choose a larger --mu"):
        problem().solution(X, CLIENTS)


def test_newton_ends_where_no_step_shrinks_the_gradient(monkeypatch):
    """At the limit of rounding. Mutation: it goes on to NEWTON_STEPS."""
    made, original = [], hyperparameter._Average.hessian
    monkeypatch.setattr(hyperparameter._Average, "hessian", lambda self, y: made.append(1) or original(self, y))
    with pytest.raises(UserError, match="the lower level was solved to a gradient of"):
        lower().minimiser(np.zeros(p), -1.0)
    assert len(made) < 50


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"x_start": 0.001}, "--x-start 0.001: must be a number, at least --mu 0.01"),
        ({"held_out": 0.01}, r"--held-out 0.01: of client 0's 30 samples 0 are held out and 30 are left for training"),
    ],
)
def test_bad_arguments_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        problem(**settings)


@pytest.mark.parametrize(("eta", "holds"), [(0.0099, True), (0.01, False), (0.1, False)])
def test_a_radius_that_leaves_the_strongly_convex_lower_levels_is_refused(eta, holds):
    """x + eta v > 0 from every x >= mu = 0.01 exactly where eta < mu. Mutations: no look; <= in place of <."""
    setting = Setting(problem(mu=0.01), STREAMS, CLIENTS, CLIENTS[0], CLIENTS[0], None, np.dtype(np.float64))
    if holds:
        assert from_flags(FedRZOBL, setting, eta=eta, lower="exact").shifted(np.full(m, 0.01), 0).min() > 0
        return
    with pytest.raises(UserError, match=rf"--eta {eta:g}: must be below 0\.01: x \+ eta v could leave"):
        from_flags(FedRZOBL, setting, eta=eta)
