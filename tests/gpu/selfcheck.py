"""Calls that only a GPU can check: each with its verdict, so that the first run on a card tells what holds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch

from tests.gpu import made
from tests.gpu.correct import sizes_of
from tests.gpu.report import NO_GPU, Bench, Late
from zofl_mpi.engine import device, memory, messages
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.rounds.report import Model
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients

YES = 1.0


def chosen(bench: Bench) -> None:
    """`device.select` and the uuid on which an allocation lands."""
    name = device.select("cuda")
    assert name == bench.device, name
    assert device.proof(name) in device.visible("cuda")


def counted(bench: Bench) -> None:
    """`device.peak_bytes` and `device.allocated` see what torch holds."""
    before = device.peak_bytes()
    kept = torch.zeros(2**28, device=bench.device)
    assert device.peak_bytes() >= before + kept.nbytes
    assert device.allocated(bench.device, lambda: torch.zeros(2**26, device=bench.device)) >= 2**28


def told(bench: Bench) -> None:
    """Memory that runs out becomes a sentence with what was asked for and what is free."""
    free, total = device.free_bytes() or (0, 0)
    assert 0 < free <= total
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=bench.device)
    except Exception as exc:
        sentence = memory.shortage(exc)
        assert sentence.startswith("out of memory on the GPU: ") and sentence.count("GiB") == 3, sentence
    else:
        raise AssertionError("twice a GPU's memory was to be had")


def directions(bench: Bench) -> None:
    """A generator on the GPU draws the same direction for the same seed, another for another."""
    like = torch.zeros(1000, device=bench.device)
    one, again, other = (next(drawn(made.STREAMS(Purpose.DIRECTION, r=r), like, 1, "sqrt_d_sphere")) for r in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert abs(float(one.double().norm()) - 1000**0.5) < 1e-3


def graphs(bench: Bench) -> None:
    """A CUDA graph is captured, and replayed on what its inputs hold by then."""
    x, y = (torch.zeros(4, device=bench.device) for _ in range(2))
    torch.add(x, 1, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, 1, out=y)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3.0] * 4


def seen(bench: Bench) -> None:
    """The profiler sees kernels: without it no floor is known."""
    from tests.gpu.clock import kernels

    x = torch.zeros(4, device=bench.device)
    assert kernels(bench, lambda: x.add_(1)) == 1


def repeated_split(bench: Bench) -> None:
    """A round of HERON on the ResNet has the same bits twice."""
    sizes = sizes_of(bench)
    data = made.pictures(sizes, 2, sizes.checked, 2)
    own = made.setting(made.resnet(sizes, bench.device), data[0], 1)
    method = built(HERON, own, batch=sizes.checked, h=2)
    assert torch.equal(*(_round(method).theta for _ in range(2)))


def repeated_small(bench: Bench) -> None:
    """FedAvg on the CNN has the same bits twice, and a client's model those that it has alone."""
    sizes = sizes_of(bench)
    data = made.images(20 * sizes.batch, sizes.side**2)
    method = built(FedAvg, made.setting(made.cnn(sizes, 3, bench.device), data, 3), tau=(3.0,), batch=8)
    found = []
    for to in ([0, 1, 2], [0, 1, 2], [1]):
        clients = LocalClients(list(method.setting.data), method=method)
        found.append(dict(clients.ask(method.train, Model(method.start().x, 0), to=to))[1].y)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def company(bench: Bench) -> None:
    """The bits of a client's steps of ZO-HFL and FedRZO do not depend on which clients share its rank."""
    sizes = sizes_of(bench)
    data = made.images(20 * sizes.batch, sizes.side**2)
    own = made.setting(made.cnn(sizes, 5, bench.device), data, 5)
    zo_hfl, fedrzo = built(ZOHFL, own, tau=(5.0,), batch=8), built(FedRZONN, own, H=5, batch=8, eta=1e-2)
    asked: tuple[tuple[Any, Any, Any], ...] = (
        (zo_hfl, zo_hfl.solve, Model(zo_hfl.start().x + np.float32(0.01), 0)),
        (fedrzo, fedrzo.step, Model(fedrzo.start().x, 0)),
    )
    for method, step, message in asked:
        found = []
        for to in ([0, 1, 2, 3, 4], [3], [1, 3]):
            clients = LocalClients(list(method.setting.data), method=method)
            found.append(bits(dict(clients.ask(step, message, to=to))[3]))
        assert found[0] == found[1] == found[2], type(method).__name__


def _round(method: Any) -> Any:
    return method.round(method.start(), 0, LocalClients(list(method.setting.data), method=method))


CALLS: tuple[Callable[[Bench], None], ...] = (
    chosen,
    counted,
    told,
    directions,
    graphs,
    seen,
    repeated_split,
    repeated_small,
    company,
)


def bits(message: Any) -> list[bytes]:
    """Of all that a message holds; packed it has gaps, with whatever lay there."""
    return [np.asarray(value).tobytes() for _, value in messages.leaves(message)]


def named(call: Any) -> str:
    """What a call shows, by its docstring."""
    return " ".join(str(call.__doc__).split()).rstrip(".")


def each(bench: Bench, calls: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Each call on the GPU; without one, each is listed as skipped."""
    for name, call in calls:
        if not bench.on_gpu:
            bench.skip(name, NO_GPU)
            continue
        bench.check_time()
        try:
            call()
        except Late:
            raise
        except Exception as exc:  # whatever it is: the other calls are of interest, too
            bench.check(name, YES, 0.0, f"{type(exc).__name__}: {exc}".partition("\n")[0])
        else:
            bench.check(name, 0.0, 0.0, "it holds or not")


def general(bench: Bench) -> None:
    """The device, its memory, its graphs, repeated bits."""
    each(bench, ((named(call), partial(call, bench)) for call in CALLS))


def split(bench: Bench) -> None:
    """Split learning: what waits for what, and agrees with what."""
    _calls(bench, "gpu_split")


def networks(bench: Bench) -> None:
    """Torch modules: batched clients, replays, no waiting; data sets too large to lie on the device."""
    _calls(bench, "gpu_networks")


def _calls(bench: Bench, module: str) -> None:
    """The CALLS of a module of the tests."""
    try:
        found = importlib.import_module(f"tests.bench.{module}")  # and with it the tests' own helpers
    except ModuleNotFoundError as exc:
        bench.skip(f"the calls of tests/bench/{module}.py", f"{exc.name} is not installed")
        return
    each(bench, ((named(call), partial(call, bench.device)) for call in found.CALLS))


SECTIONS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "self-check of the GPU": (general, 20),
    "self-check of batched networks": (networks, 35),
    "self-check of split learning": (split, 45),
}
"""{title: (section, seconds)}."""
