"""`History`: an array that grows by a row a round, in time that is linear in the rounds."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@final
class History:
    """Appends rows; an array that was handed out never changes, so a state may keep it.

    The newest array lies in a buffer with room to spare, into which its next row goes; any other array, an older one, a
    copy or one from a checkpoint, is copied first, into a buffer of twice its size.
    """

    def __init__(self) -> None:
        self._buffer = self._newest = np.empty(0)

    def appended(self, rows: Array, row: Array) -> Array:
        """(R + 1, ...) the rows (R, ...), and one more."""
        R = len(rows)
        if rows is not self._newest or len(self._buffer) == R:
            self._buffer = np.empty((2 * R + 64, *row.shape), row.dtype)
            self._buffer[:R] = rows
        self._buffer[R] = row
        self._newest = self._buffer[: R + 1]
        return self._newest
