"""Scaffnew (Mishchenko et al. 2022, Algorithm 2). Docstrings name the mutations to catch.

A known wrong variant communicates with probability 1 - p and keeps p/gamma: exact convergence and sum_i h_i = 0 do not
see it; p = 1, the counts and the iteration written out do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    KERNELS,
    SIZES,
    STREAMS,
    WEIGHTS,
    C,
    Make,
    apart,
    clients_of,
    close,
    drawn,
    gradient,
    loss,
    m,
    memories,
    method,
    n,
    optimum,
    p,
    point,
    run,
    shares,
    softmax,
    started,
    toy,
    walk,
)
from tests.numerics.test_fedmspp import equal, network
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.fields import described, numbers, reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.scaffnew import Scaffnew, State
from zofl_mpi.run.client_memory import STEPS, Memory
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients

Array = np.ndarray[Any, Any]


def made(setting: Setting, **flags: Any) -> Scaffnew:
    return built(Scaffnew, setting, **{"p": 0.3, "gamma_local": 0.1, "batch": 4, "server_batch": 8, **flags})


def corrections(of: Scaffnew, clients: LocalClients, x: Array) -> Array:
    """(m, n) the h_i once the mean x has arrived."""
    return np.stack([of.corrected(memory["h"], x, memory["xt"]) for memory in memories(clients).values()])


def plainly(
    setting: Setting, weights: str, rounds: int, x: Array, *, prob: float, gamma: float, batch: int, coins: Any
) -> tuple[list[Array], list[Array]]:
    """x and the h_i (m, n) at each mean, one iteration after the other, with f_i := m w_i F_i."""
    size, scale = len(x), m * shares(weights)
    xs, h = np.tile(x, (m, 1)), np.zeros((m, size))
    means, hs = [], []
    for r in range(rounds):
        H = coins(r)
        batches = [
            np.tile(np.arange(len(data)), (H, 1)) if batch == 0 else drawn(data, i, r, H, batch)
            for i, data in enumerate(setting.data)
        ]
        for t in range(H):
            g = np.stack([scale[i] * gradient(data, xs[i], batches[i][t]) for i, data in enumerate(setting.data)])
            xt = xs - gamma * (g - h)
            xs = np.tile(xt.mean(axis=0), (m, 1)) if t == H - 1 else xt
            h = h + prob / gamma * (xs - xt)
        means.append(xs[0])
        hs.append(h)
    return means, hs


# --- the iteration


@pytest.mark.parametrize("batch", [0, 4])
@WEIGHTS
@BOTH
def test_rounds_are_the_papers_iterations(make: Make, weights: str, batch: int) -> None:
    """Mutations: h_i with the other sign, of the next mean, of x_r in place of xt_i; (1 - p)/gamma; scale on h_i, or on
    the mean; a mean weighted by size; one step too few or too many.
    """
    setting = make()
    of, x = made(setting, weights=weights, batch=batch), point(setting)
    means, hs = plainly(setting, weights, 6, x, prob=0.3, gamma=0.1, batch=batch, coins=of.steps)
    assert max(map(of.steps, range(6))) > 2
    clients, state, total = clients_of(of), started(of, x), 0
    for r in range(6):
        state = of.round(state, r, clients)
        total += of.steps(r)
        close(state.x, means[r], 1e-11)
        close(corrections(of, clients, state.x), hs[r], 1e-10)
        assert (state.local_steps, state.iterations) == (m * of.steps(r), total)
    assert np.linalg.norm(hs[-1], axis=1).min() > 0.01


@WEIGHTS
@BOTH
def test_with_p_1_it_is_gradient_descent_step_for_step(make: Make, weights: str) -> None:
    """On sum_i w_i F_i, though the h_i are not 0; FedAvg with one step. Mutation: communication with 1 - p."""
    setting = make()
    of, x = made(setting, p=1.0, weights=weights, batch=0), point(setting)
    fedavg = method(FedAvg, setting, tau=(1.0,), weights=weights, batch=0)
    clients, state = clients_of(of), started(of, x)
    for r in range(30):
        state = of.round(state, r, clients)
        x = x - 0.1 * shares(weights) @ [gradient(data, x) for data in setting.data]
        close(state.x, x)
    close(run(fedavg, 30).x, x)
    assert state.iterations == 30 and state.local_steps == m
    assert np.linalg.norm(corrections(of, clients, state.x), axis=1).min() > 0.01


@WEIGHTS
@BOTH
def test_the_corrections_sum_to_zero(make: Make, weights: str) -> None:
    """After every mean, on mini-batches. Mutations: a weighted mean; h_i scaled."""
    of = made(make(), weights=weights)
    clients, state = clients_of(of), started(of, point(of.setting))
    for r in range(12):
        state = of.round(state, r, clients)
        h = corrections(of, clients, state.x)
        assert np.abs(h.sum(axis=0)).max() < 1e-12
        assert np.linalg.norm(h, axis=1).min() > 0.01
        kept = np.stack([memory["h"] for memory in memories(clients).values()])
        assert np.abs(kept.sum(axis=0)).max() < 1e-12 and kept.any() == (r > 0)


@pytest.mark.parametrize("prob", [0.2, 0.5])
@WEIGHTS
def test_it_finds_the_exact_optimum_of_its_weights(weights: str, prob: float) -> None:
    """Heterogeneous quadratics, and h_i -> the gradient of m w_i F_i at it. Mutations: no h_i; weights of the mean."""
    setting, w = toy(), shares(weights)
    of = made(setting, p=prob, weights=weights, batch=0, gamma_local=0.5 / (m * w.max()))
    clients, state = clients_of(of), started(of, point(setting))
    for r in range(500):
        state = of.round(state, r, clients)
    right = optimum(setting, w)
    close(state.x, right, 1e-10)
    slopes = [m * w[i] * gradient(data, right) for i, data in enumerate(setting.data)]
    close(corrections(of, clients, state.x), slopes, 1e-9)
    assert np.linalg.norm(slopes, axis=1).min() > 0.05
    assert np.linalg.norm(optimum(setting, shares("uniform")) - optimum(setting, shares("size"))) > 0.1


@WEIGHTS
@BOTH
def test_one_client_takes_plain_sgd_steps(make: Make, weights: str) -> None:
    """The mean is its own iterate, so h_1 stays 0."""
    setting = make()
    setting = replace(setting, data=setting.data[:1], counts=None)
    of, x = made(setting, weights=weights), point(setting)
    clients, state = clients_of(of), started(of, x)
    for r in range(5):
        x = walk(setting, 0, r, x, np.full(of.steps(r), 0.1))[0]
        state = of.round(state, r, clients)
        close(state.x, x)
        assert not memories(clients)[0]["h"].any()


# --- how often it communicates


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.9])
def test_a_mean_follows_each_step_with_probability_p(prob: float) -> None:
    """p T means in T iterations; 1/p steps a round on average, 1 with probability p. Mutations: 1 - p; steps from 0."""
    of, rounds = made(toy(), p=prob), 4000
    steps = np.array([of.steps(r) for r in range(rounds)])
    T, sigma = steps.sum(), math.sqrt(1 - prob) / prob
    assert abs(rounds - prob * T) < 5 * math.sqrt(T * prob * (1 - prob))
    assert abs(steps.mean() - 1 / prob) < 5 * sigma / math.sqrt(rounds)
    assert steps.min() == 1
    assert steps[:9].tolist() == [STREAMS(Purpose.COIN, r=r).geometric(prob) for r in range(9)]
    assert abs((steps == 1).mean() - prob) < 5 * math.sqrt(prob * (1 - prob) / rounds)
    assert abs((steps == 2).mean() - prob * (1 - prob)) < 5 * math.sqrt(prob / rounds)


def test_a_run_takes_the_steps_that_were_drawn_and_the_plan_knows_them() -> None:
    of = made(toy(noise=1.0), p=0.1)
    state = run(of, 50)
    total = sum(of.steps(r) for r in range(50))
    assert state.iterations == total
    plan = of.plan(50)
    assert plan["local steps of all clients, all rounds"] == m * total


# --- what it keeps and sends


@pytest.mark.parametrize(("dtype", "itemsize"), [(np.float32, 4), (np.float64, 8)])
def test_one_vector_goes_down_and_one_up(dtype: Any, itemsize: int) -> None:
    """To all clients. Mutation: a control variate in a message."""
    of = made(softmax(dtype))
    size, clients, state, total = C * p * itemsize, clients_of(of), of.start(), 0
    for r in range(3):
        state = of.round(state, r, clients)
        of.evaluate(state, r, clients)
        row, _ = clients.account()
        assert row.steps == ["server", "train", "measure"]
        assert row.bytes_down[1].tolist() == [size + 8] * m and row.bytes_up[1].tolist() == [size] * m
        assert not row.bytes_down[2].any()
        total += int(row.bytes_down.sum() + row.bytes_up.sum())
        assert state.x.dtype == dtype
    plan = of.plan(3)
    assert plan["bytes down and up, all rounds"] == total == 3 * m * (2 * size + 8)
    assert plan["clients, participants in a round"] == "4, 4"
    assert plan["FLOPs of all clients, all rounds"] == f"{m * state.iterations * 4 * 4 * C * p:.3g}"
    assert all(entry.dtype == dtype for memory in memories(clients).values() for entry in memory.values())


def test_memories_and_state_are_all_that_a_continuation_needs() -> None:
    """To the bit. Mutations: h_i or xt_i kept elsewhere; h_i moved a second time."""
    of = made(softmax(np.float32), weights="size")
    whole = run(of, 6)
    clients, state = clients_of(of), started(of, point(of.setting))
    for r in range(3):
        state = of.round(state, r, clients)
    others, strangers = clients_of(of), clients_of(of)
    kept = {i: Memory(entries) for i, entries in memories(clients).items()}
    list(others.ask_each(STEPS["<restore>"], kept, counted=False))
    forgetful = state
    for r in range(3, 6):
        state, forgetful = of.round(state, r, others), of.round(forgetful, r, strangers)
    assert state.x.tobytes() == whole.x.tobytes() and state.iterations == whole.iterations
    assert forgetful.x.tobytes() != whole.x.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_agree(kernel: str) -> None:
    right = run(made(softmax(), weights="size"), 5).x
    close(run(made(softmax(kernel=kernel), weights="size"), 5).x, right, 1e-11)
    np.testing.assert_allclose(run(made(softmax(np.float32, kernel), weights="size"), 5).x, right, atol=1e-4)


def test_a_network_moves_and_its_corrections_sum_to_zero() -> None:
    of = made(network(), weights="size", batch=0)
    clients, state = clients_of(of), of.start()
    before = reported(of.evaluate(state, 0, clients))["objective"]
    for r in range(40):
        state = of.round(state, r, clients)
    assert np.abs(corrections(of, clients, state.x).sum(axis=0)).max() < 1e-11
    assert reported(of.evaluate(state, 40, clients))["objective"] < before


def test_clients_of_one_size_have_equal_weights_to_the_bit() -> None:
    """Mutation: m w_i by a division that leaves 1 - 2^-53."""
    setting = equal(toy(noise=1.0))
    assert run(made(setting, weights="size"), 4).x.tobytes() == run(made(setting, weights="uniform"), 4).x.tobytes()
    many = replace(setting, data=49 * setting.data[:1])
    assert made(many, weights="size").scale(3) == made(many).scale(3) == 1


# --- reports


@WEIGHTS
@BOTH
def test_reports_are_right_and_leave_no_trace(make: Make, weights: str) -> None:
    of = made(make(), weights=weights)
    setting, x = of.setting, point(of.setting)
    clients, state = clients_of(of), started(of, x)
    found = reported(of.evaluate(state, 0, clients))
    losses, f1, N = np.array([loss(data, x) for data in setting.data]), loss(setting.server, x), len(setting.server)
    close(found["objective"], shares(weights) @ losses)
    close(found["f1"], f1)
    close(found["train_loss"], (N * f1 + np.array(SIZES) @ losses) / (N + 60))
    assert dict(numbers(state)).keys() | {"x"} == set(described(state))
    assert all(unit and text for unit, text in described(state).values())
    assert not any(memories(clients).values())
    for r in range(3):
        state = of.round(state, r, clients)
        of.evaluate(state, r, clients)
    assert state.x.tobytes() == run(of, 3).x.tobytes()


def test_the_run_starts_at_zero_or_at_random() -> None:
    for x0 in ("auto", "zero", "random"):
        first = {"x0": x0}
        setting = softmax(np.float32)
        x = made(setting, **first).start()
        assert x.x.tobytes() == method(FedAvg, setting, **first).start().x.tobytes()
        assert (x.local_steps, x.iterations) == (0, 0)


# --- what cannot be


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"p": 0.0}, "--p 0.0: must be a probability, above 0 and at most 1"),
        ({"p": 1.5}, "--p 1.5"),
        ({"p": math.nan}, "--p nan"),
        ({"gamma_local": 0.0}, "--gamma-local 0.0: must be a step size above 0"),
        ({"gamma_local": math.inf}, "--gamma-local inf"),
        ({"batch": -1}, "--batch -1: must be a whole number, at least 0"),
    ],
)
def test_parameters_out_of_range_are_refused_by_flag(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(toy(), **flags)


def test_what_is_not_finite_names_the_client() -> None:
    """Mutation: h_i is not looked at."""
    of = made(toy(), gamma_local=1e200, p=1.0)
    with pytest.raises(ClientError, match=r"client 0 .*the local model is not finite; smaller --gamma-local"):
        run(of, 3)
    of = made(toy(), gamma_local=1e-320)
    with pytest.raises(ClientError, match=r"client 0 .*h_i is not finite; --gamma-local"):
        run(of, 3)


def test_the_state_is_the_model_and_two_counts() -> None:
    assert list(vars(State(np.zeros(n)))) == ["x", "local_steps", "iterations"]
    assert apart(run(made(toy()), 2).x, point(toy()))
