"""FedProx: FedAvg with a proximal term."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    HARMONIC,
    KERNELS,
    SIZE_SHARES,
    Make,
    apart,
    close,
    method,
    n,
    one,
    point,
    run,
    softmax,
    toy,
    walk,
)
from zofl_mpi.engine.clients import Client
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.rounds import local_sgd


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
