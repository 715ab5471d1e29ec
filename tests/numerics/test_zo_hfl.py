"""ZO-HFL as a method: [A] Algorithms 1 and 2 through rounds on clients; and what it reports and sends.

Problems and reference solutions are quadratic, in float64. Each docstring names the mutations to catch.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Patch
from tests.numerics.first_order import Array, clients_of, close, memories, softmax
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.fields import described, reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import RunFailed, UserError
from zofl_mpi.methods.zo_hfl import ZOHFL, HierarchicalReport, LocalSolutions, Values, ZOHFLState
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.quadratic import Quadratic, QuadraticData
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run import records
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop import rounds as loop
from zofl_mpi.run.loop.progress import Progress

STREAMS = Streams(7)
n, m, lam, eta = 5, 3, 1.7, 0.4


@dataclass(frozen=True)
class Spy:
    """A problem that writes down what `lower` was given and what it gave."""

    inner: Any
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def solve_client(self, i: int, data: Any, x: Array, y: Array, batches: Array, stepsizes: Array) -> Array:
        found = self.inner.solve_client(i, data, x, y, batches, stepsizes)
        self.calls.append({"i": i, "x": x, "y": y, "batches": batches, "stepsizes": stepsizes, "found": found})
        return found


FLAT = QuadraticData(np.zeros((n, n)), np.zeros(n), np.zeros((4, n)))
"""A server without a loss of its own: f_1 = 0."""


def toy(clients: int = m, server: QuadraticData | None = FLAT, **settings: Any) -> Setting:
    """A random problem with unequal clients; `server` None for a random f_1."""
    problem, own, data = Quadratic.random(STREAMS, n, clients, **{"lam": lam, **settings})
    return Setting(problem, STREAMS, data, server or own, server or own, None, np.float64)


def method(setting: Setting, **flags: Any) -> ZOHFL:
    return from_flags(
        ZOHFL, setting, **{"eta": eta, "gamma": 1.0, "schedule": "constant", "batch": 4, "tau": (6.0,), **flags}
    )


def point(t: int = 9, size: int = n) -> Array:
    return STREAMS(Purpose.START, t=t).standard_normal(size)


def run(zohfl: ZOHFL, rounds: int, x: Array | None = None, evaluate: bool = False) -> ZOHFLState:
    state = zohfl.start() if x is None else ZOHFLState(x)
    clients = clients_of(zohfl)
    for r in range(rounds):
        state = loop.finite_round(zohfl, state, r, clients)
        if evaluate:
            zohfl.evaluate(state, r, clients)
    return state


def zeroth_order_part(zohfl: ZOHFL, x: Array, r: int, patch: Patch) -> Array:
    """The mean of what a round subtracts from x, over a frame of directions."""
    frame = np.linalg.qr(STREAMS(Purpose.START).standard_normal((n, n)))[0].T
    parts = []  # each client goes through the frame in an order of its own
    for k in range(n):
        patch.setattr(ZOHFL, "direction", lambda self, i, r, k=k: frame[(k + i) % n])
        parts.append(x - zohfl.round(ZOHFLState(x), r, clients_of(zohfl)).x)
    return np.mean(parts, axis=0)


def local(zohfl: ZOHFL, i: int, x: Array, r: int, H: int, purpose: Purpose = Purpose.BATCH) -> Array:
    """Algorithm 2 from y_0 = x with steps 0.1/(t+1), written out: y - gt (A (y - a) + noise + mu (y - x))."""
    data, mu = zohfl.setting.data[i], zohfl.problem.mu[i]
    batches = STREAMS(purpose, r=r, i=i).integers(len(data), size=(H, zohfl.local.batch))
    y = x
    for t in range(H):
        y = y - 0.1 / (t + 1) * (data.A @ (y - data.a) + data.noise[batches[t]].mean(axis=0) + mu * (y - x))
    return y


# --- (a) and (a'): the estimate of step 6


@pytest.mark.parametrize("exchange", ["scalars", "solutions"])
def test_b_algorithm_2_is_differentiated_through_its_noisy_steps(monkeypatch: Patch, exchange: Any) -> None:
    """(a') x -> y_H = M x + c is affine for shared samples: sum_i rho_i lam (I - M_i)'(x - y_H,i), noise included; with
    separate ones the estimate is another. Mutations: other samples in the second solve; other steps or H than the
    paper's; a start that is not x; --samples without effect."""
    zohfl = method(toy(noise=1.0), exchange=exchange)
    x, r, expected = point(), 3, np.zeros(n)
    H = 12  # ceil(6 sqrt(4))
    for i in range(m):
        c = local(zohfl, i, np.zeros(n), r, H)
        M = np.stack([local(zohfl, i, e, r, H) - c for e in np.eye(n)], axis=1)
        expected += zohfl.problem.weights[i] * lam * (np.eye(n) - M).T @ (x - local(zohfl, i, x, r, H))
    close(zeroth_order_part(zohfl, x, r, monkeypatch), expected)
    wrong = zeroth_order_part(method(toy(noise=1.0), exchange=exchange, samples="separate"), x, r, monkeypatch)
    assert np.linalg.norm(wrong - expected) > 0.1 * np.linalg.norm(expected)


# --- (b) to (d): special cases


def test_g_local_solutions_stay_in_the_ball_around_the_point_they_were_asked_at() -> None:
    """(g) |y - x| <= radius, and the bound is reached. Mutation: a ball around the model."""
    zohfl = method(toy(noise=1.0, radius=0.05), exchange="solutions", tau=(5.0,), schedule_h="constant")
    x = 3 + point()
    reply = zohfl.solve(Client(0, zohfl.setting.data[0]), GlobalModel(x, 0))
    assert isinstance(reply, LocalSolutions)
    distances = np.linalg.norm(np.stack([reply.plus, reply.minus]) - zohfl.pair(x, zohfl.direction(0, 0)), axis=1)
    assert distances.max() <= 0.05 * (1 + 1e-14)
    assert distances.max() > 0.049


# --- choices: start, divisor, participants, H, steps


def spied(**flags: Any) -> tuple[ZOHFL, list[dict[str, Any]]]:
    setting = toy(noise=1.0)
    spy = Spy(setting.problem)
    return method(replace(setting, problem=spy), **flags), spy.calls


@pytest.mark.parametrize("samples", ["shared", "separate"])
def test_with_y0_last_both_solves_start_in_the_middle_of_the_clients_last_pair(samples: Any) -> None:
    """Mutations: each solve goes on from its own last end; the last pair of another client; the plus solution alone."""
    zohfl, calls = spied(y0="last", samples=samples, beta=0.67)
    clients, state = clients_of(zohfl), ZOHFLState(point())
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
    assert set(middle) == set(range(m))
    for i, kept in memories(clients).items():
        assert set(kept) == {"y"} and np.array_equal(kept["y"], middle[i])


@pytest.mark.parametrize(("schedule_h", "growth"), [("sqrt", 2), ("constant", 1)])
def test_every_client_takes_its_own_number_of_steps(schedule_h: Any, growth: int) -> None:
    """H_{i,r} = ceil(tau_i sqrt(r + 1)), here at r = 3. Mutations: sqrt(r); tau of another client; floor."""
    zohfl, calls = spied(tau=(2.0, 5.0, 0.25), schedule_h=schedule_h)
    state = zohfl.round(ZOHFLState(point()), 3, clients_of(zohfl))
    right = [2 * growth, 5 * growth, 1]
    assert [len(call["stepsizes"]) for call in calls] == right
    assert [call["batches"].shape for call in calls] == [(H, 4) for H in right]
    assert state.local_steps == 2 * sum(right)


# --- what travels


@pytest.mark.parametrize("make", [lambda: toy(noise=1.0), lambda: softmax(np.float32)], ids=["toy", "softmax"])
@pytest.mark.parametrize("y0", ["x", "last"])
def test_evaluations_leave_no_trace_and_solutions_give_the_bits_of_scalars(
    make: Callable[..., Setting], y0: Any
) -> None:
    """f_2's values are made from the same vectors at either end. Mutations: the server forms x +- eta v otherwise; the
    personal solve writes the client's memory, or draws from a stream that a round needs."""
    scalars, watched, solutions = (
        run(method(make(), exchange=exchange, y0=y0, gamma=0.1), 6, evaluate=evaluate)
        for exchange, evaluate in (("scalars", False), ("scalars", True), ("solutions", False))
    )
    assert scalars.x.tobytes() == solutions.x.tobytes() == watched.x.tobytes()
    assert scalars.gradient_f2_norm == solutions.gradient_f2_norm > 0


@pytest.mark.parametrize("divide", ["m", "participants"])
def test_the_step_is_the_exact_sum_of_the_estimates(divide: Any) -> None:
    """1,000 clients, 700 of them asked. Mutations: the mean for the sum; m and |S_r| exchanged; f_1 left out; the
    direction of another client or round; a quantum too coarse."""
    zohfl = method(toy(clients=1000, server=None, noise=1.0), beta=0.7, divide=divide, gamma=0.1, tau=(1.0,))
    clients, x, r = clients_of(zohfl), point(), 1
    found = zohfl.round(ZOHFLState(x), r, clients)
    S, message, terms = zohfl.sampling(r), GlobalModel(x, r), list[Array]()
    for i in S:
        v = zo.direction(STREAMS(Purpose.DIRECTION, r=r, i=i), n)
        f = zohfl.solve(Client(i, zohfl.setting.data[i]), message)
        assert isinstance(f, Values)
        terms.append(n / (2 * eta) * (f.plus - f.minus) * v)
    g1 = zohfl.problem.gradient_f1(x, zohfl.setting.server, zohfl.server.batch(r))
    g2 = np.array([math.fsum(column) for column in zip(*terms, strict=True)]) / (1000 if divide == "m" else 700)
    close(found.x, x - 0.1 * (g1 + g2))
    close([found.gradient_f1_norm, found.gradient_f2_norm], [np.linalg.norm(g1), np.linalg.norm(g2)])
    assert found.gradient_f2_norm > 1e-3


# --- evaluations


def test_reports_of_the_toy_problem_are_right() -> None:
    """Against direct formulas. Mutations: f_2 summed; y of the perturbed points; distance squared; f_1 of a batch."""
    zohfl = method(toy(server=None, noise=1.0))
    setting, problem, x, r = zohfl.setting, zohfl.problem, point(), 2
    found = reported(zohfl.evaluate(ZOHFLState(x), r, clients_of(zohfl)))
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
    assert set(described(HierarchicalReport)) - set(found) == {
        *("objective_nonsmooth", "test_smooth_loss", "validation_accuracy", "validation_loss"),
        "validation_personal_accuracy",
    }
    assert set(described(ZOHFLState)) == {"x", "gradient_f1_norm", "gradient_f2_norm", "local_steps"}


def test_with_y0_last_an_evaluation_starts_at_the_clients_last_solution() -> None:
    zohfl, calls = spied(y0="last")
    clients = clients_of(zohfl)
    state = zohfl.round(ZOHFLState(point()), 0, clients)
    ends = [call["found"].mean(axis=0) for call in calls]
    calls.clear()
    zohfl.evaluate(state, 0, clients)
    assert all(np.array_equal(call["y"], [end]) for call, end in zip(calls, ends, strict=True))
    assert all(np.array_equal(call["x"], [state.x]) for call in calls)


# --- runs that go wrong


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (
            {"exchange": "solutions", "schedule_local": "constant"},
            "the local solution is not finite; smaller --gamma-local",
        ),
        ({"tau": (1.0,)}, "f_2 is not finite; smaller --gamma"),  # an overflow in f_2 itself
        ({"tau": (1.0,), "schedule_local": "constant"}, "f_2 is not finite; smaller --gamma"),  # of such a solution
    ],
)
def test_a_reply_that_is_not_finite_names_the_client(flags: dict[str, Any], what: str) -> None:
    """Mutations: replies unchecked; f_2 checked by its difference alone, which may be finite."""
    with pytest.raises(ClientError, match=f"client 0 .*failed in step 'solve', item 0: {what}"):
        run(method(toy(), gamma_local=1e200, **flags), 1, point())


