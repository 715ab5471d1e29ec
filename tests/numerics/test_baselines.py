"""FedAvg, FedProx, SCAFFOLD and SGD on the server's data: ALGORITHMS sections 10 to 12, 17 and 19.2.

Exact where the mathematics is, on quadratics and small softmax regressions in float64, with clients of unequal sizes,
so that the weights |D_i| and 1/m are told apart. Docstrings name the mutations to catch.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.scaffold import Controlled, Scaffold
from zofl_mpi.methods.scaffold import State as Pair
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.methods.zo_hfl import State as HierarchicalState
from zofl_mpi.problems.known.quadratic import Bowl, Quadratic
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.rounds import local_sgd
from zofl_mpi.rounds.local_sgd import State
from zofl_mpi.rounds.start import Start
from zofl_mpi.run.clients import Client, ClientError
from zofl_mpi.run.desk import STEPS, Memory, Nothing
from zofl_mpi.run.fields import described, numbers, reported
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose, Streams

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
LABELS = GENERATOR.integers(0, C, 200)
DATA = Dataset(PIXELS, LABELS, C, scale=1 / 255)
EDGES = np.cumsum([0, *SIZES, 30, 50])


def softmax(dtype: Any = np.float64, kernel: str = "numpy", lam: float = 1.0) -> Setting:
    """Clients of SIZES, then the server's 30 samples and 50 for the test."""
    *clients, server, test = (DATA.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    problem = Softmax(p, C, np.array(SIZES) / 90, lam=lam, dtype=dtype, kernel=kernel)
    counts = np.stack([data.counts() for data in clients])
    return Setting(problem, STREAMS, tuple(clients), server, test, counts, dtype)


BOTH = pytest.mark.parametrize("make", [lambda: toy(noise=1.0), softmax], ids=["toy", "softmax"])
Make = Callable[[], Setting]

OWN = ("mu", "option")


def method(cls: Any, setting: Setting, **flags: Any) -> Any:
    """Three local steps of sizes 0.1, 0.05, 0.033 on four samples each, unless told otherwise."""
    own = {flag: flags.pop(flag) for flag in OWN if flag in flags}
    usual = {"tau": (3.0,), "schedule_h": "constant", "schedule_local": "harmonic", "batch": 4, "server_batch": 8}
    return built(cls, setting, **{**usual, **flags, **own})


def clients_of(of: Any) -> LocalClients:
    return LocalClients(list(of.setting.data), method=of)


def point(setting: Setting, t: int = 9) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(setting.problem.n).astype(setting.dtype)


def started(of: Any, x: Array | None = None) -> Any:
    """The state before round 0, at `x` if it is given."""
    state = of.start()
    return state if x is None else replace(state, x=x)


def run(of: Any, rounds: Iterable[int] | int, x: Array | None = None) -> Any:
    state, clients = started(of, point(of.setting) if x is None else x), clients_of(of)
    for r in range(rounds) if isinstance(rounds, int) else rounds:
        state = of.round(state, r, clients)
    return state


def one(of: Any, r: int = 0, x: Array | None = None) -> Array:
    """The model after round r alone."""
    return np.asarray(run(of, [r], x).x)


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def apart(a: Array, b: Array) -> bool:
    return bool(np.linalg.norm(a - b) > 1e-3)


def memories(clients: LocalClients) -> dict[int, Any]:
    return {i: memory.entries for i, memory in clients.ask(STEPS["<recall>"], Nothing(), counted=False)}


def gradient(data: Any, x: Array, batch: Array | None = None) -> Array:
    """Written out, for either kind of data, in float64."""
    batch = np.arange(len(data)) if batch is None else batch
    if isinstance(data, Bowl):
        return np.asarray(data.A @ (x - data.a) + data.noise[batch].mean(axis=0))
    rows = data.rows[batch]
    X, W = PIXELS[rows] / 255, x.reshape(C, p).astype(np.float64)
    q = np.exp(X @ W.T)
    q /= q.sum(axis=1, keepdims=True)
    q[np.arange(len(rows)), LABELS[rows]] -= 1
    return np.asarray(q.T @ X / len(rows)).ravel()


def loss(data: Any, x: Array) -> float:
    if isinstance(data, Bowl):
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


def optimum(setting: Setting, w: Array) -> Array:
    """Of sum_i w_i F_i, quadratics without noise."""
    A = sum(w[i] * data.A for i, data in enumerate(setting.data))
    return np.linalg.solve(A, sum(w[i] * data.A @ data.a for i, data in enumerate(setting.data)))


# --- FedProx


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [None, *KERNELS])
def test_fedprox_without_its_term_is_fedavg_to_the_bit(kernel: str | None, dtype: Any) -> None:
    """Mutations: mini-batches or step sizes of its own; mu with a floor."""
    setting = toy(noise=1.0) if kernel is None else softmax(dtype, kernel)
    flags = {"beta": 0.5, "schedule_h": "sqrt"}
    fedavg = run(method(FedAvg, setting, **flags), 5)
    assert run(method(FedProx, setting, mu=0.0, **flags), 5).x.tobytes() == fedavg.x.tobytes()
    assert apart(run(method(FedProx, setting, mu=3.0, **flags), 5).x, fedavg.x)


@BOTH
def test_the_first_local_step_of_fedprox_is_fedavgs(make: Make) -> None:
    """At y = x the proximal term has no gradient. Mutation: a term around 0 in place of x."""
    setting = make()
    one_step, two_steps = {"tau": (1.0,)}, {"tau": (2.0,)}
    fedavg, fedprox = (one(method(cls, setting, **one_step)) for cls in (FedAvg, FedProx))
    assert fedavg.tobytes() == fedprox.tobytes()
    assert apart(one(method(FedAvg, setting, **two_steps)), one(method(FedProx, setting, mu=5.0, **two_steps)))


