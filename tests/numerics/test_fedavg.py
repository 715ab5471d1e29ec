"""FedAvg: participants, weights, local steps, full local gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    CONSTANT,
    DATA,
    HARMONIC,
    KERNELS,
    SHARES,
    SIZE_SHARES,
    SIZES,
    STREAMS,
    WEIGHTS,
    Array,
    C,
    Make,
    apart,
    clients_of,
    close,
    drawn,
    gradient,
    m,
    method,
    n,
    one,
    optimum,
    p,
    point,
    run,
    shares,
    softmax,
    toy,
    walk,
)
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.rounds.local_sgd import State
from zofl_mpi.rounds.start import participants
from zofl_mpi.run.flags import built

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
    half = replace(fedavg, local=replace(fedavg.local, sampling=replace(fedavg.local.sampling, beta=0.5)))
    asked = half.local.sampling(r)
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
    asked, clients = of.local.sampling(r), clients_of(of)
    state = of.round(State(x), r, clients)
    assert len(asked) == 2
    assert clients.account()[0].messages[1].tolist() == [int(i in asked) for i in range(m)]
    ends = [walk(setting, i, r, x, HARMONIC)[0] for i in asked]
    close(state.x, w[asked] @ ends / w[asked].sum())


@pytest.mark.parametrize(("beta", "count"), [(0.01, 1), (0.3, 1), (0.375, 2), (0.625, 3), (0.9, 4), (1.0, 4)])
def test_as_many_take_part_as_in_zo_hfl_and_the_same(beta: float, count: int) -> None:
    setting = toy()
    sets = [built(FedAvg, setting, beta=beta).local.sampling(r) for r in range(20)]
    assert {len(set(found)) for found in sets} == {count}
    assert sets == [built(ZOHFL, setting, beta=beta).sampling(r) for r in range(20)]
    assert len({tuple(found) for found in sets}) == math.comb(m, count)


@pytest.mark.parametrize(
    ("clients", "beta", "count"), [(50, 0.57, 29), (100, 0.145, 15), (50, 0.29, 15), (10, 0.05, 1), (10, 0.25, 3)]
)
def test_half_a_client_is_rounded_up(clients: int, beta: float, count: int) -> None:
    """50 * 0.57 is 28.499999999999996 in floats. Mutation: floats; halves to even; halves down."""
    assert len(participants(Setting(None, STREAMS, (None,) * clients), beta, 0)) == count


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
    asked = [i for r in range(6) for i in fedavg.local.sampling(r)]
    plan = fedavg.plan(6)
    assert plan["FLOPs of all clients, all rounds"] == f"{sum(H[i] * SIZES[i] for i in asked) * 4 * C * p:.3g}"
    assert plan["local steps of all clients, all rounds"] == sum(H[i] for i in asked)
    assert plan["kernel"] == fedavg.setting.problem.kernel_name(max(SIZES))
    with_passes = method(Scaffold, softmax(), option="I", **flags).plan(6)["FLOPs of all clients, all rounds"]
    assert with_passes == f"{sum((H[i] + 1) * SIZES[i] for i in asked) * 4 * C * p:.3g}"
