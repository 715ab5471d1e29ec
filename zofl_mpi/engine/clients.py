"""Interface through which a method asks its clients.

A method's server program asks: `clients.ask(self.solve, message, to=S)` runs the method's own function
`solve(client, message) -> reply` for each client of S and yields `(i, reply)` in the order of S. A step that is a
generator streams: each `yield` is one upload, its `return` the reply. The server reads the items in the order (q, i):
the q-th item of every client that has not yet returned, then q + 1. That order, and hence every bit of the result, is
the same for any number of processes. A reply ends its step: what the server wants the mean of alone goes with it, as a
reduced part (`engine.reduction`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, final

from zofl_mpi.engine import mean, memory
from zofl_mpi.engine.fields import parts_of
from zofl_mpi.engine.ledger import Ledger, Row
from zofl_mpi.engine.ownership import Shared
from zofl_mpi.engine.reduction import Reduction
from zofl_mpi.engine.sharing import SharedServerStep
from zofl_mpi.errors import UserError

T = TypeVar("T")
Participants = Iterable[int] | None  # of a question; None: all clients
Weights = Mapping[int, float] | None  # of a mean; None: equal ones
Booked = Mapping[int, int] | None  # {i: bytes down}; None: those of the message
Replies = Iterator[tuple[int, Any]]  # (i, item)
Step = Callable[["Client", Any], Any]
"""A bound method of the running method, or of one of its parts (dataclass fields of it): (client, message) -> reply, or
a generator of uploads returning its reply. Ranks know it by its __name__."""


@final
@dataclass
class Client:
    """One client, as its steps see it.

    Attributes:
        i: 0..m-1, the only identity a client has; ranks are invisible.
        data: its own, fixed for the run.
        memory: arrays, tensors, numbers, strings by name, kept between questions; checkpointed.
        scratch: objects that cannot travel (a graph, a generator); emptied after each round.
    """

    i: int
    data: Any
    memory: dict[str, Any] = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict, repr=False)


class ClientError(Exception):
    """A client's step failed. The run cannot go on: other clients may have run ahead, their memories are undefined.

    `trace` and `short` are those of its `Failure`, `sentence` too; `i`, `rank` and `step` say where.
    """

    def __init__(self, i: int, rank: int, step: str, failure: Failure) -> None:
        self.i, self.rank, self.step, self.sentence = i, rank, step, failure.sentence
        super().__init__(f"client {i} (rank {rank}) failed in step {step!r}, item {failure.item}: {failure.sentence}")
        self.trace, self.short = failure.trace, failure.short


class Clients(Protocol):
    """The m clients of a run, wherever they are.

    Attributes:
        ledger: bytes and messages so far in this round.
        survives: True if the run survives lost ranks (--survive); a round may then be repeated.
        lost: the ranks that were lost, loss by loss.
        sharing: the server's ranks, which share its steps.
    """

    m: int
    ledger: Ledger
    sharing: SharedServerStep
    survives: bool
    lost: list[list[int]]

    def ask(
        self,
        step: Step,
        message: Any,
        *,
        to: Participants = None,
        counted: bool = True,
        booked: Booked = None,
        into: Reduction | None = None,
    ) -> Replies:
        """Sends one message to the clients `to` (None: all) at once; yields (i, item) as read.

        A rank with several clients computes them in the order of `to`, so any but the ascending one may let ranks wait.
        The server's computing before it reads overlaps with the clients'. The question is open until the iterator is
        exhausted. With counted=False the bytes do not enter the ledger (evaluation). `booked` has the bytes down that
        the ledger counts for each participant in place of the message's, where a rank needs what a client of a
        federation makes of less. Into `into` go the reduced parts of replies, of which the items have the rest.

        Raises:
            ClientError: in place of the item of the client whose step failed.
            RuntimeError: another question is open.
        """

    def ask_each(
        self, step: Step, each: Mapping[int, Any], *, counted: bool = True, into: Reduction | None = None
    ) -> Replies:
        """Like `ask`, with a different message for each participant, in the order of `each`."""

    def mean(
        self,
        step: Step,
        message: Any,
        *,
        to: Participants = None,
        weights: Weights = None,
        counted: bool = True,
        booked: Booked = None,
        nobody: Any = None,
    ) -> Any:
        """The weighted mean of the participants' replies, field by field; exact in any order (`engine.mean`).

        Of a field without a mean (`messages.EACH`) the result has {client: value}. `nobody` is the reply that changes
        nothing, for rounds in which nobody takes part (--participation poisson).

        Raises:
            TypeError: a step that streams, or a reply with a field that has no mean.
            ClientError: a step failed, or its reply is not finite.
        """

    def sum(
        self,
        step: Step,
        message: Any,
        term: Callable[..., Any],
        *,
        to: Participants = None,
        booked: Booked = None,
        stretch: float | None = None,
        nobody: Any = None,
    ) -> Callable[[], Any]:
        """Asks; the result, when called, reads the replies and gives the sum of the vectors term(i, message, reply).

        The sum is exact in any order: with many participants their ranks do this work of the server's. `term`, a method
        of the running method, depends on nothing else and returns a new array. The ledger counts replies. A term is at
        most `stretch` times as long as the change that the reply declares, which noise depends on; `nobody` is the sum
        of a round in which nobody takes part. TypeError: a step that streams.
        """
        mean.refuse_stream(step, "sum")
        own = mean.Sum(m=self.m, term=lambda i, reply: term(i, message, reply))
        replies, shared = self.ask(step, message, to=to, booked=booked), Shared([message, message], "the server")

        def read() -> Any:
            for i, reply in replies:
                own.add(i, reply)
            shared.check()  # ranks that add up their own terms then have the term as it was sent
            return mean.local_mean(own)

        return read

    def holders(self) -> list[int]:
        """The clients whose memory holds something, ascending."""

    def account(self) -> tuple[Row, bool]:
        """End a round; return its costs, and whether a signal asked some rank to stop."""

    def retry_on_rank_loss(self, work: Callable[[], T]) -> T:
        """Result of `work`, repeated after each loss of ranks; UserError if no client rank is left.

        The clients' memories are then as at the last `account`, and the ledger is empty.
        """
        return work()

    def give_up(self) -> bool:
        """After a failure: lets all ranks come to the end of an open question; returns whether `close` can follow."""
        return True

    def close(self, status: int = 0) -> None:
        """Ends all client ranks normally, with this exit status; raises RuntimeError while a question is open."""


@final
@dataclass(frozen=True)
class Failure:
    """Exception of a step, sent to the server in place of an item."""

    item: int
    sentence: str
    trace: str  # "" where the message suffices (a UserError in the step, no memory)
    short: bool = False  # True if memory ran out


def failure(item: int, exc: BaseException) -> Failure:
    """Failure of a step as an error message; with a traceback, except for a UserError or missing memory."""
    if isinstance(exc, UserError):
        return Failure(item, str(exc), "")
    sentence = memory.shortage(exc)
    if sentence:
        return Failure(item, sentence, "", short=True)
    return Failure(item, f"{type(exc).__name__}: {exc}", traceback.format_exc())


def step_of(method: Any, name: str) -> Step | None:
    """The step of that name, of the method or of the first of its parts that has it; None: no such step."""
    steps = (getattr(part, name, None) for part in parts_of(method))
    return next((step for step in steps if callable(step)), None)
