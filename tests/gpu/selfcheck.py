"""Calls that only a GPU can check: each with its verdict, so that the first run on a card tells what holds."""

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from tests.gpu import made
from tests.gpu.report import NO_GPU, Bench
from zofl_mpi.engine import device, memory
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.rounds.split.client import drawn


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
    """An out-of-memory error says what was asked for and what is free."""
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


CALLS: tuple[Callable[[Bench], None], ...] = (chosen, counted, told, directions, graphs)


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
        except Exception as exc:  # whatever it is: the other calls are of interest, too
            bench.failed(name, f"{type(exc).__name__}: {exc}".partition("\n")[0])
        else:
            bench.holds(name)


def general(bench: Bench) -> None:
    """The device, its memory, its graphs, repeated bits."""
    each(bench, ((named(call), partial(call, bench)) for call in CALLS))


def _calls(module: str, bench: Bench) -> None:
    """The CALLS of a module of the tests, and with it the tests' own helpers, which import pytest."""
    found = importlib.import_module(f"tests.bench.{module}")
    each(bench, ((named(call), partial(call, bench.device)) for call in found.CALLS))


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "selfcheck-gpu": general,
    "selfcheck-split": partial(_calls, "gpu_split"),
    "selfcheck-networks": partial(_calls, "gpu_networks"),
}