def test_many_steps_of_fedprox_reach_the_proximal_point() -> None:
    """y = (A + mu I)^{-1} (A a + mu x). Mutations: mu/2, 2 mu; the proximal parameter of the hierarchical problem."""
    setting, mu = toy(), 0.7
    fedprox = method(FedProx, setting, mu=mu, tau=(200.0,), gamma_local=0.3, schedule_local="constant")
    x = point(setting)
    for i, data in enumerate(setting.data):
        reply = fedprox.train(Client(i, data), local_sgd.Model(x, 0))
        close(reply.y, np.linalg.solve(data.A + mu * np.eye(n), data.A @ data.a + mu * x))


@BOTH
def test_a_round_of_fedprox_is_its_formula(make: Make) -> None:
    """Several noisy, decreasing steps. Mutation: the term around the last y."""
    setting, r, mu = make(), 2, 0.9
    x = point(setting)
    expected = sum(w * walk(setting, i, r, x, HARMONIC, lambda y: mu * (y - x))[0] for i, w in enumerate(SIZE_SHARES))
    close(one(method(FedProx, setting, mu=mu), r), expected)


# --- FedAvg


@WEIGHTS
@BOTH
def test_one_local_step_is_sgd_on_the_weighted_objective(make: Make, weights: str) -> None:
    """Mutations: weights over the server's samples too; the other weights; 1/B; samples of another client or round."""
    setting, r = make(), 3
    x = point(setting)
    fedavg = method(FedAvg, setting, weights=weights, tau=(1.0,), gamma_local=0.2)
    each = [gradient(data, x, drawn(data, i, r, 1)[0]) for i, data in enumerate(setting.data)]
    found = one(fedavg, r)
    close(found, x - 0.2 * shares(weights) @ each)
    other = shares("size" if weights == "uniform" else "uniform")
    assert apart(found, x - 0.2 * other @ each)


@pytest.mark.parametrize(("weights", "w"), [("uniform", SHARES), ("size", SIZE_SHARES)])
def test_the_shares_are_those_of_the_clients_samples_alone(weights: str, w: Array) -> None:
    for setting in (toy(), softmax()):
        found = built(FedAvg, setting, weights=weights).local.shares()
        assert list(found) == list(range(m))
        close([found[i] for i in range(m)], w, 1e-15)


@BOTH
def test_one_client_takes_plain_sgd_steps(make: Make) -> None:
    """H_r = ceil(3 sqrt(r + 1)) steps of 0.1/(t + 1) a round. Mutations: t or H counted otherwise; eta_g's default."""
    setting = make()
    setting = replace(setting, data=setting.data[:1], counts=None)
    x = point(setting)
    for r, H in enumerate((3, 5, 6, 6)):
        x = walk(setting, 0, r, x, 0.1 / np.arange(1, H + 1))[0]
    close(run(method(FedAvg, setting, schedule_h="sqrt"), 4).x, x)


@pytest.mark.parametrize("schedule_local", ["constant", "sqrt", "harmonic:3", "power:0.75"])
def test_local_steps_follow_their_schedule(schedule_local: str) -> None:
    t = np.arange(3)
    each = {"constant": t**0, "sqrt": (t + 1) ** 0.5, "harmonic:3": t + 3, "power:0.75": (t + 1) ** 0.75}
    setting = toy(noise=1.0, clients=1)
    expected, _ = walk(setting, 0, 0, point(setting), 0.1 / each[schedule_local])
    close(one(method(FedAvg, setting, schedule_local=schedule_local)), expected)


@pytest.mark.parametrize(("schedule_h", "right"), [("sqrt", [4, 10, 1, 6]), ("constant", [2, 5, 1, 3])])
def test_every_client_takes_its_own_number_of_steps(schedule_h: str, right: list[int]) -> None:
    """H_{i,r} = ceil(tau_i sqrt(r + 1)), here r = 3. Mutations: floor; another client's tau; all clients counted."""
    setting, r = toy(noise=1.0), 3
    x = point(setting)
    fedavg = method(FedAvg, setting, tau=(2.0, 5.0, 0.25, 3.0), schedule_h=schedule_h)
    state = run(fedavg, [r])
    assert state.local_steps == sum(right)
    ends = [walk(setting, i, r, x, 0.1 / np.arange(1, H + 1))[0] for i, H in enumerate(right)]
    close(state.x, SIZE_SHARES @ ends)
    half = replace(fedavg, local=replace(fedavg.local, beta=0.5))
    asked = half.local.participants(r)
    assert run(half, [r]).local_steps == sum(right[i] for i in asked) < sum(right)


@BOTH
def test_the_servers_step_size_scales_the_averaged_update(make: Make) -> None:
    """1 is plain averaging, 0 stands still. Mutation: eta_g on the model, not on its change."""
    setting = make()
    x = point(setting)
    average = SIZE_SHARES @ [walk(setting, i, 0, x, HARMONIC)[0] for i in range(m)]
    assert apart(average, x)
    for cls, own in ((FedAvg, {}), (FedProx, {"mu": 0.0}), (Scaffold, {})):
        close(one(method(cls, setting, **own)), average)
        for eta_g in (0.5, 1.5):
            close(one(method(cls, setting, eta_g=eta_g, **own)), x + eta_g * (average - x))
        assert np.array_equal(one(method(cls, setting, eta_g=0.0, **own)), x)


CONSTANT = {"schedule_local": "constant", "gamma_local": 0.1}


@WEIGHTS
def test_fedavg_with_one_local_step_finds_the_weighted_optimum(weights: str) -> None:
    setting = toy()
    found = run(method(FedAvg, setting, weights=weights, tau=(1.0,), schedule_local="constant", gamma_local=0.3), 300).x
    close(found, optimum(setting, shares(weights)))
    assert apart(optimum(setting, SHARES), optimum(setting, SIZE_SHARES))


