"""Server steps on several uploads, shared among the server's ranks: means of each upload's result.

A method states the step as a function `begin(message)`, known by name as clients' steps are. It returns a function of
one upload, with a `PassResult`: tensors to average over the uploads, and a message for the upload's client. Means are
exact (`engine.mean`): bits do not depend on which rank computes which upload.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zofl_mpi.engine import mean
from zofl_mpi.engine.lazy import Tensor


class PassResult(NamedTuple):
    """Result of the server's pass on an upload.

    Attributes:
        terms: tensors, averaged over the uploads of the step.
        reply: message for the upload's client.
    """

    terms: tuple[Tensor, ...]
    reply: Any


UploadPass = Callable[[Any], PassResult]
Begin = Callable[[Any], UploadPass]


class SharedServerStep:
    """A server step on one rank, upload by upload; `ranks`: number of server ranks."""

    ranks = 1

    def begin(self, step: Begin, message: Any) -> None:
        """Begin a server step from the state in the message."""
        self._work, self._given = step(message), list[PassResult]()

    def add(self, item: Any) -> None:
        """Add the step's next upload."""
        self._given.append(self._work(item))

    def end(self) -> tuple[Sequence[Tensor], list[Any]]:
        """Means of the uploads' terms (of one upload the terms themselves), and each upload's reply, in order.

        FloatingPointError: a term is not finite; its argument is the upload's number.
        """
        terms, replies = zip(*self._given, strict=True)
        self._given = []
        return terms[0] if len(terms) == 1 else [mean.of_tensors(each) for each in zip(*terms, strict=True)], [*replies]
