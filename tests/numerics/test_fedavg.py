"""FedAvg and FedProx: participants, weights, local steps; SGD on the server's own data, alone or as a further step."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    HARMONIC,
    KERNELS,
    SIZES,
    STREAMS,
    WEIGHTS,
    Array,
    C,
    Make,
    apart,
    clients_of,
    close,
    gradient,
    m,
    method,
    one,
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
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL, ZOHFLState
from zofl_mpi.rounds.base import Sampling, has_samples
from zofl_mpi.rounds.local_sgd import LocalSGDState
from zofl_mpi.run.command.flags import from_flags


@WEIGHTS
@pytest.mark.parametrize(("cls", "own"), [(FedAvg, {}), (FedProx, {"mu": 0.9})])
@BOTH
def test_a_round_is_its_formula(make: Make, cls: Any, own: dict[str, float], weights: str) -> None:
    """x + eta_g (sum_S w_i y_i / sum_S w_i - x), H_{i,r} = ceil(tau_i sqrt(r + 1)) steps with mu (y - x); r = 3.
    Mutations: the other weights, or those of the server's samples too; a division by m; the absent counted with x;
    floor; another client's tau; t from 1; eta_g on the model; mini-batches of another client or round; the proximal
    term around the last y, or around 0; mu/2."""
    setting, r, w, mu = make(), 3, shares(weights), own.get("mu", 0.0)
    x, H = point(setting), (4, 10, 1, 6)
    flags = {"tau": (2.0, 5.0, 0.25, 3.0), "schedule_h": "sqrt", "beta": 0.5, "weights": weights, **own}
    of = method(cls, setting, **flags)
    asked, clients = of.local.sampling(r), clients_of(of)
    state = of.round(LocalSGDState(x), r, clients)
    assert len(asked) == 2 and state.local_steps == sum(H[i] for i in asked)
    assert clients.account()[0].messages[1].tolist() == [int(i in asked) for i in range(m)]
    ends = [walk(setting, i, r, x, 0.1 / np.arange(1, H[i] + 1), lambda y: mu * (y - x))[0] for i in asked]
    average = w[asked] @ ends / w[asked].sum()
    close(state.x, average)
    for eta_g in (0.0, 0.5, 1.5):
        close(one(method(cls, setting, eta_g=eta_g, **flags), r), x + eta_g * (average - x))


@pytest.mark.parametrize("beta", [0.01, 0.375, 0.625, 1.0])
def test_the_same_take_part_as_in_zo_hfl_and_all_sets_of_them(beta: float) -> None:
    setting = toy()
    sets = [from_flags(FedAvg, setting, beta=beta).local.sampling(r) for r in range(20)]
    assert sets == [from_flags(ZOHFL, setting, beta=beta).sampling(r) for r in range(20)]
    assert len({tuple(found) for found in sets}) == math.comb(m, len(sets[0]))


COUNTS = [(4, 0.01, 1), (4, 0.3, 1), (4, 0.375, 2), (4, 0.625, 3), (4, 0.9, 4), (4, 1.0, 4), (10, 0.05, 1)]
COUNTS += [(50, 0.57, 29), (100, 0.145, 15), (50, 0.29, 15), (10, 0.25, 3)]


def test_half_a_client_is_rounded_up() -> None:
    """50 * 0.57 is 28.499999999999996 in floats. Mutation: floats; halves to even; halves down."""
    for clients, beta, count in COUNTS:
        assert len(set(Sampling(Setting(None, STREAMS, (None,) * clients), beta)(0))) == count


# --- --batch 0: full local gradients


FULL = [(FedProx, {"mu": 0.9}), (Scaffold, {"option": "II"})]


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


def test_a_plan_of_full_gradients_counts_each_clients_samples() -> None:
    """Mutations: a division by the batch; the mean size; clients of unequal sizes taken for equal ones."""
    H = (2, 5, 1, 3)
    flags = {"batch": 0, "tau": tuple(map(float, H)), "beta": 0.5}
    fedavg = method(FedAvg, softmax(kernel="auto"), **flags)
    asked = [i for r in range(6) for i in fedavg.local.sampling(r)]
    plan = fedavg.plan(6)
    assert plan["FLOPs of all clients, all rounds"] == f"{sum(H[i] * SIZES[i] for i in asked) * 4 * C * p:.3g}"
    assert plan["local steps of all clients, all rounds"] == sum(H[i] for i in asked)
    assert plan["kernel"] == fedavg.setting.problem.kernel_name(max(SIZES))
    assert "evaluations of a mini-batch's loss, all rounds" not in plan
    for batch, samples in ((0, SIZES), (4, (4,) * m)):  # three steps of all clients
        plan = method(FedAvg, softmax(), beta=0.5, batch=batch).plan(6)
        flops = sum(3 * samples[i] for i in asked) * 4 * C * p
        assert plan["FLOPs of all clients, all rounds"] == f"{flops:.3g}"
    with_passes = method(Scaffold, softmax(), option="I", **flags).plan(6)["FLOPs of all clients, all rounds"]
    assert with_passes == f"{sum((H[i] + 1) * SIZES[i] for i in asked) * 4 * C * p:.3g}"


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


@pytest.mark.parametrize("schedule", ["sqrt", "constant", "harmonic"])
@pytest.mark.parametrize(
    "make",
    [lambda: toy(noise=1.0, lam=0.0), lambda: softmax(np.float32, lam=0.0), lambda: softmax(np.float64, lam=0.0)],
    ids=["toy", "float32", "float64"],
)
def test_sgd_on_the_servers_data_is_zo_hfl_without_coupling_to_the_bit(make: Make, schedule: str) -> None:
    """And asks nobody. Mutations: samples, step sizes or a start of its own; arithmetic in the model's precision."""
    setting = make()
    own = from_flags(ServerSGD, setting, gamma=0.3, schedule=schedule, server_batch=8)
    zohfl = from_flags(ZOHFL, setting, gamma=0.3, schedule=schedule, server_batch=8, tau=(1.0,), batch=4)
    clients, others = clients_of(own), clients_of(zohfl)
    assert own.start().x.tobytes() == zohfl.start().x.tobytes()
    state, other = LocalSGDState(point(setting)), ZOHFLState(point(setting))
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


