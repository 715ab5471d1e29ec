"""The Hessian of a client's local loss in split training, as a product with vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from zofl_mpi.numerics.spectrum import Apply
from zofl_mpi.problems import Split


@contextmanager
def local_hessian(
    problem: Split, theta: Tensor, buffers: Tensor, x: Tensor, labels: Tensor, block: int = 128
) -> Iterator[Apply]:
    """Context manager: yields products with the Hessian of the local loss on x (B, ...), labels (B,) at theta (n_l,).

    BatchNorm uses its running statistics. A product takes `block` samples at a time, a graph each.
    """
    x = x.contiguous()  # with the channels last a product takes twice as long

    def losses() -> Iterator[Tensor]:
        for inputs, own in zip(torch.split(x, block), torch.split(labels, block), strict=True):
            yield problem.local_loss(problem.smash(inputs), own) * (len(own) / len(labels))

    with problem.evaluating(), torch.enable_grad(), problem.local.at(theta, buffers) as parameters:
        yield lambda v: hessian_product(losses(), parameters, v)


def hessian_product(losses: Iterable[Tensor], parameters: Sequence[nn.Parameter], v: Tensor) -> Tensor:
    """(n,) the Hessian of the sum of `losses` with respect to `parameters`, times v (n,); summed in v's precision."""
    sizes = [p.numel() for p in parameters]
    pieces = [piece.view(p.shape).to(p) for piece, p in zip(torch.split(v, sizes), parameters, strict=True)]
    total = torch.zeros_like(v)
    for loss in losses:
        total += _along(loss, parameters, pieces).to(total)
        del loss  # and its graph, before the next one is made
    return total


def _along(loss: Tensor, parameters: Sequence[nn.Parameter], pieces: Sequence[Tensor]) -> Tensor:
    """(n,) the derivative of the gradient along `pieces`, which have the parameters' shapes: twice backwards."""
    slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    curved = [(slope, piece) for slope, piece in zip(slopes, pieces, strict=True) if slope.requires_grad]
    if not curved:  # the loss is linear
        return torch.cat([torch.zeros_like(piece).reshape(-1) for piece in pieces])
    outputs, along = zip(*curved, strict=True)
    parts = torch.autograd.grad(outputs, parameters, along, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])
