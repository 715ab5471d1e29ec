"""SCAFFOLD: control variates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    CONSTANT,
    HARMONIC,
    OPTIONS,
    SHARES,
    SIZE_SHARES,
    STREAMS,
    WEIGHTS,
    Array,
    Make,
    clients_of,
    close,
    gradient,
    m,
    memories,
    method,
    n,
    one,
    optimum,
    point,
    run,
    shares,
    started,
    toy,
    walk,
)
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.scaffold import Controlled, Scaffold
from zofl_mpi.methods.scaffold import State as Pair
from zofl_mpi.run.client_memory import STEPS, Memory
from zofl_mpi.run.local import LocalClients


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
        assert np.flatnonzero(moved).tolist() == scaffold.local.sampling(r)


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
    asked, clients = scaffold.local.sampling(r), clients_of(scaffold)
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
