"""Base class of the wrappers of `Clients`."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from zofl_mpi import Clients, Step, UserError
from zofl_mpi.engine.clients import Replies
from zofl_mpi.engine.ledger import Row

T = TypeVar("T")


class Wrapped(Clients):
    """Clients that refuse questions to each; subclasses override how replies are averaged and added."""

    flag: str
    """The flag and its value that wrap them, for errors."""

    def __init__(self, inner: Clients, method: Any) -> None:
        self.inner, self.method = inner, method
        self.m, self.ledger, self.sharing, self.survives = inner.m, inner.ledger, inner.sharing, inner.survives
        self.lost = inner.lost

    def ask(self, step: Step, message: Any, *, counted: bool = True, **how: Any) -> Replies:
        self.refuse(counted, step, "clients.ask")
        return self.inner.ask(step, message, counted=counted, **how)

    def ask_each(self, step: Step, each: Mapping[int, Any], *, counted: bool = True, **how: Any) -> Replies:
        self.refuse(counted, step, "clients.ask_each")
        return self.inner.ask_each(step, each, counted=counted, **how)

    def holders(self) -> list[int]:
        return self.inner.holders()

    def account(self) -> tuple[Row, bool]:
        return self.inner.account()

    def retry_on_rank_loss(self, work: Callable[[], T]) -> T:
        return self.inner.retry_on_rank_loss(work)

    def give_up(self) -> bool:
        return self.inner.give_up()

    def close(self, status: int = 0) -> None:
        self.inner.close(status)

    def refuse(self, counted: bool, step: Step, verb: str) -> None:
        """Refuse a question whose replies declare no change."""
        if counted:
            name = f"{type(self.method).__name__} asks for step {step.__name__!r} by {verb}"
            raise UserError(
                f"{self.flag}: {name}; it needs clients.mean or clients.sum, of replies with fields declared by "
                "zofl_mpi.change"
            )
