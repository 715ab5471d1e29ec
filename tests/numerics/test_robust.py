"""Robust means against numpy by hand, what one liar can do, and that the default is the exact mean to the bit."""

import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Patch
from tests.numerics.first_order import (
    BOTH,
    WEIGHTS,
    Array,
    C,
    Make,
    apart,
    clients_of,
    close,
    m,
    method,
    n,
    one,
    p,
    point,
    run,
    softmax,
    started,
    toy,
    vector,
)
from zofl_mpi import change
from zofl_mpi.clients import robust
from zofl_mpi.clients.robust import Robust
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.scaffold import Controlled, Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL, Values
from zofl_mpi.numerics import zo
from zofl_mpi.rounds.local_sgd import LocalModel
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.rounds import finite_round

THREE = toy(noise=1.0, clients=3)


def replies(of: Any, x: Array, r: int = 0) -> list[Array]:
    """What honest clients send, one by one."""
    data = enumerate(of.setting.data)
    return [of.train(Client(i, own), GlobalModel(x, r)).y for i, own in data]


@dataclass(frozen=True)
class Reply:
    y: Array = change("", of="x")
    scalar: float = 0.0


def robust_of(method: Any) -> Robust:
    """What of the method's setting aggregates."""
    return next(each for each in method.setting.between if isinstance(each, Robust))


@pytest.mark.parametrize("block", [1 << 20, 7, 1])
@WEIGHTS
def test_median_and_trimmed_mean_are_numpys_coordinate_by_coordinate(
    monkeypatch: Patch, weights: Any, block: int
) -> None:
    """On three and four clients. Mutations: weights by size; one of the two middle numbers; a block that is left out;
    the numbers of the block before; F |S| rounded down; one end trimmed."""
    monkeypatch.setattr(robust, "NUMBERS_AT_ONCE", block)
    for setting, aggregate, expected in (
        (THREE, "median", lambda y: np.median(y, axis=0)),
        (toy(noise=1.0), "median", lambda y: np.median(y, axis=0)),
        (THREE, "trimmed:0.2", lambda y: np.sort(y, axis=0)[1]),
        (toy(noise=1.0), "trimmed:0.25", lambda y: np.sort(y, axis=0)[1:3].mean(axis=0)),
    ):
        of = method(FedAvg, setting, aggregate=aggregate, weights=weights)
        found, y = one(of), replies(of, point(setting))
        close(found, expected(y))
        assert apart(found, np.mean(y, axis=0))


def test_a_share_is_the_decimal_number_that_was_typed() -> None:
    """0.07 of 100 clients are 7: in binary 7.000000000000001. Mutations: ceil of the product; rounded down."""
    setting = replace(THREE, data=THREE.data[:1] * 100)
    assert [len(Robust(setting, attackers=F).liars) for F in (0.0, 0.07, 0.071, 0.495)] == [0, 7, 8, 50]
    order = setting.streams(Purpose.ATTACK).permutation(100)
    assert Robust(setting, attackers=0.07).liars == set(order[:7].tolist())
    assert Robust(setting, "trimmed:0.07").left_out(100) == 7
    assert Robust(setting, "trimmed:0.4").left_out(2) == 0  # fewer came than planned: one or two always count


def test_one_liar_moves_the_mean_as_far_as_it_likes_and_no_robust_mean(monkeypatch: Patch) -> None:
    """Mutations: the lie not told; told by all; the median of what the liar would have sent."""
    monkeypatch.setattr(robust, "SCALE", 1e9)
    setting = toy(noise=1.0)
    lie = {"attackers": 0.25, "attack": "scale", "weights": "uniform"}
    x, honest = point(setting), np.stack(replies(method(FedAvg, setting), point(setting)))
    (liar,) = robust_of(method(FedAvg, setting, **lie)).liars
    close(one(method(FedAvg, setting, **lie)) / 1e9, (honest[liar] - x) / 4, 1e-6)
    others = np.delete(honest, liar, axis=0)
    for aggregate in ("median", "trimmed:0.25"):
        found = one(method(FedAvg, setting, aggregate=aggregate, **lie))
        assert (found >= others.min(axis=0)).all() and (found <= others.max(axis=0)).all()
    found = one(method(FedAvg, setting, aggregate="clip:0.125", **lie))
    assert np.linalg.norm(found - x) <= 0.125


