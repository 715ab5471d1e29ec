"""Server rules on FedAvg's mean change: each rule written out, its state kept, sgd with eta_g = 1 plain averaging."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    Array,
    Make,
    clients_of,
    close,
    method,
    one,
    point,
    run,
    softmax,
    started,
    toy,
)
from zofl_mpi.engine import messages
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.numerics.optimisers import ServerRule
from zofl_mpi.rounds import local_sgd
from zofl_mpi.run.loop.rounds import finite_round

ETA, TAU = 0.3, 0.05
RULES = ("sgd", "momentum", "adagrad", "adam", "yogi")
ADAPTIVE = RULES[2:]


def by_hand(rule: str, deltas: Iterable[Array], x: Array) -> Array:
    """The paper's Algorithm 2 number by number, from v = tau^2 and m = 0; Adagrad without momentum."""
    m, v = [0.0] * len(x), [TAU**2] * len(x)
    x = x.copy()
    for delta in deltas:
        for j, d in enumerate(delta.tolist()):
            if rule == "sgd":
                x[j] += ETA * d
                continue
            m[j] = {"momentum": 0.9 * m[j] + d, "adagrad": d}.get(rule, 0.9 * m[j] + 0.1 * d)
            if rule == "momentum":
                x[j] += ETA * m[j]
                continue
            if rule == "adagrad":
                v[j] += d * d
            elif rule == "adam":
                v[j] = 0.99 * v[j] + 0.01 * d * d
            elif d * d != v[j]:
                v[j] += (0.01 if d * d > v[j] else -0.01) * d * d
            x[j] += ETA * m[j] / (v[j] ** 0.5 + TAU)
    return x


DELTAS = np.array([[1.0, -0.01, 0.0, 0.04, 1e-9], [-2.0, 0.03, 0.0, -0.07, 3e-9], [0.5, 0.0, 0.4, 0.06, -1e-9]])


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_its_formula_number_by_number(rule: str) -> None:
    """Changes above and below tau, of both signs, and 0. Mutations: bias correction; tau in
    the root; v from 0; the square of m; Yogi's sign the other way; FedAvgM with 0.1 Delta; beta 0.999."""
    x = np.arange(5.0)
    moments: dict[str, Array] = {}
    start = x.copy()
    of = ServerRule(rule, TAU)  # type: ignore[arg-type]
    for delta in DELTAS:
        kept = {name: value.copy() for name, value in moments.items()}
        new, after = of.step(x, x + delta, ETA, moments)
        for name, value in moments.items():
            np.testing.assert_array_equal(value, kept[name])  # a checkpoint may hold it
        x, moments = new, after
    close(x, by_hand(rule, DELTAS, start), 1e-9)  # x + delta - x is delta to rounding
    assert set(moments) == {"sgd": set(), "momentum": {"m"}, "adagrad": {"v"}}.get(rule, {"m", "v"})


@BOTH
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold])
@pytest.mark.parametrize("rule", RULES)
def test_rounds_step_along_the_mean_change_of_the_participants(make: Make, cls: Any, rule: str) -> None:
    """Three rounds; the mean change is that of the same method with plain averaging from the same x. Mutations: a state
    that is dropped between rounds; Delta of another sign; all clients' mean; eta_g on m alone; SCAFFOLD's c moved by
    the rule."""
    setting = make()
    flags = {"beta": 0.5, "schedule_local": "constant"}
    of, plain = (
        method(cls, setting, **flags, **own) for own in ({"server_rule": rule, "eta_g": ETA, "tau_g": TAU}, {})
    )
    clients, others = clients_of(of), clients_of(plain)
    state, other = started(of, point(setting)), started(plain, point(setting))
    deltas = []
    for r in range(3):
        other = finite_round(plain, replace(other, x=state.x), r, others)
        deltas.append(other.x - state.x)
        state = finite_round(of, state, r, clients)
        close(state.x, by_hand(rule, deltas, point(setting)), 1e-9)
    if cls is Scaffold:
        np.testing.assert_array_equal(state.c, other.c)


@BOTH
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sgd_with_step_1_is_plain_averaging_to_the_bit(make: Make, cls: Any, dtype: Any) -> None:
    """x is the clients' mean itself. Mutations: x + (y - x), which rounds; moments that travel for nothing."""
    setting = softmax(dtype) if make is softmax else toy(noise=1.0)
    of = method(cls, setting, beta=0.5)
    spelled = run(method(cls, setting, beta=0.5, server_rule="sgd", eta_g=1.0, tau_g=9.0), 4)
    assert spelled.x.tobytes() == run(of, 4).x.tobytes() and spelled.moments == {}
    x, clients = point(setting), clients_of(of)
    assert ServerRule().step(1e16 * x, x, 1.0, {})[0] is x
    if cls is not Scaffold:
        mean = clients.mean(
            of.train, local_sgd.GlobalModel(x, 0), to=of.local.sampling(0), weights=of.local.client_weights()
        )
        assert one(of, x=x).tobytes() == mean.y.tobytes()


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_moments_are_kept_in_float64(rule: str) -> None:
    """The square of a change of 1e-25 is 0 in float32. Mutation: moments in the model's dtype."""
    x = np.zeros(2, np.float32)
    _, moments = ServerRule(rule, 1e-60).step(x, np.float32([1e-25, 0]), 1.0, {})  # type: ignore[arg-type]
    assert all(value.dtype == np.float64 for value in moments.values()) and moments["v"][0] > 1e-53
    state = run(method(FedAvg, softmax(np.float32), server_rule=rule, eta_g=0.01), 2)
    assert state.x.dtype == np.float32 and state.moments["v"].dtype == np.float64


def test_a_field_with_a_default_may_be_missing_from_a_checkpoint() -> None:
    """So that a later version can add one. Mutation: a state that is refused."""
    start = method(FedAvg, softmax(np.float32)).start()
    before = messages.pack(start).tobytes().replace(b',"moments":{}', b" " * len(',"moments":{}'))
    assert b"moments" not in before and messages.read(np.frombuffer(before, np.uint8), start).moments == {}
