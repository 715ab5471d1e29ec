"""Is what the device computes right? Each kernel path beside the same in float64 on the CPU."""

import functools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tests.gpu import made
from tests.gpu.report import Bench
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.rounds.split import estimates
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.rounds.split.messages import Model
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

Vector = NDArray[np.float64]
Solve = Callable[[str, str], Vector]
"""(device, dtype) -> what is compared, (n,)."""
SAME = 1e-10
"""Of the norm: what another order of summation may change in float64, with a wide margin."""
TIMES = 10.0
"""So many times the error in float32 on the CPU; the 10 bits of TF32 make some thousands."""
ROUNDED = 8 * 2.0**-23
"""Of a loss in float32, by which HERON itself tells differences that mean nothing (`LocalSteps.compare`)."""
RESOLVED = 0.1
"""Of an estimate's norm: a check that allows more says nothing, since that of other directions is about 1.4 away."""
LEAST = 2.0**-20
"""Where that error is none by luck."""


def compared(
    bench: Bench,
    name: str,
    solve: Solve,
    dtypes: Sequence[str] = ("float64", "float32"),
    reference: Solve | None = None,
) -> None:
    """Checks on the device, in each precision, what one step makes of one start.

    Args:
        reference: what is compared with on the CPU; None for `solve` itself there.
    """
    known = reference or solve
    exact = known("cpu", "float64")
    for dtype in dtypes:
        told = "float64 summed in another order"
        bound = SAME
        if dtype != "float64":
            own = distance(known("cpu", dtype), exact)
            bound, told = max(TIMES * own, LEAST), f"{TIMES:g} times the CPU's own error in {dtype}"
        bench.check(f"{name}, {dtype}", distance(solve(bench.device, dtype), exact), bound, told)


def distance(found: Vector, exact: Vector) -> float:
    """Relative, in the norm."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def double(values: Any) -> Vector:
    """(n,) on the host, in float64."""
    array = values.detach().double().cpu().numpy() if hasattr(values, "detach") else values
    return np.asarray(array, np.float64).ravel()


def sizes_of(bench: Bench) -> made.Sizes:
    return made.TINY if bench.tiny else made.REAL


# --- small models


def cnn(bench: Bench) -> None:
    """FedAvg's network: one step, since a ReLU that rounding switches parts two trajectories."""
    sizes = sizes_of(bench)
    data = made.images(2 * sizes.batch, sizes.side**2)
    batch = np.arange(sizes.batch)
    x = made.cnn(sizes, 1, "cpu").initial(made.STREAMS(Purpose.START))

    def gradient(device: str, dtype: str) -> Vector:
        return double(made.cnn(sizes, 1, device, dtype).gradient(x.astype(dtype), data, batch))

    def losses(device: str, dtype: str) -> Vector:
        points = np.stack([x, 1.01 * x]).astype(np.float32).astype(dtype)
        return double(made.cnn(sizes, 1, device, dtype).losses(0, points, data, batch))

    compared(bench, "CNN, gradient", gradient)

    def step(device: str, dtype: str, kernel: str = "torch") -> Vector:
        points = np.stack([x, 1.01 * x]).astype(np.float32).astype(dtype)
        problem = made.cnn(sizes, 1, device, dtype, kernel)
        return double(problem.solve_client(0, data, points, points, batch[None], np.ones(1)) - points)

    compared(bench, "CNN, losses at two points", losses)
    compared(bench, "CNN, a step from two points in one call", step, reference=functools.partial(step, kernel="serial"))


# --- split networks


def one_step(method: Any) -> Vector:
    """What one mini-batch of one client changes: of the client's part and the server's, along the gradient."""
    state = method.start()
    after = method.round(state, 0, LocalClients(list(method.setting.data), method=method))
    moved = [double(after.theta) - double(state.theta), double(after.theta_s) - double(state.theta_s)]
    return np.concatenate(moved)


PLAIN = {"optimiser": "sgd", "lr_client": 1.0, "lr_server": 1.0, "h": 1}
"""Steps along the gradient itself: Adam's first is about its sign, in which rounding is everything."""


