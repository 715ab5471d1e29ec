"""What of split learning a GPU alone can show.

Each of CALLS takes a device, asserts what its docstring says, and runs on the CPU too, where less of it can fail.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tests.gpu.clock import nothing_waits
from tests.numerics import lm_toy
from tests.numerics.split_methods import (
    SGD,
    SPLIT,
    C,
    Make,
    groups,
    method,
    mlp,
    resnet,
    run,
    setting,
    small,
    training,
    vectors,
)
from zofl_mpi.data import Dataset
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.staging import LEAST_PINNED_BYTES, Staging
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV2, SplitLoRA
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.device_cache import samples_on
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.rounds.split.messages import Model, Smashed
from zofl_mpi.rounds.split.method import Cut, LockstepMethod

STEPS = 6
LONG = 2_000_000_000
"""Cycles of a GPU, about a second."""


DRAWN: dict[str, dict[str, Any]] = {
    "one-sided": {"n_p": 2},
    "central": {"estimate": "central", "distribution": "gaussian"},
    "seeds": {"uplink": "seeds"},
    "jvp": {"estimate": "jvp"},
}


VARIANTS: dict[str, tuple[Any, Make, dict[str, Any]]] = {
    **{cls.__name__: (cls, resnet, {}) for cls in SPLIT},
    **{f"HERON {name}": (HERON, resnet, flags) for name, flags in DRAWN.items() if name != "jvp"},
    **{f"HOSFL {name}": (HOSFL, resnet, flags) for name, flags in DRAWN.items() if name != "jvp"},
    "HERON jvp": (HERON, groups, DRAWN["jvp"]),
    "HERON signs": (HERON, groups, {"directions": "per-sample"}),
    "HOSFL signs": (HOSFL, groups, {"directions": "per-sample"}),
    "HERON exact head": (HERON, resnet, {"head_gradient": "exact"}),
    "HERON exact layers": (HERON, mlp, {"head_gradient": "exact", "exact_layers": 1}),
    "HOSFL exact layers": (HOSFL, mlp, {"exact_layers": 1}),
    "DeComFL": (DeComFL, small, {}),
}


TEXTS: dict[str, tuple[Any, None, dict[str, Any]]] = {
    "HERON, texts": (HERON, None, {}),
    "SplitLoRA, texts": (SplitLoRA, None, {}),
}


def made(which: str, device: str = "cpu", h: int = 3, own: Setting | None = None, **changed: Any) -> Any:
    """The variant, of h local steps a round; short ones, which do not make rounding grow."""
    cls, make, flags = VARIANTS[which]
    if cls is FSLSAGE:
        flags = {"align_epochs": 2, "buffer": 6, "l": 2}
    plan = training(own or setting(make, device=device), SGD, h=h, lr_client=0.005)
    return method(cls, plan, **flags, **changed)


def steps_of(of: Any) -> Iterator[None]:
    """Takes a client's local steps, each with the server's on its upload, and yields after each."""
    state, client = of.start(), Client(0, of.setting.data[0])
    server = of.server(state, 0)
    if isinstance(of, LockstepMethod):
        item: Any = of.begin(client, of.begin_round(state, 0))
        while isinstance(item, Smashed):
            server.step(0, item, returned=True)
            server.move()
            item = of.proceed(client, Cut(server.slopes[0]))
            yield
        return
    message = of.begin_round(state, 0) if isinstance(of, FSLSAGE) else Model(state.theta, state.buffers, 0)
    for item in of.train(client, message):
        server.step(0, item)
        yield


def stepping(device: str, own: Mapping[Any, Setting[Any]] | None = None) -> Iterator[tuple[str, Iterator[None]]]:
    """The name and the steps of each method whose client tells nothing but uploads before its round ends.

    Args:
        own: {how a network is made, or None for texts: a setting with it}; on the device where it is missing.
    """
    for which, (cls, make, flags) in {**VARIANTS, **TEXTS}.items():
        if cls is not DeComFL:
            host = {"draw": "host"} if cls in (HERON, HOSFL) else {}
            given = own[make] if own else on(device, make)
            yield which, steps_of(method(cls, training(given, Optimiser(), h=STEPS), **flags, **host))


def on(device: str, make: Make | None) -> Setting[Any]:
    """One client's images, or texts."""
    return setting(make, [2], device=device) if make else lm_toy.setting(lm_toy.problem(device=device), 1)


def agrees(which: str, device: str, expected: Mapping[str, torch.Tensor]) -> None:
    """Five rounds on the device, their directions from the host, end within 1e-10 of the norms of `expected`."""
    host = {"draw": "host"} if VARIANTS[which][0] in (HERON, HOSFL, DeComFL) else {}
    found = vectors(run(made(which, device, **host), 5))
    for name, vector in expected.items():
        error = float((found[name].cpu() - vector).norm())
        assert error <= 1e-10 * float(vector.norm()), (which, name, error)


def five_rounds(device: str) -> None:
    """Five rounds of each split method in float64 agree with the CPU's to 1e-10 of the norms."""
    for which in VARIANTS:
        agrees(which, device, vectors(run(made(which), 5)))


