"""Copies between GPU and host, concurrent with computing, for messages between ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, final

import numpy as np

from zofl_mpi.engine import device
from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.engine.messages import Bytes, Prepared
from zofl_mpi.engine.roles import program_of

LEAST_PINNED_BYTES = 1 << 16  # smallest host block, in bytes, that is pinned


@final
class Fetch:
    """A copy of a GPU's tensor in progress; the tensor must not change until it is complete."""

    def __init__(self, source: Tensor, event: Any, staging: Staging) -> None:
        self._source, self._version = source, source._version
        self._event, self._staging = event, staging

    def ready(self) -> bool:
        """True if the copy is complete."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Waits until the copy is complete; RuntimeError where the tensor was changed in place meanwhile."""
        if self._event is not None:
            with self._staging.timed():
                self._event.synchronize()
        if self._source._version != self._version:
            raise RuntimeError("a client changed an upload in place while it was on its way; upload a copy of it")


@final
class Staging:
    """Copies on a stream of their own through pinned memory, which torch reuses; plain copies on the CPU."""

    def __init__(self, device: str = "cpu") -> None:
        self.device, self._on_host = device, not device.startswith("cuda")
        self._seconds, self._side = 0.0, None
        self._last: Tensor | None = None
        self._behind: deque[tuple[Any, Tensor]] = deque()

    def empty(self, size: int) -> Bytes:
        """(size,) bytes of the host, pinned if there is a GPU and the size justifies it."""
        if self._on_host or size < LEAST_PINNED_BYTES:
            return np.empty(size, np.uint8)
        pinned: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def packed(self, messages: Sequence[Prepared]) -> Bytes:
        """Packed messages, concatenated on the host; waits for the copies."""
        block, fetched, end = self.empty(sum(message.size for message in messages)), list[Fetch](), 0
        for message in messages:
            end += message.size
            fetched += self.write(message, block[end - message.size : end])
        for each in fetched:
            each.wait()
        return block

    def write(self, message: Prepared, block: Bytes) -> list[Fetch]:
        """Pack a message into host bytes; return the GPU copies in progress."""
        fetched = list[Fetch]()
        message.write(block, lambda tensor, place: fetched.append(self.fetch(tensor, place)))
        return fetched

    def enter(self) -> None:
        """Make the device current in this thread: pinning would otherwise initialise GPU 0."""
        if not self._on_host:
            device.layer().set_device(self.device)

    def fetch(self, source: Tensor, target: Bytes) -> Fetch:
        """Begin to copy a tensor to these host bytes, after the GPU's earlier work."""
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
        """Copies a tensor of the host to the GPU without waiting; the GPU waits where the tensor is used.

        It waits only until the last but one tensor is free again, which keeps the host near the GPU.
        """
        if self._on_host or host.device.type != "cpu":
            return host.to(self.device)
        cuda, stream = device.layer(), self._stream()
        computing = cuda.current_stream(self.device)
        if self._last is not None:
            self._behind.append((computing.record_event(), self._last))  # with the event its memory may be freed
        while len(self._behind) > 1:
            self._behind[0][0].synchronize()
            self._behind.popleft()
        self._last = host
        with cuda.stream(stream), self.timed():
            brought = host.to(self.device, non_blocking=True)
        computing.wait_stream(stream)
        brought.record_stream(computing)
        return brought

    def rest(self) -> None:
        """Release host memory that is no longer needed."""
        if self._last is not None:
            device.layer().current_stream(self.device).synchronize()
        self._last = None
        self._behind.clear()

    def taken(self) -> float:
        """Seconds that this process spent on copies, or waited for them, since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of a `with` block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - start

    def _stream(self) -> Any:
        self._side = self._side or device.layer().Stream(self.device)
        return self._side


@lru_cache(maxsize=8)
def staging(place: str) -> Staging:
    """The process's one `Staging` for a device, in torch's notation."""
    return Staging(place)


def staging_of(method: Any) -> Staging:
    """The one for the device of a method's problem."""
    return staging(program_of(method).backend.device)
