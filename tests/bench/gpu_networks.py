"""What of torch modules abreast a GPU alone can show; and of data sets that are too large to lie there.

Each of CALLS takes a device, asserts what its docstring says, and runs on the CPU too, where less of it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from tests.bench import gpu_small
from tests.bench.gpu_small import ROUNDS, STREAMS, USUAL, ZEROTH, Array, compared, local, nothing_waits, same_on_ranks
from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems import device_cache
from zofl_mpi.problems.kernels import blocks, module_torch
from zofl_mpi.problems.kernels.module_torch import Walk
from zofl_mpi.problems.models import CNN, MLP
from zofl_mpi.problems.network import Network, seeded
from zofl_mpi.problems.terms import Terms
from zofl_mpi.rounds.report import Model
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients

SHAPE, C, m = (1, 8, 8), 4, 5
p = 64
GENERATOR = STREAMS(Purpose.SYNTHETIC, t=7)
PIXELS, LABELS = GENERATOR.integers(0, 256, (400, p), dtype=np.uint8), GENERATOR.integers(0, C, 400)
SAMPLES = Dataset(PIXELS, LABELS, C, scale=1 / 255)
SCALED = {
    "as stored": SAMPLES,
    "per feature": replace(SAMPLES, scale=GENERATOR.uniform(0.002, 0.01, p), shift=GENERATOR.standard_normal(p)),
}
EDGES = (0, 30, 70, 100, 180, 240, 300, 400)  # five clients, the server, the test
MODULES: dict[str, Callable[[], nn.Module]] = {"mlp": lambda: MLP(p, C, (7,)), "cnn": lambda: CNN(SHAPE, C, (2, 3))}
METHODS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "zo_hfl": (ZOHFL, {}, {}),
    "zo_hfl, each its own": (
        ZOHFL,
        {"tau": (2.0, 18.0, 5.0, 0.0, 33.0), "samples": "separate", "y0": "last"},
        {"radius": (0.02,), "mu": (0.5, 1.0, 2.0, 3.0, 4.0)},
    ),
    "zo_hfl, some confined": (
        ZOHFL,
        {},
        {"radius": (0.02, np.inf, 0.03, 0.0, np.inf), "mu": (0.5, 1.0, 2.0, 3.0, 4.0)},
    ),
    "fedavg": (FedAvg, {"beta": 0.6}, {}),
    "fedavg, personal": (FedAvg, {"personal": True, "batch": 0}, {}),
    "fedprox": (FedProx, {"mu": 0.3}, {}),
    "scaffold": (Scaffold, {}, {}),
    "ditto": (Ditto, {}, {}),
    "pfedme": (PFedMe, {"lam_p": 2.0, "alpha_p": 0.1, "tau": (5.0,)}, {}),
    "server_sgd": (ServerSGD, {"gamma": 0.1}, {}),
    "fedrzo_nn": (FedRZONN, {**ZEROTH, "gamma": 1e-4}, {}),
    "fedrzo_nn, all samples": (FedRZONN, {**ZEROTH, "gamma": 1e-4, "batch": 0, "estimate": "central"}, {}),
}


def method(name: str, module: str, kernel: Any, device: str = "cpu", data: Dataset = SAMPLES) -> Any:
    """In float64, on the CPU by torch's own convolutions."""
    cls, flags, terms = METHODS[name]
    *clients, server, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    made = seeded(MODULES[module], STREAMS(Purpose.MODULE))
    problem = Network(made, SHAPE, C, np.diff(EDGES)[:m] / 300, Terms(**terms), "direct", np.float64, device, kernel)
    counts = np.stack([own.counts() for own in clients])
    own = Setting(problem, STREAMS, tuple(clients), server, test, counts, np.float64)
    special: dict[Any, dict[str, Any]] = {ServerSGD: {"server_batch": 8}, FedRZONN: {}}
    usual = special.get(cls, USUAL)
    return built(cls, own, **{**usual, **flags})


@cache
def in_turn(name: str, module: str, data: str) -> tuple[list[Array], Any]:
    return local(method(name, module, "serial", data=SCALED[data]))


# --- a client's requests

KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, float, bool]] = {
    "mlp": (lambda: MLP(784, 10, (200,)), (1, 28, 28), 10, 16, np.inf, False),
    "odd mlp, confined": (lambda: MLP(30, 3, (7, 5)), (30,), 3, 5, 0.05, True),
    "one sample": (lambda: MLP(65, 3, (9,)), (65,), 3, 1, np.inf, True),
    "cnn": (lambda: CNN((1, 8, 8), 10), (1, 8, 8), 10, 8, np.inf, False),
    "odd cnn": (lambda: CNN((3, 7, 7), 5, (3, 5)), (3, 7, 7), 5, 3, 0.05, False),
}
"""Module, shape of an input, classes, samples of a batch, radius, whether there is a shift."""


@cache
def network(kind: str, dtype: str, device: str) -> Network:
    make, shape, classes, *_ = KINDS[kind]
    module = seeded(make, STREAMS(Purpose.MODULE))
    return Network(module, shape, classes, np.ones(1), dtype=np.dtype(dtype), device=device, kernel="torch")


def walks(kind: str, dtype: str, device: str, count: int = 50) -> list[Walk]:
    """Both points of so many clients, each with its own start, mini-batches and step sizes; every fourth takes more."""
    _, shape, classes, batch, radius, shifted = KINDS[kind]
    problem, generator = network(kind, dtype, device), STREAMS(Purpose.SYNTHETIC, t=1)
    inputs = generator.integers(0, 256, (300, int(np.prod(shape))), dtype=np.uint8)
    data, found = Dataset(inputs, generator.integers(0, classes, 300), classes, scale=1 / 255), list[Walk]()
    first = problem.initial(generator)
    for i in range(count):
        x = (first + 0.01 * generator.standard_normal((2, problem.n))).astype(dtype)
        own, H = data.subset(generator.permutation(300)[:100]), 18 if i % 4 == 0 and problem.n < 5000 else 2
        positions, sizes = generator.integers(0, 100, (H, batch)), generator.uniform(0.1, 0.5, H)
        shift = generator.standard_normal(problem.n).astype(dtype) if shifted else None
        found.append(Walk(problem._function, own, x, x.copy(), positions, sizes, 0.5 * (i % 3), radius, shift))
    return found


# --- what holds on every device


def trajectories(device: str) -> None:
    """Five rounds of twelve methods with an MLP and a CNN in float64 agree with a client after the other's to 1e-10."""
    for module in MODULES:
        for name in METHODS:
            of = method(name, module, "torch", device)
            compared(local(of), in_turn(name, module, "as stored"), f"{name}, {module}")


def scaled_inputs(device: str) -> None:
    """Inputs of modules that are scaled and shifted, by one number a feature, are so on the device: 1e-10."""
    for module in MODULES:
        of = method("scaffold", module, "torch", device, SCALED["per feature"])
        compared(local(of), in_turn("scaffold", module, "per feature"), module)


def any_number_of_ranks(device: str) -> None:
    """Modules in one process, on 1, 2 and 3 ranks: models and reports have the same bits."""
    for module, name in (("mlp", "zo_hfl, each its own"), ("mlp", "fedrzo_nn"), ("cnn", "zo_hfl"), ("cnn", "pfedme")):
        of = method(name, module, "torch", device)
        same_on_ranks(of, (2, 3, 4), name)


def in_company(device: str) -> None:
    """A client's local steps of a module have the same bits alone, among 3, among 50, and in another order."""
    for dtype in ("float32", "float64"):
        for kind in KINDS:
            asked = walks(kind, dtype, device)
            among, reverse = module_torch.walked(asked), module_torch.walked(asked[::-1])[::-1]
            for j, own in enumerate(among):
                assert np.isfinite(own).all() and not (own == asked[j].y).all(axis=1).any()
                np.testing.assert_array_equal(reverse[j], own)
            for some in ([0], [7], [13, 14, 49], [44]):
                for j, own in zip(some, module_torch.walked([asked[j] for j in some]), strict=True):
                    np.testing.assert_array_equal(own, among[j], kind)


def losses_in_company(device: str) -> None:
    """Losses of a client's points have the same bits alone, among 3, among 50, and in another order."""
    for dtype in ("float32", "float64"):
        for kind in KINDS:
            asked = [
                module_torch.Points(walk.function, walk.x, walk.data, walk.batches[0])
                for walk in walks(kind, dtype, device)
            ]
            among, reverse = module_torch.summed(asked), module_torch.summed(asked[::-1])[::-1]
            assert len({each.tobytes() for each in among}) == len(asked)
            np.testing.assert_array_equal(reverse, among)
            for some in ([0], [7], [13, 14, 49], [44]):
                np.testing.assert_array_equal(module_torch.summed([asked[j] for j in some]), [among[j] for j in some])


