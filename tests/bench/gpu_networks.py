"""Calls for batched torch modules that only a GPU can check.

Each of CALLS takes a device, asserts what its docstring says, and runs on the CPU too, where less of it can fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from tests.gpu.clock import nothing_waits
from tests.threads import run_ranks, serve_or_ask
from zofl_mpi.data import Dataset
from zofl_mpi.engine import device as place
from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems.kernels import module_torch
from zofl_mpi.problems.kernels.module_torch import LossRequest, StepsRequest, equal_bits
from zofl_mpi.problems.models import CNN, MLP
from zofl_mpi.problems.network import Network, seeded
from zofl_mpi.problems.terms import ProximalSteps, ProximalTerms
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

Array = np.ndarray[Any, Any]
STREAMS = Streams(5)
SHAPE, C, m, ROUNDS = (1, 8, 8), 4, 5, 2
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
USUAL = {"tau": (18.0,), "schedule_h": "constant", "batch": 8, "server_batch": 8}
ZEROTH = {"H": 4, "gamma": 0.01, "eta": 0.05, "batch": 8, "n_p": 2, "probe": 3}
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
    "fedavg, personal": (FedAvg, {"personal": True, "batch": 0, "tau": (3.0,)}, {}),
    "fedprox": (FedProx, {"mu": 0.3}, {}),
    "scaffold": (Scaffold, {}, {}),
    "ditto": (Ditto, {}, {}),
    "pfedme": (PFedMe, {"lam_p": 2.0, "alpha_p": 0.1, "tau": (5.0,)}, {}),
    "server_sgd": (ServerSGD, {"gamma": 0.1}, {}),
    "fedrzo_nn": (FedRZONN, {**ZEROTH, "gamma": 1e-4}, {}),
    "fedrzo_nn, all samples": (FedRZONN, {**ZEROTH, "gamma": 1e-4, "batch": 0, "estimate": "central"}, {}),
}


def method(name: str, module: str, kernel: Any, device: str = "cpu", data: Dataset = SAMPLES) -> Any:
    """In float64."""
    cls, flags, terms = METHODS[name]
    *clients, server, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    made = seeded(MODULES[module], STREAMS(Purpose.MODULE))
    given = {"weights": np.diff(EDGES)[:m] / 300, "terms": ProximalTerms(**terms), "dtype": np.float64}
    problem = Network(made, SHAPE, C, device, kernel, **given)
    counts = np.stack([own.counts() for own in clients])
    own = Setting(problem, STREAMS, tuple(clients), server, test, counts, np.float64)
    special: dict[Any, dict[str, Any]] = {ServerSGD: {"server_batch": 8}, FedRZONN: {}}
    usual = special.get(cls, USUAL)
    return from_flags(cls, own, **{**usual, **flags})


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


def close(found: Any, right: Any, name: str) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-10, err_msg=name)


def compared(found: tuple[list[Array], Any], right: tuple[list[Array], Any], name: str) -> None:
    """Trajectory and report."""
    assert np.linalg.norm(right[0][-1] - right[0][0]) > 3e-4
    close(found[0], right[0], name)
    for column, value in vars(right[1]).items():
        if isinstance(value, float):
            close(getattr(found[1], column), value, f"{name}: {column}")


@cache
def serial(name: str, module: str, data: str) -> tuple[list[Array], Any]:
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
    return Network(module, shape, classes, device, "torch", weights=np.ones(1), dtype=np.dtype(dtype))


def requests(kind: str, dtype: str, device: str, count: int = 50) -> list[StepsRequest]:
    """Both points of so many clients, each with its own start, mini-batches and step sizes; every fourth takes more."""
    _, shape, classes, batch, radius, shifted = KINDS[kind]
    problem, generator = network(kind, dtype, device), STREAMS(Purpose.SYNTHETIC, t=1)
    inputs = generator.integers(0, 256, (300, int(np.prod(shape))), dtype=np.uint8)
    data, found = Dataset(inputs, generator.integers(0, classes, 300), classes, scale=1 / 255), list[StepsRequest]()
    first = problem.initial(generator)
    for i in range(count):
        x = (first + 0.01 * generator.standard_normal((2, problem.n))).astype(dtype)
        own, H = data.subset(generator.permutation(300)[:100]), 18 if i % 4 == 0 and problem.n < 5000 else 2
        positions, sizes = generator.integers(0, 100, (H, batch)), generator.uniform(0.1, 0.5, H)
        shift = generator.standard_normal(problem.n).astype(dtype) if shifted else None
        steps = ProximalSteps(own, positions, sizes, 0.5 * (i % 3), radius, shift)
        found.append(StepsRequest(problem._function, x, x.copy(), steps))
    return found


# --- what holds on every device


def trajectories(device: str) -> None:
    """Two rounds of twelve methods with an MLP and a CNN in float64 agree with a client after the other's to 1e-10.

    On the CPU the CNN computes two of them, since it takes the same way as the MLP.
    """
    few = ("zo_hfl, some confined", "scaffold")
    for module, names in {"mlp": METHODS, "cnn": METHODS if device != "cpu" else few}.items():
        for name in names:
            of = method(name, module, "torch", device)
            compared(local(of), serial(name, module, "as stored"), f"{name}, {module}")


def scaled_inputs(device: str) -> None:
    """Inputs of modules that are scaled and shifted, by one number a feature, are so on the device: 1e-10."""
    for module in MODULES:
        of = method("scaffold", module, "torch", device, SCALED["per feature"])
        compared(local(of), serial("scaffold", module, "per feature"), module)


def same_on_ranks(of: Any, counts: Sequence[int], name: str) -> None:
    """A method's run has the bits of one process on so many ranks each, as threads."""
    alone, served = local(of), program(of)
    for ranks in counts:
        found = run_ranks(ranks, lambda world: serve_or_ask(world, of, of.setting.data, served))[0]
        np.testing.assert_array_equal(found[0], alone[0], name)
        assert repr(found[1]) == repr(alone[1]), name  # nan among its numbers


