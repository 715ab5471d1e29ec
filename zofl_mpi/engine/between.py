"""What stands between a method and its clients: groups of flags that wrap `Clients`, and the step where it is taken."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from zofl_mpi.engine.clients import Clients, Step
from zofl_mpi.engine.roles import program_of

Trait = Literal["private", "poisson", "reads_each"]


@dataclass(frozen=True)
class Between:
    """Base of a group of flags that changes what the server reads of its clients; a method does not know of it."""

    setting: Any
    protects: ClassVar[bool] = False
    """Whether it is for the sake of what leaves a client."""

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        raise NotImplementedError

    @property
    def private(self) -> bool:
        """Whether clients answer one question a round, by changes that are clipped, and nothing else leaves them."""
        return False

    @property
    def poisson(self) -> bool:
        """Whether each client takes part by itself."""
        return False

    @property
    def reads_each(self) -> bool:
        """Whether the server reads every reply by itself, and ranks add up nothing."""
        return False

    def check(self, method: Any) -> None:
        """Takes part in a run of this method (UserError: it does not fit)."""

    def wrapped(self, clients: Clients, method: Any) -> Clients:
        """The clients as the method sees them."""
        raise NotImplementedError

    def answering(self, step: Step) -> Step:
        """The step as it is taken at a client."""
        return step

    def adding(self, term: Any) -> Any:
        """The term of a `Clients.sum` as it is made of what clients send."""
        return term

    def as_sent(self, reply: Any) -> Any:
        """A reply, for an example, as a client sends it."""
        return reply

    def derived_flags(self, rounds: int, before: int) -> Mapping[str, Any]:
        """See `setting.Budget`."""
        return {}

    def columns(self, done: int, evaluated: bool) -> Any:
        """See `setting.Budget`."""
        return None

    def plan_lines(self, rounds: int) -> Mapping[str, Any]:
        """Lines of --dry-run."""
        return {}


def between(method: Any) -> Iterator[Between]:
    """What is active between a method and its clients, the innermost first."""
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
