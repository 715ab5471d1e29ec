"""A backward pass through the last layers alone: what lies before them keeps no graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from zofl_mpi.errors import demand
from zofl_mpi.problems.flat import Flat


def last_layers(flat: Flat, count: int) -> slice:
    """Where the last `count` layers of the first module lie in theta; a layer is a module with parameters of its own.

    Raises:
        UserError: it has fewer.
    """
    places = flat.places()
    own = [[p for p in m.parameters(recurse=False) if id(p) in places] for m in flat.modules[0].modules()]
    starts = [places[id(parameters[0])][0].start for parameters in own if parameters]
    allowed = f"from 0 to {len(starts)}, the client's layers with parameters"
    demand(0 <= count <= len(starts), "exact_layers", count, allowed)
    end = flat.sizes()[0]
    return slice(starts[-count] if count else end, end)


@contextmanager
def only(flat: Flat, part: slice) -> Iterator[list[nn.Parameter]]:
    """Context manager: of the parameters those in this part of theta alone ask for a gradient; yields these."""
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
    """Inputs of the first GroupNorm that has a backward pass, which crashes with channels last: on a CPU torch then
    writes the gradient of the inputs too, which nothing has asked for."""
    x = given[0]
    return None if x.requires_grad or x.dim() < 4 else (x.clone(memory_format=torch.contiguous_format),)


def slope_of(output: Tensor, parameters: Sequence[nn.Parameter], slope: Tensor | None = None) -> Tensor:
    """The gradients with respect to these parameters, one after the other; see `Flat.gradients`."""
    parts = torch.autograd.grad(output, parameters, slope, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])