@WEIGHTS
def test_fedavg_with_several_local_steps_is_biased_as_computed(weights: str) -> None:
    """y_i = a_i + M_i (x - a_i), M_i = (I - gamma A_i)^K: a fixed point that is not the optimum."""
    setting, w, K = toy(), shares(weights), 5
    found = run(method(FedAvg, setting, weights=weights, tau=(K,), **CONSTANT), 150).x
    pull = [np.eye(n) - np.linalg.matrix_power(np.eye(n) - 0.1 * data.A, K) for data in setting.data]
    left = sum(w[i] * pull[i] for i in range(m))
    close(found, np.linalg.solve(left, sum(w[i] * pull[i] @ data.a for i, data in enumerate(setting.data))))
    assert np.linalg.norm(found - optimum(setting, w)) > 0.02


@WEIGHTS
@pytest.mark.parametrize("cls", [FedAvg, FedProx])
def test_the_average_is_over_the_participants_only(cls: Any, weights: str) -> None:
    """sum_S w_i y_i / sum_S w_i over round(beta m) clients. Mutations: divided by m; the absent counted with x."""
    setting, r = toy(noise=1.0), 1
    x, w = point(setting), shares(weights)
    of = method(cls, setting, beta=0.5, weights=weights, **({"mu": 0.0} if cls is FedProx else {}))
    asked, clients = of.local.participants(r), clients_of(of)
    state = of.round(State(x), r, clients)
    assert len(asked) == 2
    assert clients.account()[0].messages[1].tolist() == [int(i in asked) for i in range(m)]
    ends = [walk(setting, i, r, x, HARMONIC)[0] for i in asked]
    close(state.x, w[asked] @ ends / w[asked].sum())


@pytest.mark.parametrize(("beta", "count"), [(0.01, 1), (0.3, 1), (0.375, 2), (0.625, 3), (0.9, 4), (1.0, 4)])
def test_as_many_take_part_as_in_zo_hfl_and_the_same(beta: float, count: int) -> None:
    setting = toy()
    sets = [built(FedAvg, setting, beta=beta).local.participants(r) for r in range(20)]
    assert {len(set(found)) for found in sets} == {count}
    assert sets == [ZOHFL(setting, beta=beta).participants(r) for r in range(20)]
    assert len({tuple(found) for found in sets}) == math.comb(m, count)


@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold])
def test_partial_participation_of_all_is_full_participation(cls: Any) -> None:
    some, every = (run(method(cls, toy(noise=1.0), beta=beta), 3) for beta in (0.9, 1.0))
    assert some.x.tobytes() == every.x.tobytes()
    assert apart(run(method(cls, toy(noise=1.0), beta=0.7), 3).x, every.x)


# --- --batch 0: full local gradients


FULL = [(FedAvg, {}), (FedProx, {"mu": 0.9}), (Scaffold, {"option": "II"})]


@WEIGHTS
@pytest.mark.parametrize(("cls", "own"), FULL)
@BOTH
def test_batch_0_takes_all_of_a_clients_samples_in_every_step(
    make: Make, cls: Any, own: dict[str, Any], weights: str
) -> None:
    """The same from any stream. Mutations: all samples of all clients; all of them drawn with replacement."""
    setting, mu = make(), own.get("mu", 0.0)
    x, ends = point(setting), []
    for data in setting.data:
        y = x
        for gamma in HARMONIC:
            y = y - gamma * (gradient(data, y) + mu * (y - x))
        ends.append(y)
    found = one(method(cls, setting, batch=0, weights=weights, **own))
    close(found, shares(weights) @ ends)
    other = replace(setting, streams=Streams(8))
    assert one(method(cls, other, batch=0, weights=weights, **own), x=x).tobytes() == found.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_full_gradients_of_many_samples(kernel: str) -> None:
    """More of them than a kernel's block holds. Mutation: the first block alone."""
    rows = STREAMS(Purpose.BATCH).integers(200, size=3000)
    setting = replace(softmax(kernel=kernel), data=(DATA.subset(rows),), counts=None)
    x = point(setting)
    expected = x
    for gamma in HARMONIC:
        expected = expected - gamma * np.mean(
            [gradient(DATA.subset(part), expected) for part in rows.reshape(30, 100)], 0
        )
    close(one(method(FedAvg, setting, batch=0), x=x), expected)


def test_a_plan_of_full_gradients_counts_each_clients_samples() -> None:
    """Mutations: a division by the batch; the mean size."""
    H = (2, 5, 1, 3)
    flags = {"batch": 0, "tau": tuple(map(float, H)), "beta": 0.5}
    fedavg = method(FedAvg, softmax(kernel="auto"), **flags)
    asked = [i for r in range(6) for i in fedavg.local.participants(r)]
    plan = fedavg.plan(6)
    assert plan["FLOPs of all clients, all rounds"] == f"{sum(H[i] * SIZES[i] for i in asked) * 4 * C * p:.3g}"
    assert plan["local steps of all clients, all rounds"] == sum(H[i] for i in asked)
    assert plan["kernel"] == fedavg.setting.problem.kernel_name(max(SIZES))
    with_passes = method(Scaffold, softmax(), option="I", **flags).plan(6)["FLOPs of all clients, all rounds"]
    assert with_passes == f"{sum((H[i] + 1) * SIZES[i] for i in asked) * 4 * C * p:.3g}"


# --- SCAFFOLD


def memory_of(of: Scaffold, clients: LocalClients) -> Array:
    """(m, n) the c_i; 0 where a client has none yet."""
    zero = np.zeros(of.setting.problem.n)
    return np.stack([entries.get("c_i", zero) for entries in memories(clients).values()])


