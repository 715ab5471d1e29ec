"""Wrappers between a method and its clients: groups of flags that change what the server reads."""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Clients, Step
from zofl_mpi.engine.roles import program_of

Trait = Literal["private", "poisson", "reads_each", "reads_change"]


@dataclass(frozen=True)
class Between:
    """Base of a group of flags that wraps a method's clients; the method does not know of it."""

    setting: Any
    protects: ClassVar[bool] = False
    """True if it protects what leaves a client."""
    unfit: ClassVar[str] = ""
    """Description of the replies that do not fit."""
    private: ClassVar[bool] = False
    """True if each client answers one question a round, with clipped changes and nothing else."""
    reads_each: ClassVar[bool] = False
    """True if the server reads every reply; ranks then add up nothing."""
    reads_change: ClassVar[bool] = False
    """True if a client computes its reply's change, for which it keeps the model that it received."""
    vectors: ClassVar[int] = 0
    """Further vectors of the model's length that a client holds."""

    @classmethod
    def fits(cls, kinds: Collection[type[Any]]) -> bool:
        """True if it can change a reply of one of these classes."""
        return True

    @property
    def active(self) -> bool:
        """True if it changes anything."""
        raise NotImplementedError

    @property
    def poisson(self) -> bool:
        """True if each client takes part independently (Poisson sampling)."""
        return False

    def check(self, method: Any) -> None:
        """Validate for a method; UserError if it does not fit."""

    def wrapped(self, clients: Clients, method: Any) -> Clients:
        """The clients as the method sees them."""
        return clients

    def answering(self, step: Step) -> Step:
        """Wrap a step, at the client."""
        return step

    def adding(self, term: Any) -> Any:
        """Wrap the term of a `Clients.sum`: it reads what clients send."""
        return term

    def as_sent(self, reply: Any) -> Any:
        """An example reply, as a client sends it."""
        return reply

    def saved(self, reply: Any) -> int:
        """Bytes by which a federation's message is smaller than the reply."""
        return 0

    def derived_flags(self, rounds: int, before: int) -> Mapping[str, Any]:
        """{flag: value} that follow from the planned rounds, such as fewer `rounds`. Asked at rank 0.

        `before`: number of rounds of the run that is continued, or 0.
        """
        return {}

    def columns(self, done: int, evaluated: bool) -> Any:
        """A dataclass of columns after `done` rounds, such as an account; None: none. Asked at rank 0."""
        return None

    def plan_lines(self, rounds: int) -> Mapping[str, Any]:
        """Lines of --dry-run."""
        return {}


def between(method: Any) -> Iterator[Between]:
    """Active wrappers of a method's clients, the innermost first."""
    return (each for each in program_of(method).between if each.active)


def composed(clients: Clients, method: Any) -> Clients:
    """The clients as the method sees them."""
    return functools.reduce(lambda inner, each: each.wrapped(inner, method), between(method), clients)


def answering(method: Any, step: Step) -> Step:
    """A method's step with all active wrappers, as a client runs it."""
    return functools.reduce(lambda inner, each: each.answering(inner), between(method), step)


def adding(method: Any, term: Any) -> Any:
    """A term of a `Clients.sum`, by name, with all active wrappers."""
    return functools.reduce(lambda inner, each: each.adding(inner), between(method), term)


def bytes_up(method: Any, reply: Any) -> int:
    """Bytes of a reply that the ledger counts."""
    return messages.size(reply) - sum(each.saved(reply) for each in between(method))


def sent(method: Any, reply: Any) -> Any:
    """An example reply, as a client sends it."""
    return functools.reduce(lambda made, each: each.as_sent(made), between(method), reply)


def vectors_between(method: Any, holds_x: bool) -> int:
    """Vectors that a client holds for the wrappers, beside the method's own; the model counts as one."""
    active = list(between(method))
    return sum(each.vectors for each in active) + (not holds_x and any(each.reads_change for each in active))
