"""ZO-HFL as a method: [A] Algorithms 1 and 2 through rounds on clients; and what it reports and sends.

Problems and reference solutions are quadratic, in float64. Each docstring names the mutations to catch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.fields import described, reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.errors import UserError
from zofl_mpi.methods.zo_hfl import ZOHFL, Report, Solutions, State, Values
from zofl_mpi.problems.analytic.quadratic import Bowl, Corner, Quadratic
from zofl_mpi.problems.terms import Terms
from zofl_mpi.rounds.report import Model
from zofl_mpi.run import loop, records
from zofl_mpi.run.client_memory import STEPS, Acknowledged
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.progress import Progress
from zofl_mpi.settings.samples import Samples
from zofl_mpi.settings.zo_hfl import SOFTMAX

STREAMS = Streams(7)
n, m, lam, eta = 5, 3, 1.7, 0.4
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Exact:
    """A quadratic problem whose lower level is solved exactly."""

    inner: Quadratic

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def lower(self, i: int, data: Bowl, x: Array, *_: Any) -> Array:
        return np.stack([self.inner.solution(i, data, row) for row in x])


@dataclass(frozen=True)
class Spy:
    """A problem that writes down what `lower` was given and what it gave."""

    inner: Any
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def lower(self, i: int, data: Any, x: Array, y: Array, batches: Array, stepsizes: Array) -> Array:
        found = self.inner.lower(i, data, x, y, batches, stepsizes)
        self.calls.append({"i": i, "x": x, "y": y, "batches": batches, "stepsizes": stepsizes, "found": found})
        return found


FLAT = Bowl(np.zeros((n, n)), np.zeros(n), np.zeros((4, n)))
"""A server without a loss of its own: f_1 = 0."""


def toy(clients: int = m, server: Bowl | None = FLAT, **settings: Any) -> Setting:
    """A random problem with unequal clients; `server` None for a random f_1."""
    problem, own, data = Quadratic.random(STREAMS, n, clients, **{"lam": lam, **settings})
    return Setting(problem, STREAMS, data, server or own, server or own, None, np.float64)


def with_problem(setting: Setting, change: Callable[[Any], Any]) -> Setting:
    return replace(setting, problem=change(setting.problem))


def method(setting: Setting, **flags: Any) -> ZOHFL:
    return built(
        ZOHFL, setting, **{"eta": eta, "gamma": 1.0, "schedule": "constant", "batch": 4, "tau": (6.0,), **flags}
    )


def clients_of(zohfl: ZOHFL) -> LocalClients:
    return LocalClients(list(zohfl.setting.data))


def point(t: int = 9, size: int = n) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(size)


def run(zohfl: ZOHFL, rounds: int, x: Array | None = None, evaluate: bool = False) -> State:
    state = zohfl.start() if x is None else State(x)
    clients = clients_of(zohfl)
    for r in range(rounds):
        state = loop.finite_round(zohfl, state, r, clients)
        if evaluate:
            zohfl.evaluate(state, r, clients)
    return state


def zeroth_order_part(zohfl: ZOHFL, x: Array, r: int, patch: pytest.MonkeyPatch) -> Array:
    """The mean of what a round subtracts from x, over a frame of directions."""
    frame = np.linalg.qr(STREAMS(Purpose.START).standard_normal((n, n)))[0].T
    parts = []  # each client goes through the frame in an order of its own
    for k in range(n):
        patch.setattr(ZOHFL, "direction", lambda self, i, r, k=k: frame[(k + i) % n])
        parts.append(x - zohfl.round(State(x), r, clients_of(zohfl)).x)
    return np.mean(parts, axis=0)


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def local(zohfl: ZOHFL, i: int, x: Array, r: int, H: int, purpose: Purpose = Purpose.BATCH) -> Array:
    """Algorithm 2 from y_0 = x with steps 0.1/(t+1), written out: y - gt (A (y - a) + noise + mu (y - x))."""
    data, mu = zohfl.setting.data[i], zohfl.problem.mu[i]
    batches = STREAMS(purpose, r=r, i=i).integers(len(data), size=(H, zohfl.local.batch))
    y = x
    for t in range(H):
        y = y - 0.1 / (t + 1) * (data.A @ (y - data.a) + data.noise[batches[t]].mean(axis=0) + mu * (y - x))
    return y


# --- (a) and (a'): the estimate of step 6


def test_a_the_mean_over_a_frame_is_the_implicit_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """(a) sum_i rho_i lam K_i'K_i (x - a_i) with exact lower solutions and unequal rho_i.

    Mutations: factor m left out of f_2; no 1/m or another; n/(2 eta) without n or 2; the sign of the difference or of
    the step; one client's direction for all.
    """
    zohfl = method(with_problem(toy(), Exact))
    x, expected = point(), np.zeros(n)
    for i, data in enumerate(zohfl.setting.data):
        K = np.linalg.inv(data.A + zohfl.problem.mu[i] * np.eye(n)) @ data.A
        expected += zohfl.problem.weights[i] * lam * K.T @ K @ (x - data.a)
    assert len(set(zohfl.problem.weights.round(3))) == m
    for r in (0, 3):
        close(zeroth_order_part(zohfl, x, r, monkeypatch), expected)


@pytest.mark.parametrize("exchange", ["scalars", "solutions"])
def test_b_algorithm_2_is_differentiated_through_its_noisy_steps(
    monkeypatch: pytest.MonkeyPatch, exchange: Any
) -> None:
    """(a') x -> y_H = M x + c is affine for shared samples: sum_i rho_i lam (I - M_i)'(x - y_H,i), noise included.

    Mutations: other samples in the second solve; other steps or H than the paper's; a start that is not x.
    """
    zohfl = method(toy(noise=1.0), exchange=exchange)
    x, r, expected = point(), 3, np.zeros(n)
    H = 12  # ceil(6 sqrt(4))
    for i in range(m):
        c = local(zohfl, i, np.zeros(n), r, H)
        M = np.stack([local(zohfl, i, e, r, H) - c for e in np.eye(n)], axis=1)
        expected += zohfl.problem.weights[i] * lam * (np.eye(n) - M).T @ (x - local(zohfl, i, x, r, H))
    close(zeroth_order_part(zohfl, x, r, monkeypatch), expected)


def test_b_separate_samples_spoil_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """--samples separate is another estimate, so the test above can fail. Mutation: the switch has no effect."""
    shared, separate = (method(toy(noise=1.0), samples=samples) for samples in ("shared", "separate"))
    right = zeroth_order_part(shared, point(), 3, monkeypatch)
    wrong = zeroth_order_part(separate, point(), 3, monkeypatch)
    assert np.linalg.norm(wrong - right) > 0.1 * np.linalg.norm(right)


def test_b_without_noise_separate_samples_change_nothing() -> None:
    shared, separate = (run(method(toy(), samples=samples), 3, point()) for samples in ("shared", "separate"))
    close(shared.x, separate.x)


def test_the_directions_are_unit_vectors_that_differ_by_client_and_round() -> None:
    zohfl = method(toy())
    found = np.stack([zohfl.direction(i, r) for i in range(m) for r in range(4)])
    close(np.linalg.norm(found, axis=1), 1)
    products = found @ found.T - np.eye(len(found))
    assert np.abs(products).max() < 0.999


def test_the_pair_lies_eta_on_either_side() -> None:
    """Mutations: eta^2, 2 eta, both on one side."""
    x, v = point(), STREAMS(Purpose.DIRECTION).standard_normal(n)
    close(method(toy()).pair(x, v), [x + eta * v, x - eta * v])


# --- (b) to (d): special cases


def test_without_coupling_it_is_sgd_on_f1_bit_for_bit() -> None:
    """(b) lam = 0. Mutations: gamma_r at r in place of r + 1; a batch of another round; f_2 without lam."""
    zohfl = method(toy(server=None, lam=0.0, noise=1.0), gamma=0.1, schedule="sqrt", server_batch=8)
    server = zohfl.setting.server
    x = point()
    expected = x
    for r in range(20):
        batch = STREAMS(Purpose.SERVER_BATCH, r=r).integers(len(server), size=8)
        gradient = (expected - server.a) @ server.A + server.noise[batch].mean(axis=0)
        expected = expected - 0.1 / np.sqrt(r + 1) * gradient
    state = run(zohfl, 20, x)
    assert np.array_equal(state.x, expected)
    assert state.gradient_f2_norm == 0
    assert state.gradient_f1_norm == np.linalg.norm(gradient)


@pytest.mark.parametrize("schedule_h", ["sqrt", "constant"])
def test_without_local_steps_there_is_no_zeroth_order_part(schedule_h: Any) -> None:
    """(c) tau = 0 and y_0 = x: f_2 is 0 at both points. Mutation: H = max(1, ...)."""
    state = run(method(toy(noise=1.0), tau=(0.0,), schedule_h=schedule_h), 3, point())
    assert state.gradient_f2_norm == 0 and state.local_steps == 0
    assert np.array_equal(state.x, point())


def test_a_large_mu_removes_the_zeroth_order_part() -> None:
    """(d) with the exact oracle it falls as 1/mu^2: x - y is K (x - a), K about A/mu. Mutation: mu without the data."""
    norms = []
    for mu in (1e2, 1e3, 1e4):
        setting = with_problem(toy(), lambda p, mu=mu: Exact(replace(p, mu=np.full(m, mu))))
        norms.append(run(method(setting), 1, point()).gradient_f2_norm)
    close(np.array(norms[:2]) / norms[1:], 100, 0.1)
    assert norms[2] < 1e-6


# --- (e) and (f): descents


def corner(size: int, **flags: Any) -> ZOHFL:
    nothing = range(1)
    setting = Setting(Corner(size), STREAMS, (nothing,) * 2, nothing, nothing, None, np.float64)
    return method(setting, tau=(1.0,), schedule_h="constant", gamma_local=1.0, schedule_local="constant", **flags)


def test_e_the_corner_is_descended_from_the_left_to_minus_1() -> None:
    """(e) f = 1/2 (x + 1)^2 for x < 0: the estimate vanishes at -1, where x comes to rest. Mutation: ascent."""
    state = run(corner(3, gamma=0.2, eta=0.1), 300, np.full(3, -3.0))
    close(state.x, -1.0, 1e-10)


def test_e_the_plateau_of_the_corner_is_never_left() -> None:
    """(e) f = 1/2 for x > eta: x stays, bit for bit where x +- eta v are exact (one dimension, dyadic numbers)."""
    state = run(corner(1, gamma=0.5, eta=0.125), 50, np.full(1, 2.0))
    assert state.x[0] == 2.0 and state.gradient_f2_norm == 0
    close(run(corner(3, gamma=0.5, eta=0.1), 50, np.full(3, 0.5)).x, 0.5, 1e-11)


@pytest.mark.parametrize("oracle", [Exact, lambda problem: problem])
def test_f_minimising_the_coupling_of_one_client_solves_its_own_problem(oracle: Callable[[Any], Any]) -> None:
    """(f) grad L(x) = A (x - a) -> 0, with the exact lower solution and with a few local steps alike."""
    setting = toy(clients=1, spectrum=(1.0, 2.0))
    setting = with_problem(setting, lambda p: oracle(replace(p, weights=np.ones(1), lam=1.0)))
    zohfl = method(setting, gamma=0.3, tau=(20.0,), schedule_h="constant", gamma_local=0.3, schedule_local="constant")
    data = setting.data[0]
    assert np.linalg.norm(data.A @ (point() - data.a)) > 1
    assert np.linalg.norm(data.A @ (run(zohfl, 600, point()).x - data.a)) < 1e-9


# --- (g): the constraint


@pytest.mark.parametrize("tau", [1.0, 2.0, 5.0, 20.0])
def test_g_local_solutions_stay_in_the_ball_around_the_point_they_were_asked_at(tau: float) -> None:
    """(g) |y - x| <= radius after any number of steps, and the bound is reached. Mutation: a ball around the model."""
    zohfl = method(toy(noise=1.0, radius=0.05), exchange="solutions", tau=(tau,), schedule_h="constant")
    x = 3 + point()
    reply = zohfl.solve(Client(0, zohfl.setting.data[0]), Model(x, 0))
    assert isinstance(reply, Solutions)
    distances = np.linalg.norm(np.stack([reply.plus, reply.minus]) - zohfl.pair(x, zohfl.direction(0, 0)), axis=1)
    assert distances.max() <= 0.05 * (1 + 1e-14)
    assert distances.max() > 0.049


def test_g_a_ball_of_radius_zero_leaves_no_zeroth_order_part() -> None:
    state = run(method(toy(noise=1.0, radius=0.0)), 2, point())
    assert state.gradient_f2_norm == 0 and np.array_equal(state.x, point())


# --- choices: start, divisor, participants, H, steps


def spied(**flags: Any) -> tuple[ZOHFL, list[dict[str, Any]]]:
    setting = with_problem(toy(noise=1.0), Spy)
    return method(setting, **flags), setting.problem.calls


def test_both_solves_start_at_the_point_they_are_asked_at() -> None:
    zohfl, calls = spied()
    run(zohfl, 2, point())
    assert len(calls) == 2 * m
    for call in calls:
        assert np.array_equal(call["y"], call["x"]) and call["x"].shape == (2, n)


@pytest.mark.parametrize("samples", ["shared", "separate"])
def test_with_y0_last_both_solves_start_in_the_middle_of_the_clients_last_pair(samples: Any) -> None:
    """Mutations: each solve goes on from its own last end; the last pair of another client; the plus solution alone."""
    zohfl, calls = spied(y0="last", samples=samples, beta=0.67)
    clients, state = clients_of(zohfl), State(point())
    middle: dict[int, Array] = {}
    for r in range(8):
        state = zohfl.round(state, r, clients)
        for i in zohfl.sampling(r):
            own = [call for call in calls if call["i"] == i]
            start, end = (np.concatenate([call[key] for call in own]) for key in ("y", "found"))
            assert start.shape == (2, n)
            assert np.array_equal(start, [middle[i]] * 2 if i in middle else np.concatenate([c["x"] for c in own]))
            middle[i] = end.mean(axis=0)
        calls.clear()
    memories = {i: memory.entries for i, memory in clients.ask(STEPS["<recall>"], Acknowledged(), counted=False)}
    assert set(middle) == set(range(m))
    for i in range(m):
        assert set(memories[i]) == {"y"} and np.array_equal(memories[i]["y"], middle[i])


def test_clients_that_start_at_x_remember_nothing() -> None:
    zohfl = method(toy())
    clients = clients_of(zohfl)
    zohfl.round(State(point()), 0, clients)
    assert all(not memory.entries for _, memory in clients.ask(STEPS["<recall>"], Acknowledged(), counted=False))


def test_dividing_by_the_participants_is_the_other_by_m_over_their_number() -> None:
    """4 clients, 2 of them asked: exactly a factor 2. Mutation: |S_r| in both."""
    all_of, part = (method(toy(clients=4), divide=divide, beta=0.5) for divide in ("m", "participants"))
    assert len(all_of.sampling(0)) == 2
    norms = [run(zohfl, 1, point()).gradient_f2_norm for zohfl in (all_of, part)]
    assert norms[1] == 2 * norms[0] > 0


@pytest.mark.parametrize(
    ("clients", "beta", "count"),
    [(10, 0.9, 9), (10, 0.5, 5), (10, 0.1, 1), (10, 1.0, 10), (10, 0.01, 1), (3, 0.5, 2), (1, 0.3, 1), (7, 0.35, 2)],
)
def test_a_share_beta_of_the_clients_takes_part_at_least_one_none_twice(clients: int, beta: float, count: int) -> None:
    zohfl = method(toy(clients=clients), beta=beta)
    for r in range(50):
        chosen = zohfl.sampling(r)
        assert len(chosen) == len(set(chosen)) == count
        assert chosen == sorted(chosen) and chosen[0] >= 0 and chosen[-1] < clients


def test_all_clients_come_up_equally_often() -> None:
    """1000 rounds of 5 of 10: each 500 times, standard deviation 15.8, five of which are allowed."""
    zohfl = method(toy(clients=10), beta=0.5)
    counts = np.bincount([i for r in range(1000) for i in zohfl.sampling(r)], minlength=10)
    assert (np.abs(counts - 500) < 80).all()
    pairs = sum({0, 1} <= set(zohfl.sampling(r)) for r in range(1000))
    assert abs(pairs - 1000 * 5 * 4 / (10 * 9)) < 5 * 13.2


def test_only_participants_are_asked_and_the_others_count_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    zohfl = method(with_problem(toy(), Exact), beta=0.34)
    (i,) = zohfl.sampling(2)
    clients = clients_of(zohfl)
    zohfl.round(State(point()), 2, clients)
    assert clients.account()[0].messages[1].tolist() == [int(j == i) for j in range(m)]
    expected = zohfl.problem.implicit_gradient(i, zohfl.setting.data[i], point()) / m
    close(zeroth_order_part(zohfl, point(), 2, monkeypatch), expected)


@pytest.mark.parametrize(("schedule_h", "growth"), [("sqrt", 2), ("constant", 1)])
def test_every_client_takes_its_own_number_of_steps(schedule_h: Any, growth: int) -> None:
    """H_{i,r} = ceil(tau_i sqrt(r + 1)), here at r = 3. Mutations: sqrt(r); tau of another client; floor."""
    zohfl, calls = spied(tau=(2.0, 5.0, 0.25), schedule_h=schedule_h)
    state = zohfl.round(State(point()), 3, clients_of(zohfl))
    right = [2 * growth, 5 * growth, 1]
    assert [len(call["stepsizes"]) for call in calls] == right
    assert [call["batches"].shape for call in calls] == [(H, 4) for H in right]
    assert state.local_steps == 2 * sum(right)


def test_local_steps_begin_anew_in_every_call() -> None:
    """gt_t = 0.1/(t + 1) from t = 0 in every round, for every client. Mutation: t counts on."""
    zohfl, calls = spied(tau=(3.0,), schedule_h="constant")
    run(zohfl, 3, point())
    for call in calls:
        close(call["stepsizes"], [0.1, 0.05, 0.1 / 3], 1e-15)


def test_samples_are_new_for_every_client_and_round_and_the_same_for_both_points() -> None:
    zohfl, calls = spied(batch=16)
    run(zohfl, 2, point())
    drawn = [call["batches"][:6].tobytes() for call in calls]
    assert len(set(drawn)) == len(drawn)
    for call, (r, i) in zip(calls, ((r, i) for r in range(2) for i in range(m)), strict=True):
        assert np.array_equal(
            call["batches"], STREAMS(Purpose.BATCH, r=r, i=i).integers(32, size=call["batches"].shape)
        )
        assert call["batches"].max() < 32


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", 0.5), ("sqrt", 0.25), ("harmonic", 0.125), ("harmonic:5", 0.0625), ("power:0.75", 0.5 * 4**-0.75)],
)
def test_the_servers_step_of_round_3_is_that_of_r_plus_1_at_4(schedule: str, expected: float) -> None:
    zohfl = method(toy(server=None, lam=0.0), gamma=0.5, schedule=schedule)
    server, x = zohfl.setting.server, point()
    close(x - zohfl.round(State(x), 3, clients_of(zohfl)).x, expected * server.A @ (x - server.a), 1e-13)


# --- the start


def test_the_run_starts_at_zero_or_at_random() -> None:
    setting = toy(server=None, noise=1.0)
    assert np.array_equal(method(setting).start().x, np.zeros(n))
    random = method(setting, x0="random").start().x
    assert 0 < np.abs(random).max() < 0.06 and random.dtype == np.float64


# --- what travels


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Setting]]:
    """digits(dtype, **model): softmax regression on the embedded digits, 5 clients with unequal classes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOFL_CACHE", str(tmp_path_factory.mktemp("cache")))

        def build(dtype: str = "float32", **model: Any) -> Setting:
            values = {**vars(Samples(m=5, alpha=0.5)), **vars(Terms()), "bias": False, "kernel": "auto"}
            return SOFTMAX.build({**values, **model}, SingleProcess(), STREAMS, dtype, "cpu")

        yield build


def softmax(setting: Setting, **flags: Any) -> ZOHFL:
    return built(ZOHFL, setting, **{"tau": (3.0,), "beta": 0.6, "gamma": 0.5, **flags})


@pytest.mark.parametrize("y0", ["x", "last"])
def test_scalars_and_solutions_give_the_same_bits(digits: Callable[..., Setting], y0: Any) -> None:
    """f_2's values are made from the same vectors at either end. Mutation: the server forms x +- eta v otherwise."""
    for make in (
        lambda exchange: method(toy(noise=1.0), exchange=exchange, y0=y0, gamma=0.1),
        lambda exchange: softmax(digits(), exchange=exchange, y0=y0),
    ):
        scalars, solutions = (run(make(exchange), 6, None) for exchange in ("scalars", "solutions"))
        assert scalars.x.tobytes() == solutions.x.tobytes()
        assert scalars.gradient_f2_norm == solutions.gradient_f2_norm > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exchange", ["scalars", "solutions"])
def test_bytes_are_those_of_the_formulas(digits: Callable[..., Setting], dtype: str, exchange: Any) -> None:
    """Down x_r and r; up two numbers, or two vectors; only participants, and evaluations are free."""
    zohfl = softmax(digits(dtype), exchange=exchange)
    clients, itemsize, size = clients_of(zohfl), np.dtype(dtype).itemsize, 64 * 10
    state, measured, steps = zohfl.start(), 0, 0
    for r in range(3):
        state = zohfl.round(state, r, clients)
        zohfl.evaluate(state, r, clients)
        row, _ = clients.account()
        asked = np.isin(np.arange(5), zohfl.sampling(r))
        assert asked.sum() == 3
        assert row.steps == ["server", "solve", "personal"]
        up = 16 if exchange == "scalars" else 2 * size * itemsize
        assert row.bytes_down.tolist() == [[0] * 5, (asked * (size * itemsize + 8)).tolist(), [0] * 5]
        assert row.bytes_up.tolist() == [[0] * 5, (asked * up).tolist(), [0] * 5]
        measured += row.bytes_down.sum() + row.bytes_up.sum()
        steps += state.local_steps
    plan = zohfl.plan(3)
    assert plan["bytes down, for each participant and round"] == size * itemsize + 8
    assert plan["bytes up, for each participant and round"] == up
    assert plan["bytes down and up, all rounds"] == measured
    assert plan["local steps of all clients, all rounds"] == steps == 2 * 3 * (3 + 5 + 6)


# --- evaluations


@pytest.mark.parametrize("y0", ["x", "last"])
def test_evaluations_leave_no_trace(digits: Callable[..., Setting], y0: Any) -> None:
    """Mutation: the personal solve writes the client's memory, or draws from a stream that a round needs."""
    for make in (lambda: method(toy(noise=1.0), y0=y0, gamma=0.1), lambda: softmax(digits(), y0=y0)):
        watched, unwatched = run(make(), 5, evaluate=True), run(make(), 5)
        assert watched.x.tobytes() == unwatched.x.tobytes()


def test_reports_of_the_toy_problem_are_right() -> None:
    """Against direct formulas. Mutations: f_2 summed; y of the perturbed points; distance squared; f_1 of a batch."""
    zohfl = method(toy(server=None, noise=1.0))
    setting, problem, x, r = zohfl.setting, zohfl.problem, point(), 2
    found = reported(zohfl.evaluate(State(x), r, clients_of(zohfl)))
    server = setting.server
    f1 = (x - server.a) @ server.A @ (x - server.a) / 2 + server.noise.mean(axis=0) @ x
    y = [local(zohfl, i, x, r, math.ceil(6 * math.sqrt(3)), Purpose.PERSONAL) for i in range(m)]
    f2 = sum(problem.weights[i] * lam / 2 * np.sum((x - y[i]) ** 2) for i in range(m))
    exact = [
        np.linalg.solve(d.A + mu * np.eye(n), d.A @ d.a + mu * x)
        for d, mu in zip(setting.data, problem.mu, strict=True)
    ]
    close(found["f1"], f1)
    close(found["f2"], f2)
    close(found["objective"], f1 + f2)
    close(found["local_distance"], np.mean([np.linalg.norm(x - y[i]) for i in range(m)]))
    close(found["local_error"], np.mean([np.linalg.norm(y[i] - exact[i]) for i in range(m)]))
    close(found["test_loss"], f1)
    assert math.isnan(found["test_accuracy"]) and math.isnan(found["personal_accuracy"])
    assert set(found) == set(described(Report)) - {
        "validation_accuracy",
        "validation_loss",
        "validation_personal_accuracy",
    }
    assert set(described(State)) == {"x", "gradient_f1_norm", "gradient_f2_norm", "local_steps"}


def test_with_y0_last_an_evaluation_starts_at_the_clients_last_solution() -> None:
    zohfl, calls = spied(y0="last")
    clients = clients_of(zohfl)
    state = zohfl.round(State(point()), 0, clients)
    ends = [call["found"].mean(axis=0) for call in calls]
    calls.clear()
    zohfl.evaluate(state, 0, clients)
    assert all(np.array_equal(call["y"], [end]) for call, end in zip(calls, ends, strict=True))
    assert all(np.array_equal(call["x"], [state.x]) for call in calls)


def test_reports_of_the_digits_are_right(digits: Callable[..., Setting]) -> None:
    """Recomputed from scikit-learn's arrays in plain NumPy. Mutations: raw pixels; a mean of means for train_loss;
    personal accuracy without the client's classes; the server's part left out.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16
    setting = digits("float64", lam=2.0, mu=(0.5,))
    zohfl = softmax(setting, batch=8)
    state = run(zohfl, 4)
    W, r = state.x.reshape(10, 64), 3
    found = reported(zohfl.evaluate(state, r, clients_of(zohfl)))

    def losses(W: Array, rows: Array) -> Array:
        z = pixels[rows] @ W.T
        return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(rows)), labels[rows]]

    def hits(W: Array, rows: Array) -> Array:
        return (pixels[rows] @ W.T).argmax(axis=1) == labels[rows]

    server, test, own = setting.server.rows, setting.test.rows, [d.rows for d in setting.data]
    everything = np.concatenate([server, test, *own])
    assert np.array_equal(np.sort(everything), np.arange(1797))
    train = np.concatenate([server, *own])
    close(found["train_loss"], losses(W, train).mean(), 1e-10)
    close(found["f1"], losses(W, server).mean(), 1e-10)
    close(found["test_loss"], losses(W, test).mean(), 1e-10)
    close(found["test_accuracy"], hits(W, test).mean())

    accuracies, plain, distances, f2 = [], [], [], 0.0
    for i, rows in enumerate(own):
        batches = STREAMS(Purpose.PERSONAL, r=r, i=i).integers(len(rows), size=(6, 8))  # ceil(3 sqrt(4)) steps
        y = W
        for t, batch in enumerate(batches):
            X = pixels[rows[batch]]
            p = np.exp(X @ y.T)
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(8), labels[rows[batch]]] -= 1
            y = y - 0.1 / (t + 1) * (p.T @ X / 8 + 0.5 * (y - W))
        right, share = hits(y, test), np.bincount(labels[rows], minlength=10) / len(rows)
        each = np.array([right[labels[test] == c].mean() for c in range(10)])
        accuracies.append(share @ each)
        plain.append(right.mean())
        distances.append(np.linalg.norm(y - W))
        f2 += len(rows) / len(train) * 2.0 / 2 * np.sum((y - W) ** 2)
    close(found["personal_accuracy"], np.mean(accuracies), 1e-10)
    close(found["personal_accuracy_global"], np.mean(plain), 1e-10)
    close(found["local_distance"], np.mean(distances), 1e-10)
    close(found["objective"], losses(W, server).mean() + f2, 1e-10)
    assert math.isnan(found["local_error"])
    assert 0.2 < found["test_accuracy"] < 1
    assert abs(np.mean(accuracies) - np.mean(plain)) > 0.01


# --- runs that go wrong


def test_a_local_solution_that_is_not_finite_names_the_client() -> None:
    zohfl = method(toy(), gamma_local=1e200, schedule_local="constant", exchange="solutions")
    words = r"client 0 .*failed in step 'solve', item 0: the local solution is not finite; smaller --gamma-local"
    with pytest.raises(ClientError, match=words):
        run(zohfl, 1, point())


def test_a_value_of_f2_that_is_not_finite_names_the_client() -> None:
    """Mutations: replies unchecked; f_2 checked by its difference alone, which may be finite."""
    words = r"client 0 .*failed in step 'solve', item 0: f_2 is not finite; smaller --gamma"
    for schedule in ("harmonic", "constant"):  # of an overflow in f_2 itself; of a solution that is not finite
        with pytest.raises(ClientError, match=words):
            run(method(toy(), gamma_local=1e200, tau=(1.0,), schedule_local=schedule), 1, point())


def test_solutions_of_which_f2_is_not_finite_end_the_run_at_the_server() -> None:
    with pytest.raises(UserError, match="x is not finite after the server's step"):
        run(method(toy(), gamma_local=1e200, tau=(1.0,), exchange="solutions"), 1, point())


def test_a_model_that_is_not_finite_names_the_round_once_as_users_count_them(tmp_path: Path) -> None:
    zohfl = method(toy(server=None, lam=0.0), gamma=1.7e308)
    recorder = records.Recorder.create(tmp_path / "a.h5", attrs={}, m=m, ranks=1, rounds=5)
    words = "x is not finite after the server's step"
    with pytest.raises(loop.RunError, match=words) as caught:
        loop.run(zohfl, clients_of(zohfl), loop.Schedule(5, 10, 0), recorder, Progress(), None, {})
    assert re.findall(r"round (\d+)", str(caught.value)) == ["1"]


def test_values_travel_as_float64_whatever_the_dtype(digits: Callable[..., Setting]) -> None:
    zohfl = softmax(digits())
    reply = zohfl.solve(Client(0, zohfl.setting.data[0]), Model(zohfl.start().x, 0))
    assert isinstance(reply, Values) and type(reply.plus) is float
    assert reply.plus != float(np.float32(reply.plus))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"beta": 0.0}, "--beta 0.0: must be a fraction of the clients, above 0 and at most 1"),
        ({"beta": 1.5}, "--beta 1.5: must be a fraction"),
        ({"beta": math.nan}, "--beta nan"),
        ({"tau": (1.0, 2.0)}, r"--tau 1.0 2.0: must be one number, or 3, one for each client"),
        ({"tau": (-1.0,)}, "--tau .*: must be a number of local steps, at least 0"),
        ({"tau": (math.inf,)}, "--tau"),
        ({"tau": (math.nan,)}, "--tau"),
        ({"eta": 0.0}, "--eta 0.0: must be a smoothing radius above 0"),
        ({"eta": math.inf}, "--eta inf"),
        ({"gamma": -1.0}, "--gamma -1.0: must be a step size, at least 0"),
        ({"gamma_local": math.nan}, "--gamma-local nan"),
        ({"batch": 0}, "--batch 0: must be a whole number, at least 1"),
        ({"server_batch": 0}, "--server-batch 0"),
        ({"schedule": "linear"}, "--schedule 'linear': allowed are constant, sqrt"),
        ({"schedule_local": "power:2"}, "--schedule-local 'power:2'"),
    ],
)
def test_parameters_out_of_range_are_refused_by_flag(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        method(toy(), **flags)
