"""A split network as one part: for clients that hold all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, final

from zofl_mpi.problems import Split

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def whole(problem: Split) -> Split:
    """The problem whose client holds the server's part too: its `local` is of theta_c and theta_s, and its local loss
    is the server's. The auxiliary head plays no part.
    """
    return cast(Split, _Whole(problem))


@final
class _Whole:
    def __init__(self, problem: Split) -> None:
        self._problem = problem
        self.local = _Both(problem)
        self.n_client = self.local.n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return self._problem.server_loss(smashed, labels)


@final
class _Both:
    """The client's and the server's part as a function of theta (n_c + n_s,) and buffers (b_l + b_s,): a `Flat`."""

    def __init__(self, problem: Split) -> None:
        self._problem, self._n_client = problem, problem.n_client
        self.n = self._n_client + problem.top.n
        self.b = problem.local.b + problem.top.b
        self.modules = [*problem.local.modules, *problem.top.modules]
        self._theta = problem.placed(problem.local.initial()[0]).clone()  # with a head, which must lie somewhere

    def initial(self) -> tuple[Tensor, Tensor]:
        """(n,) and (b,) what the modules came with."""
        import torch

        (theta, buffers), (theta_s, buffers_s) = self._problem.local.initial(), self._problem.top.initial()
        return torch.cat([theta[: self._n_client], theta_s]), torch.cat([buffers, buffers_s])

    def sizes(self) -> list[int]:
        """Number of parameters at the client, and in its head: none."""
        return [self.n, 0]

    def places(self) -> dict[int, tuple[slice, torch.Size]]:
        """{id of a parameter: where it lies in theta, and its shape}."""
        n = self._n_client
        below, above = self._problem.local.places().items(), self._problem.top.places().items()
        own = {key: (span, shape) for key, (span, shape) in below if span.stop <= n}
        return own | {key: (slice(n + span.start, n + span.stop), shape) for key, (span, shape) in above}

    @contextmanager
    def at(self, theta: Tensor, buffers: Tensor | None = None, running: bool = False) -> Iterator[list[Any]]:
        """Context manager: see `problems.flat.Flat.at`."""
        problem, split = self._problem, self._n_client
        self._theta[:split] = theta[:split]
        b = problem.local.b
        own, top = (None, None) if buffers is None else (buffers[:b], buffers[b:])
        with problem.local.at(self._theta, own, running) as below, problem.top.at(theta[split:], top, running) as above:
            yield [*below, *above]
