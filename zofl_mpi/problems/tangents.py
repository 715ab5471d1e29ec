"""Directional derivatives by forward-mode differentiation: a forward pass with tangents, without a graph.

Baydin, Pearlmutter, Syme, Wood, Torr, "Gradients without Backpropagation", arXiv:2202.08587.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

from zofl_mpi.problems.flat import Flat

with warnings.catch_warnings(), forward_ad.dual_level():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised inside torch at the first dual
    forward_ad.make_dual(torch.zeros(()), torch.zeros(()))  # type: ignore[no-untyped-call]


@contextmanager
def tangents(flat: Flat, part: slice, u: Tensor) -> Iterator[None]:
    """Context manager, within `flat.bound_to`: gives the parameters in this part of theta the tangent u (d,)."""
    places, kept = flat.places(), []
    with forward_ad.dual_level():
        try:
            for module in (m for own in flat.modules for m in own.modules()):
                for name, p in list(module.named_parameters(recurse=False)):
                    span, shape = places.get(id(p), (slice(0, 0), p.shape))
                    if part.start <= span.start < span.stop <= part.stop:
                        along = u[span.start - part.start : span.stop - part.start].view(shape)
                    elif p.dim() == 1 and part.stop <= span.start < span.stop:
                        along = torch.zeros_like(p)  # without one, torch imports its compiler for a bias (1 s)
                    else:
                        continue
                    kept.append((module, name, p))
                    module._parameters[name] = forward_ad.make_dual(p.detach(), along)  # type: ignore[no-untyped-call]
            yield
        finally:
            for module, name, p in kept:
                module._parameters[name] = p


def channels_first(x: Tensor) -> Tensor:
    """Copies inputs to channels-first: torch's forward derivative of GroupNorm fails on channels-last."""
    return x.clone(memory_format=torch.contiguous_format)


def tangent_of(loss: Tensor) -> Tensor:
    """Derivative () of a loss along the parameters' tangents, within `tangents`; 0 if it depends on none."""
    tangent = forward_ad.unpack_dual(loss).tangent  # type: ignore[no-untyped-call]
    return torch.zeros_like(loss) if tangent is None else tangent