def any_number_of_ranks(device: str) -> None:
    """Modules in one process, on 2 or 3 client ranks: models and reports have the same bits."""
    for module, name, counts in (
        ("mlp", "zo_hfl, each its own", (3, 4)),
        ("mlp", "fedrzo_nn", (4,)),
        ("cnn", "pfedme", (3,)),
    ):
        same_on_ranks(method(name, module, "torch", device), counts, name)


def crowd(device: str) -> int:
    """Clients that fill more than one block: of 32 rows on a GPU, of 8 on the CPU."""
    return 20 if device == "cpu" else 50


@cache
def passing(device: str) -> list[tuple[str, str]]:
    """The kinds and dtypes of which the check at the start of a run says that company does not matter."""
    found = []
    for dtype in ("float32", "float64"):
        for kind, (_, _, _, batch, *_) in KINDS.items():
            if device == "cpu" and kind in ("mlp", "cnn"):  # the odd ones are enough, and smaller
                continue
            some = requests(kind, dtype, device, 1)[0]
            if equal_bits(some.function, some.data, batch, dtype):
                found.append((kind, dtype))
    return found


def in_company(device: str) -> None:
    """Where the check says so, steps and losses have the same bits alone, among 3, among many, and in another order."""
    count = crowd(device)
    for kind, dtype in passing(device):
        steps = requests(kind, dtype, device, count)
        losses = [LossRequest(own.function, own.x, own.data, own.steps.batches[0]) for own in steps]
        computing: tuple[tuple[Any, list[Any]], ...] = (
            (module_torch.take_steps, steps),
            (module_torch.loss_sums, losses),
        )
        for compute, asked in computing:
            among, reverse = compute(asked), compute(asked[::-1])[::-1]
            assert np.isfinite(among[0]).all() and len({each.tobytes() for each in among}) == count
            for j, own in enumerate(among):
                np.testing.assert_array_equal(reverse[j], own)
                assert compute is module_torch.loss_sums or not (own == asked[j].y).all(axis=1).any()
            for some in ([0], [7], [13, 14, count - 1], [count - 6]):
                for j, own in zip(some, compute([asked[j] for j in some]), strict=True):
                    np.testing.assert_array_equal(own, among[j], kind)


def a_thousand_clients(device: str) -> None:
    """What a client of ZO-HFL with an MLP sends has the same bits among 1,000 clients, among two, and alone."""
    data = SAMPLES.subset(np.arange(300))
    own = tuple(data.subset(np.arange(i % 290, i % 290 + 10)) for i in range(1000))
    made = seeded(MODULES["mlp"], STREAMS(Purpose.MODULE))
    problem = Network(made, SHAPE, C, device, "torch", weights=np.full(1000, 7e-4))
    of = from_flags(ZOHFL, Setting(problem, STREAMS, own, data, data), tau=(3.0,), schedule_h="constant", batch=4)
    message, found = GlobalModel(of.start().x, 0), []
    for to in (range(1000), [3], [700, 999]):
        found.append(dict(LocalClients(list(own), method=of).ask(of.solve, message, to=to)))
    assert all(found[0][i] == reply for some in found[1:] for i, reply in some.items())


def repeated(device: str) -> None:
    """The local steps of a CNN have the same bits twice, from a loop that was made anew too."""
    asked = requests("cnn", "float32", device, 3)
    first, again = module_torch.take_steps(asked), module_torch.take_steps(asked)
    with mock.patch.object(module_torch, "_BLOCKS", type(module_torch._BLOCKS)()):
        anew = module_torch.take_steps(asked)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, anew)


def after_a_divergence(device: str) -> None:
    """Clients whose networks became infinite leave nothing behind."""
    asked = requests("odd mlp, confined", "float32", device, 8)
    before = module_torch.take_steps(asked)
    wild = [each._replace(x=np.full_like(each.x, 3e38), y=np.full_like(each.y, 3e38)) for each in asked]
    assert not np.isfinite(module_torch.take_steps(wild)[0]).all()
    assert all(np.isfinite(own).all() for own in module_torch.take_steps([*wild[:4], *asked[4:]])[4:])
    np.testing.assert_array_equal(module_torch.take_steps(asked), before)


def no_wait(device: str) -> None:
    """Nothing waits for the GPU from the first to the last local step of a module."""
    plain, taken = module_torch._StepBlock._replay, list[int]()

    def watched(self: Any, replays: Any, rows: Sequence[Array], gammas: torch.Tensor) -> None:
        with nothing_waits(device):
            plain(self, replays, rows, gammas)
        taken.append(len(rows[0]))

    for _ in range(2):  # the first time graphs are recorded
        with mock.patch.object(module_torch._StepBlock, "_replay", watched):
            for kind in ("odd mlp, confined", "odd cnn"):
                module_torch.take_steps(requests(kind, "float32", device, 5))
    assert sorted(set(taken)) == [2, 18]


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


CALLS: tuple[Callable[[str], None], ...] = (
    trajectories,
    scaled_inputs,
    any_number_of_ranks,
    in_company,
    a_thousand_clients,
    repeated,
    after_a_divergence,
    no_wait,
    replays,
)
