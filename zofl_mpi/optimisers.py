"""SGD and Adam on flat tensors, with their state in a dictionary that can travel and be kept."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, final

from zofl_mpi.errors import demand

Tensor = Any  # torch's, which is not imported here
Memory = MutableMapping[str, Any]


@final
@dataclass(frozen=True)
class Optimiser:
    """How an update follows from a gradient. Adam: Kingma, Ba, ICLR 2015; as torch.optim.Adam computes it.

    Attributes:
        optimiser: adam (betas 0.9, 0.999, eps 1e-8) or sgd.
        momentum: of sgd.
        weight_decay: added to the gradient times the parameters.
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        demand(0 <= self.momentum < 1, "momentum", self.momentum, "a number from 0 to below 1")
        demand(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "a number, at least 0")

    def step(self, theta: Tensor, g: Tensor, memory: Memory, lr: float) -> None:
        """theta (n,) moves in place by one step of size lr along g (n,); `memory` holds the moments between steps."""
        if self.weight_decay:
            g = g.add(theta, alpha=self.weight_decay)
        if self.optimiser == "sgd":
            theta.sub_(self._with_momentum(g, memory), alpha=lr)
            return
        if "first" not in memory:
            memory["first"], memory["second"], memory["t"] = g.new_zeros(g.shape), g.new_zeros(g.shape), 0
        for name in ("first", "second"):
            memory[name] = memory[name].to(theta.device)  # from a checkpoint they come to the host
        first, second = memory["first"], memory["second"]
        t = memory["t"] = int(memory["t"]) + 1
        first.lerp_(g, 1 - 0.9)
        second.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        root = second.sqrt().div_(math.sqrt(1 - 0.999**t)).add_(1e-8)
        theta.addcdiv_(first, root, value=-lr / (1 - 0.9**t))

    def _with_momentum(self, g: Tensor, memory: Memory) -> Tensor:
        if not self.momentum:
            return g
        kept = memory.get("first")
        memory["first"] = g.clone() if kept is None else kept.to(g.device).mul_(self.momentum).add_(g)
        return memory["first"]
