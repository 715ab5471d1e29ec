"""Wrappers between a method and its clients: groups of flags that wrap `Clients`, and the step at the client."""

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
    """Base of a group of flags that changes what the server reads of its clients; a method does not know of it."""

    setting: Any
    protects: ClassVar[bool] = False
    """True if it is for the sake of what leaves a client."""
    unfit: ClassVar[str] = ""
    """What replies are that do not fit, in words."""

    @classmethod
    def fits(cls, kinds: Collection[type[Any]]) -> bool:
        """True if it can change something of a method whose replies are changes of these classes."""
        return True

    @property
    def active(self) -> bool:
        """True if it changes anything."""
        raise NotImplementedError

    @property
    def private(self) -> bool:
        """True if clients answer one question a round, by changes that are clipped, and nothing else leaves them."""
        return False

    @property
    def poisson(self) -> bool:
        """True if each client takes part by itself."""
        return False

    @property
    def reads_each(self) -> bool:
        """True if the server reads every reply by itself, and ranks add up nothing."""
        return False

    @property
    def reads_change(self) -> bool:
        """True if a client computes its reply's change, for which it holds the model that it got."""
        return False

    @property
    def vectors(self) -> int:
        """How many further vectors as long as the model a client holds."""
        return 0

    def check(self, method: Any) -> None:
        """Takes part in a run of this method (UserError: it does not fit)."""

    def wrapped(self, clients: Clients, method: Any) -> Clients:
        """The clients as the method sees them."""
        return clients

    def answering(self, step: Step) -> Step:
        """The step as it is taken at a client."""
        return step

    def adding(self, term: Any) -> Any:
        """The term of a `Clients.sum` as it is made of what clients send."""
        return term

    def as_sent(self, reply: Any) -> Any:
        """A reply, for an example, as a client sends it."""
        return reply

    def saved(self, reply: Any) -> int:
        """By how many bytes what travels of a reply in a federation is smaller than the reply."""
        return 0

    def derived_flags(self, rounds: int, before: int) -> Mapping[str, Any]:
        """{flag: value} that follow from the planned rounds, such as fewer `rounds`. Asked at rank 0.

        Args:
            before: number of rounds of the run that is continued, or 0.
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
    """A method's step as it is taken at a client."""
    return functools.reduce(lambda inner, each: each.answering(inner), between(method), step)


def adding(method: Any, term: Any) -> Any:
    """A term of a `Clients.sum`, known by its name, as it is made of what clients send."""
    return functools.reduce(lambda inner, each: each.adding(inner), between(method), term)


def bytes_up(method: Any, reply: Any) -> int:
    """Bytes of a reply that the ledger counts."""
    return messages.size(reply) - sum(each.saved(reply) for each in between(method))


def sent(method: Any, reply: Any) -> Any:
    """A reply, for an example, as a client sends it."""
    return functools.reduce(lambda made, each: each.as_sent(made), between(method), reply)


def vectors_between(method: Any, holds_x: bool) -> int:
    """Vectors that a client holds in a step for what is between, beside the method's own, of which the model is one."""
    active = list(between(method))
    return sum(each.vectors for each in active) + (not holds_x and any(each.reads_change for each in active))
