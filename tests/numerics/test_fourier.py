"""Convolutions by spectra are torch's own, in value and derivative; where they pay follows from the shape."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from zofl_mpi.problems.kernels import fourier
from zofl_mpi.problems.kernels.fourier import Shape, quicken
from zofl_mpi.problems.models import CNN

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SECOND = Shape(32, 16, 32, 14, 14, (5, 5), (2, 2))  # the second convolution of `CNN` on 28 x 28 images


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(fourier, "DEARER", 0.0)


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def quick(layer):
    ours = copy.deepcopy(layer)
    quicken(ours)
    return ours


def derivatives(layer, x, slope):
    """The output, and the slope's product with its derivatives: of the input and of the parameters."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    return y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], slope)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("batch", "inputs", "outputs", "height", "width", "taps", "padding"),
    [
        (32, 16, 32, 14, 14, 5, 2),  # N = 16
        (3, 2, 4, 9, 6, (3, 4), (0, 1)),  # N = 9, 7: odd; the axes differ
        (4, 3, 2, 5, 5, 5, 0),  # one output
        (2, 2, 3, 7, 8, 1, 0),
        (2, 3, 4, 6, 6, 3, "same"),
        (2, 3, 4, 6, 5, 3, "valid"),
        (2, 3, 4, 6, 7, (6, 2), (5, 1)),  # the most padding there may be
        (1, 1, 1, 1, 1, 3, 1),
    ],
)
def test_values_and_derivatives_are_torchs(always, batch, inputs, outputs, height, width, taps, padding, memory, bias):
    """Mutations: taps not reversed; padding of the other axis; a half spectrum's middle counted twice, at even and odd
    N; a sign of an imaginary part; a derivative without its transpose; the bias left out or not summed."""
    layer = nn.Conv2d(inputs, outputs, taps, padding=padding, bias=bias).double()
    ours = quick(layer)
    x = drawn(batch, inputs, height, width).to(memory_format=memory)
    slope = drawn(*layer(x).shape, seed=1).to(memory_format=memory)
    expected, found = derivatives(layer, x, slope), derivatives(ours, x, slope)
    assert ours.spectral(len(x))
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * max(1.0, float(b.abs().max())))


def test_in_float32_they_are_as_exact_as_torchs():
    """Both against float64: rounding grows with the root of the logarithm of N here, with that of the taps there."""
    layer = nn.Conv2d(16, 32, 5, padding=2)
    ours, exact = quick(layer), copy.deepcopy(layer).double()
    x, slope = drawn(32, 16, 14, 14).float(), drawn(32, 32, 14, 14, seed=1).float()
    expected = derivatives(exact, x.double(), slope.double())
    found, theirs = derivatives(ours, x, slope), derivatives(layer, x, slope)
    assert ours.spectral(len(x))
    for a, b, truth in zip(found, theirs, expected, strict=True):
        size = float(truth.norm())
        assert float((a - truth).norm()) <= max(2 * float((b - truth).norm()), 4 * 2**-24 * size)


@pytest.mark.parametrize("of", ["input", "weight", "bias"])
def test_only_what_is_asked_for_is_derived(always, of):
    """Mutations: a spectrum that is needed is not kept; a derivative nobody asked for."""
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    ours = quick(layer)
    x = drawn(2, 3, 6, 6)
    for module in (layer, ours):
        module.weight.requires_grad_(of == "weight")
        module.bias.requires_grad_(of == "bias")
    slope = drawn(2, 4, 6, 6, seed=1)
    both = []
    for module in (layer, ours):
        own = x.clone().requires_grad_(of == "input")
        variable = own if of == "input" else getattr(module, of)
        y = module(own)
        both.append(torch.autograd.grad(y, variable, slope, retain_graph=True)[0])
        y.backward(slope)
        assert [part.grad is None for part in (own, module.weight, module.bias)].count(False) == 1
    torch.testing.assert_close(both[1], both[0], rtol=0, atol=1e-12)


def test_gradcheck(always):
    """torch's own check by finite differences."""
    ours = quick(nn.Conv2d(2, 3, 3, padding=1).double())
    ours.weight.requires_grad_(False)
    assert torch.autograd.gradcheck(ours, drawn(2, 2, 4, 5).requires_grad_())