def test_a_model_that_is_not_finite_ends_the_run_at_the_server(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="x is not finite after the server's step"):
        run(method(toy(), gamma_local=1e200, tau=(1.0,), exchange="solutions"), 1, point())
    zohfl = method(toy(server=None, lam=0.0), gamma=1.7e308)
    recorder = records.Recorder.create(tmp_path / "a.h5", attrs={}, m=m, ranks=1, rounds=5)
    words = "x is not finite after the server's step"
    with pytest.raises(RunFailed, match=words) as caught:
        loop.Rounds(zohfl, clients_of(zohfl), loop.Schedule(5, 10, 0), recorder, Progress()).run(None)
    assert re.findall(r"round (\d+)", str(caught.value)) == ["1"]


def test_values_travel_as_float64_whatever_the_dtype() -> None:
    zohfl = method(softmax(np.float32))
    reply = zohfl.solve(Client(0, zohfl.setting.data[0]), GlobalModel(zohfl.start().x, 0))
    assert isinstance(reply, Values) and type(reply.plus) is float
    assert reply.plus != float(np.float32(reply.plus))


def test_the_plan_tells_who_adds_up() -> None:
    """Mutations: always the server; the threshold of a message's size."""
    assert method(toy()).plan(1)["estimates are added up by"] == "the server"
    many = method(toy(clients=40), beta=0.8).plan(1)["estimates are added up by"]
    assert many == f"the client ranks, since 32 or more: {8 * n} bytes up from each, or some times that"
