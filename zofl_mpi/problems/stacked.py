"""Modules at several points by one forward pass: what is perturbed is stacked, by torch.func.

torch turns a layer whose inputs and parameters are stacked into one operation: a product of batches of matrices, a
convolution with as many groups. What is not stacked, as frozen weights and the first layer's inputs, is there once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from zofl_mpi.problems.tangents import channels_first

SLOWLY = "There is a performance drop .+ the batching rule for aten::_scaled_dot_product"
"""What torch says of attention, which on a CPU it computes at one point after the other."""


class FlatModules(Protocol):
    """Modules as a function of theta, as `Flat` is one."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """These modules."""

    def places(self) -> dict[int, tuple[slice, torch.Size]]:
        """{id of a parameter: where it lies in theta, and its shape}."""


@final
class Stacked:
    """Forward passes of modules at several points abreast, which differ in a part of theta.

    Args:
        flat: the modules.
        part: of theta, what the points are of.
        count: points of a pass, and `directions` that they lie along, where a pass is tried to count what it holds.
    """

    def __init__(self, flat: FlatModules, part: slice, count: int = 1, directions: int = 1) -> None:
        self._part, self._count, self._directions = part, count, directions
        self._whole = _Whole(flat.modules)
        _hush()
        places = flat.places()
        self._places: dict[str, tuple[slice, torch.Size]] = {}
        for name, p in self._whole.named_parameters():
            span, shape = places.get(id(p), (slice(0, 0), p.shape))
            if part.start <= span.start < span.stop <= part.stop:
                self._places[name] = slice(span.start - part.start, span.stop - part.start), shape

    def losses(self, points: Tensor, loss: Callable[[], Tensor]) -> Tensor:
        """(k,) the loss () at each of the points (k, d), within `Flat.at`, which binds all that these do not tell.

        Args:
            loss: calls the modules. BatchNorms normalise by the batch at each point; statistics that this moves are
                those of a copy.
        """
        buffers = {name: b.detach().expand(len(points), *b.shape).clone() for name, b in self._moving()}

        def alone(point: Tensor, own: dict[str, Tensor]) -> Tensor:
            here = {name: point[span].view(shape) for name, (span, shape) in self._places.items()}
            return functional_call(self._whole, {**here, **own}, (loss,))  # type: ignore[no-any-return]

        return torch.vmap(alone)(points, buffers)

    def _moving(self) -> list[tuple[str, Tensor]]:
        """The statistics that a forward pass may move, by name."""
        return [
            (f"{prefix}.{name}", b)
            for prefix, module in self._whole.named_modules()
            if module.training
            for name, b in module.named_buffers(recurse=False)
            if b.is_floating_point()
        ]

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs of such passes: with stacked scales torch's GroupNorm fails with channels last."""
        return channels_first(x)

    def trial(self, theta: Tensor, count: int, loss: Callable[[], Tensor]) -> None:
        """Such a pass, within `Flat.at` theta: beside the points a client holds the directions until it has stepped."""
        own = theta[self._part]
        directions = own.repeat(self._directions, 1)
        self.losses(own.repeat(self._count, 1), loss)
        del directions


def _hush() -> None:
    """Leaves out `SLOWLY`, in this process from now on: a filter that comes and goes makes others tell theirs anew."""
    if not any(getattr(own[1], "pattern", "") == SLOWLY for own in warnings.filters):
        warnings.filterwarnings("ignore", SLOWLY)


@final
class _Whole(nn.Module):
    """Several modules, and a call that uses them: what `functional_call` takes."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.own = nn.ModuleList(modules)

    def forward(self, loss: Callable[[], Tensor]) -> Tensor:
        return loss()
