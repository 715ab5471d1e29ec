"""All clients in this process: the reference for every other transport."""

import functools
from collections.abc import Mapping
from typing import Any, final

from zofl_mpi.engine import mean, messages
from zofl_mpi.engine.between import answering, bytes_up
from zofl_mpi.engine.clients import Booked, Client, ClientError, Clients, Participants, Replies, Step, Weights, failure
from zofl_mpi.engine.ledger import REDUCED, Row
from zofl_mpi.engine.reduction import Reduction, whole
from zofl_mpi.engine.roles import program_of
from zofl_mpi.engine.sharing import SharedServerStep
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.loop.questions import Questions, forget_scratch, participants, round_robin


@final
class LocalClients(Clients):
    """All clients in this process, one after another: the reference for every other transport."""

    def __init__(self, data: list[Any], method: Any = None, watch: Watch | None = None) -> None:
        self.m, self.survives, self.lost = len(data), False, list[list[int]]()
        self.sharing = SharedServerStep()
        self._questions = Questions(self.m, method, watch or Watch())
        self.ledger = self._questions.ledger
        self._clients = {i: Client(i, d) for i, d in enumerate(data)}
        self._asked: set[int] = set()  # in this round: other clients have no scratch
        self._batched = program_of(method).backend.batched_clients
        self._answering = functools.partial(answering, method)
        self._bytes_up = functools.partial(bytes_up, method)

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
        items = self._ask(step, dict.fromkeys(participants(to, self.m), message), counted, booked, into)
        return ((i, messages.copy(item)) for i, item in items)  # which clients may overwrite; the server keeps them

    def ask_each(
        self, step: Step, each: Mapping[int, Any], *, counted: bool = True, into: Reduction | None = None
    ) -> Replies:
        items = self._ask(step, {i: each[i] for i in participants(each, self.m)}, counted, into=into)
        return ((i, messages.copy(item)) for i, item in items)

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
        mean.refuse_stream(step)
        to = sorted(participants(to, self.m))
        shares = mean.normalised(to, weights)
        replies = mean.Contribution()
        for i, reply in self._ask(step, dict.fromkeys(to, message), counted, booked):
            try:
                replies.add(i, reply, shares[i], i == to[0])
            except Exception as exc:
                self._questions.close()
                raise ClientError(i, 0, step.__name__, failure(0, exc)) from exc
        return mean.local_mean(replies)

    def holders(self) -> list[int]:
        return [i for i, client in self._clients.items() if client.memory]

    def account(self) -> tuple[Row, bool]:
        self._questions.check_closed("the round ended")
        forget_scratch(self._clients, self._asked)
        return self._questions.row(self._questions.account())

    def give_up(self) -> bool:
        self._questions.close()
        return True

    def close(self, status: int = 0) -> None:
        self._questions.check_closed("the run ended")

    def _ask(
        self, step: Step, each: dict[int, Any], counted: bool, booked: Booked = None, into: Reduction | None = None
    ) -> Replies:
        different = {id(message): message for message in each.values()}
        packed = {key: messages.copy(message, writable=False) for key, message in different.items()}
        inbox = {i: packed[id(message)] for i, message in each.items()}  # read-only: one copy may serve many
        name = self._questions.open(step)
        self._asked.update(each)
        if counted:
            sizes = {key: messages.size(message) for key, message in different.items()}
            for i, message in each.items():
                self.ledger.sent(name, i, booked[i] if booked else sizes[id(message)])
        if into is not None:
            into.begin(1, self._reduced, counted)
        return self._replies(step, name, inbox, counted, into)

    def _reduced(self, into: Reduction) -> Any:
        """The mean of the reduced parts of replies."""
        self._questions.check_closed("a mean of replies was read")
        self.ledger.open(REDUCED)
        self._questions.book(into, into.adder.own.sizes)
        return mean.local_mean(into.adder.own)

    def _replies(self, step: Step, name: str, inbox: dict[int, Any], counted: bool, into: Reduction | None) -> Replies:
        """Yields the items as the clients made them, without copies."""
        taken = self._answering(step) if counted else step
        take = whole if into is None else functools.partial(into.adder.take, size=self._bytes_up)
        clock, most = self._questions.clock, self._batched
        for item in round_robin(taken, self._clients, inbox, clock, name, most, take=take):
            if item.failed:
                self._questions.close()
                raise ClientError(item.i, 0, name, item.failed) from item.exc
            if counted:
                self.ledger.received(name, item.i, self._bytes_up(item.content))
            yield item.i, item.content
        self._questions.close()
