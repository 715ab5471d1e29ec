"""The torch kernels: the trajectories of NumPy's on every device, and bits that do not depend on the company."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import gpu_small
from tests.bench.gpu_small import LABELS, PIXELS, ROUNDS, C, by_numpy, compared, local, method, p, solved, solves
from tests.launch import undisturbed
from tests.threads import run_module
from tests.tools.agreement import differences
from zofl_mpi import fedrzo, zo_hfl
from zofl_mpi.data import Dataset
from zofl_mpi.engine.batching import MANY
from zofl_mpi.problems import device_cache
from zofl_mpi.problems.kernels import blocks
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.run import records

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.slow
@pytest.mark.parametrize("call", gpu_small.CALLS, ids=lambda call: call.__name__)
def test_what_holds_on_a_gpu_holds_on_every_device(call: Callable[[str], None], device: str) -> None:
    """Mutations: of another client its mini-batches, sizes, mu, radius or shift; a step lost between two replays; a
    solve that another overwrites; y in place of y - x; inputs scaled twice, shifted first, or by one number for all
    features; pieces summed in the order in which they were computed; a result that the next block overwrites; what a
    block held before.
    """
    call(device)


def test_a_run_from_the_command_line(tmp_path: Path, device: str) -> None:
    """Any number of ranks, and on after an interruption: the same bits, under the name of kernel and device.

    Mutations: a kernel that is named and not taken; a GPU that is refused; personal models by another kernel.
    """
    run = ["--data", "digits", "--m", 7, "--tau", 3, "--eval-every", 2, "--quiet", "--device", device, "--radius", 0.3]
    outs = [tmp_path / f"{ranks}.h5" for ranks in (1, 3)]
    with undisturbed():
        for ranks, out in zip((1, 3), outs, strict=True):
            kernel = ["--kernel", "auto" if device == "cuda" else "torch"]
            assert run_module(ranks, "zofl_mpi.zo_hfl", *run, *kernel, "--rounds", 2, "--out", out) == 0
        assert run_module(2, "zofl_mpi.zo_hfl", "--resume", outs[1], "--rounds", 4, "--quiet") == 0
        assert run_module(1, "zofl_mpi.zo_hfl", "--resume", outs[0], "--rounds", 4, "--quiet") == 0
    assert differences(*outs) == []
    assert records.load(outs[0]).attrs["kernel"] == f"torch {device}"


# --- a client's bits, alone and among others


def test_products_are_always_of_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the argument for equal bits rests on, whatever the library. Mutation: the last block is not filled up."""
    import torch

    _, asked = solves("many", "float32")
    shapes = set()
    plain = torch.bmm

    def noted(a: Any, b: Any, *, out: Any) -> Any:
        shapes.add((tuple(a.shape), tuple(b.shape)))
        return plain(a, b, out=out)

    monkeypatch.setattr(torch, "bmm", noted)
    for count in (1, 31, 32, 33, 50):
        solved(asked[:count], "cpu")
    assert shapes == {((32, 64, 784), (32, 784, 20))}


@pytest.mark.parametrize(
    ("each", "clients"), [(64 * 784 * 4, 32), (2**21, 32), (2**21 + 1, 16), (2**25, 2), (2**26, 1), (2**30, 1)]
)
def test_a_block_follows_from_one_clients_shape(each: int, clients: int) -> None:
    """Mutations: sizes that are no powers of 2; no limit."""
    assert blocks.block_of(each) == clients


def replays(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Callable[[], None]], list[int]]:
    """A stand-in for CUDA graphs: a replay works on the tensors that it was recorded with, which hold anything then.

    Returns:
        What has been recorded, and of each replay which of these it was; both grow.
    """
    recorded, played = list[Callable[[], None]](), list[int]()

    def replayable(device: str, work: Callable[[], None]) -> Callable[[], None]:
        for _ in range(3):
            work()
        recorded.append(work)

        def replay() -> None:
            played.append(recorded.index(work))
            work()

        return replay

    monkeypatch.setattr("zofl_mpi.engine.device.replayable", replayable)
    monkeypatch.setattr(blocks, "_LOOPS", type(blocks._LOOPS)())
    return recorded, played


def test_steps_are_replayed_in_chunks_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: buffers filled before a recording that writes into them; new tensors in place of the recorded ones;
    the rest of H left out.
    """
    recorded, played = replays(monkeypatch)
    compared(local(method("fedprox", "torch")), by_numpy("fedprox", "as stored"), "fedprox")
    assert played == [0, 1, 1] * ROUNDS  # 18 steps: 16, and two by themselves
    assert len(recorded) == 2


def test_data_lie_on_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: a copy a client, or a call; one that stays when the data are gone."""
    monkeypatch.setattr(blocks, "_LOOPS", type(blocks._LOOPS)())
    gc.collect()
    before = set(device_cache._PLACED)
    data = Dataset(PIXELS.copy(), LABELS.copy(), C)
    of = method("fedavg", "torch", data=data)
    local(of)
    added = [device_cache._PLACED[key] for key in set(device_cache._PLACED) - before]
    assert sum(each.shape == PIXELS.shape for each in added) == 1  # besides, labels and who has which rows
    assert sum(each.numel() for each in added) == PIXELS.size + 2 * len(LABELS)
    del added
    blocks._LOOPS.clear()
    del of, data
    gc.collect()
    assert set(device_cache._PLACED) <= before


def test_torch_is_taken_where_the_device_is_a_gpu() -> None:
    """Mutations: torch on the CPU by itself; another kernel on a GPU; a name without the kind of device."""
    make = lambda device, kernel="auto": Softmax(p, C, np.ones(1), device=device, kernel=kernel)  # noqa: E731
    assert make("cuda:1").kernel_name(8) == "torch cuda" and make("cuda:1").kernel_for(8, 2, 1) == "torch"
    assert make("cpu").kernel_name(8) != "torch cpu" == make("cpu", "torch").kernel_name(8)
    assert make("cuda:1", "numpy").kernel_name(8) == "numpy"
    assert (make("cpu").abreast, make("cpu", "torch").abreast) == (1, MANY)
    for before in ("numpy", "torch cuda"):  # what a run began with
        assert make("cuda:0").kernel_for(8, 2, 1, before) == before.partition(" ")[0]
    assert make("cpu").kernel_for(8, 2, 1, "torch cpu") == "torch"


def test_which_problems_may_have_a_gpu() -> None:
    """All others say that they compute on the CPU. Mutation: one that is given a GPU and does not use it, or is not."""
    able = {name for family in (zo_hfl, fedrzo) for name, choice in family.PROBLEMS.items() if choice.gpu}
    assert able == {"softmax", "features", "mlp", "cnn", "relu_net", "fair", "fair_softmax"}
