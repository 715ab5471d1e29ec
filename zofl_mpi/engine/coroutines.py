"""Run many client steps as coroutines: threads of which one runs at a time, so that one batched call serves all."""

import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, final

Step = Callable[[Any, Any], Any]  # (client, message) -> reply
Compute = Callable[[list[Any]], list[Any]]
Answer = tuple[Any, BaseException | None]  # a request's result, or an exception

THREADS = ThreadPoolExecutor(sys.maxsize, "client-step")
"""Keeps idle threads: starting one takes as long as several clients' turns."""


class _Dropped(BaseException):
    """Ends a step whose result is no longer needed."""


@final
class _Coroutine:
    """A step on a thread of its own; it runs only while `start` or `resume` waits for it."""

    def __init__(self) -> None:
        self.call: tuple[Compute, Any] | None = None  # the pending call (compute, request)
        self.end: Future[Any] = Future()  # its result or exception
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._stopped: SimpleQueue[None] = SimpleQueue()

    def start(self, step: Step, client: Any, message: Any, local: threading.local) -> None:
        """Runs the step until its first call or its end."""
        self.end = THREADS.submit(self._run, step, client, message, local)
        self._wait()

    def resume(self, answer: Answer) -> None:
        """Runs the step on until its next call or its end."""
        self.call = None
        self._answers.put(answer)
        self._wait()

    def _wait(self) -> None:
        try:
            self._stopped.get()
        except BaseException:  # a signal: the step goes on until it stops
            self._stopped.get()
            raise

    def _run(self, step: Step, client: Any, message: Any, local: threading.local) -> Any:
        local.call = self._batched_call
        try:
            return step(client, message)
        finally:
            local.call = None
            self._stopped.put(None)

    def _batched_call(self, compute: Compute, request: Any) -> Any:
        """Waits, on the step's own thread, for the result of its request."""
        self.call = compute, request
        self._stopped.put(None)
        result, exc = self._answers.get()
        if exc is not None:
            raise exc
        return result


def run_batch(step: Step, calls: Iterable[tuple[Any, Any]], local: threading.local) -> list[Future[Any]]:
    """Run a step for each client and message; return their results or exceptions.

    On each step's thread `local` gets a function `call`(compute, request) that waits for the request's result.
    """
    steps: list[_Coroutine] = []
    try:
        for client, message in calls:
            steps.append(_Coroutine())
            steps[-1].start(step, client, message, local)
        while waiting := [(each, *each.call) for each in steps if each.call]:
            compute = waiting[0][1]
            same = [(each, request) for each, wanted, request in waiting if wanted == compute]
            try:
                answers: list[Answer] = [(result, None) for result in compute([request for _, request in same])]
            except Exception as exc:  # every waiting request gets the exception
                answers = [(None, exc)] * len(same)
            for (each, _), answer in zip(same, answers, strict=True):
                each.resume(answer)
    except BaseException as exc:  # a signal: no thread may wait forever
        while dropped := [each for each in steps if each.call]:
            for each in dropped:
                each.resume((None, _Dropped(repr(exc))))
        raise
    return [each.end for each in steps]
