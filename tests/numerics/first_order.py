"""What the tests of the first-order methods share: settings, runs, and each step written plainly."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from zofl_mpi.data import Dataset
from zofl_mpi.engine.between import composed
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems.analytic.quadratic import Quadratic, QuadraticData
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import ProximalTerms
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.client_memory import STEPS, Acknowledged
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.rounds import finite_round

Array = np.ndarray[Any, Any]
STREAMS = Streams(7)
n, m = 5, 4
SIZES = (4, 6, 10, 40)
SIZE_SHARES, SHARES = np.array(SIZES) / 60, np.full(m, 0.25)
p, C = 6, 3
COMPILED = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")
KERNELS = ["numpy", pytest.param("numba", marks=COMPILED)]
WEIGHTS = pytest.mark.parametrize("weights", ["uniform", "size"])
OPTIONS = pytest.mark.parametrize("option", ["I", "II"])


def shares(weights: str) -> Array:
    return SHARES if weights == "uniform" else SIZE_SHARES


def toy(noise: float = 0.0, clients: int = m, lam: float = 1.0) -> Setting:
    """Bowls with minima and curvatures of their own. The test bowl is neither the server's nor a client's."""
    problem, server, bowls = Quadratic.random(STREAMS, n, m + 1, samples=40, noise=noise, lam=lam)
    data = tuple(replace(bowl, noise=bowl.noise[:size]) for bowl, size in zip(bowls, SIZES, strict=False))
    return Setting(problem, STREAMS, data[:clients], server, bowls[m], None, np.float64)


GENERATOR = STREAMS(Purpose.SYNTHETIC)
PIXELS = GENERATOR.integers(0, 256, (200, p), dtype=np.uint8)
PIXELS.flags.writeable = False  # as maps of files are: for others numba would compile the kernel once more
LABELS = GENERATOR.integers(0, C, 200)
DATA = Dataset(PIXELS, LABELS, C, scale=1 / 255)
EDGES = np.cumsum([0, *SIZES, 30, 50])


def softmax(dtype: Any = np.float64, kernel: str = "numpy", lam: float = 1.0) -> Setting:
    """Clients of SIZES, then the server's 30 samples and 50 for the test."""
    *clients, server, test = (DATA.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    problem = Softmax(p, C, kernel, weights=np.array(SIZES) / 90, terms=ProximalTerms(lam), dtype=dtype)
    counts = np.stack([data.counts() for data in clients])
    return Setting(problem, STREAMS, tuple(clients), server, test, counts, dtype)


BOTH = pytest.mark.parametrize("make", [lambda: toy(noise=1.0), softmax], ids=["toy", "softmax"])
Make = Callable[[], Setting]

OWN = ("mu", "option")


def method(cls: Any, setting: Setting, **flags: Any) -> Any:
    """Three local steps of sizes 0.1, 0.05, 0.033 on four samples each, unless told otherwise."""
    own = {flag: flags.pop(flag) for flag in OWN if flag in flags}
    usual = {"tau": (3.0,), "schedule_h": "constant", "schedule_local": "harmonic", "batch": 4, "server_batch": 8}
    return from_flags(cls, setting, **{**usual, **flags, **own})


def clients_of(of: Any) -> Any:
    return composed(LocalClients(list(of.setting.data), method=of), of)


def point(setting: Setting, t: int = 9) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(setting.problem.n).astype(setting.dtype)


def vector(t: int = 0, size: int = n) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(size)


def started(of: Any, x: Array | None = None) -> Any:
    """The state before round 0, at `x` if it is given."""
    state = of.start()
    return state if x is None else replace(state, x=x)


def run(of: Any, rounds: Iterable[int] | int, x: Array | None = None) -> Any:
    state, clients = started(of, point(of.setting) if x is None else x), clients_of(of)
    for r in range(rounds) if isinstance(rounds, int) else rounds:
        state = finite_round(of, state, r, clients)
    return state


def one(of: Any, r: int = 0, x: Array | None = None) -> Array:
    """The model after round r alone."""
    return np.asarray(run(of, [r], x).x)


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def apart(a: Array, b: Array) -> bool:
    return bool(np.linalg.norm(a - b) > 1e-3)


def memories(clients: LocalClients) -> dict[int, Any]:
    return {i: memory.entries for i, memory in clients.ask(STEPS["<recall>"], Acknowledged(), counted=False)}


def gradient(data: Any, x: Array, batch: Array | None = None) -> Array:
    """Written out, for either kind of data, in float64."""
    batch = np.arange(len(data)) if batch is None else batch
    if isinstance(data, QuadraticData):
        return np.asarray(data.A @ (x - data.a) + data.noise[batch].mean(axis=0))
    rows = data.rows[batch]
    X, W = PIXELS[rows] / 255, x.reshape(C, p).astype(np.float64)
    q = np.exp(X @ W.T)
    q /= q.sum(axis=1, keepdims=True)
    q[np.arange(len(rows)), LABELS[rows]] -= 1
    return np.asarray(q.T @ X / len(rows)).ravel()


def loss(data: Any, x: Array) -> float:
    if isinstance(data, QuadraticData):
        return float((x - data.a) @ data.A @ (x - data.a) / 2 + data.noise.mean(axis=0) @ x)
    X, W = PIXELS[data.rows] / 255, x.reshape(C, p)
    z = X @ W.T
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), LABELS[data.rows]]))


def drawn(data: Any, i: int, r: int, H: int, batch: int = 4) -> Array:
    return STREAMS(Purpose.BATCH, r=r, i=i).integers(len(data), size=(H, batch))


def walk(
    setting: Setting, i: int, r: int, x: Array, gammas: Any, more: Callable[[Array], Any] = lambda y: 0.0
) -> tuple[Array, Array]:
    """Client i's steps of round r written out: where they end, and the stochastic gradients that they used."""
    data, y, used = setting.data[i], x, []
    for gamma, batch in zip(gammas, drawn(setting.data[i], i, r, len(gammas)), strict=True):
        used.append(gradient(data, y, batch))
        y = y - gamma * (used[-1] + more(y))
    return y, np.stack(used)


HARMONIC = 0.1 / np.arange(1, 4)
