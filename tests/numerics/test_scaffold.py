"""SCAFFOLD, FedMSPP, Scaffnew (Mishchenko et al. 2022, Algorithm 2): control variates and proximal points."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.numerics.first_order import (
    BOTH,
    HARMONIC,
    OPTIONS,
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
    walk,
)
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Controlled, Scaffold, SCAFFOLDState
from zofl_mpi.problems.analytic.quadratic import Quadratic
from zofl_mpi.problems.network import Network
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.client_memory import STEPS, Memory
from zofl_mpi.run.loop.local import LocalClients


@WEIGHTS
@OPTIONS
@BOTH
def test_a_round_of_scaffold_is_its_formula(make: Make, option: str, weights: str) -> None:
    """From corrections that are not zero, 2 of 4 clients, unequal numbers of steps, eta_g = 0.7; what travels is what
    changed. Mutations: y for dy; c_i for dc; eta_g on c; c - c_i with the other sign; old c_i sent, or kept; K eta_0
    for the sum of the step sizes; K of another client; option I at y or on a mini-batch; c divided by |S|; dc
    unweighted."""
    setting, r, w, H = make(), 1, shares(weights), (3, 1, 4, 2)
    x, size = point(setting), setting.problem.n
    corrections = STREAMS(Purpose.START, t=3).standard_normal((m + 1, size))
    c, own = corrections[m], corrections[:m]
    flags = {"option": option, "weights": weights, "beta": 0.5, "eta_g": 0.7, "tau": tuple(map(float, H))}
    scaffold = method(Scaffold, setting, **flags)
    asked, clients = scaffold.local.sampling(r), clients_of(scaffold)
    dy, dc = np.zeros((m, size)), np.zeros((m, size))
    list(clients.ask_each(STEPS["<restore>"], {i: Memory({"c_i": own[i]}) for i in range(m)}, counted=False))
    for i in range(m):
        gammas = 0.1 / np.arange(1, H[i] + 1)
        y, used = walk(setting, i, r, x, gammas, lambda y, shift=c - own[i]: shift)
        new = gradient(setting.data[i], x) if option == "I" else gammas @ used / gammas.sum()
        dy[i], dc[i] = y - x, new - own[i]
        reply = scaffold.train(Client(i, setting.data[i], {"c_i": own[i]}), Controlled(x, c, r))
        close(reply.dy, dy[i])
        close(reply.dc, dc[i], 1e-11)
    state = scaffold.round(SCAFFOLDState(x=x, c=c), r, clients)
    close(state.x, x + 0.7 * w[asked] @ dy[asked] / w[asked].sum())
    close(state.c, c + w[asked] @ dc[asked], 1e-11)
    kept = np.stack([entries["c_i"] for entries in memories(clients).values()])
    close(kept, own + dc * np.isin(np.arange(m), asked)[:, None], 1e-11)


@OPTIONS
@BOTH
def test_all_corrections_begin_at_zero(make: Make, option: str) -> None:
    """So the first round is FedAvg's, the second not. Mutation: a random c."""
    setting = make()
    scaffold, fedavg = method(Scaffold, setting, option=option), method(FedAvg, setting)
    assert not scaffold.start().c.any() and scaffold.start().c.dtype == setting.dtype
    close(one(scaffold), one(fedavg))
    assert np.linalg.norm(run(scaffold, 2).x - run(fedavg, 2).x) > 1e-5


# --- FedMSPP


def network(dtype: Any = np.float64) -> Setting:
    """A torch module on the data of `softmax`."""
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(p, 4), torch.nn.Tanh(), torch.nn.Linear(4, C))
    problem = Network(module, (p,), C, weights=np.array(SIZES) / 90, dtype=dtype)
    return replace(softmax(dtype), problem=problem, dtype=dtype)


def equal(setting: Setting, size: int = 10) -> Setting:
    """Three clients of one size."""

    def part(data: Any) -> Any:
        return replace(data, noise=data.noise[:size]) if hasattr(data, "noise") else data.subset(np.arange(size))

    return replace(setting, data=(part(setting.data[2]), *2 * (part(setting.data[3]),)), counts=None)