def no_step_waits(device: str) -> None:
    """No local step of a split method waits for the GPU, nor the server's on its upload; directions from the host."""
    for which, steps in stepping(device):
        next(steps)
        with nothing_waits(device):
            for _ in range(STEPS - 2):
                assert next(steps, which) is None


def beside_the_computing(device: str) -> None:
    """An upload is on the host while the GPU still computes what it was asked for later."""
    values = torch.randn(1 << 20, device=device)
    own = Staging(device)
    doubled = 2 * values
    target = own.empty(doubled.nbytes)
    fetch = own.fetch(doubled, target)
    later = None
    if device != "cpu":
        torch.cuda._sleep(LONG)
        later = torch.cuda.current_stream().record_event()
        assert torch.from_numpy(target).is_pinned()
    fetch.wait()
    assert later is None or not later.query(), "the copy came after the computing"
    assert torch.equal(torch.from_numpy(target).view(torch.float32), doubled.cpu())


def brought_ahead(device: str) -> None:
    """What the server brings is right, from pinned memory that is used again, while the GPU is busy."""
    own, found = Staging(device), []
    for k in range(8):
        block = own.empty(4 * LEAST_PINNED_BYTES)
        host = torch.from_numpy(block).view(torch.float32)
        host.fill_(k)
        if device != "cpu":
            torch.cuda._sleep(LONG // 50)
        found.append(own.bring(host).sum())
        del block, host
    own.rest()
    assert [float(each) for each in found] == [k * LEAST_PINNED_BYTES for k in range(8)]


def samples_of_the_host(device: str) -> None:
    """Samples gathered on the device have the bits of those gathered on the host."""
    generator, positions = Streams(5)(Purpose.SYNTHETIC), np.array([7, 0, 99, 7])
    scale = generator.random(12)
    for kind in (np.uint8, np.float32, np.float64):
        inputs = (250 * generator.random((100, 12))).astype(kind)
        data = Dataset(inputs, generator.integers(0, C, 100), C, None, scale, 0.1)
        for dtype in ("float32", "float64"):
            x, labels = samples_on(device, data, positions, dtype)
            expected = data.take(positions, np.dtype(dtype))
            assert x.cpu().numpy().tobytes() == expected[0].tobytes()
            assert np.array_equal(labels.cpu().numpy(), expected[1])


def directions_of_the_host(device: str) -> None:
    """Directions drawn on the host have the CPU's bits."""
    for distribution in ("gaussian", "sphere", "sqrt_d_sphere"):
        each = []
        for place, draw in (("cpu", "device"), (device, "host")):
            seed = Streams(3)(Purpose.DIRECTION, t=4)
            us = drawn(seed, torch.zeros(100_000, device=place), 3, distribution, draw)  # type: ignore[arg-type]
            each.append(torch.stack([u.cpu() for u in us]))
        assert torch.equal(*each), distribution


def same_bits_twice(device: str) -> None:
    """Two rounds of HERON and SFLV2 on images, and of SplitLoRA on texts, have the same bits once more."""
    for cls, make in ((HERON, resnet), (SFLV2, resnet), (SplitLoRA, None)):
        found = [vectors(run(method(cls, training(on(device, make), Optimiser(), h=4)), 2)) for _ in range(2)]
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0]), cls.__name__


def all_bits_of_float32(device: str) -> None:
    """Products and convolutions in float32 are far nearer to float64 than in TF32 (3e-4), by Winograd too."""
    own = setting(resnet, dtype="float32", device=device).problem
    theta, buffers = own.client_side.initial()
    a, x, w = (torch.randn(*shape, device=device) for shape in ((512, 512), (8, 64, 16, 16), (64, 64, 3, 3)))
    with own.client_side.bound_to(theta, buffers):
        for call in (lambda t: t(a) @ t(a), lambda t: torch.conv2d(t(x), t(w), padding=1)):
            exact, found = call(torch.Tensor.double), call(torch.Tensor.float)
            assert float((found - exact).norm() / exact.norm()) < 1e-5


def channels_last(device: str) -> None:
    """On a GPU what a client makes, and what its server gets, has its channels last."""
    own = on(device, resnet).problem
    x, _ = own.samples(on("cpu", resnet).data[0], np.arange(4))
    assert x.is_contiguous(memory_format=torch.channels_last)
    theta, buffers = own.client_side.initial()
    with torch.no_grad(), own.client_side.bound_to(theta, buffers):
        smashed = own.smash(x)
    if device != "cpu":
        assert smashed.is_contiguous(memory_format=torch.channels_last)
        assert own.to_device(smashed.contiguous().cpu()).is_contiguous(memory_format=torch.channels_last)


CALLS: tuple[Callable[[str], None], ...] = (
    five_rounds,
    no_step_waits,
    beside_the_computing,
    brought_ahead,
    samples_of_the_host,
    directions_of_the_host,
    same_bits_twice,
    all_bits_of_float32,
    channels_last,
)
