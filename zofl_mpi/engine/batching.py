"""Batched steps: compute the requests of several clients' steps in one call.

A step is plain code, called for one client. A problem's `batched_clients` says for how many clients one call costs
about as much as for one (on a GPU). A rank runs the steps of that many clients as coroutines. Each runs until it
makes a `batched_call`. When all of them wait or have ended, their requests are computed together and each step
resumes with its own result. Methods and steps need not know: only one step runs at any time.

Bits must not depend on which clients share a rank. The result of a request must hence be bit-identical, whatever the
other requests are.
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
"""Clients of a batch where a problem states no number; with more, a step's data leave the caches before its turn."""

_THREAD = threading.local()  # `call` on the threads of coroutines


def batched_call(compute: Compute[Request, Result], request: Request) -> Result:
    """Result of the request: computed alone, or together with those of the other coroutines.

    `compute` gives results of requests, in their order; requests with an equal `compute` share a call.
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
    from zofl_mpi.engine.coroutines import run_batch  # 3 ms, which CPU ranks save

    waiting, ended = list(order), dict[int, Any]()

    def own(client: Any, message: Any) -> Any:
        return reduction.copy(step(client, message))  # before another step fills a buffer that this one returned

    def replied(client: Any, message: Any) -> Any:
        if client.i not in ended:
            group = waiting[:most]
            del waiting[:most]
            ended.update(zip(group, run_batch(own, [(clients[i], inbox[i]) for i in group], _THREAD), strict=True))
        return ended.pop(client.i).result()

    return replied
