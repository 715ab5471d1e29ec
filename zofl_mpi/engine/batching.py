"""Batched steps: the requests of several clients' steps are computed in one call.

A step is plain code, called for one client. Where a problem computes for many clients in about the time of one (on a
GPU) its `batched_clients` says for how many, and a rank runs the steps of that many as coroutines. A step runs
until it makes a `batched_call`; when all of them wait for one or have ended, their requests are computed together, and
each goes on with its own result. Methods and steps need not know: at any time at most one of the steps runs.

Bits must not depend on which clients share a rank: the result of a request must be the same, to the last bit, whatever
the other requests are.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from zofl_mpi.engine import reduction

Request = TypeVar("Request")
Result = TypeVar("Result")
Compute = Callable[[list[Request]], list[Result]]
Step = Callable[[Any, Any], Any]

BATCHED_CLIENTS = 64
"""Clients of a batch where a problem states no number: with more, a step's data have left the caches by its turn."""

_THREAD = threading.local()  # `call` on a thread that runs a step as a coroutine


def batched_call(compute: Compute[Request, Result], request: Request) -> Result:
    """Result of the request: computed alone, or in one call with those of the other steps that run as coroutines.

    Args:
        compute: results of requests, in their order; requests with an equal `compute` share a call.
    """
    call: Callable[[Compute[Request, Result], Request], Result] | None = getattr(_THREAD, "call", None)
    return compute([request])[0] if call is None else call(compute, request)


def batched(step: Step, clients: Mapping[int, Any], inbox: Mapping[int, Any], order: Iterable[int], most: int) -> Step:
    """Wraps a step: called for the first of `most` clients, it runs the steps of all of them in one batch.

    The replies are the same. A step that streams is returned unchanged, as is every step where `most` is 1.

    Args:
        clients, inbox: the clients and their messages, by i.
        order: in which the step will be called for the clients of `inbox`.
    """
    if most < 2 or len(inbox) < 2 or inspect.isgeneratorfunction(step):
        return step
    from zofl_mpi.engine.coroutines import run_batch  # 3 ms, which the ranks of a CPU do without

    waiting, ended = list(order), dict[int, Any]()

    def own(client: Any, message: Any) -> Any:
        return reduction.copy(step(client, message))  # before the next of them fills a buffer that it returned

    def replied(client: Any, message: Any) -> Any:
        if client.i not in ended:
            group = waiting[:most]
            del waiting[:most]
            ended.update(zip(group, run_batch(own, [(clients[i], inbox[i]) for i in group], _THREAD), strict=True))
        return ended.pop(client.i).result()

    return replied
