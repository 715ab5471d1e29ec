"""A step of the server on several uploads, which the server's ranks share out: the mean of what each upload gives.

A method's part of it is a function `begin(message)`, known by name as the clients' steps are, that returns the function
of an upload: that gives tensors, of which the step takes the means over the uploads, and a message for the upload's
client. The means are exact (`engine.mean`), so the bits are the same whichever rank computes which upload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zofl_mpi.engine import mean
from zofl_mpi.engine.lazy import Tensor


class PassResult(NamedTuple):
    """What an upload gives: tensors, of whose means the step is made, and a message."""

    terms: tuple[Tensor, ...]
    reply: Any


Work = Callable[[Any], PassResult]
Begin = Callable[[Any], Work]


class SharedServerStep:
    """The ranks of the server, `ranks` in number; here it is one, which computes on each upload at once."""

    ranks = 1

    def begin(self, step: Begin, message: Any) -> None:
        """Begins a step of the server at the state that is in the message."""
        self._work, self._given = step(message), list[PassResult]()

    def add(self, item: Any) -> None:
        """Takes the step's next upload."""
        self._given.append(self._work(item))

    def end(self) -> tuple[Sequence[Tensor], list[Any]]:
        """The means of the uploads' terms, of a single upload the terms themselves; and each upload's reply, in order.

        FloatingPointError: a term is not finite; its argument is the number of the upload.
        """
        terms, replies = zip(*self._given, strict=True)
        self._given = []
        return terms[0] if len(terms) == 1 else [mean.of_tensors(each) for each in zip(*terms, strict=True)], [*replies]
