"""Copies between a GPU and the host beside the computing, for what travels between ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.run import device

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1 << 16
"""Bytes from which on a block of the host is pinned."""


@final
class Fetch:
    """A copy from the GPU to the host on its way; what it is of must be left alone until it is there."""

    def __init__(self, source: Tensor, event: Any, staging: Staging) -> None:
        self._source, self._version = source, source._version
        self._event, self._staging = event, staging

    def ready(self) -> bool:
        """Whether it is there."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Waits until it is there.

        Raises:
            RuntimeError: somebody has changed in place what it is of.
        """
        if self._event is not None:
            with self._staging.timed():
                self._event.synchronize()
        if self._source._version != self._version:
            raise RuntimeError("a client changed an upload in place while it was on its way; upload a copy of it")


@final
class Staging:
    """Copies on a stream of their own; plain ones, made at once, on the CPU.

    The host's part lies in pinned memory. torch keeps what is free of it and hands it out again, so that each size is
    pinned once.

    Attributes:
        device: "cpu" or "cuda:k".
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._seconds, self._side = 0.0, None
        self._last: Tensor | None = None
        self._behind: deque[tuple[Any, Tensor]] = deque()

    def empty(self, size: int) -> NDArray[np.uint8]:
        """(size,) bytes of the host, pinned where there is a GPU and it is worth it."""
        if self._on_host or size < LEAST:
            return np.empty(size, np.uint8)
        import torch

        pinned: NDArray[np.uint8] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def fetch(self, source: Tensor, target: NDArray[np.uint8]) -> Fetch:
        """Begins to copy a tensor to these bytes of the host, once the GPU has done what it was asked for before."""
        import torch

        host = torch.from_numpy(target).view(source.dtype).view(source.shape)
        if self._on_host:
            host.copy_(source)
            return Fetch(source, None, self)
        cuda, stream = device.layer(), self._stream()
        stream.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(stream), self.timed():
            host.copy_(source, non_blocking=True)
        source.record_stream(stream)
        return Fetch(source, stream.record_event(), self)

    def bring(self, host: Tensor) -> Tensor:
        """A tensor of the host on the GPU, which waits for it where it is used; this process does not.

        It waits only until what it brought last but one is no longer needed: so it does not run ahead of the GPU.
        """
        if self._on_host or host.device.type != "cpu":
            return host.to(self.device)
        cuda, stream = device.layer(), self._stream()
        computing = cuda.current_stream(self.device)
        if self._last is not None:
            self._behind.append((computing.record_event(), self._last))  # with the event its memory may go
        while len(self._behind) > 1:
            self._behind.popleft()[0].synchronize()
        self._last = host
        with cuda.stream(stream), self.timed():
            found = host.to(self.device, non_blocking=True)
        computing.wait_stream(stream)
        found.record_stream(computing)
        return found

    def rest(self) -> None:
        """Lets go of the host's memory, once it is no longer needed."""
        if self._last is not None:
            device.layer().current_stream(self.device).synchronize()
        self._last = None
        self._behind.clear()

    def taken(self) -> float:
        """Seconds that this process has spent on copies, or waited for them, since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time of a `with` block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - start

    @property
    def _on_host(self) -> bool:
        return not self.device.startswith("cuda")

    def _stream(self) -> Any:
        self._side = self._side or device.layer().Stream(self.device)
        return self._side


@lru_cache(maxsize=8)
def staging(place: str) -> Staging:
    """The one of this process for a device, as torch calls it."""
    return Staging(place)


def staging_of(method: Any) -> Staging:
    """The one for the device of a method's problem; the host's where there is none."""
    problem = getattr(getattr(method, "setting", None), "problem", None)
    return staging(str(getattr(problem, "device", "cpu")))
