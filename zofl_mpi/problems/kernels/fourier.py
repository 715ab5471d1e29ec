"""Convolutions of networks by spectra, where these take fewer operations than the sum over the taps.

y[j] = b + sum_a w[a] x[j + a - P]       j = 0..H + 2 P - K, along each axis; x is 0 outside 0..H - 1

Read modulo N = H + P, no index meets another's samples: -P..-1 fall on H..N - 1, where x is 0. So with the discrete
Fourier transforms of length N along each axis (X of x; W_k = sum_a w[a] e^(2 pi i k (a - P) / N))

Y_k = W_k X_k                            a product of (outputs, inputs) and (inputs, batch) for each frequency k

The transforms are matrix products as well: at these lengths (16 for a map of 14 x 14 and 5 x 5 taps) a BLAS is as fast
as a fast transform, and with the batch as the last index no result has to be laid out anew between the steps. For 16
maps to 32 of 14 x 14, 5 x 5 taps and a batch of 32 they are 31 million multiplications, the sum over the taps 80.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

DEARER = 2.25
"""A multiplication here costs as much as this many of the direct sum's, that of the transposes and additions in it."""
WEIGHTS_BYTES = 2**26
"""The largest spectrum of the weights: it is 2 N^2 / K^2 times as large as they are, and used but once."""


