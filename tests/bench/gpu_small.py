"""What of softmax regression and the small networks a GPU alone can show.

Each of CALLS takes a device, asserts what its docstring says, and runs on the CPU too, where less of it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.data import Dataset
from zofl_mpi.engine import device as place
from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems.fair import Fair, FairSoftmax
from zofl_mpi.problems.kernels import blocks, relu_torch, softmax_torch
from zofl_mpi.problems.kernels.softmax_torch import Solve
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import Terms
from zofl_mpi.rounds.report import Model
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients

Array = np.ndarray[Any, Any]
STREAMS = Streams(5)
p, C, m, ROUNDS = 20, 4, 5, 5
GENERATOR = STREAMS(Purpose.SYNTHETIC)
PIXELS, LABELS = GENERATOR.integers(0, 256, (400, p), dtype=np.uint8), GENERATOR.integers(0, C, 400)
SAMPLES = Dataset(PIXELS, LABELS, C, scale=1 / 255)
EDGES = (0, 30, 70, 100, 180, 240, 300, 400)  # five clients, the server, the test


def softmax(kernel: Any, device: str, **terms: Any) -> Softmax:
    weights = np.diff(EDGES)[:m] / 300
    return Softmax(p, C, weights, Terms(**terms), kernel=kernel, dtype=np.float64, device=device)


def relu_net(kernel: Any, device: str, **flags: Any) -> ReLUNet:
    return ReLUNet(p, kernel=kernel, dtype=np.float64, device=device, **flags)


def weighted(cls: Any) -> Any:
    counts = setting(None).counts

    def problem(kernel: Any, device: str, **flags: Any) -> Any:
        return cls(p, counts, kernel=kernel, dtype=np.float64, device=device, **flags)

    return problem


def setting(problem: Any, data: Dataset = SAMPLES) -> Setting[Any]:
    *clients, server, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    counts = np.stack([own.counts() for own in clients])
    return Setting(problem, STREAMS, tuple(clients), server, test, counts, np.float64)


PROBLEMS = {
    "fair softmax": weighted(FairSoftmax),
    "fair": weighted(Fair),
    "rectifiers": relu_net,
    "fedrzo_nn": relu_net,
}
"""By a word in the name of a case; else softmax regression."""
USUAL = {"tau": (18.0,), "schedule_h": "constant", "batch": 8, "server_batch": 8}
ZEROTH = {"H": 4, "gamma": 0.01, "eta": 0.05, "batch": 8, "n_p": 2, "probe": 3}
BILEVEL = {"H": 3, "gamma": 3e-4, "eta": 0.05, "batch": 8, "T_lower": "5", "batch_lower": 8}
METHODS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "fedrzo_nn": (FedRZONN, ZEROTH, {}),
    "fedrzo_nn, all samples": (FedRZONN, {**ZEROTH, "batch": 0, "estimate": "central"}, {"loss_scale": "sum"}),
    "fedrzo_bl, fair": (FedRZOBL, BILEVEL, {"y_set": "simplex"}),
    "fedrzo_bl, fair softmax": (FedRZOBL, BILEVEL, {}),
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
    problem = next((PROBLEMS[word] for word in PROBLEMS if word in name), softmax)
    usual = {} if cls in (FedRZONN, FedRZOBL) else USUAL
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


def close(found: Any, right: Any, name: str) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-10, err_msg=name)


def compared(found: tuple[list[Array], Any], right: tuple[list[Array], Any], name: str) -> None:
    """Trajectory and report."""
    assert np.linalg.norm(right[0][-1] - right[0][0]) > 1e-3
    close(found[0], right[0], name)
    for column, value in vars(right[1]).items():
        if isinstance(value, float):
            close(getattr(found[1], column), value, f"{name}: {column}")


# --- a client's requests

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


def rectified(dtype: str, device: str) -> list[tuple[Any, list[Any]]]:
    """Functions of `relu_torch` with what they are asked: samples in pieces, steps of unequal number."""
    asked = [each._replace(network=each.network._replace(device=device)) for each in points(dtype)]
    single = [each._replace(x=each.x[:1], network=each.network._replace(sharpness=3.0)) for each in asked]
    generator = STREAMS(Purpose.SYNTHETIC, t=3)
    walks = []
    for i, each in enumerate(single):
        start = each._replace(positions=generator.integers(0, 100, (18 if i % 4 == 0 else 3, 7)))
        sizes = generator.uniform(0.01, 0.1, len(start.positions))
        walks.append(relu_torch.Walk(start, each.x[0] / 9, sizes, 1 / 7, 0.1 * (i % 2), 0.2))
    by_class = [each._replace(network=each.network._replace(classes=C)) for each in asked]
    return [
        (relu_torch.squares, asked),
        (relu_torch.squares_by_class, by_class),
        (relu_torch.slopes, single),
        (relu_torch.walked, walks),
    ]


# --- what holds on every device


def trajectories(device: str) -> None:
    """Five rounds of ten methods in float64, their models and reports, agree with NumPy's to 1e-10."""
    for name in METHODS:
        compared(local(method(name, "torch", device)), by_numpy(name, "as stored"), name)


