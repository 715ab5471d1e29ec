"""Compute device of a process: its GPU, threads and memory. The only module that names torch.cuda.

torch is imported only where a GPU may be present: on the CPU path it would cost each rank more than a second.
"""

import ctypes
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from zofl_mpi.engine.lazy import torch
from zofl_mpi.engine.processes import stat
from zofl_mpi.errors import UserError

View = Sequence[tuple[bool, Sequence[str]]]
"""Each rank of one node: True if it acts for clients, and the uuids of its visible GPUs in its own numbering."""

NODES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT, LARGEST = 2**30, 2**28  # bytes of freed memory that a process may keep, and of the largest block it comes in
IMPORTED = time.monotonic()
WARM_UP = 3  # calls before a CUDA graph is captured, as torch recommends
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


# --- which device


def pick_device(view: View, me: int) -> str:
    """ "cuda:k", in the numbering of rank `me` of a node, or "cpu" where it sees no GPU.

    Each rank takes the least loaded GPU that it sees. Clients choose before the server, ranks with fewer visible GPUs
    before others, then by rank. If all clients see all GPUs, this is a round robin.
    """
    order = sorted(range(len(view)), key=lambda rank: (not view[rank][0], len(view[rank][1]), rank))
    load: Counter[str] = Counter()
    chosen: dict[int, str] = {}
    for rank in order:
        if view[rank][1]:
            chosen[rank] = min(view[rank][1], key=lambda uuid: load[uuid])
            load[chosen[rank]] += 1
    return f"cuda:{list(view[me][1]).index(chosen[me])}" if me in chosen else "cpu"


def visible(requested: str) -> tuple[str, ...]:
    """The uuids of the GPUs that this process may use; none if "cpu" is requested."""
    if requested == "cpu" or not may_have_gpu():
        return ()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(str(torch.cuda.get_device_properties(k).uuid) for k in range(count))


def select(requested: str, view: View | None = None, me: int = 0) -> str:
    """Make a device the current one of this process; return "cpu" or "cuda:k". UserError: no such device."""
    if requested == "cpu":
        return "cpu"
    device = pick_device([(True, visible(requested))] if view is None else view, me)
    if device == "cpu" and requested == "cuda":
        raise UserError(f"--device cuda: {_why_no_gpu()}; use --device auto or cpu")
    if device != "cpu":
        torch.cuda.set_device(device)  # first call: otherwise each rank would create a context on GPU 0
    return device


def reproducible(strict: bool = False, tf32: bool = False) -> None:
    """Make a GPU bit-reproducible, with full float32 products unless `tf32` (10 bits of mantissa).

    Call it before the first product: cuBLAS reads its workspace size once, and the order of its sums depends on it.
    If `strict`, torch raises an error for non-deterministic operations; otherwise it warns.
    """
    now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if (*now, torch.backends.cudnn.allow_tf32) == (True, not strict, tf32):
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs kernels
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    torch.backends.cudnn.allow_tf32 = tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


def proof(device: str) -> str:
    """The uuid of the GPU on which an allocation lands, "" on the CPU; UserError if the allocation fails."""
    if device == "cpu":
        return ""
    try:
        landed = torch.zeros(1, device="cuda").device  # the current device, as for all calls without a number
    except RuntimeError as exc:
        reason = str(exc).splitlines()[0]
        raise UserError(
            f"{device} is there, but nothing can be allocated on it ({reason}); it is full, or another process has it "
            "to itself: see nvidia-smi, or leave it out by CUDA_VISIBLE_DEVICES"
        ) from exc
    return str(torch.cuda.get_device_properties(landed).uuid)


def describe(device: str) -> str:
    """The GPU's name, or "cpu"."""
    if device == "cpu":
        return "cpu"
    return str(torch.cuda.get_device_name(device))


