"""Optimisers on flat vectors, with their state in a dictionary that can be sent and stored.

Clients: SGD, Adam and two versions of AdamW, on torch tensors, along a gradient. Server: rules on NumPy arrays, along
the mean change of the clients' models.
"""

import math
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np

from zofl_mpi.arrays import Array
from zofl_mpi.engine.fields import UsedWith, above
from zofl_mpi.errors import demand

Tensor = Any  # torch's; torch is not imported here
Memory = MutableMapping[str, Any]


@final
@dataclass(frozen=True)
class Optimiser:
    """Parameter update by a gradient: SGD, Adam and AdamW as in torch.optim, or transformers' AdamW.

    Adam: Kingma, Ba, ICLR 2015. AdamW: Loshchilov, Hutter, ICLR 2019.

    Attributes:
        optimiser: adam (betas 0.9, 0.999, eps 1e-8); adamw (the same with decoupled decay); adamw_transformers (AdamW
            of transformers until version 4, used by the LoRA and SplitLoRA codes: eps 1e-6 is added before the bias
            correction, decay follows the step); sgd.
        momentum: momentum of sgd.
        weight_decay: weight decay. Times the parameters it is added to the gradient; both adamw instead shrink the
            parameters by it times the step size. Applies to all parameters, biases and norms too, as in DeComFL's code
            (MeZO's excludes these). fedkseed takes none, since its model is a sum of plain steps.
    """

    USED_WITH: ClassVar[UsedWith] = {"momentum": {"optimiser": ("sgd",)}}
    optimiser: Literal["adam", "adamw", "adamw_transformers", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        demand(0 <= self.momentum < 1, "momentum", self.momentum, "a number from 0 to below 1")
        demand(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "a number, at least 0")

    @property
    def _vectors(self) -> tuple[str, ...]:
        """Names of the moments that are vectors: first (of gradients), second (of their squares)."""
        if self.optimiser == "sgd":
            return ("first",) if self.momentum else ()
        return "first", "second"

    def memory(self, theta: Tensor) -> dict[str, Any]:
        """Initial moments, (n,) each, and Adam's step count."""
        zeros: dict[str, Any] = {name: theta.new_zeros(theta.shape) for name in self._vectors}
        return zeros if self.optimiser == "sgd" else {**zeros, "t": 0}

    def memory_bytes(self, n: int, itemsize: int) -> int:
        """Message bytes of the moments of n numbers."""
        return len(self._vectors) * n * itemsize + 8 * (self.optimiser != "sgd")

    def step_by_parts(self, theta: Tensor, estimate: Iterable[tuple[slice, Tensor]], memory: Memory, lr: float) -> None:
        """`step` along a gradient given as consecutive parts that cover theta."""
        if not memory:
            memory.update(self.memory(theta))
        vectors = {name: memory[name].to(theta.device) for name in self._vectors}
        memory.update(vectors)
        count = {name: memory[name] for name in ("t",) if name in memory}
        for part, g in estimate:
            of_part = {name: vector[part] for name, vector in vectors.items()} | count
            self.step(theta[part], g, of_part, lr)
        memory.update({name: of_part[name] for name in count})

    def step(self, theta: Tensor, g: Tensor, memory: Memory, lr: float) -> None:
        """Takes one step of size lr against the gradient g (n,), changing theta (n,) in place.

        Args:
            memory: the moments, changed in place; empty before the first step.
        """
        shrinking = 1 - lr * self.weight_decay
        if self.weight_decay and self.optimiser in ("adam", "sgd"):
            g = g.add(theta, alpha=self.weight_decay)
        elif self.optimiser == "adamw":
            theta.mul_(shrinking)
        if not memory:
            memory.update(self.memory(g))
        for name in self._vectors:
            memory[name] = memory[name].to(theta.device)  # checkpoints and messages deliver them to the host
        if self.optimiser == "sgd":
            theta.sub_(memory["first"].mul_(self.momentum).add_(g) if self.momentum else g, alpha=lr)
            return
        first, second = memory["first"], memory["second"]
        t = memory["t"] = float(memory["t"]) + 1  # a mean of clients' counts may be fractional
        first.lerp_(g, 1 - 0.9)
        second.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        size, corrected = lr / (1 - 0.9**t), math.sqrt(1 - 0.999**t)
        if self.optimiser == "adamw_transformers":
            theta.addcdiv_(first, second.sqrt().add_(1e-6), value=-size * corrected).mul_(shrinking)
        else:
            theta.addcdiv_(first, second.sqrt().div_(corrected).add_(1e-8), value=-size)


def copied(moments: Mapping[str, Any]) -> dict[str, Any]:
    """Deep copy of an optimiser's state."""
    return {k: v.clone() if hasattr(v, "clone") else v for k, v in moments.items()}


# --- the server's step along the mean change of the clients' models

BETA1, BETA2 = 0.9, 0.99  # as in the paper's experiments, in which Adagrad has no momentum


@final
@dataclass(frozen=True)
class ServerRule:
    """Server optimiser: a step from x along Delta, the mean change of the clients' models.

    Adaptive rules: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2, with initial v = tau^2 and
    no bias correction. momentum: FedAvgM, Hsu, Qi, Brown, arXiv:1909.06335.

    Attributes:
        server_rule: sgd: x + eta_g Delta; momentum: x + eta_g m, m <- 0.9 m + Delta; adagrad, adam, yogi: x + eta_g m /
            (sqrt(v) + tau_g), Adagrad with m = Delta, the others with m <- 0.9 m + 0.1 Delta and 0.99 for v. An
            adaptive rule moves each parameter by up to about eta_g a round: choose eta_g far below 1.
        tau_g: tau of adagrad, adam and yogi; smaller is more adaptive.
    """

    USED_WITH: ClassVar[UsedWith] = {"tau_g": {"server_rule": ("adagrad", "adam", "yogi")}}
    server_rule: Literal["sgd", "momentum", "adagrad", "adam", "yogi"] = "sgd"
    tau_g: float = above(0, 1e-3)

    def step(self, x: Array, y: Array, eta_g: float, moments: Mapping[str, Any]) -> tuple[Array, dict[str, Any]]:
        """Takes a step of size eta_g from x (n,) along y - x, y (n,) the mean model; returns x and the new moments.

        Args:
            moments: of the last step, not changed; {} before the first. (n,) float64: float32 squares would underflow.
        """
        rule = self.server_rule
        if rule == "sgd":
            return (y if eta_g == 1 else x + eta_g * (y.astype(np.float64) - x)), {}
        delta = y.astype(np.float64) - x
        if rule == "momentum":
            m = BETA1 * moments["m"] + delta if moments else delta
            return x + eta_g * m, {"m": m}
        v, square = moments.get("v", np.full(delta.shape, self.tau_g**2)), np.square(delta)
        if rule == "adagrad":
            v, m, kept = v + square, delta, {}
        else:
            m = BETA1 * moments.get("m", 0.0) + (1 - BETA1) * delta
            gap = square - v if rule == "adam" else square * np.sign(square - v)
            v, kept = v + (1 - BETA2) * gap, {"m": m}
        return x + eta_g * m / (np.sqrt(v) + self.tau_g), {**kept, "v": v}