def a_point_alone(device: str) -> None:
    """The steps of a client's point have the same bits beside its other point and without it."""
    for kind in ("mlp", "odd cnn"):
        asked = walks(kind, "float32", device, 3)
        both = module_torch.walked(asked)
        for k in range(2):
            alone = [replace(each, x=each.x[[k]], y=each.y[[k]]) for each in asked]
            np.testing.assert_array_equal(np.concatenate(module_torch.walked(alone)), np.stack(both)[:, k])


def a_thousand_clients(device: str) -> None:
    """What a client of ZO-HFL with an MLP sends has the same bits among 1,000 clients, among two, and alone."""
    data = SAMPLES.subset(np.arange(300))
    own = tuple(data.subset(np.arange(i % 290, i % 290 + 10)) for i in range(1000))
    made = seeded(MODULES["mlp"], STREAMS(Purpose.MODULE))
    problem = Network(made, SHAPE, C, np.full(1000, 7e-4), kernel="torch", device=device)
    of = built(ZOHFL, Setting(problem, STREAMS, own, data, data), tau=(3.0,), schedule_h="constant", batch=4)
    message, found = Model(of.start().x, 0), []
    for to in (range(1000), [3], [700, 999]):
        found.append(dict(LocalClients(list(own), method=of).ask(of.solve, message, to=to)))
    assert all(found[0][i] == reply for some in found[1:] for i, reply in some.items())


def repeated(device: str) -> None:
    """The local steps of a CNN have the same bits twice, from a loop that was made anew too."""
    asked = walks("cnn", "float32", device, 3)
    first, again = module_torch.walked(asked), module_torch.walked(asked)
    with mock.patch.object(blocks, "_LOOPS", type(blocks._LOOPS)()):
        anew = module_torch.walked(asked)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, anew)


def after_a_divergence(device: str) -> None:
    """Clients whose networks became infinite leave nothing behind, and nothing beside them."""
    asked = walks("odd mlp, confined", "float32", device, 8)
    before = module_torch.walked(asked)
    wild = [replace(each, x=np.full_like(each.x, 3e38), y=np.full_like(each.y, 3e38)) for each in asked]
    assert not np.isfinite(module_torch.walked(wild)[0]).all()
    np.testing.assert_array_equal(module_torch.walked([*wild[:4], *asked[4:]])[4:], before[4:])
    np.testing.assert_array_equal(module_torch.walked(asked), before)


def no_wait(device: str) -> None:
    """Nothing waits for the GPU from the first to the last local step of a module."""
    plain, taken = blocks.Steps.take, list[int]()

    def watched(self: blocks.Steps, rows: Sequence[Array], *sources: torch.Tensor) -> None:
        with nothing_waits(device):
            plain(self, rows, *sources)
        taken.append(len(rows[0]))

    for _ in range(2):  # the first time graphs are recorded
        with mock.patch.object(blocks.Steps, "take", watched):
            for kind in ("odd mlp, confined", "odd cnn"):
                module_torch.walked(walks(kind, "float32", device, 5))
    assert sorted(set(taken)) == [2, 18]


def too_large_to_lie_there(device: str) -> None:
    """Mini-batches that are gathered on the host give the same bits: softmax regression, rectifiers, networks."""
    small = ("zo_hfl", "fedprox, rectifiers", "fedrzo_nn, all samples", "fedrzo_bl, fair softmax")
    made = {
        **{name: lambda name=name: gpu_small.method(name, "torch", device) for name in small},
        "a cnn": lambda: method("scaffold", "cnn", "torch", device, SCALED["per feature"]),
    }
    for name, make in made.items():
        found = []
        for most in (device_cache.MOST, 0):
            with (
                mock.patch.object(device_cache, "MOST", most),
                mock.patch.object(blocks, "_LOOPS", type(blocks._LOOPS)()),
            ):
                found.append(local(make()))
        np.testing.assert_array_equal(found[0][0], found[1][0], name)
        assert len(found[0][0]) == ROUNDS and repr(found[0][1]) == repr(found[1][1]), name


CALLS: tuple[Callable[[str], None], ...] = (
    trajectories,
    scaled_inputs,
    any_number_of_ranks,
    in_company,
    losses_in_company,
    a_point_alone,
    a_thousand_clients,
    repeated,
    after_a_divergence,
    no_wait,
    too_large_to_lie_there,
)