def split_steps(bench: Bench, name: str, make: Callable[[str, str], Setting[Any]], batch: int) -> None:
    """Client and server steps of SFLV2 and of CSE-FSL (HERON with the exact gradient), and HERON's estimate.

    In float32 rounding switches a few ReLUs of millions, which alone is some thousandths of ResNet-18's gradient.
    """
    flags = {**PLAIN, "batch": batch}
    compared(
        bench,
        f"{name}, client and server step in lockstep",
        lambda device, dtype: one_step(from_flags(SFLV2, make(device, dtype), **flags)),
    )
    compared(
        bench,
        f"{name}, client and server step with an auxiliary head",
        lambda device, dtype: one_step(from_flags(HERON, make(device, dtype), estimate="exact", **flags)),
    )
    estimated(
        bench, name, lambda device, dtype: from_flags(HERON, make(device, dtype), n_p=2, mu=1e-2, draw="host", **flags)
    )


def estimated(bench: Bench, name: str, make: Callable[[str, str], HERON]) -> None:
    """HERON's estimate along directions that all are given: each device draws others, and so does each precision."""

    def estimate(device: str, dtype: str) -> tuple[Vector, float]:
        """(d,) the estimate, and the largest share of a loss over a difference of two."""
        method = make(device, dtype)
        state, own = method.start(), method.setting
        local = method.steps(Client(0, own.data[0]), Model(state.theta, state.buffers, 0))
        _, x, labels = next(iter(local))
        point = method.rule.forward(local, x, labels)
        with mock.patch.object(estimates, "drawn", drawn_in_float32):
            found = method.rule(local, point, labels, partial(made.STREAMS, i=0))
        g, base = found.parts[0], point.loss
        assert g is not None and base is not None
        return double(g), float(base) / min(abs(float(each)) for each in found.differences)

    exact, share = estimate("cpu", "float64")
    own = distance(estimate("cpu", "float32")[0], exact)
    bounds = {"float64": SAME * share, "float32": max(TIMES * own, ROUNDED * share)}
    told = f"rounding of a loss, {share:.1f} times a difference; {RESOLVED:g} at most"
    for dtype, bound in bounds.items():
        error = distance(estimate(bench.device, dtype)[0], exact)
        bench.check(f"{name}, HERON's estimate, {dtype}", error, min(bound, RESOLVED), told)


def drawn_in_float32(seed: np.random.Generator, like: Any, *how: Any) -> Iterator[Any]:
    """The directions of a step in float32, in the precision of `like`."""
    return (u.to(like.dtype) for u in drawn(seed, like.float(), *how))


def resnet(bench: Bench) -> None:
    """ResNet-18 at its width, on a batch that a CPU computes in float64."""
    sizes = sizes_of(bench)
    data = made.pictures(sizes, 1, sizes.checked, 1)[0]

    def make(device: str, dtype: str) -> Setting[Any]:
        return made.setting(made.resnet(sizes, device, dtype), data, 1)

    split_steps(bench, "ResNet-18", make, sizes.checked)
    smashed(bench, "ResNet-18", lambda device, dtype, bf16: made.resnet(sizes, device, dtype, bf16), data)


def gpt2(bench: Bench) -> None:
    """GPT-2 medium's shapes, four blocks of them."""
    sizes = sizes_of(bench)
    data = made.texts(sizes, 2)

    @functools.cache
    def problem(device: str, dtype: str, bf16: bool) -> Any:
        return made.gpt2(sizes, device, dtype, True, bf16)

    def make(device: str, dtype: str) -> Setting[Any]:
        return made.setting(problem(device, dtype, False), data, 1)

    split_steps(bench, "GPT-2", make, len(data))
    smashed(bench, "GPT-2", problem, data)


def smashed(bench: Bench, name: str, make: Callable[[str, str, bool], Any], data: Any) -> None:
    """The smashed samples: a forward pass alone, which no ReLU that rounding switches makes much worse."""
    import torch

    def forward(device: str, dtype: str, bf16: bool = False) -> Vector:
        problem = make(device, dtype, bf16)
        theta, buffers = (problem.to_device(t) for t in problem.client_side.initial())
        x, _ = problem.samples(data, np.arange(len(data)))
        with torch.no_grad(), problem.client_side.bound_to(theta, buffers):
            return double(problem.smash(x))

    compared(bench, f"{name}, smashed samples", forward)
    exact = forward("cpu", "float64")
    bound = max(TIMES * distance(forward("cpu", "float32", True), exact), 2.0**-8)
    error = distance(forward(bench.device, "float32", True), exact)
    bench.check(f"{name}, smashed samples, bfloat16", error, bound, f"{TIMES:g} times the CPU's own error in bfloat16")


SECTIONS: dict[str, Callable[[Bench], None]] = {"resnet": resnet, "gpt2": gpt2, "cnn": cnn}
