"""The torch kernels: the trajectories of NumPy's on every device, and bits that do not depend on the company."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.agreement import differences
from tests.launch import undisturbed
from tests.threads import run_module, run_ranks, serve_or_ask
from zofl_mpi.data import Dataset
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems.kernels import blocks, relu_torch, softmax_torch
from zofl_mpi.problems.kernels.softmax_torch import Solve
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import Terms
from zofl_mpi.run import records
from zofl_mpi.run.abreast import MANY
from zofl_mpi.run.clients import Clients
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose, Streams

Array = np.ndarray[Any, Any]
STREAMS = Streams(5)
p, C, m, ROUNDS = 20, 4, 5, 5
GENERATOR = STREAMS(Purpose.SYNTHETIC)
PIXELS, LABELS = GENERATOR.integers(0, 256, (400, p), dtype=np.uint8), GENERATOR.integers(0, C, 400)
SAMPLES = Dataset(PIXELS, LABELS, C, scale=1 / 255)
EDGES = (0, 30, 70, 100, 180, 240, 300, 400)  # five clients, the server, the test

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def softmax(kernel: Any, device: str, **terms: Any) -> Softmax:
    weights = np.diff(EDGES)[:m] / 300
    return Softmax(p, C, weights, Terms(**terms), kernel=kernel, dtype=np.float64, device=device)


def relu_net(kernel: Any, device: str, **flags: Any) -> ReLUNet:
    return ReLUNet(p, kernel=kernel, dtype=np.float64, device=device, **flags)


def setting(problem: Any, data: Dataset = SAMPLES) -> Setting[Any]:
    *clients, server, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    counts = np.stack([own.counts() for own in clients])
    return Setting(problem, STREAMS, tuple(clients), server, test, counts, np.float64)


USUAL = {"tau": (18.0,), "schedule_h": "constant", "batch": 8, "server_batch": 8}
ZEROTH = {"H": 4, "gamma": 0.01, "eta": 0.05, "batch": 8, "n_p": 2, "probe": 3}
METHODS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "fedrzo_nn": (FedRZONN, ZEROTH, {}),
    "fedrzo_nn, all samples": (FedRZONN, {**ZEROTH, "batch": 0, "estimate": "central"}, {"loss_scale": "sum"}),
    "scaffold, rectifiers": (Scaffold, {"option": "I", "gamma_local": 0.02}, {"hidden": 5}),
    "fedprox, rectifiers": (FedProx, {"mu": 0.3, "tau": (2.0, 18.0, 0.0, 3.0, 33.0)}, {"lam": 0.2}),
    "zo_hfl": (ZOHFL, {"x0": "random"}, {}),
    "zo_hfl, each its own": (
        ZOHFL,
        {"x0": "random", "tau": (2.0, 18.0, 5.0, 0.0, 33.0), "samples": "separate", "y0": "last"},
        {"radius": (0.02,), "mu": (0.5, 1.0, 2.0, 3.0, 4.0)},
    ),
    "zo_hfl, some confined": (ZOHFL, {"x0": "random"}, {"radius": (0.02, np.inf, 0.03, 0.0, np.inf)}),
    "fedavg": (FedAvg, {"beta": 0.6}, {}),
    "fedavg, personal": (FedAvg, {"personal": True, "batch": 0}, {}),
    "fedprox": (FedProx, {"mu": 0.3}, {}),
    "scaffold": (Scaffold, {}, {}),
    "ditto": (Ditto, {}, {}),
    "pfedme": (PFedMe, {"lam_p": 2.0, "alpha_p": 0.1}, {}),
}


def method(name: str, kernel: str, device: str = "cpu", data: Dataset = SAMPLES) -> Any:
    cls, flags, terms = METHODS[name]
    problem = relu_net if cls is FedRZONN or "rectifiers" in name else softmax
    usual = {} if cls is FedRZONN else USUAL
    return built(cls, setting(problem(kernel, device, **terms), data), **{**usual, **flags})


def program(of: Any) -> Callable[[Clients], tuple[list[Array], Any]]:
    """The models of all rounds, and a report."""

    def run(clients: Clients) -> tuple[list[Array], Any]:
        state, found = of.start(), []
        for r in range(ROUNDS):
            state = of.round(state, r, clients)
            found.append(state.x)
        return found, of.evaluate(state, ROUNDS - 1, clients)

    return run


def local(of: Any) -> tuple[list[Array], Any]:
    return program(of)(LocalClients(list(of.setting.data), method=of))


SCALED = {
    "as stored": SAMPLES,
    "standardised": replace(SAMPLES, scale=1 / 80, shift=-1.5),
    "per feature": replace(SAMPLES, scale=GENERATOR.uniform(0.002, 0.01, p), shift=GENERATOR.standard_normal(p)),
}


@cache
def by_numpy(name: str, data: str) -> tuple[list[Array], Any]:
    return local(method(name, "numpy", data=SCALED[data]))


def close(found: Any, right: Any) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-10)


def compared(found: tuple[list[Array], Any], right: tuple[list[Array], Any]) -> None:
    """Trajectory and report."""
    assert np.linalg.norm(right[0][-1] - right[0][0]) > 1e-3
    close(found[0], right[0])
    for name, value in vars(right[1]).items():
        if isinstance(value, float):
            close(getattr(found[1], name), value)


@pytest.mark.parametrize("name", METHODS)
def test_a_trajectory_is_that_of_numpy(name: str, device: str) -> None:
    """Random numbers are drawn on the host, so they agree to rounding; reports too.

    Mutations: a client's mini-batches, sizes, mu, radius or shift of another; a step lost between two replays; a solve
    that another overwrites; y in place of y - x.
    """
    compared(local(method(name, "torch", device)), by_numpy(name, "as stored"))


@pytest.mark.parametrize("name", ["scaffold", "scaffold, rectifiers", "fedrzo_nn"])
@pytest.mark.parametrize("data", ["standardised", "per feature"])
def test_inputs_are_scaled_on_the_device_as_on_the_host(data: str, name: str, device: str) -> None:
    """Mutations: shift before scale; scaled twice; a scale for all features."""
    compared(local(method(name, "torch", device, SCALED[data])), by_numpy(name, data))


@pytest.mark.parametrize(
    "name", ["zo_hfl", "zo_hfl, each its own", "scaffold", "pfedme", "fedrzo_nn", "fedprox, rectifiers"]
)
def test_ranks_do_not_show_in_the_bits(name: str, device: str) -> None:
    """Mutation: a block as large as the number of clients on the rank (seen on some libraries only; below on all)."""
    of = method(name, "torch", device)
    alone = local(of)
    for ranks in (2, 4):
        found = run_ranks(ranks, lambda world: serve_or_ask(world, of, of.setting.data, program(of)))[0]
        np.testing.assert_array_equal(found[0], alone[0])
        assert repr(found[1]) == repr(alone[1])  # nan among its numbers


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

SHAPES = {
    "many": (784, 10, 64, 2, False, np.inf),
    "bias, confined": (30, 7, 5, 1, True, 0.05),
    "one sample": (65, 3, 1, 3, False, np.inf),
}


@cache
def solves(shape: str, dtype: str, count: int = 50) -> tuple[Softmax, list[Solve]]:
    """Local steps of so many clients, each with its own start, mini-batches and step sizes."""
    width, classes, batch, models, bias, radius = SHAPES[shape]
    generator = STREAMS(Purpose.SYNTHETIC, t=1)
    inputs, labels = generator.integers(0, 256, (300, width), dtype=np.uint8), generator.integers(0, classes, 300)
    data, asked = Dataset(inputs, labels, classes, scale=1 / 255), list[Solve]()
    problem = Softmax(width, classes, np.ones(count), Terms(1.0, (0.5,), (radius,)), bias, "torch", np.dtype(dtype))

    def noted(self: Softmax, found: list[Solve]) -> list[None]:
        asked.extend(found)
        return [None]

    with mock.patch.object(Softmax, "_solved", noted):
        for i in range(count):
            x, y = generator.standard_normal((2, models, problem.n)).astype(dtype)
            own = data.subset(generator.permutation(300)[:100])
            sizes = generator.uniform(0.1, 0.5, 3)
            problem.lower(i, own, x, y, generator.integers(0, 100, (3, batch)), sizes)
    return problem, asked


def solved(some: Sequence[Solve], device: str) -> list[Array]:
    own = [replace(solve, d=solve.d.copy()) for solve in some]
    softmax_torch.solve_torch(own, device)
    return [solve.d for solve in own]


def points(dtype: str, count: int = 50) -> list[relu_torch.Points]:
    """Three points of each of so many clients; every third has more samples than are looked at together here."""
    generator = STREAMS(Purpose.SYNTHETIC, t=2)
    inputs = generator.integers(0, 256, (300, 50), dtype=np.uint8)
    data = Dataset(inputs, generator.integers(0, C, 300), C, scale=1 / 255)
    found = []
    for i in range(count):
        own = data.subset(generator.permutation(300)[:100])
        positions = generator.integers(0, 100, 33 if i % 3 == 0 else 7)
        x = generator.standard_normal((3, 4 * 51)).astype(dtype)
        found.append(relu_torch.Points(relu_torch.Network(4, 3.0 * (i % 2), "cpu"), x, own, positions))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_of_sums_and_walks_do_not_depend_on_the_company(
    dtype: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rectifiers: pieces of 13 samples, and steps of unequal number.

    Mutations: pieces summed in the order in which they were computed; a result that the next block overwrites.
    """
    monkeypatch.setattr(relu_torch, "PIECE", 13)
    asked = [each._replace(network=each.network._replace(device=device)) for each in points(dtype)]
    single = [each._replace(x=each.x[:1], network=each.network._replace(sharpness=3.0)) for each in asked]
    generator = STREAMS(Purpose.SYNTHETIC, t=3)
    walks = []
    for i, each in enumerate(single):
        start = each._replace(positions=generator.integers(0, 100, (18 if i % 4 == 0 else 3, 7)))
        sizes = generator.uniform(0.01, 0.1, len(start.positions))
        walks.append(relu_torch.Walk(start, each.x[0] / 9, sizes, 1 / 7, 0.1 * (i % 2), 0.2))
    for compute, some in ((relu_torch.squares, asked), (relu_torch.slopes, single), (relu_torch.walked, walks)):
        among, reverse = compute(some), compute(some[::-1])[::-1]  # type: ignore[operator]
        for j, own in enumerate(among):
            np.testing.assert_array_equal(reverse[j], own)
            if j % 7 == 0:
                np.testing.assert_array_equal(compute([some[j]])[0], own)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_clients_bits_do_not_depend_on_its_company(shape: str, dtype: str, device: str) -> None:
    """Alone, among 50 and among 50 in the other order; its place is another in each.

    Mutations: one product of as many matrices as there are clients, of no fixed number (seen in float32 on some
    libraries); rows that are not filled up, so that matrices lie differently in memory.
    """
    _, asked = solves(shape, dtype)
    among, reverse = solved(asked, device), solved(asked[::-1], device)[::-1]
    for j, own in enumerate(among):
        assert not np.array_equal(own, asked[j].d)
        np.testing.assert_array_equal(reverse[j], own)
        if j % 7 == 0:
            np.testing.assert_array_equal(solved([asked[j]], device)[0], own)


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


