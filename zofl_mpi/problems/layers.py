"""Partial gradients: of a linear auxiliary head in closed form, of the last layers by a backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softmax

from zofl_mpi.errors import demand
from zofl_mpi.problems.flat import Flat

NORMALISATIONS = (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def linear_of(head: nn.Module) -> nn.Linear | None:
    """The final linear layer of a head without other parameters; None for any other head."""
    last = head
    while type(last) is nn.Sequential and len(last) > 0:
        last = last[-1]
    if type(last) is not nn.Linear or not all(p.requires_grad for p in last.parameters()):
        return None
    return last if set(head.parameters()) == set(last.parameters()) else None


def head_gradient(head: nn.Module, linear: nn.Linear, smashed: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, C) of a head, and the gradient (n_a,) of their mean cross-entropy in its parameters.

    With s (B, features) the inputs of the linear layer: (softmax - y)^T s / B for the weights, column sums of
    (softmax - y) / B for the biases. As in ElasticZO for a network's last layers (arXiv:2501.04287).
    """
    seen: list[Tensor] = []
    handle = linear.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        logits = head(smashed)
    finally:
        handle.remove()
    wide = torch.promote_types(linear.weight.dtype, torch.float32)
    slope = (softmax(logits.to(wide), dim=1) - one_hot(labels, logits.shape[1]).to(wide)) / len(labels)
    parts = [(slope.T @ seen[0].to(wide)).reshape(-1)]
    if linear.bias is not None:
        parts.append(slope.sum(dim=0))
    return logits, torch.cat(parts).to(linear.weight.dtype)


def last_layers(flat: Flat, count: int) -> slice:
    """Slice of theta for the last `count` layers of the first module; a layer is a module with own parameters."""
    places = flat.places()
    own = [[p for p in m.parameters(recurse=False) if id(p) in places] for m in flat.modules[0].modules()]
    starts = [places[id(parameters[0])][0].start for parameters in own if parameters]
    allowed = f"from 0 to {len(starts)}, the client's layers with parameters"
    demand(0 <= count <= len(starts), "exact_layers", count, allowed)
    end = flat.sizes()[0]
    return slice(min(starts[-count:]) if count else end, end)  # tied: a last layer's weight may be a first one's


def first_module(client: nn.Module) -> list[nn.Parameter]:
    """Parameters of a sequence's first module that has any; all parameters of a module that is no sequence."""
    modules = list(client) if isinstance(client, nn.Sequential) else [client]
    return next(filter(None, ([*m.parameters()] for m in modules)), [])


def normalisations(client: nn.Module) -> list[nn.Parameter]:
    """Scales and shifts of a module's normalisations.

    Their inputs require no gradient; a hook keeps GroupNorm's backward from crashing, see `_channels_first`.
    """
    found = [m for m in client.modules() if isinstance(m, NORMALISATIONS)]
    for m in found:
        if isinstance(m, nn.GroupNorm):
            m.register_forward_pre_hook(_channels_first)
    return [p for m in found for p in m.parameters()]


@contextmanager
def requiring_grad(flat: Flat, part: slice) -> Iterator[list[nn.Parameter]]:
    """Context manager: only the parameters in this part of theta require a gradient; yields them."""
    places = flat.places()
    inside = [p for p in flat.parameters if part.start <= places[id(p)][0].start < part.stop]
    chosen = {id(p) for p in inside}
    for p in flat.parameters:
        p.requires_grad_(id(p) in chosen)
    norms = [m for own in flat.modules for m in own.modules() if isinstance(m, nn.GroupNorm)]
    handles = [m.register_forward_pre_hook(_channels_first) for m in norms]
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()
        for p in flat.parameters:
            p.requires_grad_()


def _channels_first(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Copies inputs to channels-first: torch's CPU GroupNorm backward crashes on channels-last inputs.

    It writes an input gradient even if none is required.
    """
    x = given[0]
    asked = torch.is_grad_enabled() and not x.requires_grad
    return None if not asked or x.dim() < 4 else (x.clone(memory_format=torch.contiguous_format),)
