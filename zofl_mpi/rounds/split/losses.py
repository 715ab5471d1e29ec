"""The losses of a client's step: its auxiliary head's, <lambda, s> along the server's answer, or the network's.

A loss is a function of the smashed samples and a target: the labels, or, where it is `answered`, lambda (B,
*smashed_shape), the gradient at the cut that the server returns. Its value () is summed in float64 where no gradient is
asked for. All have the network in its parts (`problem`), the modules whose parameters are theta (`flat`), and the
number of theta's first entries that travel (`travels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.problems import Split


@final
class HeadLoss:
    """The auxiliary head's loss, in theta_l = (theta_c, theta_a)."""

    answered = False

    def __init__(self, problem: Split, trained: bool = True) -> None:
        """`trained`: whether the head trains and travels."""
        self.problem, self.flat = problem, problem.local
        self.travels = problem.local.n if trained else problem.n_client
        self.each = problem.local_losses  # (smashed, labels) to (B,) each sample's contribution; None: it is not known

    def __call__(self, smashed: Tensor, target: Tensor) -> Tensor:
        """() the head's mean loss on the labels."""
        return self.problem.local_loss(smashed, target)


@final
class CutLoss:
    """<lambda, s>, whose gradient in theta_c continues the server's through the cut; the head plays no part."""

    answered = True

    def __init__(self, problem: Split) -> None:
        self.problem, self.flat, self.travels = problem, problem.local, problem.n_client

    def __call__(self, smashed: Tensor, target: Tensor) -> Tensor:
        """() sum_j <lambda_j, s_j> over the samples j."""
        return inner(target, smashed)

    def each(self, smashed: Tensor, target: Tensor) -> Tensor:
        """(B,) <lambda_j, s_j>."""
        return _products(target, smashed).flatten(1).sum(dim=1, dtype=torch.float64)


@final
class NetworkLoss:
    """The server's loss as a function of theta = (theta_c, theta_s), for clients that hold both parts."""

    answered = False

    def __init__(self, problem: Split) -> None:
        self.problem, self.flat = problem, Joined(problem)
        self.travels = self.flat.n

    def __call__(self, smashed: Tensor, target: Tensor) -> Tensor:
        """() the network's mean loss on the labels."""
        return self.problem.server_loss(smashed, target)


Loss = HeadLoss | CutLoss | NetworkLoss


@final
class Joined:
    """The client's and the server's part as a function of (theta_c, theta_s) and (b_l, b_s): a `Flat`."""

    def __init__(self, problem: Split) -> None:
        self._problem = problem
        self.n = problem.n_client + problem.top.n
        self.b = problem.local.b + problem.top.b
        self._local = problem.placed(problem.local.initial()[0]).clone()  # with a head, which must lie somewhere

    def initial(self) -> tuple[Tensor, Tensor]:
        """(n,) and (b,) what the modules came with."""
        (theta, buffers), (theta_s, buffers_s) = self._problem.local.initial(), self._problem.top.initial()
        return torch.cat([theta[: self._problem.n_client], theta_s]), torch.cat([buffers, buffers_s])

    @contextmanager
    def at(self, theta: Tensor, buffers: Tensor | None = None, running: bool = False) -> Iterator[list[Any]]:
        """Context manager: see `problems.flat.Flat.at`."""
        problem, n, b = self._problem, self._problem.n_client, self._problem.local.b
        self._local[:n] = theta[:n]
        client, server = (None, None) if buffers is None else (buffers[:b], buffers[b:])
        with problem.local.at(self._local, client, running) as below, problem.top.at(theta[n:], server, running) as top:
            yield [*below, *top]


def inner(slope: Tensor, smashed: Tensor) -> Tensor:
    """() <lambda, s>: sum_j <lambda_j, s_j> over the samples j; summed in float64 where no gradient is asked for."""
    product = _products(slope, smashed)
    return product.sum(dtype=None if product.requires_grad else torch.float64)


def _products(slope: Tensor, smashed: Tensor) -> Tensor:
    """(B, *smashed_shape) entry by entry, in float32 or better."""
    wide = torch.promote_types(smashed.dtype, torch.float32)
    return smashed.to(wide) * slope.to(wide)
