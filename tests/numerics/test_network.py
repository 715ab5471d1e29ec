"""Torch modules as problems: a linear layer is softmax regression; any other obeys autograd and the generic loop."""

import copy
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.numerics.samples import (
    DATA,
    GENERATOR,
    LABELS,
    SHAPE,
    STREAMS,
    UNIT,
    WEIGHTS,
    C,
    batches,
    close,
    p,
    points,
    terms,
)
from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.problems import network
from zofl_mpi.problems.models import CNN, MLP
from zofl_mpi.problems.network import Network, seeded
from zofl_mpi.problems.softmax import Softmax

pytestmark = pytest.mark.usefixtures("one_torch_thread")
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(p, C, bias=False))


def problem(module, dtype=np.float64, shape=SHAPE, **settings):
    """Further arguments are those of `terms`."""
    return Network(module, shape, C, weights=WEIGHTS, terms=terms(**settings), dtype=dtype)


def cnn(dtype=np.float64, **settings):
    return problem(seeded(lambda: CNN(SHAPE, C, (2, 3)), STREAMS(Purpose.START)), dtype, **settings)


# --- a linear layer is softmax regression


@DTYPES
@pytest.mark.parametrize("settings", [{}, {"mu": (0.0,)}, {"radius": (0.3, 0.2, np.inf)}], ids=str)
@pytest.mark.parametrize("name", DATA)
def test_a_linear_layer_has_the_local_solves_of_softmax_regression(dtype, tolerance, settings, name, monkeypatch):
    """And its plain ones, which tests/numerics/test_softmax.py writes out. Mutations: mu (x - y), or around another
    point; mu, radius of another client; no projection; scale or shift of inputs left out; order of steps; a gradient's
    shift without the step size, or with the other sign."""
    monkeypatch.setattr(network, "BLOCK_BYTES", 5 * 6 * p * 8)  # several blocks of steps
    ours = problem(linear(), dtype, **settings)
    theirs = Softmax(p, C, "numpy", weights=WEIGHTS, terms=terms(**settings), dtype=dtype)
    x, y = points(2, ours.n, 1, dtype), points(2, ours.n, 2, dtype)
    result = ours.solve_client(1, DATA[name], x, y, batches(40, 6), 0.5 / np.arange(1, 41))
    assert result.dtype == dtype
    close(result, theirs.solve_client(1, DATA[name], x, y, batches(40, 6), 0.5 / np.arange(1, 41)), tolerance)
    if settings.get("radius"):
        assert np.max(np.linalg.norm(result - x, axis=1)) > 0.19  # the constraint is active
        close(ours.project(1, x, y), theirs.project(1, x, y), tolerance)
    plain = (
        each.descend(DATA[name], x[0], batches(40, 6), np.full(40, 0.1), mu=0.7, shift=y[0]) for each in (ours, theirs)
    )
    close(*plain, tolerance)


@DTYPES
@pytest.mark.parametrize("name", DATA)
def test_a_linear_layer_has_the_values_of_softmax_regression(dtype, tolerance, name, monkeypatch):
    """Mutations: the mean of blocks of unequal size; the last block dropped; a mix not divided by the counts."""
    monkeypatch.setattr(network, "EVALUATION_SAMPLES", 7)
    ours, theirs = problem(linear(), dtype), Softmax(p, C, weights=WEIGHTS, terms=terms(), dtype=dtype)
    data, (x, y) = DATA[name], points(2, ours.n, 1, dtype)
    batch, mix = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5]), np.array([0.5, 0.0, 0.3, 0.2])
    for positions in (batch, None):
        close(ours.gradient(x, data, positions), theirs.gradient(x, data, positions), tolerance)
    close(ours.gradient_f1(x, data, batch), ours.gradient(x, data, batch), 0)
    for shares in (None, mix):
        close(list(ours.score(x, data, shares).values()), list(theirs.score(x, data, shares).values()), 10 * tolerance)
    assert ours.f1(x, data) == ours.loss(x, data) == ours.score(x, data)["loss"]
    assert ours.f2(1, x, y) == theirs.f2(1, x, y)
    assert ours.solution(0, data, x) is None
    assert ours.flops(8) == 4 * 8 * C * p  # the two products: the inputs need no gradient
    assert ours.kernel_name(8) == "torch cpu"