@BOTH
def test_what_changes_no_reply_is_the_exact_mean_to_the_bit(make: Make) -> None:
    """The default, and a norm that no reply reaches, read at the server. Mutations: x + (y - x) in place of y; a mean
    that is not exact; weights dropped."""
    setting = make()
    plain = run(method(FedAvg, setting), 4).x
    np.testing.assert_array_equal(run(method(FedAvg, setting, aggregate="clip:1e30"), 4).x, plain)
    np.testing.assert_array_equal(run(method(FedAvg, setting, aggregate="mean", attack="scale"), 4).x, plain)
    assert apart(run(method(FedAvg, setting, aggregate="clip:0.01"), 4).x, plain)


def test_clipping_keeps_the_direction_of_the_whole_reply() -> None:
    """Mutations: each field by itself; each coordinate; about 0 in place of x; short replies too."""
    x, C = np.array([3.0, -1.0]), 0.5
    for y in (np.array([3.3, -1.4]), np.array([3.1, -1.1])):
        short = C / max(C, float(np.linalg.norm(y - x)))
        close(Robust(THREE, f"clip:{C}").read(0, GlobalModel(x, 0), LocalModel(y)).y, x + short * (y - x))
    of = method(Scaffold, THREE, aggregate="clip:0.2", weights="uniform")
    x, zero = point(THREE), np.zeros(n)
    data = enumerate(THREE.data)
    updates = [of.train(Client(i, own), Controlled(x, zero, 0)) for i, own in data]
    clip = [0.2 / np.linalg.norm(np.concatenate([u.dy, u.dc])) for u in updates]
    assert max(clip) < 1
    state = finite_round(of, started(of, x), 0, clients_of(of))
    close(state.x - x, np.mean([c * u.dy for c, u in zip(clip, updates, strict=True)], axis=0))
    close(state.c, np.mean([c * u.dc for c, u in zip(clip, updates, strict=True)], axis=0))


def test_lies_are_their_formulas() -> None:
    """Mutations: the model in place of its change; noise of norm 1; one lie for all rounds, or for all clients; numbers
    changed that no lie is about; honest replies rebuilt."""
    x, y = vector(1, 400), vector(2, 400)
    kinds: list[Any] = ["sign", "scale", "noise"]
    liars = {kind: Robust(THREE, "mean", 0.4, kind) for kind in kinds}
    (i, j), (k,) = sorted(liars["sign"].liars), set(range(3)) - liars["sign"].liars
    close(liars["sign"].read(i, GlobalModel(x, 0), Reply(y, 2.0)).y, 2 * x - y)
    close(liars["scale"].read(i, GlobalModel(x, 0), Reply(y, 2.0)).y, x + 10 * (y - x))
    noise = [liars["noise"].read(who, GlobalModel(x, r), Reply(y, 2.0)) for who, r in ((i, 0), (i, 1), (j, 0))]
    for told in noise:
        assert told.scalar == 2.0
        assert float(np.linalg.norm(told.y - x)) == pytest.approx(float(np.linalg.norm(y - x)))
        assert abs(float((told.y - x) @ (y - x)) / float((y - x) @ (y - x))) < 0.2  # 4 sigma of 1/sqrt(400)
    assert apart(noise[0].y, noise[1].y) and apart(noise[0].y, noise[2].y)
    honest = Reply(y, 2.0)
    assert all(each.read(k, GlobalModel(x, 0), honest) is honest for each in liars.values())
    for kind, sign in (("scale", 1), ("sign", -1)):  # a lie is clipped, too
        told = Robust(THREE, "clip:0.5", 0.4, kind).read(i, GlobalModel(x, 0), Reply(x + 0.1, 0.0))  # type: ignore[arg-type]
        close(told.y, x + sign * 0.5 / 20)


def zohfl(**flags: Any) -> Any:
    usual = {"eta": 0.4, "gamma": 1.0, "schedule": "constant", "batch": 4, "tau": (3.0,)}
    return from_flags(ZOHFL, toy(noise=1.0), **{**usual, **flags})


def zo_part(of: Any, x: Array) -> Array:
    """m times what a round of ZO-HFL subtracts from x for the clients' estimates."""
    state = finite_round(of, replace(of.start(), x=x), 0, clients_of(of))
    return m * (x - of.gradient_f1(x, 0) - state.x)