@OPTIONS
@BOTH
def test_one_client_of_scaffold_takes_sgd_steps(make: Make, option: str) -> None:
    """c = c_1 throughout, so that the correction vanishes. Mutations: c_1 and c made otherwise; c halved."""
    setting = make()
    setting = replace(setting, data=setting.data[:1], counts=None)
    scaffold, fedavg = method(Scaffold, setting, option=option), method(FedAvg, setting)
    state, clients = started(scaffold, point(setting)), clients_of(scaffold)
    for r in range(6):
        state = scaffold.round(state, r, clients)
        close(state.c, memory_of(scaffold, clients)[0])
        assert np.linalg.norm(state.c) > 0.01
        close(state.x, run(fedavg, r + 1).x, 1e-11)


@WEIGHTS
@OPTIONS
@pytest.mark.parametrize("beta", [0.5, 1.0])
@BOTH
def test_the_servers_c_is_the_weighted_sum_of_the_clients(make: Make, beta: float, option: str, weights: str) -> None:
    """From zero, whoever takes part. Mutations: c divided by |S|; dc unweighted; memory not written, or by a mean."""
    setting = make()
    scaffold = method(Scaffold, setting, option=option, weights=weights, beta=beta)
    state, clients = started(scaffold, point(setting)), clients_of(scaffold)
    assert not state.c.any() and state.c.dtype == setting.dtype
    for r in range(6):
        before = memory_of(scaffold, clients)
        state = scaffold.round(state, r, clients)
        after = memory_of(scaffold, clients)
        close(state.c, shares(weights) @ after)
        moved = np.abs(after - before).max(axis=1) > 1e-6
        assert np.flatnonzero(moved).tolist() == scaffold.local.participants(r)


@pytest.mark.parametrize("schedule_local", ["harmonic", "constant"])
@BOTH
def test_c_i_is_the_step_weighted_mean_of_the_gradients_used(make: Make, schedule_local: str) -> None:
    """Option II: sum eta_t g_t / sum eta_t, from zero and in a second round with corrections, each client with its tau.

    The optimum does not depend on this denominator, so only this test sees it. Mutations: K eta_0; K of another client;
    a correction with the wrong sign; c_i without - c.
    """
    setting, H = make(), (3, 1, 4, 2)
    scaffold = method(Scaffold, setting, tau=tuple(map(float, H)), schedule_local=schedule_local)
    clients, state = clients_of(scaffold), started(scaffold, point(setting))
    c_i = np.zeros((m, setting.problem.n))
    for r in range(2):
        x, c, found = state.x, state.c, []
        for i in range(m):
            gammas = np.full(H[i], 0.1) / (np.arange(1, H[i] + 1) if schedule_local == "harmonic" else 1)
            _, used = walk(setting, i, r, x, gammas, lambda y, shift=c - c_i[i]: shift)
            found.append(gammas @ used / gammas.sum())
        state = scaffold.round(state, r, clients)
        c_i = memory_of(scaffold, clients)
        close(c_i, found, 1e-11)


@BOTH
def test_option_1_keeps_the_full_gradient_at_the_servers_model(make: Make) -> None:
    """Mutations: at y; on a mini-batch; option II."""
    setting = make()
    scaffold = method(Scaffold, setting, option="I")
    clients, state = clients_of(scaffold), started(scaffold, point(setting))
    for r in range(2):
        x = state.x
        state = scaffold.round(state, r, clients)
        close(memory_of(scaffold, clients), [gradient(data, x) for data in setting.data])


@WEIGHTS
@OPTIONS
@BOTH
def test_a_round_of_scaffold_is_its_formula(make: Make, option: str, weights: str) -> None:
    """From corrections that are not zero, 2 of 4 clients, eta_g = 0.7; what travels is what changed.

    Mutations: y for dy; c_i for dc; eta_g on c; c - c_i with the other sign; old c_i sent.
    """
    setting, r, w = make(), 1, shares(weights)
    x, size = point(setting), setting.problem.n
    corrections = STREAMS(Purpose.START, t=3).standard_normal((m + 1, size))
    c, own = corrections[m], corrections[:m]
    scaffold = method(Scaffold, setting, option=option, weights=weights, beta=0.5, eta_g=0.7)
    asked, clients = scaffold.local.participants(r), clients_of(scaffold)
    dy, dc = np.zeros((m, size)), np.zeros((m, size))
    list(clients.ask_each(STEPS["<restore>"], {i: Memory({"c_i": own[i]}) for i in range(m)}, counted=False))
    for i in range(m):
        y, used = walk(setting, i, r, x, HARMONIC, lambda y, shift=c - own[i]: shift)
        new = gradient(setting.data[i], x) if option == "I" else HARMONIC @ used / HARMONIC.sum()
        dy[i], dc[i] = y - x, new - own[i]
        reply = scaffold.train(Client(i, setting.data[i], {"c_i": own[i]}), Controlled(x, c, r))
        close(reply.dy, dy[i])
        close(reply.dc, dc[i], 1e-11)
    state = scaffold.round(Pair(x, c), r, clients)
    close(state.x, x + 0.7 * w[asked] @ dy[asked] / w[asked].sum())
    close(state.c, c + w[asked] @ dc[asked], 1e-11)
    absent = [i for i in range(m) if i not in asked]
    assert np.array_equal(memory_of(scaffold, clients)[absent], own[absent])


@WEIGHTS
@OPTIONS
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_scaffold_finds_the_exact_optimum_of_its_weights(beta: float, option: str, weights: str) -> None:
    """K = 5, heterogeneous quadratics. Mutations: c weighted otherwise than x; c_i kept by the wrong clients."""
    setting, w = toy(), shares(weights)
    scaffold = method(Scaffold, setting, option=option, weights=weights, beta=beta, tau=(5.0,), **CONSTANT)
    state = run(scaffold, 200 if beta == 1 else 600)
    right = optimum(setting, w)
    close(state.x, right, 1e-9)
    close(state.c, np.zeros(n), 1e-9)
    fedavg = run(method(FedAvg, setting, weights=weights, tau=(5.0,), **CONSTANT), 150).x
    assert np.linalg.norm(fedavg - right) > 0.02
    assert np.linalg.norm(optimum(setting, SHARES) - optimum(setting, SIZE_SHARES)) > 0.1


