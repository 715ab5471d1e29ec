"""FedMSPP (Yuan, Li 2022). Docstrings name the mutations to catch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.numerics.first_order import (
    BOTH,
    HARMONIC,
    KERNELS,
    SIZES,
    STREAMS,
    WEIGHTS,
    C,
    Make,
    apart,
    clients_of,
    close,
    gradient,
    loss,
    m,
    memories,
    method,
    n,
    one,
    p,
    point,
    run,
    shares,
    softmax,
    started,
    toy,
)
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.fields import described, numbers, reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedavg import FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.problems.analytic.quadratic import Quadratic
from zofl_mpi.problems.network import Network
from zofl_mpi.rounds.local_sgd import Model
from zofl_mpi.run.flags import built

Array = np.ndarray[Any, Any]
CONSTANT = {"schedule_local": "constant"}


def network(dtype: Any = np.float64) -> Setting:
    """A torch module on the data of `softmax`."""
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(p, 4), torch.nn.Tanh(), torch.nn.Linear(4, C))
    return replace(softmax(dtype), problem=Network(module, (p,), C, np.array(SIZES) / 90, dtype=dtype), dtype=dtype)


def equal(setting: Setting, size: int = 10) -> Setting:
    """Three clients of one size."""

    def part(data: Any) -> Any:
        return replace(data, noise=data.noise[:size]) if hasattr(data, "noise") else data.subset(np.arange(size))

    return replace(setting, data=(part(setting.data[2]), *2 * (part(setting.data[3]),)), counts=None)


EVERY = pytest.mark.parametrize(
    "make",
    [
        lambda: toy(noise=1.0),
        network,
        lambda: network(np.float32),
        *(
            pytest.param(lambda d=d, k=k: softmax(d, k), marks=getattr(kernel, "marks", ()), id=f"{k}-{d.__name__}")
            for kernel in KERNELS
            for k in getattr(kernel, "values", (kernel,))
            for d in (np.float32, np.float64)
        ),
    ],
)


@EVERY
def test_on_all_data_it_is_fedprox_with_full_gradients_to_the_bit(make: Make) -> None:
    """b = |D_i|, and batch 0 with unequal clients. Mutations: samples in the order drawn; mu of its own."""
    flags = {"mu": 0.7, "beta": 0.7, "schedule_h": "sqrt"}
    setting = equal(make())
    fedprox = run(method(FedProx, setting, batch=0, **flags), 4).x
    assert run(method(FedMSPP, setting, batch=10, **flags), 4).x.tobytes() == fedprox.tobytes()
    assert apart(run(method(FedMSPP, setting, batch=5, **flags), 4).x, fedprox)
    fedprox, fedmspp = (run(method(cls, make(), batch=0, **flags), 4).x for cls in (FedProx, FedMSPP))
    assert fedmspp.tobytes() == fedprox.tobytes()


@WEIGHTS
@BOTH
def test_one_inner_step_is_fedavgs_on_the_same_batch(make: Make, weights: str) -> None:
    """At y = x the proximal term has no gradient. Mutations: a term around 0; 1/b of another size; with replacement."""
    setting, r = make(), 3
    x = point(setting)
    fedmspp = method(FedMSPP, setting, weights=weights, tau=(1.0,), gamma_local=0.2, mu=5.0)
    each = []
    for i, data in enumerate(setting.data):
        client = Client(i, data)
        batch = fedmspp.minibatch(client, r)
        step = setting.problem.descend(data, x, batch[None], np.array([0.2]))
        assert fedmspp.train(client, Model(x, r)).y.tobytes() == step.tobytes()
        each.append(gradient(data, x, batch))
    close(one(fedmspp, r), x - 0.2 * shares(weights) @ each)


@BOTH
def test_a_round_is_its_formula(make: Make) -> None:
    """Several decreasing steps on one batch. Mutations: a fresh batch every step; the term around the last y; mu/2."""
    setting, r, mu = make(), 2, 0.9
    x = point(setting)
    fedmspp, ends = method(FedMSPP, setting, mu=mu), []
    for i, data in enumerate(setting.data):
        batch, y = fedmspp.minibatch(Client(i, data), r), x
        for gamma in HARMONIC:
            y = y - gamma * (gradient(data, y, batch) + mu * (y - x))
        ends.append(y)
    close(one(fedmspp, r), shares("size") @ ends)


def test_many_inner_steps_reach_the_proximal_point_of_the_batch() -> None:
    """(A + mu I)^{-1} (A a + mu x - noise of the batch), steps 1/(L + mu). Mutations: a fresh batch; 1/mu for mu."""
    setting, mu = toy(noise=1.0), 0.7
    fedmspp = method(FedMSPP, setting, mu=mu, tau=(200.0,), gamma_local=1 / (2 + mu), **CONSTANT)
    x = point(setting)
    for i, data in enumerate(setting.data):
        client = Client(i, data)
        drift = data.noise[fedmspp.minibatch(client, 1)].mean(axis=0)
        assert i == 0 or np.linalg.norm(drift) > 0.1  # the first client's batch is all that it has
        right = np.linalg.solve(data.A + mu * np.eye(n), data.A @ data.a + mu * x - drift)
        close(fedmspp.train(client, Model(x, 1)).y, right)


@BOTH
def test_a_small_eta_stands_still(make: Make) -> None:
    """y - x -> -eta_t gradient of the batch at x as eta_t = 1/mu -> 0. Mutation: eta_t in place of 1/eta_t."""
    setting, mu = make(), 1e7
    x = point(setting)
    fedmspp = method(FedMSPP, setting, mu=mu, tau=(50.0,), gamma_local=1 / (2 + mu), **CONSTANT)
    each = [gradient(data, x, fedmspp.minibatch(Client(i, data), 0)) for i, data in enumerate(setting.data)]
    moved = one(fedmspp) - x
    assert np.abs(moved).max() < 1e-6
    np.testing.assert_allclose(-mu * moved, shares("size") @ each, rtol=1e-5, atol=1e-6)


def test_a_batch_is_drawn_without_replacement_anew_for_every_round_and_client() -> None:
    """Each sample as often as any other. Mutations: with replacement; the first b; one stream for all clients."""
    setting, b, rounds = equal(toy()), 4, 2000
    fedmspp = method(FedMSPP, setting, batch=b)
    counts = np.zeros((3, 10))
    for i in range(3):
        for r in range(rounds):
            batch = fedmspp.minibatch(Client(i, setting.data[i]), r)
            assert len(batch) == b and (np.diff(batch) > 0).all()
            counts[i, batch] += 1
    assert counts.sum() == 3 * b * rounds
    assert np.abs(counts / rounds - 0.4).max() < 5 * math.sqrt(0.4 * 0.6 / rounds)
    drawn = [tuple(fedmspp.minibatch(Client(i, setting.data[1]), r)) for i in range(3) for r in range(3)]
    assert len(set(drawn)) > 6
    (client,) = (Client(1, setting.data[1]),)
    assert np.array_equal(fedmspp.minibatch(client, 5), fedmspp.minibatch(client, 5))
    assert np.array_equal(method(FedMSPP, setting, batch=0).minibatch(client, 5), np.arange(10))


def test_with_all_data_and_few_steps_it_is_what_fedprox_finds() -> None:
    """The fixed point of exact proximal steps: sum_i w_i (x - prox_i(x)) = 0, not the optimum."""
    setting, mu = toy(), 0.7
    found = run(method(FedMSPP, setting, batch=0, mu=mu, tau=(60.0,), gamma_local=0.37, **CONSTANT), 150).x
    pull = [np.linalg.solve(data.A + mu * np.eye(n), data.A) for data in setting.data]
    left = sum(w * K for w, K in zip(shares("size"), pull, strict=True))
    right = sum(w * K @ data.a for w, K, data in zip(shares("size"), pull, setting.data, strict=True))
    close(found, np.linalg.solve(left, right), 1e-10)


@pytest.mark.parametrize(("dtype", "itemsize"), [(np.float32, 4), (np.float64, 8)])
def test_bytes_and_steps_are_those_of_the_plan(dtype: Any, itemsize: int) -> None:
    fedmspp = method(FedMSPP, softmax(dtype), beta=0.5, tau=(2.0, 5.0, 0.25, 3.0), schedule_h="sqrt")
    state, clients, total, steps = fedmspp.start(), clients_of(fedmspp), 0, 0
    for r in range(3):
        state = fedmspp.round(state, r, clients)
        fedmspp.evaluate(state, r, clients)
        row, _ = clients.account()
        total += int(row.bytes_down.sum() + row.bytes_up.sum())
        steps += state.local_steps
    plan, size = fedmspp.plan(3), C * p * itemsize
    assert plan["bytes down and up, all rounds"] == total == 3 * 2 * (2 * size + 8)
    assert plan["local steps of all clients, all rounds"] == steps
    assert plan["FLOPs of all clients, all rounds"] == f"{steps * 4 * 4 * C * p:.3g}"
    assert state.x.dtype == dtype


@WEIGHTS
@BOTH
def test_reports_are_right_and_leave_no_trace(make: Make, weights: str) -> None:
    fedmspp = method(FedMSPP, make(), weights=weights)
    setting, x = fedmspp.setting, point(fedmspp.setting)
    clients, state = clients_of(fedmspp), started(fedmspp, x)
    found = reported(fedmspp.evaluate(state, 0, clients))
    losses = np.array([loss(data, x) for data in setting.data])
    close(found["objective"], shares(weights) @ losses)
    close(found["f1"], loss(setting.server, x))
    assert dict(numbers(state)).keys() | {"x"} == set(described(state))
    assert fedmspp.round(state, 0, clients).x.tobytes() == one(fedmspp, 0, x).tobytes()
    assert not any(memories(clients).values())


def test_the_paper_keeps_its_inner_step_size() -> None:
    problem, server, clients = Quadratic.random(STREAMS, n, m, samples=64)
    fedmspp = built(FedMSPP, Setting(problem, STREAMS, clients, server, server, None, np.float64))
    assert np.array_equal(fedmspp.local.steps.sizes(0, 0), np.full(20, 0.1))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"mu": -1.0}, "--mu -1.0: must be a weight, at least 0"),
        ({"mu": math.inf}, "--mu inf"),
        ({"mu": math.nan}, "--mu nan"),
        ({"batch": -1}, "--batch -1: must be a whole number, at least 0"),
        ({"batch": 5}, "--batch 5: must be at most 4, all that client 0 has to draw without replacement; or 0 for all"),
        ({"tau": (1.0, 2.0)}, "--tau 1.0 2.0: must be one number, or 4"),
    ],
)
def test_parameters_out_of_range_are_refused_by_flag(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        method(FedMSPP, toy(), **flags)


def test_inner_steps_that_diverge_name_the_client() -> None:
    fedmspp = method(FedMSPP, toy(), gamma_local=1e200, **CONSTANT)
    with pytest.raises(ClientError, match=r"client 0 .*the local model is not finite; smaller --gamma-local"):
        one(fedmspp)
