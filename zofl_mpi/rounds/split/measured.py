"""The measured costs of a client's step: multiply-accumulates, and memory that is live at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zofl_mpi.problems import Split
from zofl_mpi.problems.counting import Allocations, Products
from zofl_mpi.rounds.split.losses import HeadLoss, Loss
from zofl_mpi.rounds.split.rules import Backprop, GradientRule


def macs(problem: Split) -> tuple[float, float, float]:
    """Multiply-accumulates of a forward pass of one sample: client, auxiliary, server. [C]'s "FLOPs" are these.

    Products and convolutions, by torch's own formulas: half of its FLOPs.
    """
    theta, buffers, x, labels = _given(HeadLoss(problem), 2)
    theta_s, buffers_s = (t.to(problem.device) for t in problem.top.initial())
    with torch.no_grad(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
        with Products() as client:
            smashed = problem.smash(x)
        with Products() as auxiliary:
            problem.local_loss(smashed, labels)
        with Products() as server:
            problem.server_loss(smashed, labels)
    return client.flops / 2 / len(x), auxiliary.flops / 2 / len(x), server.flops / 2 / len(x)


def backward_macs(loss: Loss, exact: Backprop) -> float:
    """Multiply-accumulates of a sample in a backward pass through the rule's part alone."""
    problem = loss.problem
    theta, buffers, x, labels = _given(loss, 2)
    client, auxiliary, _ = macs(problem)
    with loss.flat.at(theta, buffers), Products() as counted:
        exact.trial(loss, theta, x, labels)
    return float(counted.flops / 2 / len(x) - client - (0 if loss.answered else auxiliary))


def step_macs(loss: Loss, rule: GradientRule, recompute: bool = False) -> float:
    """Multiply-accumulates of a client's step on one sample, of which the backward pass is counted as it is computed.

    It computes no gradient that nothing asks for: where weights are frozen, as with LoRA, it has about as many as the
    forward pass, not twice as many.

    Args:
        recompute: see `peak_bytes`.
    """
    given = _given(loss, 2)
    with Products() as counted:
        _trial(loss, rule, *given, recompute)
    return float(counted.flops / 2 / len(given[2]))


def peak_bytes(loss: Loss, rule: GradientRule, batch: int, recompute: bool = False) -> int:
    """Bytes live at once in a client's step on a mini-batch, beyond its model: inputs, activations, gradients.

    On a GPU as its allocator counts, else by counting the tensors that torch makes. The tensors made and freed in a
    step on 2 and on 3 samples give it for any number of them, where each tensor's size is so many bytes and so many
    more for every sample; where the two steps do not make the same tensors in the same order, the whole mini-batch is
    computed. Chunked computation uses the full batch's chunk count (`Split.as_for`); the account may then be too
    large by a part of one chunk.

    Args:
        recompute: keep the inputs of the problem's `blocks` alone, and compute each anew in the backward pass (gradient
            checkpointing: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016).
    """
    problem = loss.problem
    if torch.device(problem.device).type == "cuda":
        from zofl_mpi.engine.device import allocated

        given = _given(loss, batch)
        return _bytes(given[2]) + int(allocated(problem.device, lambda: _trial(loss, rule, *given, recompute)))
    with problem.as_for(batch):
        two, three = (_allocations(loss, rule, count, recompute) for count in (2, 3))
    peak = None if batch < 2 else _peak(two.events, three.events, batch)
    own = _bytes(_given(loss, 1)[2]) * batch
    return own + (_allocations(loss, rule, batch, recompute).peak if peak is None else peak)


def _given(loss: Loss, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """theta, its buffers, inputs and labels."""
    theta, buffers = (t.to(loss.problem.device) for t in loss.flat.initial())
    return theta, buffers, *loss.problem.example(batch)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _allocations(loss: Loss, rule: GradientRule, batch: int, recompute: bool = False) -> Allocations:
    """The tensors that a step on `batch` samples makes, as it is computed."""
    given, counted = _given(loss, batch), Allocations()
    with counted:
        _trial(loss, rule, *given, recompute)
    return counted


def _peak(two: list[tuple[int, int]], three: list[tuple[int, int]], batch: int) -> int | None:
    """The most bytes live at once with `batch` samples, from the events with 2 and 3; None where they do not match."""
    if [(k, size > 0) for k, size in two] != [(k, size > 0) for k, size in three]:
        return None
    sizes = (a + (b - a) * (batch - 2) for (_, a), (_, b) in zip(two, three, strict=True))
    return max(itertools.accumulate(sizes), default=0)


def _trial(
    loss: Loss,
    rule: GradientRule,
    theta: Tensor,
    buffers: Tensor,
    x: Tensor,
    labels: Tensor,
    recompute: bool = False,
) -> None:
    """A step's passes, as the rule takes them."""
    with loss.flat.at(theta, buffers), recomputing(loss.problem.blocks if recompute else ()):
        rule.trial(loss, theta, rule.inputs(x), labels)


@contextmanager
def recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Context manager: a graph keeps the inputs of each block alone, and a backward pass computes the block anew.

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
