"""SGD on the server's own data, alone and as a further step of the other methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    STREAMS,
    Array,
    Make,
    apart,
    clients_of,
    close,
    gradient,
    method,
    one,
    point,
    run,
    softmax,
    toy,
)
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.methods.zo_hfl import State as HierarchicalState
from zofl_mpi.rounds.local_sgd import State
from zofl_mpi.run.flags import built


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
    zohfl = built(ZOHFL, setting, gamma=0.3, schedule=schedule, server_batch=8, tau=(1.0,), batch=4)
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


def test_the_run_starts_at_zero_or_at_random() -> None:
    for setting in (toy(noise=1.0), softmax(np.float32)):
        for cls in (FedAvg, FedProx, Scaffold):
            for x0 in ("auto", "zero", "random"):
                first = {"x0": x0}
                x = method(cls, setting, **first).start().x
                assert x.tobytes() == built(ServerSGD, setting, **first, server_batch=8).start().x.tobytes()
                assert x.dtype == setting.dtype and x.any() == (x0 == "random")
