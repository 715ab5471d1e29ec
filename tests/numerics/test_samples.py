"""What every problem on samples owes: blocks that do not show, inputs in files, numbers that are not finite."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics import test_fair as fair
from tests.numerics import test_hyperparameter as held_out
from tests.numerics.first_order import COMPILED
from tests.numerics.samples import BYTES, DATA, UNIT, N, batches, points
from tests.numerics.test_network import cnn
from tests.numerics.test_relu_net import net
from tests.numerics.test_softmax import softmax
from zofl_mpi.problems import hyperparameter, sums

SOLVING = pytest.mark.parametrize(
    "make",
    [
        cnn,
        *(
            pytest.param(lambda k=k, **own: softmax(kernel=k, **own), marks=m)
            for k, m in (("numpy", ()), ("numba", COMPILED))
        ),
    ],
    ids=["cnn", "numpy", "numba"],
)


def values(score: dict[str, float]) -> list[float]:
    return list(score.values())


def of_fair(model: str) -> list[Any]:
    own, x, y, data = fair.problem(model), fair.points(model, 1), fair.weights(1), fair.CLIENTS[0]
    return [own.f(0, x, y, data), values(own.score(x[0], y[0], data))]


def of_network() -> list[Any]:
    x, each = points(2, net().n), UNIT.counts() / N
    return [net().losses(0, x, UNIT), net().gradient(x[0], UNIT), values(net().score(x[0], UNIT, each))]


def of_regression() -> list[Any]:
    own, x, y, data = held_out.problem(), held_out.X, held_out.points(2), held_out.CLIENTS
    return [own.f(2, x[None], y, data[2]), own.gradient_h(2, x, y[0], data[2]), own.solution(x, data)]


def of_softmax() -> list[Any]:
    x = points(1, softmax().n)[0]
    return [softmax().gradient(x, UNIT), values(softmax().score(x, UNIT))]


@pytest.mark.parametrize(
    "asked", [of_softmax, of_network, of_regression, *(lambda m=m: of_fair(m) for m in fair.MODELS)]
)
def test_blocks_of_samples_change_nothing(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 7, which leave a last one that is shorter. Mutations: the last block lost, or counted as a whole one; the mean
    of blocks' means; Hessians of one block."""
    whole = asked()
    monkeypatch.setattr(sums, "SAMPLES_AT_ONCE", 7)
    monkeypatch.setattr(hyperparameter, "HESSIAN_BLOCK", 7)
    sums._kept.cache_clear()
    for found, expected in zip(asked(), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@SOLVING
def test_a_read_only_map_of_a_file_serves_as_inputs(make: Any, tmp_path: Any) -> None:
    np.save(tmp_path / "inputs.npy", BYTES)
    problem, data = make(), replace(UNIT, inputs=np.load(tmp_path / "inputs.npy", mmap_mode="r"))
    x = points(2, problem.n)
    assert np.array_equal(*(problem.solve_client(0, d, x, x, batches(9, 3), np.full(9, 0.1)) for d in (data, UNIT)))


@pytest.mark.usefixtures("one_torch_thread")
@SOLVING
@pytest.mark.parametrize("B", [1, 5])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_comes_out_without_a_warning(make: Any, B: int, bad: float) -> None:
    """The caller detects divergence by it; a warning fails here. Mutations: fast mathematics without NaN; a projection
    that maps infinity to x."""
    for radius in (np.inf, 1.0):
        problem = make(dtype=np.float32, radius=(radius,))
        x = points(2, problem.n, dtype=np.float32)
        y = x.copy()
        y[1, -1] = bad
        result = problem.solve_client(0, DATA["standardised"], x, y, batches(30, B), np.full(30, 50.0))
        problem.score(y[1], UNIT)
        problem.gradient_f1(y[1], UNIT, np.arange(5))
        problem.f2(0, x[0], y[1])
        if not np.isfinite(bad):
            assert not np.isfinite(result[1]).all()
        assert np.isfinite(result[0]).all() or radius == np.inf
