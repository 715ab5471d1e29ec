"""Which GPU and how many threads, as pure functions of what the ranks of a node see."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zofl_mpi.engine import device
from zofl_mpi.errors import UserError

SERVER, CLIENT = False, True
A, B, C = "GPU-a", "GPU-b", "GPU-c"


def devices(view: device.View) -> list[str]:
    return [device.pick_device(view, me) for me in range(len(view))]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ([(SERVER, (A, B))] + [(CLIENT, (A, B))] * 3, ["cuda:1", "cuda:0", "cuda:1", "cuda:0"]),  # the least used
        ([(CLIENT, (A,)), (CLIENT, (B,)), (CLIENT, (C,))], ["cuda:0"] * 3),  # each under its only number
        ([(CLIENT, (A, B)), (CLIENT, (A,))], ["cuda:1", "cuda:0"]),  # A is left to whom it is all
        ([(SERVER, ()), (CLIENT, (A,)), (CLIENT, ())], ["cpu", "cuda:0", "cpu"]),
        ([(CLIENT, (A, B))] * 3, ["cuda:0", "cuda:1", "cuda:0"]),
        ([(CLIENT, ())] * 5, ["cpu"] * 5),
    ],
)
def test_ranks_of_a_node_share_its_gpus(view: device.View, expected: list[str]) -> None:
    assert devices(view) == expected


@given(st.lists(st.tuples(st.booleans(), st.permutations([A, B, C])), min_size=1, max_size=12))
def test_ranks_that_see_everything_spread_evenly_whatever_their_numbering(view: list[tuple[bool, list[str]]]) -> None:
    chosen = [view[me][1][int(name.removeprefix("cuda:"))] for me, name in enumerate(devices(view))]
    loads = [chosen.count(uuid) for uuid in (A, B, C)]
    assert max(loads) - min(loads) <= 1


def test_select_refuses_cuda_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "NODES", ())
    with pytest.raises(UserError, match="--device cuda: this node has no GPU driver"):
        device.select("cuda")

    assert device.select("auto") == device.select("cpu") == device.describe("cpu") == "cpu"
    monkeypatch.setattr(device, "NODES", ("/",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES='-1' hides the GPUs"):
        device.select("cuda")


def test_a_gpu_that_torch_cannot_use_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its driver and torch's build; not where there is none, nor where it was hidden or torch sees it."""
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "NODES", ())
    assert device.unused(()) == ""
    monkeypatch.setattr(device, "NODES", (str(driver),))
    told = device.unused(())
    assert version("torch") in told and "NVIDIA's driver 550.54.15 is there" in told and "ZOFL_TORCH_INDEX" in told
    assert device.unused(("GPU-1",)) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.unused(()) == ""


@pytest.mark.parametrize(("torch", "on_gpu"), [(None, 0), (False, 0), (True, 2**30)])
def test_peak_bytes_has_those_of_a_gpu_in_use(monkeypatch: pytest.MonkeyPatch, torch: bool | None, on_gpu: int) -> None:
    """Without torch, with torch on the CPU, with torch on a GPU."""
    monkeypatch.setattr(device, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2**20))
    cuda = SimpleNamespace(is_initialized=lambda: torch, max_memory_allocated=lambda: 2**30)
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    host = 2**20 * (1 if sys.platform == "darwin" else 1024)
    assert device.peak_bytes() == host + on_gpu


@pytest.mark.parametrize(
    ("masks", "me", "granted", "expected"),
    [
        ([range(16)], 0, None, 16),  # alone on the node
        ([range(16)] * 4, 2, None, 4),  # unbound ranks share
        ([range(4), range(4, 8)], 1, None, 4),  # bound apart
        ([range(2)] * 11, 0, None, 1),  # more ranks than cores
        ([range(16)] * 2, 0, 3, 3),  # Slurm grants less
        ([range(4), range(4), range(4, 8)], 0, None, 2),  # two of three share
    ],
)
def test_threads_divide_the_cores_by_the_ranks_that_share_them(
    masks: list[range], me: int, granted: int, expected: int
) -> None:
    assert device.threads(masks, me, granted) == expected


def test_limits_of_threads_reach_blas_and_what_is_loaded_later_and_import_no_torch() -> None:
    """NumPy's sums never depend on the number of threads: beside a GPU a rank has several. Mutations: NumPy's BLAS has
    them all, and a long scalar product other bits; torch imported on the CPU's path."""
    code = """
import gc, os, sys
import numpy
from threadpoolctl import threadpool_info
from zofl_mpi.engine import device
device.NODES = ()
device.select("auto")
device.limit_threads(1)
gc.collect()
assert {i["num_threads"] for i in threadpool_info()} <= {1} and os.environ["OMP_NUM_THREADS"] == "1"
device.limit_threads(4)
assert os.environ["OMP_NUM_THREADS"] == "4" and "torch" not in sys.modules
assert {i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"} == {1}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_handed_out_again() -> None:
    """Blocks of 64 MiB, made and freed: fresh pages each time before, the same pages after; a model's vector, beside
    which such a block was made, is given back. Mutations: nothing set; the setting without torch in use; all kept."""
    code = """
import resource, sys
import numpy as np
from zofl_mpi.engine import device
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
sys.modules.pop("torch", None)
device.keep_freed_memory()
faults()
before = faults()
sys.modules["torch"] = np
device.keep_freed_memory()
faults()
after = faults()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
large, kept = np.ones(2**25), np.ones(2**23)
held = resident()
del large
print(before, after, held - resident())
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    before, after, returned = map(int, told.stdout.split())
    assert before >= 20 and after < before / 10
    assert returned >= 250  # MiB of 256
