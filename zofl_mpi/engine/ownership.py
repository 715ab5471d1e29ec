"""A client owns what it gets and keeps: shared messages stay unchanged, and memories share no array with them.

NumPy arrays of a message are read-only. Tensors cannot be, and `torch.from_numpy`, `Tensor.numpy` and `Tensor.data`
give writable views of either. A client of another rank has a copy of its own, so that a change in place would make bits
depend on which clients share a rank.
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

WORDS = 512  # of 8 bytes: a row of the table whose columns a checksum adds up
Span = tuple[int, int]  # addresses of an array's first byte, and of the one after its last


@final
class Shared:
    """Messages with several readers in this process, as they were: `check` tells whether one was changed.

    An array on the host is summed before a question and after it; the two take less time than one copy of a large one,
    and no memory. Of a GPU's tensor torch's count of changes is compared, which a change through `data` escapes.
    """

    def __init__(self, read: Iterable[Any], by: str) -> None:
        """Args:
        read: a message for each reader.
        by: who reads them, "step 'train'".
        """
        self._by, all_read = by, list(read)
        count = Counter(map(id, all_read))
        self._before = [(each, _noted(each)) for each in {id(m): m for m in all_read}.values() if count[id(each)] > 1]

    def check(self) -> None:
        """Refuses a change of a message (ChangedInPlace)."""
        for message, before in self._before:
            now = _noted(message)
            if now != before:
                names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
                raise ChangedInPlace(
                    f"{self._by} changed {type(message).__name__}.{names[0]}, which others read, too: work on a copy "
                    "(x = message.x.clone(), or .copy())"
                )


def own_memory(memory: dict[str, Any], message: Any) -> None:
    """Copies those arrays of a client's memory that lie in its message, or in one another.

    Else one change in place would change both, unless the memory went through a checkpoint in between.
    """
    if any(type(value) not in messages.EXACT for value in memory.values()):
        _own(memory, [span for _, value in messages.leaves(message) if (span := _span(value))])


def own_state(state: Any) -> Any:
    """The state, copied if two of its arrays share memory: a checkpoint holds them apart."""
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
    """Where an array or a tensor lies; None for other values, and for empty ones."""
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
    """{path: what tells a change} of a message's leaves."""
    return {".".join(path): _mark(value) for path, value in messages.leaves(message)}


def _mark(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return id(value), checksum(value)
    if not is_tensor(value):
        return value if value == value else "nan"
    changes = 0 if value.is_inference() else value._version
    return id(value), changes, None if messages.is_remote(value) else checksum(messages.as_array(value))


def checksum(array: NDArray[Any] | None) -> int:
    """A number that a change of the array's bytes changes, but for some permutations; as fast as reading them."""
    assert array is not None
    data = array.reshape(-1).view(np.uint8)
    row = 8 * WORDS
    whole = len(data) // row * row
    sums = data[:whole].view(np.int64).reshape(-1, WORDS).sum(axis=0)
    return zlib.crc32(data[whole:].tobytes(), zlib.crc32(sums.tobytes()))