def scaled_inputs(device: str) -> None:
    """Inputs that are scaled and shifted, by numbers or one a feature, are so on the device: as NumPy's to 1e-10."""
    for data in ("standardised", "per feature"):
        for name in ("scaffold", "scaffold, rectifiers", "fedrzo_nn", "fedrzo_bl, fair softmax"):
            compared(local(method(name, "torch", device, SCALED[data])), by_numpy(name, data), name)


def same_on_ranks(of: Any, counts: Sequence[int], name: str) -> None:
    """A method's run has the bits of one process on so many ranks each, as threads."""
    alone, served = local(of), program(of)
    for ranks in counts:
        found = run_ranks(ranks, lambda world: serve_or_ask(world, of, of.setting.data, served))[0]
        np.testing.assert_array_equal(found[0], alone[0], name)
        assert repr(found[1]) == repr(alone[1]), name  # nan among its numbers


def any_number_of_ranks(device: str) -> None:
    """One process, 2 and 4 ranks: models and reports have the same bits."""
    for name in ("zo_hfl", "zo_hfl, each its own", "scaffold", "pfedme", "fedrzo_nn", "fedrzo_bl, fair"):
        of = method(name, "torch", device)
        same_on_ranks(of, (2, 4), name)


def softmax_in_company(device: str) -> None:
    """A client's local steps of softmax regression have the same bits alone, among 50, and in another order."""
    for dtype in ("float32", "float64"):
        for shape in SHAPES:
            _, asked = solves(shape, dtype)
            among, reverse = solved(asked, device), solved(asked[::-1], device)[::-1]
            for j, own in enumerate(among):
                assert not np.array_equal(own, asked[j].d)
                np.testing.assert_array_equal(reverse[j], own)
                if j % 7 == 0:
                    np.testing.assert_array_equal(solved([asked[j]], device)[0], own)


def rectifiers_in_company(device: str) -> None:
    """Losses, slopes and steps of the network of rectifiers have the same bits alone, among 50, in another order."""
    with mock.patch.object(relu_torch, "PIECE", 13):
        for dtype in ("float32", "float64"):
            for compute, some in rectified(dtype, device):
                among, reverse = compute(some), compute(some[::-1])[::-1]
                for j, own in enumerate(among):
                    np.testing.assert_array_equal(reverse[j], own)
                    if j % 7 == 0:
                        np.testing.assert_array_equal(compute([some[j]])[0], own)


def a_thousand_clients(device: str) -> None:
    """What a client of ZO-HFL sends has the same bits among 1,000 clients, among two, and alone."""
    data = SAMPLES.subset(np.arange(300))
    own = tuple(data.subset(np.arange(i % 290, i % 290 + 10)) for i in range(1000))
    problem = Softmax(p, C, np.full(1000, 7e-4), Terms(), kernel="torch", device=device)
    of = built(ZOHFL, Setting(problem, STREAMS, own, data, data), tau=(3.0,), schedule_h="constant", batch=4)
    message, found = Model(of.start().x + np.float32(0.01), 0), []
    for to in (range(1000), [3], [700, 999]):
        found.append(dict(LocalClients(list(own), method=of).ask(of.solve, message, to=to)))
    assert all(found[0][i] == reply for some in found[1:] for i, reply in some.items())


def after_a_divergence(device: str) -> None:
    """Clients whose models became infinite leave nothing behind for those that are computed next."""
    _, asked = solves("bias, confined", "float32")
    before = solved(asked[:3], device)
    wild = [replace(solve, d=np.full_like(solve.d, 3e38), radius=np.inf) for solve in asked]
    assert not np.isfinite(solved([replace(each, radius=1e39) for each in wild], device)[0]).all()
    assert not np.isfinite(solved(wild, device)[0]).all()
    np.testing.assert_array_equal(solved(asked[:3], device), before)


def replays(device: str) -> None:
    """On a GPU a replay is no call of the work, and has the bits of one."""
    x, y, calls = torch.randn(32, 64, 48, device=device), torch.zeros(32, 64, 64, device=device), list[int]()

    def work() -> None:
        calls.append(1)
        torch.bmm(x, x.transpose(1, 2), out=y)

    replay = place.replayable(device, work)
    x.normal_()
    recorded = len(calls)
    replay()
    first = y.clone()
    assert (len(calls) == recorded) is (device != "cpu")
    work()
    assert torch.equal(first, y) and float(y.norm()) > 0


def no_wait(device: str) -> None:
    """Nothing waits for the GPU from the first to the last local step, of softmax regression and of rectifiers."""
    plain, taken = blocks.Steps.take, list[int]()

    def watched(self: blocks.Steps, rows: Sequence[Array], *sources: torch.Tensor) -> None:
        with nothing_waits(device):
            plain(self, rows, *sources)
        taken.append(len(rows[0]))

    _, asked = solves("bias, confined", "float32")
    compute, walks = rectified("float32", device)[-1]
    for _ in range(2):  # the first time graphs are recorded
        with mock.patch.object(blocks.Steps, "take", watched):
            solved(asked, device)
            compute(walks)
    assert sorted(set(taken)) == [3, 18]


@contextmanager
def nothing_waits(device: str) -> Iterator[None]:
    """Context manager: to wait for the GPU is an error."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


CALLS: tuple[Callable[[str], None], ...] = (
    trajectories,
    scaled_inputs,
    any_number_of_ranks,
    softmax_in_company,
    rectifiers_in_company,
    a_thousand_clients,
    after_a_divergence,
    replays,
    no_wait,
)
