"""[B]'s network: values by a slow formula, derivatives by differences, the kink, and that nothing is counted twice."""

import math
import tracemalloc

import numpy as np
import pytest

from tests.numerics.samples import BATCH, DATA, LABELS, STREAMS, UNIT, C, N, p, points
from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.numerics import zo
from zofl_mpi.problems.relu_net import ReLUNet

Q = 3


def net(**settings):
    return ReLUNet(p, **({"hidden": Q, "lam": 0.3, "dtype": np.float64} | settings))


def slow(problem, x, data, positions, rectify, labels=None):
    """The mean of 1/2 (v - sum_q w_q rectify(Z_q . U))^2, sample by sample; no ridge."""
    total = 0.0
    for j in positions:
        row = j if data.rows is None else data.rows[j]
        U = data.inputs[row] * np.asarray(data.scale) + np.asarray(data.shift)
        v = 1 if data.labels[row] % 2 == 0 else -1
        output = sum(x[Q * p + q] * rectify(sum(x[q * p + f] * U[f] for f in range(p))) for q in range(Q))
        total += (v - output) ** 2 / 2
    return total / len(positions)


def relu(t):
    return t if t > 0 else 0.0


def softplus(beta):
    return lambda t: math.log(1 + math.exp(beta * t)) / beta


def ridge(lam, x):
    return lam / 2 * sum(float(a) ** 2 for a in x)


@pytest.mark.parametrize("name", DATA)
def test_losses_are_those_of_the_printed_formula(name):
    """Mutations: Z by columns; w first in x; no 1/2; scale or shift left out; another rectifier; sum for mean."""
    problem, x = net(), points(3, net().n)
    expected = [slow(problem, a, DATA[name], BATCH, relu) + ridge(0.3, a) for a in x]
    np.testing.assert_allclose(problem.losses(0, x, DATA[name], BATCH), expected, rtol=1e-12)


@pytest.mark.parametrize("name", DATA)
def test_loss_is_that_of_the_smooth_twin_on_all_samples(name):
    """Mutations: the true rectifier; 1/beta left out; only a batch."""
    problem, x = net(rectifier=3.0), points(1, net().n)[0]
    expected = slow(problem, x, DATA[name], range(N), softplus(3.0)) + ridge(0.3, x)
    np.testing.assert_allclose(problem.loss(x, DATA[name]), expected, rtol=1e-12)


def test_numbers_that_are_large_or_not_finite_give_no_warning():
    """Warnings are errors here. Mutations: log(1 + exp(beta t))."""
    x = 1e3 * points(1, net().n)[0]
    smooth, true = net(rectifier=1e3).loss(x, UNIT), net().losses(0, x[None], UNIT)[0]
    assert smooth == pytest.approx(true, rel=1e-8)
    assert np.isfinite(net(rectifier=1e3).gradient(x, UNIT)).all()
    x = np.full((1, net().n), 1e200)
    assert not np.isfinite(net().losses(0, x, UNIT)).any()
    assert not np.isfinite(net().gradient(x[0], UNIT)).all()
    assert not math.isfinite(net().score(x[0], UNIT)["loss"])
    moved = net(dtype=np.float32).descend(
        UNIT, points(1, net().n, dtype=np.float32)[0], BATCH[None], np.array([1e60])
    )  # no float32 holds it
    assert not np.isfinite(moved).all()


@pytest.mark.parametrize("batch", [None, BATCH])
def test_the_sum_is_the_number_of_samples_times_the_mean_and_the_ridge_enters_once(batch):
    """A mini-batch counts |D|/B times. Mutations: B for |D|; lam |D|; the scale left out of the gradient."""
    x = points(2, net().n)
    mean, total = net(), net(loss_scale="sum")
    ridges = np.array([ridge(0.3, a) for a in x])
    np.testing.assert_allclose(
        total.losses(0, x, UNIT, batch), N * (mean.losses(0, x, UNIT, batch) - ridges) + ridges, rtol=1e-12
    )
    bare = net(lam=0.0).gradient(x[0], UNIT, batch)
    np.testing.assert_allclose(total.gradient(x[0], UNIT, batch), N * bare + 0.3 * x[0], rtol=1e-10)


def test_the_score_is_a_mean_whatever_the_scale():
    """Mutations: the sum in `score`; no ridge; smooth and true exchanged."""
    x = points(1, net().n)[0]
    assert net(loss_scale="sum").score(x, UNIT) == net().score(x, UNIT)
    score = net().score(x, UNIT)
    assert score["loss"] == pytest.approx(net().losses(0, x[None], UNIT)[0], rel=1e-12)
    assert score["smooth_loss"] == pytest.approx(net().loss(x, UNIT), rel=1e-12)
    assert abs(score["loss"] - score["smooth_loss"]) > 1e-4