@pytest.mark.parametrize("flags", [{"eta_g": 0.5}, {"eta_g": 1.0}, {"server_rule": "adam", "eta_g": 0.3}], ids=str)
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold])
@BOTH
def test_the_servers_own_step_is_subtracted_from_the_average(make: Make, cls: Any, flags: dict[str, Any]) -> None:
    """At x, with xi_r and gamma_r = gamma/sqrt(r + 1), as ZO-HFL's and server_sgd's. Mutations: at the average; scaled
    by eta_g; the local step size; another schedule; a rule's Delta with the server's step in it."""
    setting, r = make(), 3
    x = point(setting)
    without, with_step = (one(method(cls, setting, gamma=gamma, **flags), r) for gamma in (0.0, 0.4))
    close(with_step, without - own_step(setting, x, r, 0.2))
    alone = from_flags(ServerSGD, setting, gamma=0.4, server_batch=8)
    close(without - with_step, x - one(alone, r))
    constant = one(method(cls, setting, gamma=0.4, schedule="constant", **flags), r)
    close(constant, without - own_step(setting, x, r, 0.4))


def test_the_run_starts_at_zero_or_at_random() -> None:
    for setting in (toy(noise=1.0), softmax(np.float32)):
        for cls in (FedAvg, FedProx, Scaffold, ZOHFL):
            for x0 in ("auto", "zero", "random"):
                x = method(cls, setting, x0=x0).start().x
                assert x.tobytes() == from_flags(ServerSGD, setting, x0=x0, server_batch=8).start().x.tobytes()
                assert x.dtype == setting.dtype and x.any() == (x0 == "random") and np.abs(x).max() < 0.06


def test_a_server_alone_sends_nothing_and_one_sample_is_one() -> None:
    """Mutations: a byte for a message that there is not; a server that has samples from two on."""
    plan = from_flags(ServerSGD, toy()).plan(2)
    assert plan["bytes down, for each participant and round"] == plan["bytes up, for each participant and round"] == 0
    held = [has_samples(replace(toy(), server=server)) for server in (None, range(0), range(1))]
    assert held == [False, False, True]
