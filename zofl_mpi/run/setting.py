"""What a method is given: the problem, the streams of random numbers, and what the server holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.run.clients import Clients
from zofl_mpi.run.streams import Streams

S = TypeVar("S")


@final
@dataclass(frozen=True)
class Setting:
    """Built alike on every rank from the configuration.

    Attributes:
        problem: one of the protocols of `zofl_mpi.problems`.
        streams: the run's random numbers.
        data: what each client holds, D_0, ..., D_{m-1}.
        server: what the server holds.
        test: held out from all.
        counts: (m, C) realised label counts; None where data have no labels.
        dtype: of all vectors.
        fingerprint: tells data sets apart; the same on every rank, and in a run and its continuation.
    """

    problem: Any
    streams: Streams
    data: tuple[Any, ...]
    server: Any = None
    test: Any = None
    counts: NDArray[np.int64] | None = None
    dtype: Any = np.float32
    fingerprint: str = ""

    @property
    def m(self) -> int:
        """Number of clients."""
        return len(self.data)


class Method(Protocol[S]):
    """A federated method: a frozen dataclass whose fields are `setting` and the paper's parameters.

    Its state is a frozen dataclass of tensors and numbers. All that a round changes is in the state or in
    `client.memory`. The state's numbers are recorded after every round, its tensors at the end of the run.
    """

    setting: Setting

    def start(self) -> S:
        """The state before round 0."""

    def round(self, state: S, r: int, clients: Clients) -> S:
        """The server's program of round r."""

    def evaluate(self, state: S, r: int, clients: Clients) -> dict[str, float]:
        """What is reported after round r, by column name. Asks with counted=False."""

    def columns(self) -> Mapping[str, tuple[str, str]]:
        """{column: (unit, what it is)} of all that `evaluate` and the state's numbers report."""

    def plan(self, rounds: int) -> dict[str, str | float]:
        """What is known before the run: "kernel", what computes the steps, and by description what it will cost."""


def numbers(state: Any) -> Iterator[tuple[str, float]]:
    """The number fields of a state."""
    for name, value in vars(state).items():
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            yield name, float(value)