def may_have_gpu() -> bool:
    """True if this node has a GPU driver that this process may use; does not import torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles")
    return not hidden and any(Path(node).exists() for node in NODES)


def _why_no_gpu() -> str:
    if not any(Path(node).exists() for node in NODES):
        return "this node has no GPU driver"
    if not may_have_gpu():
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides the GPUs from this process"
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    found = f"torch {torch.__version__} ({build}) sees no GPU, although {_driver()} is there"
    return f"{found} (see ZOFL_TORCH_INDEX in .docs/howto/install.md)"


def unused(seen: Collection[str]) -> str:
    """Reason why this process cannot use a GPU of its node; "" where there is none, or it was hidden on purpose.

    `seen` are the uuids of `visible("auto")`.
    """
    return _why_no_gpu() if may_have_gpu() and not seen else ""


def _driver() -> str:
    """NVIDIA's driver with its version, or the device file that shows a GPU."""
    found = next(Path(node) for node in NODES if Path(node).exists())
    words = found.read_text(encoding="ascii", errors="replace").split() if found.name == "version" else []
    version = next((word for word in words if word[0].isdigit() and "." in word), "")
    return f"NVIDIA's driver {version}" if version else str(found)


# --- work on a GPU


def replayable(device: str, work: Callable[[], None]) -> Callable[[], None]:
    """Captures local steps as a CUDA graph, which a GPU replays in one launch; on the CPU returns `work` itself.

    `work` must do the same each time, with tensors that stay where they are, and wait for nothing. Capture calls it
    some times; its tensors are undefined afterwards.
    """
    if device == "cpu":
        return work
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries allocate handles and workspaces before the capture
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
            work()
    return graph.replay


def layer() -> Any:
    """The module torch.cuda, for streams and events."""
    return torch.cuda


# --- time


def age() -> float:
    """Seconds since this process began, or since this module's import if the system does not report it."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat("self")[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.monotonic() - IMPORTED


# --- memory


def peak_bytes() -> int:
    """Peak memory of this process on the host, plus torch's peak on the GPU, in bytes."""
    host, cuda = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024), _cuda_in_use()
    return host if cuda is None else host + int(cuda.max_memory_allocated())


def free_bytes() -> tuple[int, int] | None:
    """Free and total bytes of this process's GPU; None without one, or if the driver fails."""
    cuda = _cuda_in_use()
    try:
        return None if cuda is None else cuda.mem_get_info()
    except RuntimeError:
        return None


def _cuda_in_use() -> Any:
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def allocated(device: str, work: Callable[[], None]) -> int:
    """Peak bytes that `work` allocates on a GPU through torch."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before


# --- threads


def cores() -> frozenset[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def threads(masks: Sequence[Collection[int]], me: int = 0, cpus_per_task: int = 0) -> int:
    """Threads for rank `me` of a node: its cores divided by the ranks that may run on them, at least 1.

    Oversubscription is expensive: 11 ranks of two threads each took 100 times as long on two cores. `masks` are the
    cores of each rank, `cpus_per_task` the cores that Slurm grants (0: unknown).
    """
    mine = set(masks[me])
    sharing = sum(1 for mask in masks if mine & set(mask))
    return max(1, min(len(mine) // max(1, sharing), cpus_per_task or len(mine)))


def granted(name: str) -> int:
    """A number that Slurm sets in the environment, such as SLURM_CPUS_PER_TASK; 0: not set."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def limit_threads(n: int) -> None:
    """Give OpenMP and torch n threads and NumPy's BLAS one, permanently and for libraries loaded later.

    NumPy's sums must not depend on the number of ranks, on GPU nodes either.
    """
    from threadpoolctl import threadpool_limits

    os.environ.update(dict.fromkeys(THREADS, str(n)) | {"OPENBLAS_NUM_THREADS": "1"})
    threadpool_limits({"openmp": n, "blas": 1})  # not a `with`: the limit is permanent
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n)


def keep_freed_memory() -> None:
    """Make glibc reuse freed blocks instead of returning them to the system, if torch is in use.

    Each network step frees and requests its activations. As fresh pages they cost 500 page faults and a tenth of the
    CPU time of a step of `CNN`.
    """
    if "torch" not in sys.modules or not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)


@functools.cache  # the search takes 2 ms
def blas() -> str:
    """Name of NumPy's BLAS with its core type, which bits depend on, such as "openblas 0.3.31 SkylakeX"."""
    import numpy as np
    from threadpoolctl import threadpool_info

    own = Path(np.__file__).parent.name
    libraries = sorted(
        (library for library in threadpool_info() if library["user_api"] == "blas"),
        key=lambda library: Path(library["filepath"]).parent.name.split(".")[0] != own,  # NumPy's before SciPy's
    )
    known = [libraries[0].get(key) for key in ("internal_api", "version", "architecture")] if libraries else ["unknown"]
    return " ".join(str(word) for word in known if word)
