"""Runs many client steps as coroutines, threads of which one runs at a time, so that one batched call serves them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple, final

Compute = Callable[[list[Any]], list[Any]]
Answer = tuple[Any, BaseException | None]  # a request's result, or an exception

_IDLE: list[SimpleQueue[Callable[[], None]]] = []
"""Threads that wait for a step: to start one anew takes as long as several clients' turns."""


class _Call(NamedTuple):
    """A batched call that a step waits for."""

    compute: Compute
    request: Any


class _Dropped(BaseException):
    """Ends a step whose result nobody will read."""


@final
class _Coroutine:
    """A step on a thread of its own, which runs only while `start` or `resume` waits for it.

    Attributes:
        asked: the call that it waits for; None before it has begun, while it runs, and after its end.
        end: its result or exception.
    """

    def __init__(self, step: Callable[[Any, Any], Any], client: Any, message: Any, here: threading.local) -> None:
        self.asked: _Call | None = None
        self.end: Future[Any] = Future()
        self._step, self._client, self._message, self._here = step, client, message, here
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._stopped: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Runs the step until it asks for the first time, or ends."""
        _thread().put(self._run)
        self._wait()

    def resume(self, answer: Answer) -> None:
        """Runs the step on from where it waits, until it asks again or ends."""
        self.asked = None
        self._answers.put(answer)
        self._wait()

    def _wait(self) -> None:
        try:
            self._stopped.get()
        except BaseException:  # a signal: the step goes on until it stops
            self._stopped.get()
            raise

    def _ask(self, compute: Compute, request: Any) -> Any:
        """Waits, on the step's own thread, for the result of its request."""
        self.asked = _Call(compute, request)
        self._stopped.put(None)
        result, exc = self._answers.get()
        if exc is not None:
            raise exc
        return result

    def _run(self) -> None:
        self._here.ask = self._ask
        try:
            self.end.set_result(self._step(self._client, self._message))
        except BaseException as exc:  # SystemExit too: it is raised again where the reply is met
            self.end.set_exception(exc)
        finally:
            self._here.ask = None
            self._stopped.put(None)


def run_batch(
    step: Callable[[Any, Any], Any], calls: Iterable[tuple[Any, Any]], here: threading.local
) -> list[Future[Any]]:
    """Runs a step for each client and message; returns their results or exceptions.

    On each step's thread `here` gets `ask`(compute, request), which waits there for the request's result.
    """
    steps = [_Coroutine(step, client, message, here) for client, message in calls]
    try:
        for each in steps:
            each.start()
        while asked := [(each, each.asked) for each in steps if each.asked]:
            compute = asked[0][1].compute
            same = [(each, call.request) for each, call in asked if call.compute == compute]
            answers = _answers(compute, [request for _, request in same])
            for (each, _), answer in zip(same, answers, strict=True):
                each.resume(answer)
    except BaseException as exc:  # a signal: no thread may wait for ever
        while waiting := [each for each in steps if each.asked]:
            for each in waiting:
                each.resume((None, _Dropped(repr(exc))))
        raise
    return [each.end for each in steps]


def _answers(compute: Compute, requests: list[Any]) -> list[Answer]:
    """The results of one call; where it raises, each request gets its exception."""
    try:
        return [(result, None) for result in compute(requests)]
    except Exception as exc:
        return [(None, exc)] * len(requests)


def _thread() -> SimpleQueue[Callable[[], None]]:
    """The queue of an idle thread."""
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