def test_scalars_of_zo_hfl_are_clipped_trimmed_and_lied_about() -> None:
    """sum_i n/(2 eta) d_i v_i with other d_i. Mutations: f+ clipped in place of f+ - f-; the sum not scaled up; the
    smallest d_i kept; a lie about f- too."""
    plain, x = zohfl(), point(toy())
    v = np.stack([plain.direction(i, 0) for i in range(m)])
    answers = [plain.solve(Client(i, own), GlobalModel(x, 0)) for i, own in enumerate(plain.setting.data)]
    assert all(isinstance(f, Values) for f in answers)
    d = np.array([f.plus - f.minus for f in answers])
    C = float(np.sort(np.abs(d))[1]) * 1.01
    kept = np.argsort(d)[1:-1]
    trimmed = np.where(np.isin(np.arange(m), kept), d * m / len(kept), 0)
    (liar,) = robust_of(zohfl(attackers=0.25)).liars
    cases = {"mean": d, f"clip:{C}": np.clip(d, -C, C), "trimmed:0.25": trimmed}
    for aggregate, expected in cases.items():
        total = sum(zo.estimate(float(e), own, 0.8) for e, own in zip(expected, v, strict=True))
        close(zo_part(zohfl(aggregate=aggregate), x), total, 1e-9)
    lied = np.where(np.arange(m) == liar, -d, d)
    close(
        zo_part(zohfl(attackers=0.25), x),
        sum(zo.estimate(float(e), u, 0.8) for e, u in zip(lied, v, strict=True)),
        1e-9,
    )
    np.testing.assert_array_equal(zo_part(zohfl(aggregate="clip:1e30"), x), zo_part(plain, x))


def test_a_thousand_replies_are_sorted_block_by_block() -> None:
    """7,840 numbers each, 31 MB in all: beside them less than as much again. Mutation: all in one block."""
    generator = np.random.default_rng(1)
    sent = [LocalModel(generator.standard_normal(7840, np.float32)) for _ in range(1000)]
    tracemalloc.start()
    found = robust.middle(dict(enumerate(sent)), 499).y
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(
        found, np.median(np.stack([reply.y for reply in sent]).astype(np.float64), axis=0).astype(np.float32)
    )
    assert peak < 20e6


REFUSED = [
    (FedAvg, {"aggregate": "krum"}, "--aggregate krum: choose mean, median, trimmed:F"),
    (FedAvg, {"aggregate": "trimmed:0.5"}, "with a share F above 0 and below 1/2"),
    (FedAvg, {"aggregate": "clip:0"}, "with a norm C above 0"),
    (FedAvg, {"aggregate": "median:1"}, "--aggregate median:1: choose"),
    (FedAvg, {"aggregate": "trimmed:0.3"}, "--aggregate trimmed:0.3: a round has too few replies for it, 4; take more"),
    (FedAvg, {"aggregate": "median", "beta": 0.5}, "a round has too few replies for it, 2"),
    (FedAvg, {"attackers": 0.5}, "--attackers 0.5: must be below 1/2"),
    (FedAvg, {"aggregate": "median", "compress": "topk:0.1"}, "must be mean or clip:C: of uploads by --compress topk"),
    (ZOHFL, {"aggregate": "median"}, "--aggregate median: must be mean, trimmed:F or clip:C: each client's direction"),
    (ZOHFL, {"attackers": 0.1, "exchange": "solutions"}, "--exchange solutions: must be scalars with --aggregate"),
    (ZOHFL, {"aggregate": "trimmed:0.49"}, "too few replies for it, 4"),
]


@pytest.mark.parametrize(("cls", "flags", "sentence"), REFUSED)
def test_what_makes_no_sense_is_refused_in_a_sentence(cls: Any, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as told:
        from_flags(cls, toy(), **flags)
    assert sentence in str(told.value)


def test_the_plan_tells_what_the_server_holds() -> None:
    """Mutations: one reply; all clients' where some take part; lines of a run that is not robust."""
    of = method(FedAvg, softmax(np.float32), aggregate="median", beta=0.75, attackers=0.25, attack="noise")
    plan = robust_of(of).plan_lines(1)
    assert plan["memory of the aggregate"].startswith(f"{3 * 4 * C * p:,} bytes, 3 replies of {4 * C * p:,} bytes")
    assert plan["lie in what they send"] == "1 of 4 clients (noise)"
    assert robust_of(method(FedAvg, softmax())).plan_lines(1) == {}


def test_bytes_are_those_of_the_mean() -> None:
    """Mutation: replies that the server reads one by one are not counted."""
    up = []
    for aggregate in ("mean", "median"):
        of = method(FedAvg, softmax(), aggregate=aggregate)
        clients = clients_of(of)
        finite_round(of, started(of), 0, clients)
        up.append(clients.account()[0].bytes_up.sum())
    assert up[0] == up[1] > 0
