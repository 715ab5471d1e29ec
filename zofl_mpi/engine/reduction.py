"""Replies with a reduced part: it is added up on the client's rank, and the server gets the exact mean alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from zofl_mpi.engine import messages
from zofl_mpi.engine.mean import Contribution, normalised

Sent = TypeVar("Sent")
Part = TypeVar("Part")


@final
@dataclass(frozen=True)
class Reply(Generic[Sent, Part]):
    """A step's reply of which one part is added up on the client's rank; see `Reduction`.

    Attributes:
        sent: a message that the server reads, as any reply.
        reduced: a message of which the server gets the mean of all clients.
    """

    sent: Sent
    reduced: Part


@final
class Reduction:
    """Weighted mean of the reduced parts of replies, to one question or to several of a round.

    `clients.ask(step, message, into=reduction)` asks for them, `mean()` gives the mean, with the bits of
    `Clients.mean`, once all replies are read. Each client of `to` replies with one reduced part.

    Args:
        to, weights: as `Clients.mean` has them, of all these questions.
    """

    def __init__(self, to: Iterable[int], weights: Mapping[int, float] | None = None) -> None:
        self.shares = normalised(sorted(to), weights)
        self.adder = Adder(min(self.shares), dict(self.shares))
        self.counted = True
        self._read: Callable[[Reduction], Any] | None = None
        self._untold = dict(self.shares)

    def begin(self, number: int, read: Callable[["Reduction"], Any], counted: bool) -> None:
        """Bind the clients that were asked: `read` gives the mean."""
        self.adder.number, self.counted, self._read = number, counted, read

    def mean(self) -> Any:
        """The mean, as a reduced part; all ranks add up theirs."""
        if self._read is None:
            raise RuntimeError("the mean of a Reduction was read before clients were asked into it")
        return self._read(self)

    def untold(self, to: Iterable[int]) -> dict[int, float]:
        """Shares of participants that the ranks do not know from an earlier question."""
        return {i: self._untold.pop(i) for i in to if i in self._untold}

    def check(self, replied: Iterable[int]) -> None:
        """Refuse a mean of fewer clients than it is to be of (TypeError)."""
        if missing := sorted(self.shares.keys() - set(replied)):
            raise TypeError(f"no reduced part came from {len(missing)} clients, of which the first is {missing[0]}")


@final
@dataclass
class Adder:
    """One process's part of a `Reduction`: the sum over its own clients."""

    first: int = 0  # participant of all
    shares: dict[int, float] = field(default_factory=dict)  # of the participants that were asked
    number: int = 0  # of the reduction in this run, from 1
    own: Contribution = field(default_factory=Contribution)

    def take(self, i: int, reply: Any, size: Callable[[Any], int]) -> Any:
        """Add the reduced part of client i's reply, if it has one; return what the server reads."""
        if not isinstance(reply, Reply):
            return reply
        if i not in self.shares or i in self.own.sizes:
            raise TypeError(f"a reduced part of client {i}, of whom none is left to come: one for each of `to`")
        self.own.sizes[i] = size(reply.reduced)  # refuses anything but a message
        self.own.add(i, reply.reduced, self.shares[i], i == self.first)
        return reply.sent


def whole(i: int, reply: Any) -> Any:
    """Client i's reply to a question that asks for no mean (TypeError: it has a reduced part)."""
    if isinstance(reply, Reply):
        raise TypeError("a reply with a reduced part needs clients.ask(..., into=Reduction(...)), which gives its mean")
    return reply


def copy(reply: Any) -> Any:
    """An independent copy of a step's reply, with its reduced part if it has one."""
    if isinstance(reply, Reply):
        return Reply(messages.copy(reply.sent), messages.copy(reply.reduced))
    return messages.copy(reply)
