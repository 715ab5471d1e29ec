"""What a step of a split network costs its client: multiply-accumulates, and memory that is live at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zofl_mpi.problems import Split, optional
from zofl_mpi.problems.counting import Allocations, Products
from zofl_mpi.problems.tail import only, slope_of
from zofl_mpi.rounds.split.cut import inner


class Around(Protocol):
    """What the forward passes of an estimate do besides: `SignedLayers`, `Tangents` and `Stacked`."""

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs as these passes take them."""

    def trial(self, theta: Tensor, count: int, loss: Callable[[], Tensor]) -> None:
        """Such a pass of `count` samples, within `Flat.at` theta; `loss` calls the modules."""


def macs(problem: Split) -> tuple[float, float, float]:
    """Multiply-accumulates of a forward pass of one sample: client, auxiliary, server. [C]'s "FLOPs" are these.

    Products and convolutions, by torch's own formulas: half of its FLOPs.
    """
    theta, buffers, x, labels = _given(problem, 2)
    theta_s, buffers_s = (t.to(problem.device) for t in problem.top.initial())
    with torch.no_grad(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
        with Products() as client:
            smashed = problem.smash(x)
        with Products() as auxiliary:
            problem.local_loss(smashed, labels)
        with Products() as server:
            problem.server_loss(smashed, labels)
    return client.flops / 2 / len(x), auxiliary.flops / 2 / len(x), server.flops / 2 / len(x)


def backward_macs(problem: Split, step: str, exact: slice) -> float:
    """Multiply-accumulates of a sample in the backward pass through this part of theta_l alone.

    Args:
        step: "head" (from the local loss) or "slope" (from the cut).
    """
    theta, buffers, x, labels = _given(problem, 2)
    client, auxiliary, _ = macs(problem)
    with problem.local.at(theta, buffers), Products() as counted:
        _backward(problem, x, labels, step, exact)
    return float(counted.flops / 2 / len(x) - client - (auxiliary if step == "head" else 0))


def step_macs(problem: Split, step: str, recompute: bool = False) -> float:
    """Multiply-accumulates of a client's step on one sample, of which the backward pass is counted as it is computed.

    It computes no gradient that nothing asks for: where weights are frozen, as with LoRA, it has about as many as the
    forward pass, not twice as many.

    Args:
        step, recompute: see `peak_bytes`.
    """
    given = _given(problem, 2)
    with Products() as counted:
        _pass(problem, *given, step, recompute)
    return float(counted.flops / 2 / len(given[2]))


def peak_bytes(
    problem: Split,
    batch: int,
    step: str,
    recompute: bool = False,
    around: Around | None = None,
    exact: slice | None = None,
) -> int:
    """Bytes live at once in a client's step on a mini-batch, beyond its model: inputs, activations, gradients.

    On a GPU as its allocator counts, else by counting the tensors that torch makes. What is made and freed in a step on
    2 and on 3 samples tells it for any number of them, where each tensor's size is so many bytes and so many more for
    every sample; where the two steps do not make the same tensors in the same order, the whole mini-batch is computed.
    What a problem computes in pieces comes in as many of them as for the whole mini-batch (`optional.as_for`); the
    account may then be too large by a part of one piece.

    Args:
        step: "forward" (a pass through client and auxiliary without a graph: HERON), "head" (the same, with the head's
            gradient), "slope" (passes through the client's part without a graph, along what the server returned:
            HO-SFL), "auxiliary" (forward and backward through client and auxiliary: CSE-FSL, FSL-SAGE) or "cut" (both
            through the client's part alone: SplitFed).
        recompute: keep the inputs of the problem's `blocks` alone, and compute each anew in the backward pass (gradient
            checkpointing: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016).
        around: what passes without a graph do besides, if anything.
        exact: what of theta_l has a backward pass of its own before, with "head" or "slope".
    """
    if torch.device(problem.device).type == "cuda":
        from zofl_mpi.engine.device import allocated

        given = _given(problem, batch)
        return _bytes(given[2]) + int(
            allocated(problem.device, lambda: _pass(problem, *given, step, recompute, around, exact))
        )
    with optional.as_for(problem, batch):
        two, three = (_allocations(problem, count, step, recompute, around, exact) for count in (2, 3))
    peak = None if batch < 2 else _peak(two.events, three.events, batch)
    own = _bytes(_given(problem, 1)[2]) * batch
    return own + (_allocations(problem, batch, step, recompute, around, exact).peak if peak is None else peak)


def _given(problem: Split, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """theta_l, its buffers, inputs and labels."""
    theta, buffers = (t.to(problem.device) for t in problem.local.initial())
    return theta, buffers, *problem.example(batch)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _allocations(
    problem: Split,
    batch: int,
    step: str,
    recompute: bool = False,
    around: Around | None = None,
    exact: slice | None = None,
) -> Allocations:
    """The tensors that a step on `batch` samples makes, as it is computed."""
    given, counted = _given(problem, batch), Allocations()
    with counted:
        _pass(problem, *given, step, recompute, around, exact)
    return counted


def _peak(two: list[tuple[int, int]], three: list[tuple[int, int]], batch: int) -> int | None:
    """The most bytes live at once with `batch` samples, from the events with 2 and 3; None where they do not match."""
    if [(k, size > 0) for k, size in two] != [(k, size > 0) for k, size in three]:
        return None
    sizes = (a + (b - a) * (batch - 2) for (_, a), (_, b) in zip(two, three, strict=True))
    return max(itertools.accumulate(sizes), default=0)


def _pass(
    problem: Split,
    theta: Tensor,
    buffers: Tensor,
    x: Tensor,
    labels: Tensor,
    step: str,
    recompute: bool = False,
    around: Around | None = None,
    exact: slice | None = None,
) -> None:
    with problem.local.at(theta, buffers), recomputing(optional.blocks(problem) if recompute else ()):
        if around is not None:
            x = around.inputs(x)
        if exact is not None:
            _backward(problem, x, labels, step, exact)
        if step == "forward":
            with torch.no_grad():
                _perturbed(around, theta, len(x), lambda: problem.local_loss(problem.smash(x), labels))
            return
        if step == "head":
            with torch.no_grad():
                gradient = optional.head_gradient(problem)
                if gradient is not None and exact is None:
                    gradient(problem.smash(x), labels)
                if around is not None:
                    _perturbed(around, theta, len(x), lambda: problem.local_loss(problem.smash(x), labels))
            return
        if step == "slope":
            with torch.no_grad():
                smashed = problem.smash(x)
                slope = torch.zeros_like(smashed)  # what comes back
                inner(slope, smashed)
                del smashed
                _perturbed(around, theta, len(x), lambda: inner(slope, problem.smash(x)))
            return
        smashed = problem.smash(x)
        if step == "auxiliary":
            problem.local.gradient(problem.local_loss(smashed, labels))
        else:
            slope = torch.zeros_like(smashed)  # what comes back
            problem.local.gradient(smashed, slope)


def _backward(problem: Split, x: Tensor, labels: Tensor, step: str, exact: slice) -> None:
    """A forward pass with a graph of this part of theta_l alone, and back: from the local loss, or from the cut."""
    with only(problem.local, exact) as parameters:
        smashed = problem.smash(x)
        if step == "head":
            slope_of(problem.local_loss(smashed, labels), parameters)
        else:
            slope_of(smashed, parameters, torch.zeros_like(smashed))


def _perturbed(around: Around | None, theta: Tensor, count: int, loss: Callable[[], Tensor]) -> None:
    if around is None:
        loss()
    else:
        around.trial(theta, count, loss)


@contextmanager
def recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Context manager: of each block a graph keeps the inputs alone, and a backward pass computes it anew.

    For measurements: the second time a BatchNorm moves its running statistics again.
    """
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        own: Any = block
        own.forward = partial(checkpoint, own.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