class Shape(NamedTuple):
    """Sizes of a layer and of what it is given: batch; input and output maps; their height, width; taps; padding."""

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    taps: tuple[int, int]
    padding: tuple[int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of an output map."""
        (a, b), (p, q) = self.taps, self.padding
        return self.height + 2 * p - a + 1, self.width + 2 * q - b + 1

    @property
    def frequencies(self) -> tuple[int, int]:
        """Number of frequencies along the height, half of them since x is real, and along the width, all."""
        return (self.height + self.padding[0]) // 2 + 1, self.width + self.padding[1]

    def direct(self) -> int:
        """Multiplications of a forward pass that sums over the taps."""
        return self.batch * self.inputs * self.outputs * math.prod(self.out) * math.prod(self.taps)

    def spectral(self) -> int:
        """Multiplications of a forward pass by spectra."""
        (half, full), (height, width) = self.frequencies, self.out
        analysis = 2 * half * self.width * (self.height + 2 * full)
        synthesis = 2 * half * width * (height + 2 * full)
        product = 4 * half * full * self.inputs * self.outputs
        weights = 2 * half * full * math.prod(self.taps) * self.inputs * self.outputs
        return self.batch * (self.inputs * analysis + self.outputs * synthesis + product) + weights

    def pays(self, itemsize: int) -> bool:
        """Whether spectra are the faster way; the same on all ranks, as it follows from the shape alone."""
        if min(self.out) < 1 or any(p >= k for p, k in zip(self.padding, self.taps, strict=True)):
            return False
        spectrum = 4 * math.prod(self.frequencies) * self.inputs * self.outputs * itemsize
        return spectrum <= WEIGHTS_BYTES and self.direct() > DEARER * self.spectral()


@final
class FourierConv2d(nn.Conv2d):
    """A Conv2d that computes by spectra on a CPU where that pays, and else as torch does. `quicken` makes them.

    Attributes:
        direct: it may not compute by spectra.
        shape: of its last input; None where only torch can compute that.
    """

    direct: bool = False
    shape: Shape | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(B, outputs, H', W') of (B, inputs, H, W)."""
        shape = self.shape = self._shape(input)
        if shape is None or not self.spectral(shape.batch):
            return super().forward(input)
        return _Spectral.apply(input, self.weight, self.bias, shape)  # type: ignore[no-any-return, no-untyped-call]

    def spectral(self, batch: int) -> bool:
        """Whether a batch of this size of inputs like the last is computed by spectra."""
        if self.shape is None or self.direct:
            return False
        return self.shape._replace(batch=batch).pays(self.weight.element_size())

    def _shape(self, x: Tensor) -> Shape | None:
        """Sizes for the input x (B, inputs, H, W); None where only torch can compute the convolution."""
        known = x.dtype == self.weight.dtype and x.dtype in (torch.float32, torch.float64)
        if x.dim() != 4 or x.device.type != "cpu" or not known or x.shape[1] != self.in_channels:
            return None
        a, b = self.kernel_size
        named = {"valid": (0, 0), "same": (a // 2, b // 2)}
        p, q = named[self.padding] if isinstance(self.padding, str) else self.padding
        height, width = x.shape[2:]
        return Shape(len(x), self.in_channels, self.out_channels, height, width, (a, b), (p, q))


def quicken(module: nn.Module) -> None:
    """Makes each convolution in `module` that spectra can compute a `FourierConv2d`, with the parameters it has."""
    for part in module.modules():
        if type(part) is nn.Conv2d and _can(part):  # not a class of the user's, nor one that is parametrized
            part.__class__ = FourierConv2d


@contextmanager
def direct(module: nn.Module) -> Iterator[None]:
    """Context manager: all convolutions in `module` are torch's own."""
    parts = [part for part in module.modules() if isinstance(part, FourierConv2d)]
    try:
        for part in parts:
            part.direct = True
        yield
    finally:
        for part in parts:
            part.direct = False


def spectral(module: nn.Module, batch: int) -> bool:
    """Whether a convolution in `module` is computed by spectra for a batch of this size of inputs like the last."""
    return any(isinstance(part, FourierConv2d) and part.spectral(batch) for part in module.modules())


def _can(layer: nn.Conv2d) -> bool:
    """Whether spectra can compute it: steps of 1, all maps connected, zeros around, as many on both sides."""
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    return plain and not (layer.padding == "same" and any(k % 2 == 0 for k in layer.kernel_size))


class _Spectral(torch.autograd.Function):
    """The convolution and its derivative. All of it is linear: the derivative takes the transposes of the matrices.

    The bias is added to frequency 0, where N_h N_w b is a constant b.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        t = _transforms(shape, x.dtype)
        half, full = shape.frequencies
        X = _analysed(t.analysis, _batch_last(x)).view(half * full, 2 * shape.inputs, shape.batch)
        taps = weight.permute(2, 3, 0, 1).reshape(-1, shape.outputs * shape.inputs)
        W = _blocks(torch.mm(t.taps.there, taps), shape)
        Y = torch.bmm(W, X)
        if bias is not None:
            Y[0, : shape.outputs] += t.size * bias[:, None]
        ctx.shape = shape
        ctx.save_for_backward(X if ctx.needs_input_grad[1] else None, W if ctx.needs_input_grad[0] else None)
        return _batch_first(_synthesised(t.synthesis, Y.view(half, 2 * full, -1)), shape.batch, *shape.out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        shape: Shape = ctx.shape
        X, W = ctx.saved_tensors
        t = _transforms(shape, slope.dtype)
        half, full = shape.frequencies
        D = _analysed(t.synthesis.transposed(), _batch_last(slope)).view(half * full, 2 * shape.outputs, shape.batch)
        of_x = of_weight = of_bias = None
        if W is not None:
            Z = torch.bmm(W.transpose(1, 2), D).view(half, 2 * full, -1)
            of_x = _batch_first(_synthesised(t.analysis.transposed(), Z), shape.batch, shape.height, shape.width)
        if X is not None:
            V = torch.mm(t.taps.back, _sums(torch.bmm(D, X.transpose(1, 2)), shape))
            of_weight = V.view(*shape.taps, shape.outputs, shape.inputs).permute(2, 3, 0, 1)
        if ctx.needs_input_grad[2]:
            of_bias = t.size * D[0, : shape.outputs].sum(1)
        return of_x, of_weight, of_bias, None


def _batch_last(x: Tensor) -> Tensor:
    """Lays x (B, C, H, W) out as (H, W C B)."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1).t().contiguous().view(x.shape[2], -1)


def _batch_first(x: Tensor, batch: int, height: int, width: int) -> Tensor:
    """Lays x (H, W C B) out as (B, C, H, W), its channels side by side."""
    return x.view(-1, batch).t().contiguous().view(batch, height, width, -1).permute(0, 3, 1, 2)


def _blocks(v: Tensor, shape: Shape) -> Tensor:
    """(k, 2 O, 2 C), the complex numbers of v (2 k, O C) as [[re, -im], [im, re]]."""
    v = v.view(-1, 2, shape.outputs, shape.inputs)
    blocks = v.new_empty(len(v), 2, shape.outputs, 2, shape.inputs)
    blocks[:, 0, :, 0] = blocks[:, 1, :, 1] = v[:, 0]
    blocks[:, 1, :, 0] = v[:, 1]
    torch.neg(v[:, 1], out=blocks[:, 0, :, 1])
    return blocks.view(len(v), 2 * shape.outputs, 2 * shape.inputs)


def _sums(blocks: Tensor, shape: Shape) -> Tensor:
    """(2 k, O C): the transpose of `_blocks`."""
    blocks = blocks.view(-1, 2, shape.outputs, 2, shape.inputs)
    v = blocks.new_empty(len(blocks), 2, shape.outputs, shape.inputs)
    torch.add(blocks[:, 0, :, 0], blocks[:, 1, :, 1], out=v[:, 0])
    torch.sub(blocks[:, 1, :, 0], blocks[:, 0, :, 1], out=v[:, 1])
    return v.view(-1, shape.outputs * shape.inputs)


class _Matrix(NamedTuple):
    """A matrix and its transpose, both stored row by row: a BLAS is several times faster on these shapes then."""

    there: Tensor
    back: Tensor


class _Pair(NamedTuple):
    """A transform along both axes: the matrix for each.

    An analysis takes `height` (2 half, H) first, then `width` (2 full, 2 W); a synthesis `width` (2 W', 2 full) first.
    """

    height: _Matrix
    width: _Matrix

    def transposed(self) -> _Pair:
        return _Pair(*(_Matrix(matrix.back, matrix.there) for matrix in self))


@dataclass(frozen=True)
class _Transforms:
    """Real matrices. Complex numbers are two reals one behind the other: (k, 2) of frequencies, (2, W) of positions."""

    analysis: _Pair
    synthesis: _Pair
    taps: _Matrix
    size: int
    """N_h N_w."""


def _analysed(pair: _Pair, x: Tensor) -> Tensor:
    """(half, 2 full, C B) the transform of x (H, W C B)."""
    height, width = pair.height.there, pair.width.there
    half = len(height) // 2
    return torch.bmm(width.expand(half, -1, -1), torch.mm(height, x).view(half, width.shape[1], -1))


def _synthesised(pair: _Pair, x: Tensor) -> Tensor:
    """(H', W' O B) what x (half, 2 full, O B) is the transform of."""
    height, width = pair.height.there, pair.width.there
    return torch.mm(height, torch.bmm(width.expand(len(x), -1, -1), x).view(2 * len(x), -1))


@lru_cache(maxsize=64)
def _transforms(shape: Shape, dtype: torch.dtype) -> _Transforms:
    (half, full), (height, width) = shape.frequencies, shape.out
    (a, b), (p, q) = shape.taps, shape.padding
    N = shape.height + p
    tall, wide = _waves(np.arange(half), np.arange(N), N), _waves(np.arange(full), np.arange(full), full)
    twice = np.where((np.arange(half) == 0) | (2 * np.arange(half) == N), 1, 2)  # for the half that is left out
    down = _waves(np.arange(half), p - np.arange(a), N)
    across = _waves(np.arange(full), q - np.arange(b), full)
    taps = down[:, None, :, None] * across[None, :, None, :]

    def matrix(values: NDArray[np.float64], rows: int) -> _Matrix:
        there = torch.tensor(values.reshape(rows, -1), dtype=dtype)
        return _Matrix(there, there.t().contiguous())

    return _Transforms(
        _Pair(
            matrix(_parts(tall[:, : shape.height]), 2 * half),
            matrix(_products(wide[:, : shape.width]), 2 * full),
        ),
        _Pair(
            matrix(_parts((tall * twice[:, None] / N)[:, :height]).T, height),
            matrix(_products(wide[:, :width] / full).T, 2 * width),
        ),
        matrix(_parts(taps.reshape(half * full, -1)), 2 * half * full),
        N * full,
    )


def _waves(k: NDArray[np.int64], t: NDArray[np.int64], N: int) -> NDArray[np.complex128]:
    """(k, t) e^(-2 pi i k t / N)."""
    return np.asarray(np.exp(-2j * np.pi * np.outer(k, t) / N))


def _parts(z: NDArray[np.complex128]) -> NDArray[np.float64]:
    """(2 k, t): gives the real and the imaginary part of sum_t z_t x_t for each frequency, for a real x."""
    return np.stack([z.real, z.imag], 1).reshape(2 * len(z), -1)


def _products(z: NDArray[np.complex128]) -> NDArray[np.float64]:
    """(2 k, 2 t): what `_parts` is, for a complex x: all its real parts before all imaginary ones."""
    return np.stack([np.stack([z.real, -z.imag], 1), np.stack([z.imag, z.real], 1)], 1).reshape(2 * len(z), -1)