def test_steps_are_replayed_in_chunks_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for CUDA graphs: a replay works on the tensors that it was recorded with, which hold anything then.

    Mutations: buffers that are filled before a recording writes into them; new tensors in place of the recorded ones;
    the rest of H left out.
    """
    recorded, played = [], []

    def replayable(device: str, work: Callable[[], None]) -> Callable[[], None]:
        for _ in range(3):
            work()
        recorded.append(work)

        def replay() -> None:
            played.append(recorded.index(work))
            work()

        return replay

    monkeypatch.setattr("zofl_mpi.run.device.replayable", replayable)
    monkeypatch.setattr(blocks, "_LOOPS", type(blocks._LOOPS)())
    compared(local(method("fedprox", "torch")), by_numpy("fedprox", "as stored"))
    assert played == [0, 1, 1] * ROUNDS  # 18 steps: 16, and two by themselves
    assert len(recorded) == 2


def test_data_lie_on_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: a copy a client, or a call; one that stays when the data are gone."""
    monkeypatch.setattr(blocks, "_LOOPS", type(blocks._LOOPS)())
    gc.collect()
    before = set(blocks._RESIDENT)
    data = Dataset(PIXELS.copy(), LABELS.copy(), C)
    of = method("fedavg", "torch", data=data)
    local(of)
    added = [blocks._RESIDENT[key] for key in set(blocks._RESIDENT) - before]
    assert sum(each.shape == PIXELS.shape for each in added) == 1  # besides, labels and who has which rows
    assert sum(each.numel() for each in added) == PIXELS.size + 2 * len(LABELS)
    del added
    blocks._LOOPS.clear()
    del of, data
    gc.collect()
    assert set(blocks._RESIDENT) == before


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