@WEIGHTS
@OPTIONS
@pytest.mark.parametrize("beta", [0.5, 1.0])
@BOTH
def test_the_first_round_of_scaffold_is_fedavgs(make: Make, beta: float, option: str, weights: str) -> None:
    """c_i = c = 0. Mutation: a random c. The second round differs."""
    setting = make()
    flags = {"weights": weights, "beta": beta}
    scaffold, fedavg = method(Scaffold, setting, option=option, **flags), method(FedAvg, setting, **flags)
    close(one(scaffold), one(fedavg))
    assert np.linalg.norm(run(scaffold, 2).x - run(fedavg, 2).x) > 1e-5


# --- the server's own data


@pytest.mark.parametrize("schedule", ["sqrt", "constant", "harmonic"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: toy(noise=1.0, lam=0.0),
        lambda: softmax(np.float32, lam=0.0),
        lambda: softmax(np.float64, lam=0.0),
    ],
    ids=["toy", "float32", "float64"],
)
def test_sgd_on_the_servers_data_is_zo_hfl_without_coupling_to_the_bit(make: Make, schedule: str) -> None:
    """And asks nobody. Mutations: samples, step sizes or a start of its own; arithmetic in the model's precision."""
    setting = make()
    own = built(ServerSGD, setting, gamma=0.3, schedule=schedule, server_batch=8)
    zohfl = ZOHFL(setting, gamma=0.3, schedule=schedule, server_batch=8, tau=(1.0,), batch=4)
    clients, others = clients_of(own), clients_of(zohfl)
    assert own.start().x.tobytes() == zohfl.start().x.tobytes()
    state, other = State(point(setting)), HierarchicalState(point(setting))
    for r in range(6):
        state, other = own.round(state, r, clients), zohfl.round(other, r, others)
        row, _ = clients.account()
        assert row.steps == ["server"] and not row.messages.any()
        assert not row.bytes_down.any() and not row.bytes_up.any()
    assert state.x.tobytes() == other.x.tobytes()
    assert apart(state.x, point(setting)) and state.local_steps == 0
    assert own.plan(6)["bytes down and up, all rounds"] == 0


def own_step(setting: Setting, x: Array, r: int, gamma: float) -> Array:
    batch = STREAMS(Purpose.SERVER_BATCH, r=r).integers(len(setting.server), size=8)
    return gamma * gradient(setting.server, x, batch)


@pytest.mark.parametrize("eta_g", [0.5, 1.0])
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold])
@BOTH
def test_the_servers_own_step_is_subtracted_from_the_average(make: Make, cls: Any, eta_g: float) -> None:
    """At x, with xi_r and gamma_r = gamma/sqrt(r + 1), as ZO-HFL's and server_sgd's. Mutations: at the average; scaled
    by eta_g; the local step size; another schedule.
    """
    setting, r = make(), 3
    x = point(setting)
    without, with_step = (one(method(cls, setting, gamma=gamma, eta_g=eta_g), r) for gamma in (0.0, 0.4))
    close(with_step, without - own_step(setting, x, r, 0.2))
    alone = built(ServerSGD, setting, gamma=0.4, server_batch=8)
    close(without - with_step, x - one(alone, r))
    constant = one(method(cls, setting, gamma=0.4, eta_g=eta_g, schedule="constant"), r)
    close(constant, without - own_step(setting, x, r, 0.4))


@pytest.mark.parametrize(
    "make", [lambda: toy(noise=1.0), softmax, lambda: softmax(np.float32)], ids=["toy", "float64", "float32"]
)
def test_without_local_steps_only_the_servers_are_left(make: Make) -> None:
    """In float32 to the bit: a mean of equal float32 vectors is exact, and the server's step is the same arithmetic.

    Mutation: gamma_r times the gradient in float32.
    """
    setting = make()
    mine = run(method(FedAvg, setting, tau=(0.0,), gamma=0.4), 8).x
    alone = run(built(ServerSGD, setting, gamma=0.4, server_batch=8), 8).x
    close(mine, alone, 0 if setting.dtype is np.float32 else 1e-13)


def test_the_run_starts_at_zero_at_random_or_pretrained() -> None:
    for setting in (toy(noise=1.0), softmax(np.float32)):
        for cls in (FedAvg, FedProx, Scaffold):
            for x0 in ("auto", "zero", "random", "pretrained"):
                first = {"x0": x0, "pretrain_steps": 20}
                x = method(cls, setting, **first).start().x
                assert x.tobytes() == built(ServerSGD, setting, **first, server_batch=8).start().x.tobytes()
                assert x.dtype == setting.dtype and x.any() == (x0 in ("random", "pretrained"))
    first = {"x0": "pretrained", "pretrain_steps": 20, "pretrain_gamma": 0.2}
    expected, setting = np.zeros(n), toy(noise=1.0)
    for batch in STREAMS(Purpose.PRETRAIN).integers(40, size=(20, 8)):
        expected = expected - 0.2 * gradient(setting.server, expected, batch)
    close(method(FedAvg, setting, **first).start().x, expected)


# --- Smooth


PIXEL_KINDS = {
    "one scale": Dataset(PIXELS, LABELS, C, scale=1 / 255),
    "standardised": Dataset(PIXELS, LABELS, C, scale=1 / 80, shift=-1.5),
    "per feature": Dataset(
        PIXELS, LABELS, C, GENERATOR.permutation(200)[:60], GENERATOR.uniform(0.002, 0.01, p), np.linspace(-1, 1, p)
    ),
    "floats": Dataset(GENERATOR.standard_normal((200, p)), LABELS, C),
}
PLAIN, PROX, SHIFT, EVERYTHING = (0.0, False), (0.8, False), (0.0, True), (0.8, True)


