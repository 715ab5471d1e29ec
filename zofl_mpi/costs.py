"""What a step of a split network costs its client: multiply-accumulates, and memory that is live at once."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from zofl_mpi.problems.split import Split


def macs(problem: Split) -> tuple[float, float, float]:
    """Multiply-accumulates of a forward pass of one sample: client, auxiliary, server. [C]'s "FLOPs" are these.

    Counted by torch: products and convolutions, half of its FLOPs.
    """
    x = torch.zeros(2, *problem.input_shape, dtype=getattr(torch, problem.dtype), device=problem.device)
    theta, buffers = (t.to(problem.device) for t in problem.local.initial())
    theta_s, buffers_s = (t.to(problem.device) for t in problem.top.initial())
    found = []
    with torch.no_grad(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
        for part in (problem.client, problem.auxiliary, problem.server):
            counter = FlopCounterMode(display=False)
            with counter:
                y = part(x)
            found.append(counter.get_total_flops() / 2 / len(x))
            x = y if part is problem.client else x
    return found[0], found[1], found[2]


def peak_bytes(problem: Split, batch: int, step: str) -> int:
    """Bytes live at once in a client's step on a mini-batch, beyond its model: inputs, activations, gradients.

    On a GPU as its allocator counts, else by counting the tensors that torch makes.

    Args:
        step: "forward" (a pass through client and auxiliary without a graph: HERON), "auxiliary" (forward and backward
            through both: CSE-FSL, FSL-SAGE) or "cut" (forward and backward through the client's part alone: SplitFed).
    """
    theta, buffers = (t.to(problem.device) for t in problem.local.initial())
    x = torch.zeros(batch, *problem.input_shape, dtype=getattr(torch, problem.dtype), device=problem.device)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    labels = torch.zeros(batch, dtype=torch.int64, device=problem.device)
    own = x.numel() * x.element_size()
    if torch.device(problem.device).type == "cuda":
        from zofl_mpi.run.device import allocated

        return own + int(allocated(problem.device, lambda: _pass(problem, theta, buffers, x, labels, step)))
    with Allocations() as counted:
        _pass(problem, theta, buffers, x, labels, step)
    return int(own + counted.peak)


def _pass(problem: Split, theta: Tensor, buffers: Tensor, x: Tensor, labels: Tensor, step: str) -> None:
    with problem.local.at(theta, buffers):
        if step == "forward":
            with torch.no_grad():
                problem.local_loss(problem.smash(x), labels)
            return
        smashed = problem.smash(x)
        if step == "auxiliary":
            problem.local.gradient(problem.local_loss(smashed, labels))
        else:
            slope = torch.zeros_like(smashed)  # what comes back
            problem.local.gradient(smashed, slope)


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that torch makes while this is entered, and the most of them at once.

    Attributes:
        live, peak: bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        found = func(*args, **(kwargs or {}))
        for t in tree_leaves(found):
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in before:
                self._count(t.untyped_storage())
        return found

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known[key] = weakref.finalize(storage, self._freed, key, storage.nbytes())
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)

    def _freed(self, key: int, size: int) -> None:
        del self._known[key]
        self.live -= size