@pytest.mark.parametrize("make", [lambda: toy(noise=1.0), lambda: network(np.float32), lambda: softmax(np.float32)])
def test_on_all_data_it_is_fedprox_with_full_gradients_to_the_bit(make: Make) -> None:
    """b = |D_i|, and batch 0 with unequal clients. Mutations: samples in the order drawn; mu of its own."""
    flags = {"mu": 0.7, "beta": 0.7, "schedule_h": "sqrt"}
    setting = equal(make())
    fedprox = run(method(FedProx, setting, batch=0, **flags), 4).x
    assert run(method(FedMSPP, setting, batch=10, **flags), 4).x.tobytes() == fedprox.tobytes()
    assert apart(run(method(FedMSPP, setting, batch=5, **flags), 4).x, fedprox)
    fedprox, fedmspp = (run(method(cls, make(), batch=0, **flags), 4).x for cls in (FedProx, FedMSPP))
    assert fedmspp.tobytes() == fedprox.tobytes()


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


def test_a_batch_is_drawn_without_replacement_anew_for_every_round_and_client() -> None:
    """Mutations: with replacement; the first b; one stream for all clients, or rounds; not in order."""
    setting = equal(toy())
    for batch in (4, 0):
        fedmspp = method(FedMSPP, setting, batch=batch)
        for i, r in ((0, 0), (0, 1), (2, 0), (2, 5)):
            expected = np.sort(STREAMS(Purpose.BATCH, r=r, i=i).permutation(10)[: batch or 10])
            assert np.array_equal(fedmspp.minibatch(Client(i, setting.data[i]), r), expected)


def test_the_paper_keeps_its_inner_step_size() -> None:
    problem, server, clients = Quadratic.random(STREAMS, n, m, samples=64)
    fedmspp = from_flags(FedMSPP, Setting(problem, STREAMS, clients, server, server, None, np.float64))
    assert np.array_equal(fedmspp.local.steps.sizes(0, 0), np.full(20, 0.1))


# --- Scaffnew


def made(setting: Setting, **flags: Any) -> Scaffnew:
    return from_flags(Scaffnew, setting, **{"p": 0.3, "gamma_local": 0.1, "batch": 4, **flags})


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


@pytest.mark.parametrize("batch", [0, 4])
@WEIGHTS
@BOTH
def test_rounds_are_the_papers_iterations(make: Make, weights: str, batch: int) -> None:
    """Mutations: h_i with the other sign, of the next mean, of x_r in place of xt_i; (1 - p)/gamma; scale on h_i, or on
    the mean; a mean weighted by size; one step too few or too many."""
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
        assert np.abs(corrections(of, clients, state.x).sum(axis=0)).max() < 1e-12
        assert (state.local_steps, state.iterations) == (m * of.steps(r), total)
    assert np.linalg.norm(hs[-1], axis=1).min() > 0.01


def test_a_mean_follows_each_step_with_probability_p() -> None:
    """1/p steps a round on average. Mutations: 1 - p; steps from 0; one coin a client."""
    for prob in (0.1, 0.9):
        steps = [made(toy(), p=prob).steps(r) for r in range(99)]
        assert steps == [STREAMS(Purpose.COIN, r=r).geometric(prob) for r in range(99)]
        assert np.mean(steps) == pytest.approx(1 / prob, rel=0.5) and min(steps) == 1


def test_clients_of_one_size_have_equal_weights_to_the_bit() -> None:
    """Mutation: m w_i by a division that leaves 1 - 2^-53."""
    setting = equal(toy(noise=1.0))
    assert run(made(setting, weights="size"), 4).x.tobytes() == run(made(setting, weights="uniform"), 4).x.tobytes()
    many = replace(setting, data=49 * setting.data[:1])
    assert made(many, weights="size").scale(3) == made(many).scale(3) == 1


def test_what_is_not_finite_names_the_client() -> None:
    """Mutation: h_i is not looked at."""
    of = made(toy(), gamma_local=1e200, p=1.0)
    with pytest.raises(ClientError, match=r"client 0 .*the local model is not finite; smaller --gamma-local"):
        run(of, 3)
    of = made(toy(), gamma_local=1e-320)
    with pytest.raises(ClientError, match=r"client 0 .*h_i is not finite; --gamma-local"):
        run(of, 3)


@pytest.mark.parametrize("make", [partial(method, FedAvg), partial(method, Scaffold), made])
def test_local_steps_of_another_shape_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """One that NumPy would stretch. Mutation: the problem's own result, unchecked."""
    monkeypatch.setattr(Quadratic, "descend", lambda self, *given, **terms: np.ones(1))
    with pytest.raises(ClientError, match=r"descend\(data, y, batches, stepsizes\) must have .* \(5,\); it has \(1,\)"):
        run(make(toy()), 1)
