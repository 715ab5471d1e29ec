"""Shared parts of all `Clients` implementations: order of items, one open question at a time."""

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.batching import batched
from zofl_mpi.engine.clients import Client, Failure, Participants, Step, failure, step_of
from zofl_mpi.engine.fields import check_finite, without_warnings
from zofl_mpi.engine.ledger import REDUCED, SERVER, Clock, Costs, Ledger, Row
from zofl_mpi.engine.ownership import Shared, own_memory
from zofl_mpi.engine.reduction import Reduction, whole
from zofl_mpi.engine.watch import Watch
from zofl_mpi.run.loop.client_memory import STEPS


class Item(NamedTuple):
    """An item of client i: an upload or the reply, or a failure in place of either."""

    i: int
    last: bool
    content: Any
    failed: Failure | None
    exc: BaseException | None = None  # of the failed step in this process: a debugger finds the user's frames by it


def round_robin(
    step: Step,
    clients: Mapping[int, Client],
    inbox: Mapping[int, Any],
    clock: Clock,
    name: str,
    most: int = 1,
    check: Callable[[], None] = lambda: None,
    take: Callable[[int, Any], Any] = whole,
) -> Iterator[Item]:
    """Yield the items of one process's clients, in turn: the q-th of each in the order of `inbox`, then q + 1.

    Ends at the first failure. Running one client to its end first would change the order, and deadlock where buffers
    are bounded. `most`: clients of a batch, see `batched`. `check`: called when the last of them has ended. `take`
    returns what the server reads of a reply, (i, reply).
    """
    step, shared = batched(step, clients, inbox, inbox, most), Shared(inbox.values(), f"step {name!r}")
    live = {i: _items(step, clients[i], inbox[i]) for i in inbox}
    q = 0
    while live:
        for i in list(live):
            try:
                with clock.time(name, "compute"), without_warnings():
                    last, content = next(live[i])
                    content = take(i, content) if last else content
                messages.size(content)  # refuses anything but a message here, where the client is known
                check_finite(content)
                if last:
                    own_memory(clients[i].memory, inbox[i])
                    if len(live) == 1:
                        shared.check()
                        check()
            except KeyboardInterrupt:
                raise
            except BaseException as exc:  # SystemExit too: the server must be informed
                yield Item(i, True, None, failure(q, exc), exc)
                return
            if last:
                del live[i]
            yield Item(i, last, content, None)
        q += 1


def _items(step: Step, client: Client, message: Any) -> Iterator[tuple[bool, Any]]:
    """Yield a step's items as (last, item): its uploads, then its reply."""
    result = step(client, message)
    while inspect.isgenerator(result):
        try:
            upload = next(result)
        except StopIteration as stop:
            result = stop.value
            break
        yield False, upload
    yield True, result


@final
class Questions:
    """The server's questions, one at a time, with their ledger and clock."""

    def __init__(self, m: int, method: Any, watch: Watch) -> None:
        self._method, self._watch = method, watch
        self.ledger, self.clock = Ledger(m), Clock()
        self._watch.clock = self.clock
        self._step_of = functools.cache(functools.partial(step_of, method))  # takes up to 0.1 ms
        self.question: str | None = None  # name of the open question's step
        self._since = time.perf_counter()

    def open(self, step: Step) -> str:
        """Open a question and return its name; TypeError: no step of the method; RuntimeError: another one is open."""
        name = step.__name__
        if self._method is not None and name not in STEPS:
            known = self._step_of(name)
            if known is None or getattr(step, "__self__", None) is not getattr(known, "__self__", self):
                raise TypeError(
                    f"step {name!r} is no method of the running method or of its parts: client ranks know its steps by "
                    "name only"
                )
        self.check_closed(f"step {name!r} was asked")
        self.question = name
        if name not in STEPS:
            self.ledger.open(name)
        return name

    def book(self, into: Reduction, sizes: Mapping[int, int]) -> None:
        """Count the reduced parts of replies, {client: bytes} (TypeError: some are missing)."""
        for i in sorted(sizes) if into.counted else ():
            self.ledger.received(REDUCED, i, sizes[i], items=0)
        into.check(sizes)

    def close(self) -> None:
        """Close the question after its last item or a failure."""
        self.question = None

    def check_closed(self, event: str) -> None:
        """Refuse an event, such as the end of a round, while a question is open; RuntimeError."""
        if self.question is not None:
            raise RuntimeError(f"{event} while replies to {self.question!r} are unread: read every item of it first")

    def account(self) -> Costs:
        """(1,) this rank's costs of a round; time outside waiting and sending counts as the server's computing."""
        now = time.perf_counter()
        costs = self.clock.report(self._watch.stop()).costs(self.ledger.steps)
        seconds = costs["seconds"][0]
        seconds[self.ledger.steps.index(SERVER), 0] += now - self._since - seconds[:, :3].sum()
        self._since = now
        return costs

    def row(self, costs: Costs, transport: NDArray[np.int64] | None = None) -> tuple[Row, bool]:
        """End a round, from the costs and the transport of all ranks; see `Clients.account`, `Ledger.row`."""
        self._watch.begins()
        return self.ledger.row(costs, transport), bool(costs["stops"].any())

    def restart(self) -> None:
        """Restart the round in progress."""
        self.question = None
        self.ledger.forget()
        self._watch.begins(following=False)


def participants(to: Participants, m: int) -> list[int]:
    """Clients of a question in reading order, ascending for None; ValueError: none, unknown or repeated."""
    chosen = list(range(m)) if to is None else [int(i) for i in to]
    if not chosen or min(chosen) < 0 or max(chosen) >= m or len(set(chosen)) < len(chosen):
        raise ValueError(f"a question goes to different clients from 0..{m - 1}, not to {chosen}")
    return chosen


def forget_scratch(clients: Mapping[int, Client], asked: set[int]) -> None:
    """Empty the scratch of a round's clients; lasting data belong in their memory."""
    for i in asked:
        clients[i].scratch.clear()
    asked.clear()


def received(block: messages.Bytes) -> Any:
    """Unpack a message for a client: read-only arrays, since a process's clients may share the bytes."""
    block.setflags(write=False)
    return messages.unpack(block)