def plainly(problem: Any, data: Any, y: Array, batches: Array, gammas: Array, mu: float, shift: Array | None) -> Array:
    """The steps as `Smooth.descend` states them, in float64 arithmetic on `gradient`'s values."""
    z = y.astype(np.float64)
    for batch, gamma in zip(batches, gammas, strict=True):
        g = problem.gradient(z.astype(y.dtype), data, batch).astype(np.float64)
        z = z - gamma * (g + mu * (z - y) + (0 if shift is None else shift))
    return z


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(("mu", "shifted"), [PLAIN, PROX, SHIFT, EVERYTHING], ids=["plain", "mu", "shift", "both"])
@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_softmax_descends_as_a_plain_loop(
    kernel: str, dtype: Any, tolerance: float, bias: bool, mu: float, shifted: bool, kind: str
) -> None:
    """Mutations: the shift with the inputs' factor s wrong, or its square; shift not shaped as the model; the
    hierarchical mu or radius; mu of the start in place of the displacement; a step too many.
    """
    data = PIXEL_KINDS[kind]
    problem = Softmax(p, C, np.ones(m) / m, mu=2.0, radius=0.01, bias=bias, dtype=dtype, kernel=kernel)
    y, shift = (STREAMS(Purpose.START, t=t).standard_normal(problem.n).astype(dtype) for t in (1, 2))
    kept = y.copy()
    for B in (1, 5):
        batches, gammas = STREAMS(Purpose.BATCH, t=B).integers(60, size=(7, B)), 0.3 / np.arange(1, 8)
        against = shift if shifted else None
        found = problem.descend(data, y, batches, gammas, mu=mu, shift=against)
        assert found.dtype == dtype and found.shape == y.shape
        expected = plainly(problem, data, y, batches, gammas, mu, against)
        assert apart(expected, y)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))
    assert np.array_equal(y, kept)


@pytest.mark.parametrize(("mu", "shifted"), [PLAIN, PROX, SHIFT, EVERYTHING], ids=["plain", "mu", "shift", "both"])
def test_a_quadratic_descends_as_a_plain_loop(mu: float, shifted: bool) -> None:
    setting = toy(noise=1.0)
    problem, data, y = setting.problem, setting.data[2], point(setting)
    kept, shift = y.copy(), point(setting, 2) if shifted else None
    batches, gammas = STREAMS(Purpose.BATCH).integers(len(data), size=(7, 4)), 0.3 / np.arange(1, 8)
    found = problem.descend(data, y, batches, gammas, mu=mu, shift=shift)
    close(found, plainly(problem, data, y, batches, gammas, mu, shift))
    assert np.array_equal(y, kept) and apart(found, y)


@BOTH
def test_no_steps_lead_nowhere(make: Make) -> None:
    """And the result is a new array: a client may write into it."""
    setting = make()
    x, none = point(setting), np.empty((0, 4), np.int64)
    found = setting.problem.descend(setting.data[0], x, none, np.empty(0), mu=1.0, shift=x)
    assert np.array_equal(found, x) and found is not x