# --- any module


def test_images_of_several_channels_are_planes_one_behind_the_other():
    """Mutation: a pixel's colours taken for neighbours, as the layout in memory has them."""
    shape = (2, 4, 4)
    module = CNN(shape, C, (2, 3)).double()
    ours = problem(module, shape=shape)
    data = Dataset(GENERATOR.integers(0, 256, (9, 32), dtype=np.uint8), LABELS[:9], C, scale=np.linspace(0.001, 1, 32))
    x = ours.initial(STREAMS(Purpose.START))
    nn.utils.vector_to_parameters(torch.tensor(x), module.parameters())
    inputs, labels = data.take(np.arange(9), np.float64)
    close(ours.loss(x, data), cross_entropy(module(torch.tensor(inputs).view(9, *shape)), torch.tensor(labels)).item())


def test_points_solved_together_are_points_solved_alone_bit_for_bit():
    """Mutations: one module's parameters left in it for the next point; a second row at an odd address."""
    ours = cnn(np.float32, radius=(0.4,))
    x, y = points(3, ours.n, 1, np.float32), points(3, ours.n, 2, np.float32)
    samples, steps = batches(9, 5), np.full(9, 0.1)
    together = ours.solve_client(0, UNIT, x, y, samples, steps)
    alone = [ours.solve_client(0, UNIT, x[[j]], y[[j]], samples, steps)[0] for j in range(3)]
    assert np.array_equal(together, alone)


def test_what_changes_nothing_changes_no_bit():
    """FedProx(0) is FedAvg, and FedProx's first step is FedAvg's, bit for bit. Mutations: y (1 - gamma mu) + gamma mu
    x. A shift of zeros changes nothing either."""
    ours = cnn(np.float32)
    start, samples, steps = points(1, ours.n, dtype=np.float32)[0], batches(6, 5), np.full(6, 0.1)
    plain = ours.descend(UNIT, start, samples, steps)
    assert np.array_equal(ours.descend(UNIT, start, samples, steps, mu=0.0), plain)
    assert np.array_equal(ours.descend(UNIT, start, samples, steps, shift=np.zeros_like(start)), plain)
    one = ours.descend(UNIT, start, samples[:1], steps[:1])
    assert np.array_equal(ours.descend(UNIT, start, samples[:1], steps[:1], mu=1.0), one)
    assert not np.array_equal(ours.descend(UNIT, start, samples, steps, mu=1.0), plain)
    ours = cnn(np.float32, radius=(0.0,))
    x, y = points(2, ours.n, 1, np.float32), points(2, ours.n, 2, np.float32)
    same = ours.solve_client(0, UNIT, x, y, batches(0, 3), np.zeros(0))
    assert np.array_equal(same, y)
    assert same is not y
    assert np.array_equal(ours.solve_client(0, UNIT, x, y, batches(4, 3), np.full(4, 0.1)), x)
    assert np.array_equal(ours.descend(UNIT, y[0], batches(0, 3), np.zeros(0)), y[0])


def test_bits_depend_neither_on_addresses_nor_on_blocks_nor_on_other_calls(monkeypatch):
    """Serial and parallel runs must agree bit for bit. Mutations: views of the caller's memory; the module not released
    after a call; t counted within the block."""
    ours, data = cnn(np.float32), DATA["floats"]
    samples, steps = batches(12, 5), 0.2 / np.arange(1, 13)
    expected = None
    for offset in range(6):
        monkeypatch.setattr(network, "BLOCK_BYTES", 2**10 * (offset + 1))
        memory = np.empty(ours.n + 16, np.float32)
        y = memory[offset : offset + ours.n]
        y[:] = points(1, ours.n)[0]
        result = ours.descend(data, y, samples, steps)
        ours.gradient(result, UNIT)
        expected = result if expected is None else expected
        assert np.array_equal(result, expected)
        assert np.array_equal(y, points(1, ours.n, dtype=np.float32)[0])


# --- constants, starts, modes