def test_all_samples_take_little_memory():
    """30 MB of floats, never more than a tenth of them at once. Mutation: no blocks."""
    data = Dataset(np.zeros((40_000, 196), np.uint8), np.zeros(40_000, np.uint8), C)
    problem, x = ReLUNet(196), np.zeros((2, 4 * 197), np.float32)
    tracemalloc.start()
    try:
        for evaluate in (lambda: problem.losses(0, x, data), lambda: problem.gradient(x[0], data)):
            tracemalloc.reset_peak()
            evaluate()
            assert tracemalloc.get_traced_memory()[1] < 3e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("labels", [np.uint8, np.int64])
def test_even_labels_are_plus_one_and_odd_ones_minus_one(labels):
    """The output is 1 for every sample. Mutations: the parity the other way round; unsigned labels that wrap."""
    data = Dataset(np.ones((C, 1)), np.arange(C).astype(labels), C)
    problem = ReLUNet(1, hidden=1, lam=0.0, dtype=np.float64)
    values = [problem.losses(0, np.array([[1.0, 1.0]]), data, np.array([j]))[0] for j in range(C)]
    assert values == [0.0, 2.0] * (C // 2)
    assert problem.score(np.array([1.0, 1.0]), data)["accuracy"] == 0.5
    assert problem.score(np.array([1.0, 1.0]), data, np.eye(C)[2]) == pytest.approx(
        {"loss": 0.0, "accuracy": 1.0, "smooth_loss": (math.log(1 + math.exp(10)) / 10 - 1) ** 2 / 2}, rel=1e-6
    )
    assert problem.score(np.array([1.0, 0.0]), data)["accuracy"] == 0.0  # an output of 0 has no sign


@pytest.mark.parametrize("name", ["bytes in [0, 1]", "standardised", "per feature"])
def test_differences_of_losses_in_float32_are_those_in_float64(name):
    """Mutation: a shift folded into the units as the scale is."""
    small, large = ReLUNet(p, Q, dtype=np.float32), ReLUNet(p, Q, dtype=np.float64)
    x = small.initial(STREAMS(Purpose.START, t=3))
    v = zo.direction(STREAMS(Purpose.DIRECTION), small.n, np.float32)
    pair = np.stack([x + np.float32(1e-3) * v, x])
    a, b = small.losses(0, pair, DATA[name]), large.losses(0, pair.astype(np.float64), DATA[name])
    assert a.dtype == np.float64
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert abs((a[0] - a[1]) - (b[0] - b[1])) < 1e-7


def test_in_float32_all_but_the_product_is_float64():
    """Here the products are exact. Mutations: outputs, residuals or their sum in float32, 1e-8 and more off; |x|^2 in
    float32, which is off by 1e-7 of itself."""
    generator = STREAMS(Purpose.SYNTHETIC, t=1)
    data = Dataset(generator.integers(0, 8, (N, p), dtype=np.uint8), LABELS[:N], C)
    x = np.concatenate([generator.integers(-8, 9, p * Q) / 8, generator.standard_normal(Q)]).astype(np.float32)[None]
    exact = ReLUNet(p, Q, dtype=np.float64).losses(0, x.astype(np.float64), data)
    np.testing.assert_allclose(ReLUNet(p, Q).losses(0, x, data), exact, rtol=1e-14)
    problem = ReLUNet(p, Q, lam=2.0)
    Z = np.float32(0.1) * STREAMS(Purpose.START).standard_normal(p * Q).astype(np.float32)
    x = np.concatenate([Z, np.zeros(Q, np.float32)])[None]  # w = 0: the network's own part is 1/2 exactly
    exact = 0.5 + float(np.sum(x.astype(np.float64) ** 2))
    assert problem.losses(0, x, UNIT)[0] == pytest.approx(exact, rel=1e-14)


def test_the_start_is_random():
    """Since zero is stationary. Mutation: x0 = "zero"; the standard deviations of Z and w exchanged."""
    problem = ReLUNet(784, dtype=np.float64)
    x = problem.initial(STREAMS(Purpose.START))
    assert ReLUNet.x0 == "random" and x.shape == (problem.n,) == (3140,)
    assert x[:-4].std() == pytest.approx(0.05, rel=0.05)
    many = ReLUNet(1, hidden=4000).initial(STREAMS(Purpose.START))
    assert many[-4000:].std() == pytest.approx(0.5, rel=0.05) and many.dtype == np.float32


def test_positions_and_samples_that_are_not_there():
    """Mutations: a warning, which fails here; a division by zero."""
    for data in (UNIT, DATA["floats"], DATA["standardised"]):
        with pytest.raises(IndexError):
            net().losses(0, points(1, net().n), data, np.array([0, N]))
    for mix in (None, np.full(C, 0.1)):
        score = net().score(points(1, net().n)[0], UNIT.subset(np.arange(0)), mix)
        assert set(score) == {"loss", "smooth_loss", "accuracy"}
        assert all(math.isnan(value) for value in score.values())


def test_flops_kernel_and_set():
    """Forward and backward, 2 B N_1 p each. Mutation: the forward pass alone."""
    x = points(1, net().n)[0]
    assert ReLUNet(784).flops(64) == 4 * 64 * 4 * 784
    assert ReLUNet(784).kernel_name(64) == "numpy" and net().project(3, x) is x
