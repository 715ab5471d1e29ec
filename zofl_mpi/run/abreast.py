"""Steps of several clients abreast: what each of them has to compute is computed for all of them in one call.

A step is plain code, called for one client. Where a problem computes for many clients in about the time of one (on a
GPU) its `abreast` says for how many, and a rank then runs the steps of so many clients at once: each on a thread of its
own, but never two at the same time. A step goes on until it comes to `together`, where it waits; when all of them wait
or have ended, what they wait for is computed in one call, and each goes on with its own result. So neither a method nor
its steps know of it, and two lines of two steps never run at the same time.

Bits must not depend on which clients share a rank: what `together` computes for a request must be the same, to the last
bit, whatever the other requests are.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar, final

Request = TypeVar("Request")
Result = TypeVar("Result")
Compute = Callable[[list[Request]], list[Result]]
Step = Callable[[Any, Any], Any]

MANY = 128
"""Clients, where a problem knows no better number: of more, a step's data are out of the caches when its turn comes."""

_HERE = threading.local()
"""`walk`: the `_Walk` whose step this thread runs, if any."""
_IDLE: list[SimpleQueue[Callable[[], None]]] = []
"""Threads that wait for a step: to start one anew takes as long as several clients' turns."""


def together(compute: Compute[Request, Result], request: Request) -> Result:
    """What `compute` makes of the request: alone, or among steps that run abreast in one call with what they ask of it.

    Args:
        compute: results of requests, in their order; bound methods of one object are one and the same.
    """
    walk: _Walk | None = getattr(_HERE, "walk", None)
    return compute([request])[0] if walk is None else walk.ask(compute, request)


def width(method: Any) -> int:
    """How many clients' steps of a method run at once: what its problem's `abreast` says, else one."""
    return int(getattr(getattr(getattr(method, "setting", None), "problem", None), "abreast", 1))


def abreast(step: Step, clients: Mapping[int, Any], inbox: Mapping[int, Any], order: Iterable[int], most: int) -> Step:
    """A step that replies as `step` does; with the first of `most` clients in turn it runs the steps of all of them.

    A step that streams remains as it is, and so does every step where `most` is 1.

    Args:
        clients: by their numbers i; inbox: what each is asked.
        order: in which the step will be called for the clients of `inbox`.
    """
    if most < 2 or len(inbox) < 2 or inspect.isgeneratorfunction(step):
        return step
    waiting, ended = list(order), dict[int, Future[Any]]()

    def replied(client: Any, message: Any) -> Any:
        if client.i not in ended:
            group = waiting[:most]
            del waiting[:most]
            ended.update(zip(group, _walked(step, [(clients[i], inbox[i]) for i in group]), strict=True))
        return ended.pop(client.i).result()

    return replied


class _Asked(NamedTuple):
    """What a step waits for."""

    compute: Compute[Any, Any]
    request: Any


class _Dropped(BaseException):
    """Ends a step whose result nobody will read."""


@final
class _Walk:
    """A step on its way: it runs only while `go` waits for it.

    Attributes:
        asked: what it waits for; None before it has begun and after its end.
        end: what it returned or raised.
    """

    def __init__(self, step: Step, client: Any, message: Any) -> None:
        self.asked: _Asked | None = None
        self.end: Future[Any] = Future()
        self._call = step, client, message
        self._answers: SimpleQueue[Future[Any]] = SimpleQueue()
        self._asks: SimpleQueue[_Asked | None] = SimpleQueue()

    def go(self, answer: Future[Any] | None = None) -> None:
        """Lets the step begin, or go on with an answer, until it asks again or ends."""
        if answer is None:
            _thread().put(self._run)
        else:
            self._answers.put(answer)
        self.asked = self._asks.get()

    def ask(self, compute: Compute[Request, Result], request: Request) -> Result:
        """Waits, on the step's own thread, for the result."""
        self._asks.put(_Asked(compute, request))
        return self._answers.get().result()  # type: ignore[no-any-return]

    def _run(self) -> None:
        step, client, message = self._call
        _HERE.walk = self
        try:
            self.end.set_result(step(client, message))
        except BaseException as exc:  # SystemExit too: it is raised again where the reply is met
            self.end.set_exception(exc)
        finally:
            _HERE.walk = None
        self._asks.put(None)


def _walked(step: Step, calls: Iterable[tuple[Any, Any]]) -> list[Future[Any]]:
    """What a step returned or raised for each client and message."""
    walks = [_Walk(step, client, message) for client, message in calls]
    try:
        for walk in walks:
            walk.go()
        while wanting := [walk for walk in walks if walk.asked]:
            first = wanting[0].asked
            same = [walk for walk in wanting if walk.asked and first and walk.asked.compute == first.compute]
            for walk, answer in zip(same, _answers([walk.asked for walk in same if walk.asked]), strict=True):
                walk.go(answer)
    except BaseException as exc:  # a signal: no thread may wait for ever
        dropped: Future[Any] = Future()
        dropped.set_exception(_Dropped(repr(exc)))
        for walk in walks:
            while walk.asked:
                walk.go(dropped)
        raise
    return [walk.end for walk in walks]


def _answers(asked: list[_Asked]) -> list[Future[Any]]:
    """The results of one call; where it raises, each request gets an exception of its own."""
    answers: list[Future[Any]] = [Future() for _ in asked]
    try:
        results = asked[0].compute([each.request for each in asked])
    except Exception as exc:
        for answer in answers:
            answer.set_exception(exc)
        return answers
    for answer, result in zip(answers, results, strict=True):
        answer.set_result(result)
    return answers


def _thread() -> SimpleQueue[Callable[[], None]]:
    """The queue of a thread that has nothing to do."""
    try:
        return _IDLE.pop()
    except IndexError:
        work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=_works, args=(work,), name="a client's step", daemon=True).start()
        return work


def _works(work: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()
        _IDLE.append(work)