def test_frozen_parameters_and_buffers_are_constants_and_unused_ones_have_gradient_zero():
    """Mutations: frozen parameters in x; an error for a parameter that the loss does not see."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(p, 8), nn.BatchNorm1d(8).eval(), nn.ReLU())
            self.head, self.unused = nn.Linear(8, C), nn.Parameter(torch.ones(2))
            self.body.requires_grad_(False)

        def forward(self, inputs):
            return self.head(self.body(inputs))

    module = Odd()
    ours = problem(module)
    before = copy.deepcopy(module.state_dict())
    start = ours.initial(STREAMS(Purpose.START))
    assert ours.n == len(start) == 2 + 8 * C + C
    end = ours.descend(UNIT, start, batches(9, 5), np.full(9, 0.1))
    assert np.array_equal(end[:2], start[:2])  # a module's own parameters come before its parts'
    assert not np.isclose(end[-C:], start[-C:]).any()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(UserError, match="nothing to train"):
        problem(module.requires_grad_(False))


def test_a_start_is_what_the_module_came_with_and_seeds_make_equal_ones():
    """Mutations: the layers' parameters drawn anew; float32 on the way."""
    module = MLP(p, C).double()
    start = problem(module).initial(STREAMS(Purpose.START))
    assert np.array_equal(start, nn.utils.parameters_to_vector(module.parameters()).detach())
    assert start.dtype == np.float64
    assert np.abs(start[: 200 * p]).std() == pytest.approx(1 / np.sqrt(12 * p), rel=0.05)  # nn.Linear's own
    state = torch.random.get_rng_state()
    a, b, c = (seeded(lambda: MLP(p, C), STREAMS(Purpose.START, t=t)) for t in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    vectors = [nn.utils.parameters_to_vector(module.parameters()) for module in (a, b, c)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.isclose(vectors[0], vectors[2]).any()


@pytest.mark.parametrize("part", [nn.BatchNorm1d(C), nn.Dropout(0.5), nn.RReLU()], ids=["norm", "dropout", "rrelu"])
def test_a_module_that_is_no_function_of_its_parameters_is_refused_unless_in_eval_mode(part):
    """Mutations: a list of known classes; no check of the one or the other."""
    module = seeded(linear, STREAMS(Purpose.START)).append(part)
    state = torch.random.get_rng_state()
    with pytest.raises(UserError, match=r"no function of its parameters.*\.eval\(\)"):
        problem(module)
    assert torch.equal(torch.random.get_rng_state(), state)
    ours = problem(module.eval())
    x = points(1, ours.n)[0]
    assert np.array_equal(ours.gradient(x, UNIT), ours.gradient(x, UNIT))


class Uncopied(nn.Linear):
    """Like a layer of torch's old weight_norm. Mutation: the module itself is bound, which the user holds."""

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise RuntimeError("it holds a file\nand more")


@pytest.mark.parametrize(
    ("module", "settings", "text"),
    [
        (linear(), {"mu": (1.0, 2.0)}, "--mu 1.0 2.0: must be one number, or one for each of the 3 clients"),
        (linear(), {"radius": (-1.0,)}, "radius -1.0: must be a number, at least 0"),
        (linear(), {"shape": (1, 5, 4)}, r"does not take inputs of shape \(1, 5, 4\): "),
        (nn.Flatten(), {}, r"output of shape \(16,\), not to 4 logits"),
        (Uncopied(4, 4), {}, "Uncopied cannot be copied: it holds a file; use torch.nn.utils.parametrizations"),
        (nn.Conv2d(3, 4, 3), {}, r"does not take inputs of shape \(1, 4, 4\): "),
    ],
)
def test_settings_that_cannot_be_are_named(module, settings, text):
    with pytest.raises(UserError, match=text):
        problem(module, **settings)


def test_models_have_their_sizes_or_are_refused():
    for shape, n in (((1, 28, 28), 215_370), ((3, 32, 32), 277_610), ((1, 8, 8), 31_050)):
        assert problem(CNN(shape, C), shape=shape).n == n - 6 * 129
    with pytest.raises(UserError, match="at least 4 x 4"):
        CNN((1, 3, 3), 10)
