"""Runs many client steps as coroutines, threads of which one runs at a time, so that one batched call serves them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, final

Compute = Callable[[list[Any]], list[Any]]

_IDLE: list[SimpleQueue[Callable[[], None]]] = []
"""Threads that wait for a step: to start one anew takes as long as several clients' turns."""


class _Call(NamedTuple):
    """A batched call that a step waits for."""

    compute: Compute
    request: Any


class _Dropped(BaseException):
    """Ends a step whose result nobody will read."""


@final
class _Turns:
    """Steps that run one after the other: each wakes the next, the last one the thread that set them going."""

    def __init__(self) -> None:
        self._next: deque[Callable[[], None]] = deque()
        self._over: SimpleQueue[None] = SimpleQueue()

    def run(self, turns: Iterable[Callable[[], None]]) -> None:
        """Lets each of them, which wake a step, have its turn; returns when the last has stopped."""
        self._next.extend(turns)
        self.stop()
        try:
            self._over.get()
        except BaseException:  # a signal: whose turn it is may stop, nobody follows
            self._next.clear()
            self._over.get()
            raise

    def stop(self) -> None:
        """The step whose turn it was waits, or has ended."""
        if self._next:
            self._next.popleft()()
        else:
            self._over.put(None)


@final
class _Coroutine:
    """A step that can wait.

    Attributes:
        asked: the call that it waits for; None before it has begun, while it runs, and after its end.
        end: its result or exception.
    """

    def __init__(self, turns: _Turns, here: threading.local, call: Callable[[], Any]) -> None:
        self.asked: _Call | None = None
        self.end: Future[Any] = Future()
        self._turns, self._here, self._call = turns, here, call
        self._answers: SimpleQueue[Future[Any]] = SimpleQueue()

    def start(self) -> None:
        """Wakes the step for the first time."""
        _thread().put(self._run)

    def resume(self, answer: Future[Any]) -> None:
        """Wakes the step where it waits."""
        self.asked = None
        self._answers.put(answer)

    def ask(self, compute: Compute, request: Any) -> Any:
        """Waits, on the step's own thread, for what `compute` makes of the request."""
        self.asked = _Call(compute, request)
        self._turns.stop()
        return self._answers.get().result()

    def _run(self) -> None:
        self._here.ask = self.ask
        try:
            self.end.set_result(self._call())
        except BaseException as exc:  # SystemExit too: it is raised again where the reply is met
            self.end.set_exception(exc)
        finally:
            self._here.ask = None
        self._turns.stop()


def run_batch(
    step: Callable[[Any, Any], Any], calls: Iterable[tuple[Any, Any]], here: threading.local
) -> list[Future[Any]]:
    """Runs a step for each client and message; returns their results or exceptions.

    Args:
        here: has on each of the threads `ask`(compute, request), which waits there for what `compute` makes of it.
    """
    turns = _Turns()
    steps = [_Coroutine(turns, here, partial(step, client, message)) for client, message in calls]
    try:
        turns.run(each.start for each in steps)
        while asked := [(each, each.asked) for each in steps if each.asked]:
            first = asked[0][1].compute
            same = [(each, own) for each, own in asked if own.compute == first]
            answers = _answers([own for _, own in same])
            turns.run(partial(each.resume, answer) for (each, _), answer in zip(same, answers, strict=True))
    except BaseException as exc:  # a signal: no thread may wait for ever
        dropped: Future[Any] = Future()
        dropped.set_exception(_Dropped(repr(exc)))
        while waiting := [each for each in steps if each.asked]:
            turns.run(partial(each.resume, dropped) for each in waiting)
        raise
    return [each.end for each in steps]


def _answers(asked: list[_Call]) -> list[Future[Any]]:
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
