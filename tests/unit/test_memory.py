"""An out-of-memory error becomes advice: what was asked for, what is free, which flags need less."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from zofl_mpi.engine import clients, memory
from zofl_mpi.engine.roles import ClientProgram

OF_TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.19 GiB is "
    "free. Of the allocated memory 130.00 GiB is allocated by PyTorch, and 7.50 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF."
)


def test_what_torch_says_of_a_gpu_is_told_without_its_advice() -> None:
    """Mutations: total and free exchanged; the class known by `isinstance`, which takes an import of torch."""
    torch = pytest.importorskip("torch")
    told = "out of memory on the GPU: 2.00 GiB more were asked for, 1.19 GiB of 139.81 GiB are free"
    assert memory.shortage(torch.OutOfMemoryError(OF_TORCH)) == told
    assert memory.shortage(RuntimeError(OF_TORCH)) == told
    for exc in (ValueError("out of memory"), RuntimeError("shapes differ"), KeyboardInterrupt()):
        assert memory.shortage(exc) == ""
    found = clients.failure(2, MemoryError())
    assert (found.item, found.trace, found.short) == (2, "", True)
    assert not clients.failure(2, ValueError("x")).short


def test_what_a_library_says_of_a_gpu_is_completed_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: nothing but torch's own exception known."""
    cuda = SimpleNamespace(is_initialized=lambda: True, mem_get_info=lambda: (3 * 2**29, 2**37))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    for words in ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"):
        told = "out of memory on the GPU: more was asked for, 1.50 GiB of 128.00 GiB are free"
        assert memory.shortage(RuntimeError(words)) == told
    cuda.is_initialized = lambda: False
    assert memory.shortage(RuntimeError("CUDA error: out of memory")).endswith("more was asked for")


def test_the_hosts_memory_is_told_as_numpy_and_torch_miss_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their own exceptions. Mutations: bytes left as bytes; torch's RuntimeError, NumPy's ValueError not known."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(memory, "host_bytes", lambda: (2**30, 2**34))
    for make in (lambda: np.empty(2**60, np.uint8), lambda: torch.empty(2**60, dtype=torch.uint8)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            make()
        told = memory.shortage(caught.value)
        assert told in [
            f"out of memory on the host: {asked} more were asked for, 1.00 GiB of 16.00 GiB are free"
            for asked in ("1.00 EiB", f"{2**30}.00 GiB")
        ]
    for size in ((2**40, 2**40), 2**62, 2**63 - 1):  # more bytes than NumPy can count
        with pytest.raises(ValueError, match=r"big|exceeded") as caught:
            np.empty(size)
        assert memory.shortage(caught.value).startswith("out of memory on the host: ")
    assert memory.shortage(MemoryError()).startswith("out of memory on the host: more was asked for, 1.00 GiB of")


def test_the_hosts_memory_is_what_the_process_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: kB taken for bytes; the limit of the process left out."""
    found = memory.host_bytes()
    if found is None:
        pytest.skip("no /proc/meminfo here")
    free, total = found
    assert 2**27 < free <= total
    monkeypatch.setattr(memory, "getrlimit", lambda which: (2**40 + 7, 2**41))
    monkeypatch.setattr(memory.Path, "read_text", lambda path: {"meminfo": PLENTY, "statm": "2 1 1"}[path.name])
    page = memory.os.sysconf("SC_PAGE_SIZE")
    assert memory.host_bytes() == (2**40 + 7 - 2 * page, 2**40 + 7)


PLENTY = f"MemTotal: {2**40} kB\nMemFree: 1 kB\nMemAvailable: {2**39} kB\n"


ALL_SAMPLES = "a smaller --batch (now 0: all samples) or --probe (now 9) takes less"


@dataclass(frozen=True)
class Round:
    batch: int = 64
    probe: int = 0


@dataclass(frozen=True)
class Method(ClientProgram):
    grows_with: ClassVar[tuple[str, ...]] = ("n_p", "probe")
    setting: Any
    round: Round = field(default_factory=Round)  # type: ignore[assignment]
    n_p: int = 4
    beta: float = 1.0
    server_batch: int = 256

    @property
    def backend(self) -> Any:
        return self.setting.problem


def setting(**problem: Any) -> Any:
    return SimpleNamespace(problem=SimpleNamespace(**{"bf16": None} | problem))


@pytest.mark.parametrize(
    ("method", "at_server", "told"),
    [
        (Method(setting()), False, "a smaller --batch (now 64) or --n-p (now 4) takes less"),
        (Method(setting(), Round(0, 9), 1), False, ALL_SAMPLES),
        (Method(setting()), True, "a smaller --server-batch (now 256) takes less"),
        (Method(setting(), server_batch=1), True, "a smaller --batch (now 64) or --n-p (now 4) takes less"),
        (Method(setting(bf16=False), n_p=1), False, "a smaller --batch (now 64) or --bf16 takes less"),
        (Method(setting(bf16=True), n_p=1), False, "a smaller --batch (now 64) takes less"),
        (None, False, "smaller batches, or more ranks with fewer clients each, take less"),
    ],
)
def test_flags_that_take_less_are_named_with_their_values(method: Any, at_server: bool, told: str) -> None:
    """Mutations: flags of parts left out; one that is 1 already; the server's for a client."""
    assert memory.remedy(method, at_server) == told
