"""Backward passes with less memory: gradient checkpointing, or a mini-batch in parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.errors import UserError

if TYPE_CHECKING:
    from torch import nn

NONE, CHECKPOINT, ACCUMULATE = "none", "checkpoint", "accumulate"


@final
@dataclass(frozen=True)
class Saving:
    """Memory saving of backward passes, set by --client-memory."""

    checkpoint: bool = False  # keep only each block's inputs; the backward pass recomputes the block
    parts: int = 1  # compute a mini-batch in this many parts and add up their gradients

    def __str__(self) -> str:
        return CHECKPOINT if self.checkpoint else NONE if self.parts == 1 else f"{ACCUMULATE}:{self.parts}"

    def check(self, blocks: Sequence[nn.Module], modules: Iterable[nn.Module], running: bool = False) -> None:
        """Raises UserError for modules without blocks, or in which a sample's output depends on other samples.

        `running`: BatchNorm normalises by its running statistics.
        """
        if self.checkpoint and not blocks:
            fault = "this network is no sequence of layers that could be computed again"
            raise UserError(f"--client-memory {self}: {fault}; use {ACCUMULATE}:PARTS")
        if self.parts > 1 and any(_mixes(m, running) for own in modules for m in own.modules()):
            fault = "BatchNorm normalises by the mini-batch, whose parts have another gradient"
            raise UserError(f"--client-memory {self}: {fault}; use {CHECKPOINT}, or a network without BatchNorm")

    def forward(self, blocks: Sequence[nn.Module]) -> AbstractContextManager[None]:
        """Context manager for forward passes with this saving."""
        return recomputing(blocks) if self.checkpoint else nullcontext()

    def split(self, *batch: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """Splits a mini-batch's tensors into at most `parts` parts."""
        return [batch] if self.parts == 1 else zip(*(t.chunk(self.parts) for t in batch), strict=True)

    def added(self, parts: Iterable[tuple[float, tuple[Tensor, ...]]]) -> tuple[Tensor, ...]:
        """Weighted sum of the parts' tensors."""
        if self.parts == 1:
            ((_, whole),) = parts
            return whole
        total: tuple[Tensor, ...] = ()
        for weight, tensors in parts:
            total = total or tuple(t.new_zeros(t.shape) for t in tensors)
            for t, more in zip(total, tensors, strict=True):
                t.add_(more, alpha=weight)
            del tensors, more
        return total


PLAIN = Saving()


def saving_of(text: str) -> Saving:
    """Parses --client-memory (UserError: invalid)."""
    kind, _, number = text.partition(":")
    if text in (NONE, CHECKPOINT):
        return Saving(text == CHECKPOINT)
    if kind == ACCUMULATE and number.isascii() and number.isdigit() and 1 < int(number) < 2**31:
        return Saving(parts=int(number))
    allowed = f"choose {NONE}, {CHECKPOINT}, or {ACCUMULATE}:PARTS with a whole number of parts from 2 on"
    raise UserError(f"--client-memory {text}: {allowed}")


@contextmanager
def recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Context manager for gradient checkpointing: a graph keeps each block's inputs, a backward pass recomputes it.

    Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016. BatchNorm updates its running
    statistics in both computations: `Flat.swap` binds others for the second.
    """
    blocks = list(dict.fromkeys(blocks))
    for block in blocks:
        vars(block)["forward"] = partial(_checkpointed, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


class _Saved:
    """A tensor that a graph needs; None until a backward pass computes it again."""

    tensor: Tensor | None = None


class _AllSaved(Exception):
    """Every tensor that a backward pass needs is computed."""


def _checkpointed(forward: Callable[..., Any], x: Tensor, *more: Any, **named: Any) -> Any:
    """forward(x, ...), of which the graph keeps the inputs only; a backward pass computes the rest again.

    Does the same as torch.utils.checkpoint (tested), whose first call imports torch's compiler: 0.9 of 2.9 CPU seconds
    of each start of a split method with backward passes.
    """
    if not torch.is_grad_enabled():
        return forward(x, *more, **named)
    saved, hooks, version = list[weakref.ref[_Saved]](), torch.autograd.graph.saved_tensors_hooks, x._version
    device = x.device.type
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    autocast = partial(torch.autocast, device, dtype, enabled, torch.is_autocast_cache_enabled())

    def mark(tensor: Tensor) -> _Saved:
        own = _Saved()
        saved.append(weakref.ref(own))
        return own

    def fetch(own: _Saved) -> Tensor:
        if own.tensor is None:
            if x._version != version:
                raise RuntimeError("a layer changes the input of its block in place: it cannot be computed again")
            waiting = saved[::-1]

            def keep(tensor: Tensor) -> Tensor:
                if (other := waiting.pop()()) is not None:  # else no backward pass needs it any more
                    other.tensor = tensor.detach()
                if not waiting:
                    raise _AllSaved
                return tensor.detach()

            with suppress(_AllSaved), torch.enable_grad(), autocast(), hooks(keep, lambda tensor: tensor):
                forward(x, *more, **named)
        tensor, own.tensor = own.tensor, None
        assert tensor is not None
        return tensor

    with hooks(mark, fetch):
        return forward(x, *more, **named)


def grouped(module: nn.Module) -> list[nn.Module]:
    """Groups the layers of a module's sequences into blocks, and makes the sequences run these.

    A block is a layer with parameters and the following layers without; the first includes those before it.
    """
    found = list[Any]()
    for sequence in _sequences(module):
        layers = list(_layers(sequence))
        starts = [k for k, layer in enumerate(layers) if next(layer.parameters(), None) is not None]
        ends = [0, *starts[1:], len(layers)]
        blocks = [torch.nn.Sequential(*layers[a:b]) for a, b in pairwise(ends)]
        vars(sequence)["forward"] = torch.nn.Sequential(*blocks).forward
        found += blocks
    return found if len(found) > 1 else []


def _sequences(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost sequences of layers in a module."""
    if type(module) is torch.nn.Sequential:
        yield module
    else:
        for child in module.children():
            yield from _sequences(child)


def _layers(sequence: Any) -> Iterator[nn.Module]:
    """Yields the layers of a sequence and of nested ones; a layer may occur twice."""
    for layer in sequence:
        yield from _layers(layer) if type(layer) is torch.nn.Sequential else (layer,)


def _mixes(module: nn.Module, running: bool) -> bool:
    """True if a layer's output for a sample depends on the other samples."""
    of_batch = isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    return of_batch and (module.running_mean is None or (bool(module.training) and not running))