def test_the_multiplications_of_both_ways_are_counted():
    """The module's first docstring, and the sum of every matrix product of a forward pass."""
    multiplications = []

    def counted(function):
        def product(a, b):
            found = function(a, b)
            multiplications.append(found.numel() * a.shape[-1])
            return found

        return product

    layer = quick(nn.Conv2d(16, 32, 5, padding=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "bmm", counted(torch.bmm))
        patch.setattr(torch, "mm", counted(torch.mm))
        with torch.no_grad():
            layer(drawn(32, 16, 14, 14).float())
    assert sum(multiplications) == SECOND.spectral()
    assert round(SECOND.spectral() / 1e6) == 31
    assert SECOND.direct() == 32 * 16 * 32 * 14 * 14 * 25 and round(SECOND.direct() / 1e6) == 80


@pytest.mark.parametrize(
    ("shape", "pays"),
    [
        (SECOND, True),
        (SECOND._replace(height=16, width=16), True),  # 32 x 32 images
        (SECOND._replace(batch=1), False),  # as much work for the weights as for 32 samples
        (Shape(32, 1, 16, 28, 28, (5, 5), (2, 2)), False),  # one input map: nothing to share its transform with
        (Shape(32, 64, 64, 14, 14, (3, 3), (1, 1)), False),
        (Shape(32, 512, 512, 8, 8, (5, 5), (2, 2)), False),  # the spectrum of the weights would take 252 MB
        (SECOND._replace(padding=(5, 2)), False),
        (SECOND._replace(height=2, padding=(0, 0)), False),  # torch says what is wrong
    ],
)
def test_spectra_are_taken_where_they_pay(shape, pays):
    assert shape.pays(4) is pays


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 5, stride=2),
        nn.Conv2d(4, 4, 5, dilation=2),
        nn.Conv2d(4, 4, 5, groups=2),
        nn.Conv2d(4, 4, 5, padding=2, padding_mode="circular"),
        nn.Conv2d(4, 4, 4, padding="same"),  # one more on the right
        nn.ConvTranspose2d(4, 4, 5),
        type("Own", (nn.Conv2d,), {})(4, 4, 5),
        parametrizations.weight_norm(nn.Conv2d(4, 4, 5)),
    ],
    ids=lambda layer: type(layer).__name__ + repr(layer)[:60],
)
def test_other_layers_are_left_alone(layer):
    assert type(quick(layer)) is type(layer)


def test_what_torch_refuses_torch_refuses(always):
    """Mutation: matrices of one size multiplied with those of another, or cast."""
    ours = quick(nn.Conv2d(3, 4, 3).double())
    for x in (drawn(2, 2, 6, 6), drawn(2, 3, 6, 6).float(), drawn(2, 3, 2, 6), drawn(2, 3, 1, 1), drawn(6, 6)):
        with pytest.raises(RuntimeError):
            ours(x)
        assert not ours.spectral(2)
    for single in (drawn(3, 6, 6), drawn(3, 3, 6)):
        assert ours(single).shape == (4, single.shape[1] - 2, 4)
    assert ours(drawn(0, 3, 6, 6)).shape == (0, 4, 4, 4)


def test_another_device_is_torchs(always):
    ours = quick(nn.Conv2d(3, 4, 3)).to("meta")
    assert ours(drawn(2, 3, 6, 6).float().to("meta")).shape == (2, 4, 4, 4)
    assert not ours.spectral(2)


def test_a_second_derivative_is_refused(always):
    x = drawn(1, 1, 4, 4).requires_grad_()
    ours = quick(nn.Conv2d(1, 1, 3).double())
    (slope,) = torch.autograd.grad((ours(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_direct_means_torchs_own_for_as_long(always):
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    ours = nn.Sequential(quick(layer))
    x = drawn(2, 3, 6, 6)
    with fourier.direct(ours):
        assert torch.equal(ours(x), layer(x))
        assert not fourier.spectral(ours, 2)
    assert not torch.equal(ours(x), layer(x))
    assert fourier.spectral(ours, 2)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_stays_so(always, value):
    """A step that diverged is to be noticed."""
    ours = quick(nn.Conv2d(1, 1, 3, padding=1))
    x = torch.ones(1, 1, 6, 6)
    x[0, 0, 2, 3] = value
    assert not torch.isfinite(ours(x)[0, 0, 1:4, 2:5]).any()


def test_the_cnn_has_the_same_trajectory_as_with_torchs_own():
    """20 steps from the same start, in float64: in float32 a rounding difference soon switches a ReLU or a maximum."""
    from zofl_mpi.data import Dataset
    from zofl_mpi.problems.network import Network

    generator = np.random.default_rng(3)
    data = Dataset(
        generator.integers(0, 256, (200, 784), dtype=np.uint8), generator.integers(0, 10, 200), 10, scale=1 / 255
    )
    torch.manual_seed(0)
    module = CNN((1, 28, 28), 10)
    auto, own = (
        Network(module, (1, 28, 28), 10, np.ones(2) / 2, dtype=np.float64, convolution=c) for c in ("auto", "direct")
    )
    assert (auto.kernel_name(32), own.kernel_name(32)) == ("torch cpu fourier", "torch cpu")
    assert auto.kernel_name(1) == "torch cpu"
    assert auto.flops(32) == own.flops(32)
    y = own.initial(generator)
    batches, steps = generator.integers(0, 200, (20, 32)), np.full(20, 0.1)
    a, b = auto.descend(data, y, batches, steps), own.descend(data, y, batches, steps)
    assert not np.array_equal(a, b)
    assert np.linalg.norm(a - b) <= 1e-11 * np.linalg.norm(b - y)