@pytest.mark.parametrize("position", [-1, 60])
@pytest.mark.parametrize("kernel", KERNELS)
def test_positions_outside_the_data_are_refused(kernel: str, position: int) -> None:
    setting = softmax(kernel=kernel)
    with pytest.raises(IndexError, match=r"outside 0\.\.5"):
        setting.problem.descend(setting.data[1], point(setting), np.array([[0, position]]), np.ones(1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_the_gradient_of_all_samples_is_the_mean_over_them(kind: str, bias: bool) -> None:
    """Also over more samples than a block holds. It is the slope of `loss`. Mutation: the first block only."""
    data = PIXEL_KINDS[kind]
    problem = Softmax(p, C, np.ones(m) / m, bias=bias, dtype=np.float64)
    x, v = (STREAMS(Purpose.START, t=t).standard_normal(problem.n) for t in (1, 2))
    many = data.subset(STREAMS(Purpose.BATCH).integers(len(data), size=1300))
    close(problem.gradient(x, data), np.mean([problem.gradient(x, data, [j]) for j in range(len(data))], axis=0))
    each = [problem.gradient(x, many, [j]) for j in range(1300)]
    close(problem.gradient(x, many), np.mean(each, axis=0))
    slope = (problem.loss(x + 1e-5 * v, data) - problem.loss(x - 1e-5 * v, data)) / 2e-5
    close(problem.gradient(x, data) @ v, slope, 1e-7)


def test_the_gradient_of_a_bowl_is_the_mean_over_its_samples() -> None:
    setting = toy(noise=1.0)
    for data in setting.data:
        x = point(setting)
        mean = np.mean([setting.problem.gradient(x, data, np.array([j])) for j in range(len(data))], axis=0)
        close(setting.problem.gradient(x, data), mean)
        close(mean, data.A @ (x - data.a) + data.noise.mean(axis=0))
        assert setting.problem.loss(x, data) == pytest.approx(loss(data, x), rel=1e-12)


# --- what travels


CLASSES = [(FedAvg, 1), (FedProx, 1), (Scaffold, 2)]


@pytest.mark.parametrize(("cls", "vectors"), CLASSES)
@pytest.mark.parametrize(("dtype", "itemsize"), [(np.float32, 4), (np.float64, 8)])
def test_bytes_are_those_of_the_formulas(cls: Any, vectors: int, dtype: Any, itemsize: int) -> None:
    """Down x (and c) and r, up y (or dy and dc): SCAFFOLD's tensors are twice FedAvg's. Evaluations are free."""
    of = method(cls, softmax(dtype), beta=0.5, tau=(2.0, 5.0, 0.25, 3.0), schedule_h="sqrt")
    size, state, clients = C * p, of.start(), clients_of(of)
    up, total, steps = vectors * size * itemsize, 0, 0
    for r in range(3):
        state = of.round(state, r, clients)
        of.evaluate(state, r, clients)
        row, _ = clients.account()
        asked = np.isin(np.arange(m), of.local.participants(r))
        assert asked.sum() == 2
        assert row.steps == ["server", "train", "measure"]
        assert row.bytes_down.tolist() == [[0] * m, (asked * (up + 8)).tolist(), [0] * m]
        assert row.bytes_up.tolist() == [[0] * m, (asked * up).tolist(), [0] * m]
        assert row.messages.tolist() == [[0] * m, asked.astype(int).tolist(), [0] * m]
        total += int(row.bytes_down.sum() + row.bytes_up.sum())
        steps += state.local_steps
    plan = of.plan(3)
    assert plan["bytes down, for each participant and round"] == up + 8
    assert plan["bytes up, for each participant and round"] == up
    assert plan["bytes down and up, all rounds"] == total == 3 * 2 * (2 * up + 8)
    assert plan["local steps of all clients, all rounds"] == steps > 0
    assert plan["clients, participants in a round"] == "4, 2"
    assert plan["length of x, n"] == size
    assert plan["FLOPs of all clients, all rounds"] == f"{steps * 4 * 4 * size:.3g}"


def test_a_plan_counts_the_full_passes_of_option_1() -> None:
    """|D_i| samples more for each participant and round."""
    scaffold = method(Scaffold, softmax(), option="I", beta=0.5)
    asked = [i for r in range(5) for i in scaffold.local.participants(r)]
    samples = len(asked) * 3 * 4 + sum(SIZES[i] for i in asked)
    assert scaffold.plan(5)["FLOPs of all clients, all rounds"] == f"{samples * 4 * C * p:.3g}"


# --- evaluations


EVERY = [FedAvg, FedProx, Scaffold, ServerSGD]


def either(cls: Any, setting: Setting, **flags: Any) -> Any:
    return built(ServerSGD, setting) if cls is ServerSGD else method(cls, setting, **flags)


@WEIGHTS
@pytest.mark.parametrize("cls", EVERY)
@BOTH
def test_reports_are_right(make: Make, cls: Any, weights: str) -> None:
    """Mutations: a mean of means for train_loss; the server left out of it; other weights; test as f1."""
    setting = make()
    of = either(cls, setting, weights=weights)
    x = point(setting)
    found = reported(of.evaluate(started(of, x), 2, clients_of(of)))
    losses = np.array([loss(data, x) for data in setting.data])
    w = SIZE_SHARES if cls is ServerSGD else shares(weights)
    f1, N = loss(setting.server, x), len(setting.server)
    close(found["objective"], w @ losses)
    close(found["f1"], f1)
    close(found["train_loss"], (N * f1 + np.array(SIZES) @ losses) / (N + 60))
    close(found["test_loss"], loss(setting.test, x))
    if isinstance(setting.problem, Softmax):
        rows = setting.test.rows
        hits = (PIXELS[rows] / 255 @ x.reshape(C, p).T).argmax(axis=1) == LABELS[rows]
        close(found["test_accuracy"], hits.mean())
    else:
        assert math.isnan(found["test_accuracy"])


def without_server(setting: Setting) -> Setting:
    """--server-fraction 0."""
    return replace(setting, server=DATA.subset(np.arange(0)) if isinstance(setting.problem, Softmax) else None)


@WEIGHTS
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold])
@BOTH
def test_where_the_server_holds_nothing_the_clients_alone_are_measured(make: Make, cls: Any, weights: str) -> None:
    """Without a warning, which pytest makes an error. Mutations: nan in train_loss; f1 = 0."""
    setting = without_server(make())
    of = method(cls, setting, weights=weights)
    x = point(setting)
    found = reported(of.evaluate(started(of, x), 2, clients_of(of)))
    losses = np.array([loss(data, x) for data in setting.data])
    assert math.isnan(found["f1"])
    close(found["train_loss"], np.array(SIZES) @ losses / 60)
    close(found["objective"], shares(weights) @ losses)
    close(found["test_loss"], loss(setting.test, x))
    assert run(of, 2, x).x.tobytes() == run(method(cls, make(), weights=weights), 2, x).x.tobytes()


@BOTH
def test_what_needs_the_servers_samples_is_refused_without_them(make: Make) -> None:
    """When the method is made, so by --dry-run too. Mutation: a draw among no samples, told by NumPy."""
    setting = without_server(make())
    sentence = "^--server-fraction 0: the server has no samples of its own, needed for "
    for cls in (FedAvg, FedProx, Scaffold):
        with pytest.raises(UserError, match=sentence + "--gamma$"):
            method(cls, setting, gamma=0.1)
        with pytest.raises(UserError, match=sentence + "--x0 pretrained$"):
            method(cls, setting, x0="pretrained")
    with pytest.raises(UserError, match=sentence + "--x0 pretrained$"):
        Start(setting, "pretrained")
    with pytest.raises(UserError, match=sentence + "--method server_sgd$"):
        built(ServerSGD, setting)
    with pytest.raises(UserError, match=sentence + "--method zo_hfl: f_1 is their loss$"):
        ZOHFL(setting)


@pytest.mark.parametrize("cls", EVERY)
def test_every_column_is_described_and_reported(cls: Any) -> None:
    of = either(cls, softmax())
    state = run(of, 1)
    tensors = {name for name, value in vars(state).items() if isinstance(value, np.ndarray)}
    report = of.evaluate(state, 0, clients_of(of))
    assert set(reported(report)) <= set(described(report))
    assert dict(numbers(state)).keys() | tensors == set(described(state))
    assert all(unit and text for unit, text in [*described(report).values(), *described(state).values()])


