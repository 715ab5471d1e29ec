"""Caches of a run: values that can be recomputed."""

from collections.abc import Callable
from typing import Any, TypeVar, final

from zofl_mpi.engine.streams import Purpose, Streams

T = TypeVar("T")


@final
class RunContext:
    """Caches of a run in this process, by owner. A resumed run starts without them, hence no bit may depend on them."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._waiting: dict[tuple[Any, ...], Any] = {}

    def of(self, owner: Any) -> dict[str, Any]:
        """The entries of a part of the method; empty at first."""
        return self._kept.setdefault(id(owner), (owner, {}))[1]  # keeps the owner alive, so that its id stays unique

    def draw_once_for_both_ends(
        self, streams: Streams, purpose: Purpose, draw: Callable[..., T], *arguments: Any, r: int = 0, i: int = 0
    ) -> T:
        """draw(generator, *arguments), drawn once if both ends in this process ask for it in turn.

        As client and server, which draw the same direction. At most one value is kept, until the second end asks.
        """
        key = streams.seed, purpose, r, i, draw, arguments
        value = self._waiting.pop(key, None)
        if value is None:
            self._waiting.clear()
            value = self._waiting[key] = draw(streams(purpose, r=r, i=i), *arguments)
        return value  # type: ignore[no-any-return]
