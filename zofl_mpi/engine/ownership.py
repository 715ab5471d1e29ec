"""Clients own what they receive and keep: messages stay unchanged, and memories share no array with them.

NumPy arrays of a message are read-only. Tensors cannot be, and `torch.from_numpy`, `Tensor.numpy` and `Tensor.data`
give writable views of either. A client on another rank has its own copy; in-place changes would make bits depend on
which clients share a rank.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.lazy import is_tensor
from zofl_mpi.errors import ChangedInPlace

WORDS = 512  # row length, in words of 8 bytes, of the table whose columns a checksum adds up
Span = tuple[int, int]  # addresses of an array's first byte and of the byte after its last


@final
class Shared:
    """Snapshot of messages with several readers in this process; `check` detects changes.

    Host arrays are checksummed before and after a question: faster than one copy, and without memory. GPU tensors are
    compared by torch's version counter, which misses changes through `data`.
    """

    def __init__(self, read: Iterable[Any], by: str) -> None:
        """Note `read`, a message for each reader; `by` names these, as "step 'train'"."""
        self._by, all_read = by, list(read)
        count = Counter(map(id, all_read))
        self._before = [(each, _noted(each)) for each in {id(m): m for m in all_read}.values() if count[id(each)] > 1]

    def check(self) -> None:
        """Raise ChangedInPlace if a message was changed."""
        for message, before in self._before:
            now = _noted(message)
            if now != before:
                names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
                raise ChangedInPlace(
                    f"{self._by} changed {type(message).__name__}.{names[0]}, which others read, too: work on a copy "
                    "(x = message.x.clone(), or .copy())"
                )


def own_memory(memory: dict[str, Any], message: Any) -> None:
    """Copy arrays of a client's memory that overlap its message or one another.

    Otherwise an in-place change would alter both, but not after a checkpoint in between.
    """
    if any(type(value) not in messages.EXACT for value in memory.values()):
        _own(memory, [span for _, value in messages.leaves(message) if (span := _span(value))])


def own_state(state: Any) -> Any:
    """The state, copied if two of its arrays share memory; a checkpoint stores them separately."""
    taken = list[Span]()
    for _, value in messages.leaves(state):
        span = _span(value)
        if span and _meets(span, taken):
            return messages.copy(state)
        taken += [span] if span else []
    return state


def _own(entries: dict[str, Any], taken: list[Span]) -> None:
    for name, value in entries.items():
        if isinstance(value, dict):
            _own(value, taken)
        elif span := _span(value):
            if _meets(span, taken):
                entries[name] = messages.duplicate(value)
            taken.append(span)


def _meets(span: Span, taken: list[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in taken)


def _span(value: Any) -> Span | None:
    """Address range of an array or tensor; None for other and for empty values."""
    if isinstance(value, np.ndarray):
        if value.flags.c_contiguous:  # byte_bounds takes five times as long
            start = value.__array_interface__["data"][0]
            return (start, start + value.nbytes) if value.nbytes else None
        return byte_bounds(value) if value.size else None
    if not is_tensor(value) or not value.numel():
        return None
    if value.is_contiguous():
        return value.data_ptr(), value.data_ptr() + value.nbytes
    storage = value.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _noted(message: Any) -> dict[str, Any]:
    """{path: mark that a change alters} of a message's leaves."""
    return {".".join(path): _mark(value) for path, value in messages.leaves(message)}


def _mark(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return id(value), checksum(value)
    if not is_tensor(value):
        return value if value == value else "nan"
    changes = 0 if value.is_inference() else value._version
    return id(value), changes, None if messages.is_remote(value) else checksum(messages.as_array(value))


def checksum(array: NDArray[Any] | None) -> int:
    """Checksum that detects all changes but some permutations, as fast as reading the bytes."""
    assert array is not None
    data = array.reshape(-1).view(np.uint8)
    row = 8 * WORDS
    whole = len(data) // row * row
    sums = data[:whole].view(np.int64).reshape(-1, WORDS).sum(axis=0)
    return zlib.crc32(data[whole:].tobytes(), zlib.crc32(sums.tobytes()))