@pytest.mark.parametrize("cls", EVERY)
@BOTH
def test_evaluations_leave_no_trace(make: Make, cls: Any) -> None:
    """Mutation: an evaluation that trains, and so writes c_i."""
    watched, unwatched = either(cls, make()), either(cls, make())
    state, clients = watched.start(), clients_of(watched)
    for r in range(3):
        state = watched.round(state, r, clients)
        watched.evaluate(state, r, clients)
    assert state.x.tobytes() == run(unwatched, 3, unwatched.start().x).x.tobytes()
    written = {"c_i"} if cls is Scaffold else set()
    assert all(set(entries) == written for entries in memories(clients).values())


# --- what cannot be


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tau": (1.0, 2.0)}, "--tau 1.0 2.0: must be one number, or 4, one for each client"),
        ({"tau": (-1.0,)}, "--tau -1.0: must be a number of local steps, at least 0"),
        ({"tau": (math.inf,)}, "--tau inf"),
        ({"beta": 0.0}, "--beta 0.0: must be a fraction of the clients, above 0 and at most 1"),
        ({"beta": 1.5}, "--beta 1.5"),
        ({"beta": math.nan}, "--beta nan"),
        ({"eta_g": -0.5}, "--eta-g -0.5: must be a step size, at least 0"),
        ({"eta_g": math.nan}, "--eta-g nan"),
        ({"gamma": -1.0}, "--gamma -1.0: must be a step size, at least 0"),
        ({"gamma_local": math.inf}, "--gamma-local inf"),
        ({"batch": -1}, "--batch -1: must be a whole number, at least 0 .0: all samples of the client, in every step"),
        ({"server_batch": 0}, "--server-batch 0"),
        ({"schedule": "linear"}, "--schedule 'linear': allowed are constant, sqrt"),
        ({"schedule_local": "power:2"}, "--schedule-local 'power:2'"),
    ],
)
def test_parameters_out_of_range_are_refused_by_flag(flags: dict[str, Any], words: str) -> None:
    for cls in (FedAvg, FedProx, Scaffold):
        with pytest.raises(UserError, match=words):
            method(cls, toy(), **flags)


@pytest.mark.parametrize(
    ("cls", "flags", "words"),
    [
        (FedProx, {"mu": -1.0}, "--mu -1.0: must be a weight, at least 0"),
        (FedProx, {"mu": math.inf}, "--mu inf"),
        (Scaffold, {"tau": (0.0,)}, "--tau 0.0: must be above 0"),
        (Scaffold, {"tau": (1.0, 2.0, 0.0, 1.0)}, "--tau 1.0 2.0 0.0 1.0: must be above 0"),
        (Scaffold, {"gamma_local": 0.0}, "--gamma-local 0.0: must be above 0"),
    ],
)
def test_a_methods_own_parameters_are_refused_by_flag(cls: Any, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        method(cls, toy(), **flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"gamma": -1.0}, "--gamma -1.0: must be a step size"),
        ({"server_batch": 0}, "--server-batch 0"),
        ({"schedule": "fast"}, "--schedule 'fast'"),
    ],
)
def test_parameters_of_the_control_are_refused_by_flag(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        built(ServerSGD, toy(), **flags)


def test_no_step_at_all_is_allowed_where_it_has_a_meaning() -> None:
    for cls in (FedAvg, FedProx):
        for flags in ({"tau": (0.0,)}, {"gamma_local": 0.0}):
            close(one(method(cls, toy(noise=1.0), **flags)), point(toy()))


# Not a warning from NumPy but a sentence: pytest makes a warning of the ones below an error.

DIVERGING = pytest.mark.parametrize("make", [toy, lambda: softmax(np.float32)], ids=["toy", "float32"])
LOCAL = [FedAvg, FedProx, Scaffold]


@DIVERGING
@pytest.mark.parametrize("cls", LOCAL)
def test_a_local_model_that_is_not_finite_names_the_client(cls: Any, make: Make) -> None:
    of = method(cls, make(), schedule_local="constant", gamma_local=1e200, beta=0.25)
    (i,) = of.local.participants(0)
    words = rf"client {i} .*failed in step 'train', item 0: the local model is not finite; smaller --gamma-local"
    with pytest.raises(ClientError, match=words):
        one(of)


@pytest.mark.parametrize("flags", [{"gamma": 1.7e308}, {"eta_g": 1.7e308}], ids=str)
@DIVERGING
@pytest.mark.parametrize("cls", LOCAL)
def test_a_global_model_that_is_not_finite_names_the_servers_steps(cls: Any, make: Make, flags: Any) -> None:
    words = "x is not finite after the server's step; smaller --eta-g, --gamma or --gamma-local may help"
    of = method(cls, make(), gamma_local=10.0, **flags)
    with pytest.raises(UserError, match=words):
        one(of, 0, 10 * point(of.setting))


def test_a_cast_to_infinity_is_found_in_its_round() -> None:
    """Mutation: looked for before the cast to float32, where 1e200 is finite."""
    of = method(FedAvg, softmax(np.float32), eta_g=1e200)
    with np.errstate(all="ignore"), pytest.raises(UserError, match="x is not finite after the server's step"):
        one(of)


@DIVERGING
def test_the_control_names_its_step(make: Make) -> None:
    of = built(ServerSGD, make(), gamma=1.7e308)
    with pytest.raises(UserError, match="x is not finite after the server's step; a smaller --gamma may help"):
        one(of, 0, 10 * point(of.setting))


def test_a_pretraining_that_diverges_is_told() -> None:
    """Mutation: x_0 is not looked at, and a client is blamed for it."""
    problem, server, clients = Quadratic.random(Streams(1), 3, 2)
    setting = Setting(problem, Streams(1), clients, server, server, None, np.float64)
    with pytest.raises(UserError, match="x_0 is not finite after the pretraining"):
        Start(setting, "pretrained", pretrain_gamma=1e300).point(4)
