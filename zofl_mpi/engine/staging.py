"""Copies between a GPU and the host beside the computing, for what travels between ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import device
from zofl_mpi.engine.roles import program_of

if TYPE_CHECKING:
    from torch import Tensor

    from zofl_mpi.engine.messages import Prepared

LEAST = 1 << 16
"""Bytes from which on a block of the host is pinned."""


@final
class Fetch:
    """A copy of a GPU's tensors in progress; its source must not change until it is complete."""

    def __init__(self, sources: Sequence[Tensor], event: Any, staging: Staging) -> None:
        self._sources = [(source, source._version) for source in sources]
        self._event, self._staging = event, staging

    def ready(self) -> bool:
        """Whether the copy is complete."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Waits until the copy is complete.

        Raises:
            RuntimeError: somebody has changed in place what it is of.
        """
        if self._event is not None:
            with self._staging.timed():
                self._event.synchronize()
        if any(source._version != version for source, version in self._sources):
            raise RuntimeError("a client changed an upload in place while it was on its way; upload a copy of it")


@final
class Staging:
    """Copies on a stream of their own; plain ones, made at once, on the CPU.

    The host's part lies in pinned memory. torch keeps what is free of it and hands it out again, so that each size is
    pinned once.

    Attributes:
        device: "cpu" or "cuda:k".
        direct: whether MPI reads and writes the GPU's own memory; the host then sees the small parts of messages alone.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device, self.direct = device, False
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

    def packed(self, message: Prepared) -> NDArray[np.uint8]:
        """Packed message, copied to the host completely."""
        block, fetched = self.empty(message.size), list[Fetch]()
        message.write(block, lambda tensor, place: fetched.append(self.fetch(tensor, place)))
        for each in fetched:
            each.wait()
        return block

    def block(self, size: int) -> Any:
        """(size,) bytes that MPI may send or receive: as `empty`, or of the GPU, as a tensor."""
        if not self.direct or size < LEAST:
            return self.empty(size)
        import torch

        with self.beside():  # memory of that stream's own: what is freed on another may still be computed with
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def place(self, parts: Iterable[tuple[int, Any]], block: Tensor) -> Fetch:
        """Begins to copy arrays and tensors into a block of the GPU, each from its byte on; see `fetch`."""
        import torch

        remote, computing = [], None if self._on_host else device.layer().current_stream(self.device)
        with self.beside():
            for start, part in parts:
                if isinstance(part, torch.Tensor):
                    remote.append((start, part))
                else:  # at once: what computes the tensors is still under way
                    block[start : start + part.nbytes].copy_(torch.from_numpy(part.reshape(-1).view(np.uint8).copy()))
            if computing is not None:
                self._stream().wait_stream(computing)
            for start, tensor in remote:
                block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
                if computing is not None:
                    tensor.record_stream(self._stream())
        event = None if self._on_host else self._stream().record_event()
        return Fetch([tensor for _, tensor in remote], event, self)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Context in which the GPU's work does not wait for its computing stream."""
        if self._on_host:
            yield
        else:
            with device.layer().stream(self._stream()), self.timed():
                yield

    def enter(self) -> None:
        """Lets this thread reach the GPU, and no other one."""
        if not self._on_host:
            device.layer().set_device(self.device)

    def fetch(self, source: Tensor, target: NDArray[np.uint8]) -> Fetch:
        """Begins to copy a tensor to these bytes of the host, once the GPU has finished its earlier work."""
        import torch

        host = torch.from_numpy(target).view(source.dtype).view(source.shape)
        if self._on_host:
            host.copy_(source)
            return Fetch([source], None, self)
        cuda, stream = device.layer(), self._stream()
        stream.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(stream), self.timed():
            host.copy_(source, non_blocking=True)
        source.record_stream(stream)
        return Fetch([source], stream.record_event(), self)

    def bring(self, host: Tensor) -> Tensor:
        """Copies a tensor of the host to the GPU without waiting; the GPU waits where the tensor is used.

        It waits only until what it brought last but one is no longer needed: so it does not run ahead of the GPU.
        """
        here = host.device.type != "cpu"
        if self._on_host or (here and not self.direct):
            return host.to(self.device)
        cuda, stream = device.layer(), self._stream()
        computing = cuda.current_stream(self.device)
        if self._last is not None:
            self._behind.append((computing.record_event(), self._last))  # with the event its memory may go
        while len(self._behind) > 1:
            self._behind.popleft()[0].synchronize()
        self._last = host
        if here:
            host.record_stream(computing)
            return host
        with cuda.stream(stream), self.timed():
            found = host.to(self.device, non_blocking=True)
        computing.wait_stream(stream)
        found.record_stream(computing)
        return found

    def rest(self) -> None:
        """Releases the host's memory once it is no longer needed."""
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
    """The one for the device on which a method's problem computes."""
    return staging(program_of(method).backend.device)
