"""What a method is given: the problem, the streams of random numbers, and what the server holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.streams import Purpose, Streams

P = TypeVar("P", covariant=True, default=Any)
S = TypeVar("S")


@final
@dataclass(frozen=True)
class Setting(Generic[P]):
    """What a method is given, built alike on every rank from the configuration.

    Attributes:
        problem: one of the protocols of `zofl_mpi.problems`.
        streams: the run's random numbers.
        data: what each client holds, D_0, ..., D_{m-1}.
        server: what the server holds.
        test: held out from all.
        counts: (m, C) realised label counts; None where data have no labels.
        dtype: of all vectors.
        fingerprint: tells data sets apart; the same on every rank, and in a run and its continuation.
        eval_clients: how many clients an evaluation asks at most; 0: all.
        validation: held out from all besides, to choose by; None if nothing is.
    """

    problem: P
    streams: Streams
    data: tuple[Any, ...]
    server: Any = None
    test: Any = None
    counts: NDArray[np.int64] | None = None
    dtype: Any = np.float32
    fingerprint: str = ""
    eval_clients: int = 0
    validation: Any = None

    @property
    def m(self) -> int:
        """Number of clients."""
        return len(self.data)

    def eval_participants(self, r: int) -> list[int]:
        """The clients that the evaluation after round r asks, ascending: all, or `eval_clients` of them drawn anew."""
        if not 0 < self.eval_clients < self.m:
            return list(range(self.m))
        drawn = self.streams(Purpose.AUDIENCE, r=r).choice(self.m, size=self.eval_clients, replace=False)
        return sorted(drawn.tolist())


@final
@dataclass(frozen=True)
class Work:
    """The local steps that a method plans, from which a problem chooses its kernel.

    Attributes:
        batch: samples of a step.
        models: that take a step together, on the same samples; such a step counts once.
        steps: of all clients in all rounds together, on average over who takes part.
    """

    batch: int
    models: int
    steps: int


@final
class KernelChoice(NamedTuple):
    """The kernel that a problem takes for a run.

    Attributes:
        name: as --kernel would name it.
        reason: how it was chosen, for the result.
        fallback: the kernel to take where a rank cannot have it; "" where the run is then refused.
    """

    name: str
    reason: str = ""
    fallback: str = ""


@runtime_checkable
class ChoosesKernel(Protocol):
    """A problem whose steps several kernels compute, of which a run takes one, the same on all ranks."""

    def kernel_for(self, work: Work, data: Any, before: str = "") -> KernelChoice:
        """Chooses the kernel, at rank 0.

        Args:
            data: a client's, on which kernels may be tried.
            before: the kernel's name in the result that the run continues; "" for none.
        """

    def kernel_obstacle(self, name: str, work: Work, data: Any) -> str:
        """Why this rank may not compute by the kernel, tried on a client's data; "" where it may."""

    def with_kernel(self, name: str, work: Work) -> Any:
        """The problem computed by this kernel."""


@final
@dataclass(frozen=True)
class Loads:
    """The work that a method plans for each client, from which follows on which rank it computes (`run.mpi.homes`).

    Attributes:
        work: (m,) of a round in which the client takes part, in any unit, each at least 0.
        paced: whether the work goes up in items that the server meets in turn, the next ones of all clients before the
            second next of any: then ranks get equally many clients at any item, else as equal sums as can be.
    """

    work: Sequence[float]
    paced: bool = False


class Method(Protocol[S]):
    """A federated method: a frozen dataclass with a field `setting`, and the paper's parameters, which are flags.

    Its state is a frozen dataclass of tensors and numbers. All that a round changes is in the state or in
    `client.memory`. The state's numbers are recorded after every round, its tensors at the end of the run; units and
    meanings of both, and of what `evaluate` returns, stand on the fields (`run.fields.column`).

    A method may have besides: `kernel`, a property, the name of what computes its steps where several can, which round
    differently; `work(rounds)`, the `Work` that a problem with the flag --kernel auto asks for, or a part that has it;
    `loads()`, the `Loads` by which clients are placed on ranks, a function of the configuration, or a part that has it
    (without: i mod P); `plan(rounds)`, the lines of --dry-run, by description; `costs()`, what a step of a client
    costs, measured, by description: --dry-run prints it, and the result keeps it in the attribute `costs`; and
    `grows_with`, the flags by which the memory of a step grows beside `run.memory.GROWS`.
    """

    @property
    def setting(self) -> Setting[Any]: ...

    def start(self) -> S:
        """The state before round 0."""

    def round(self, state: S, r: int, clients: Clients) -> S:
        """The state after round r: the server's program."""

    def evaluate(self, state: S, r: int, clients: Clients) -> Any:
        """A dataclass of what is reported after round r; its fields are columns. Asks with counted=False."""
