"""Caches of a run: values that could be computed again."""

from collections.abc import Callable
from typing import Any, TypeVar, final

from zofl_mpi.engine.streams import Purpose, Streams

T = TypeVar("T")


@final
class RunContext:
    """Caches of a run in this process, by their owner: lost when it is continued, so no bit depends on them."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._waiting: dict[tuple[Any, ...], Any] = {}

    def of(self, owner: Any) -> dict[str, Any]:
        """The entries of a part of the method, at first none."""
        return self._kept.setdefault(id(owner), (owner, {}))[1]  # which keeps the owner, and its id its own

    def draw_once_for_both_ends(
        self, streams: Streams, purpose: Purpose, draw: Callable[..., T], *arguments: Any, r: int = 0, i: int = 0
    ) -> T:
        """draw(generator, *arguments), drawn once where two callers in one process ask for it one after the other.

        As a client and the server, who draw the same direction. One such value at most is kept, until the second asks.
        """
        key = streams.seed, purpose, r, i, draw, arguments
        value = self._waiting.pop(key, None)
        if value is None:
            self._waiting.clear()
            value = self._waiting[key] = draw(streams(purpose, r=r, i=i), *arguments)
        return value  # type: ignore[no-any-return]
