"""Virtual seconds, joules and messages of each family of methods, each term derived by hand."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.numerics.split_methods import SIDE, SIZES, STEPS_OF, STREAMS, C, groups, method, mlp, setting, training
from tests.unit.made import complaint
from zofl_mpi.engine.fleet import DeviceClass, Fleet
from zofl_mpi.engine.setting import Setting
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.fedkseed import FedKSeed
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.numerics.optimisers import Optimiser

CLIENT, HEAD, SERVER = SIDE * SIDE * 4, 4 * C, 4 * 5 + 5 * C
"""Multiply-accumulates of a pass of `mlp`."""
BOTH, WHOLE = CLIENT + HEAD, CLIENT + SERVER
ONE = DeviceClass("one", speed=1e3, down=800.0, up=400.0, latency=0.25, joules_mac=2.0, joules_byte=3.0)
RATE = 5e3  # of the server
EVERY_OTHER = {"k": 2}
UPLOADED = np.array(SIZES)  # samples of each client with a batch of 4: steps of 4 + 2, 4 + 4 + 2, 4 + 4 + 4 + 3
HALF = np.array([4, 4 + 2, 4 + 4])  # those of every other step
H, H_HALF = np.array(STEPS_OF), np.array([1, 2, 2])
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], Any, Any, Any, bool]] = {
    "HERON": (HERON, {}, {}, 2 * BOTH * UPLOADED, 2 + H, UPLOADED, True),
    "HERON, k = 2": (HERON, {}, EVERY_OTHER, 2 * BOTH * UPLOADED, 2 + H_HALF, HALF, True),
    "central": (HERON, {"estimate": "central"}, {}, 3 * BOTH * UPLOADED, 2 + H, UPLOADED, True),
    "central, k = 2": (
        HERON,
        {"estimate": "central"},
        EVERY_OTHER,
        BOTH * (2 * UPLOADED + HALF),
        2 + H_HALF,
        HALF,
        True,
    ),
    "jvp, k = 2": (HERON, {"estimate": "jvp"}, EVERY_OTHER, BOTH * (2 * UPLOADED + HALF), 2 + H_HALF, HALF, True),
    "signs": (HERON, {"directions": "per-sample"}, {}, (3 * BOTH + HEAD) * UPLOADED, 2 + H, UPLOADED, True),
    "CSE-FSL": (CSEFSL, {}, {}, 3 * BOTH * UPLOADED, 2 + H, UPLOADED, True),
    "FSL-SAGE": (FSLSAGE, {"l": 2}, {}, 3 * BOTH * UPLOADED, 3 + H, UPLOADED, True),
    "SFLV1": (SFLV1, {}, {}, 3 * CLIENT * UPLOADED, 2 + 2 * H, UPLOADED, False),
    "SFLV2": (SFLV2, {}, {}, 3 * CLIENT * UPLOADED, 2 + 2 * H, UPLOADED, False),
    "SFLV2, in parts": (
        SFLV2,
        {},
        {"client_memory": "accumulate:2"},
        4 * CLIENT * UPLOADED,
        2 + 2 * H,
        UPLOADED,
        False,
    ),
    "HO-SFL": (HOSFL, {}, {}, 2 * CLIENT * UPLOADED, 2 + 2 * H, UPLOADED, False),
    "DeComFL": (DeComFL, {"n_p": 1}, {"h": 2}, 2 * WHOLE * np.array([6, 8, 8]), np.full(3, 2), np.zeros(3), False),
    "FedKSeed": (FedKSeed, {}, {"h": 2}, 2 * WHOLE * np.array([6, 8, 8]), np.full(3, 2), np.zeros(3), False),
}
"""A method, its flags, those of the round; (3,) a client's multiply-accumulates, messages both ways and samples that
the server trains on; whether uploads leave, and the server works on them, while clients compute."""


def on_devices(own: Setting, classes: Sequence[DeviceClass] = (ONE,), of: Sequence[int] = (0, 0, 0)) -> Setting:
    return replace(own, fleet=Fleet(classes, np.array(of), STREAMS, server_speed=RATE))


def bound(which: str) -> tuple[Any, Fleet]:
    cls, flags, rounds, *_ = CASES[which]
    plan = training(on_devices(setting(mlp)), Optimiser("sgd"), **rounds)
    made = method(cls, plan, **flags)
    fleet = made.setting.fleet
    fleet.bind(made, made.device_needs())
    return made, fleet


@pytest.mark.parametrize("which", CASES)
def test_each_term_of_virtual_time_and_joules(which: str) -> None:
    """Mutations: latency twice for each message; an answer without latency; uploads of a method in lockstep that
    overlap with the server's work, or a client's; a server that works on nothing; an upload's extra pass in each step,
    or never; a pass that takes products twice at the price of one; samples of all steps uploaded; bytes for bits."""
    _, _, _, macs, messages, served, streams = CASES[which]
    made, fleet = bound(which)
    work, parts = made.round_work(0), fleet.seconds(made.round_work(0))
    np.testing.assert_array_equal(work.messages, messages)
    np.testing.assert_array_equal(parts.latency, 0.25 * messages)
    np.testing.assert_allclose(parts.compute, macs / 1e3, rtol=1e-14)
    np.testing.assert_allclose(parts.down, 8 * work.down / 800, rtol=1e-14)
    np.testing.assert_allclose(parts.up, 8 * work.up / 400, rtol=1e-14)
    rest = np.maximum(parts.compute, parts.up) if streams else parts.compute + parts.up
    ends = parts.latency + parts.down + rest
    np.testing.assert_allclose(parts.total, ends, rtol=1e-14)
    server = 3 * SERVER * served.sum() / RATE
    both = max(ends.max(), server) if streams else ends.max() + server
    spent = fleet.columns(1)
    assert spent.virtual_seconds == pytest.approx(both, rel=1e-14)
    assert spent.joules == pytest.approx(2 * macs.sum() + 3 * (work.down + work.up).sum(), rel=1e-14)


@pytest.mark.parametrize("which", ["SFLV2", "HERON"])
def test_the_server_works_on_uploads_of_those_that_count(which: str) -> None:
    """Client 2 is late, at a deadline of 10,000 seconds. Mutations: its samples, too; an end before the deadline."""
    late = replace(ONE, latency=1e6)
    fleet = Fleet((ONE, late), np.array([0, 0, 1]), STREAMS, deadline=1e4, server_speed=0.1)
    cls, flags, rounds, *_ = CASES[which]
    made = method(cls, training(replace(setting(mlp), fleet=fleet), Optimiser("sgd"), **rounds), **flags)
    fleet.bind(made, made.device_needs())
    server = 3 * SERVER * sum(SIZES[:2]) / 0.1
    assert made.round_work(0).clients == [0, 1]
    assert fleet.columns(1).virtual_seconds == pytest.approx(max(1e4, server) if which == "HERON" else 1e4 + server)
    assert fleet.by_client(1)["dropped"].tolist() == [0, 0, 1]


def test_a_new_head_is_a_message_in_the_rounds_that_align() -> None:
    """Mutations: in each round; in none."""
    made, _ = bound("FSL-SAGE")
    assert [made.round_work(r).messages.tolist() for r in range(3)] == [[5, 6, 7], [4, 5, 6], [5, 6, 7]]


def test_mixed_clients_take_the_operations_and_joules_of_their_own_way() -> None:
    """Client 1 estimates, the others backpropagate. Mutations: the first way's operations for all, in joules or in
    seconds; the last one's; the ways of other clients."""
    lean = DeviceClass("lean", speed=500.0, joules_mac=7.0)
    roomy = DeviceClass("roomy", speed=1e3, joules_mac=2.0)

    def both(memory: float) -> Any:
        own = on_devices(setting(groups), (roomy, replace(lean, memory=memory)), (0, 1, 0))
        return method(HERON, training(own, Optimiser("sgd")), rule_by_device=True)

    first, last = both(1.0).device_needs()
    assert last.bytes < first.bytes and last.macs * 3 == first.macs * 2
    made = both(last.bytes)
    fleet = made.setting.fleet
    fleet.bind(made, made.device_needs())
    assert fleet.way.tolist() == [0, 1, 0]
    macs = np.array([first.macs, last.macs, first.macs]) * SIZES
    work = made.round_work(0)
    np.testing.assert_allclose(fleet.macs(work), macs, rtol=1e-14)
    np.testing.assert_allclose(fleet.seconds(work).compute, macs / [1e3, 500, 1e3], rtol=1e-14)
    np.testing.assert_allclose(fleet.by_client(1)["joules"], macs * [2, 7, 2], rtol=1e-14)
    assert fleet.columns(1).joules == pytest.approx(float((macs * [2, 7, 2]).sum()), rel=1e-14)
    rows = {row["class"]: row for row in fleet.class_rows()}
    assert rows["lean"]["joules"] == pytest.approx(7 * macs[1]) and rows["lean"]["way"] == 1
    assert rows["roomy"]["joules"] == pytest.approx(2 * (macs[0] + macs[2]) / 2)


@pytest.mark.parametrize(
    ("cls", "flags", "samples", "points", "server"),
    [
        (FedAvg, {}, 3 * 4, 0, 0),
        (Scaffold, {"option": "I"}, 3 * 4 + np.array((4, 6, 10, 40)), 0, 0),
        (ZOHFL, {}, 2 * 3 * 4, 0, 8),
    ],
)
def test_federated_methods_on_softmax(cls: Any, flags: Any, samples: Any, points: int, server: int) -> None:
    """A sample's gradient has 2 n multiply-accumulates: logits, and the product with their residuals. Mutations: one of
    ZO-HFL's two solves; the gradient on all samples left out; a server's batch that takes no time; three messages."""
    from tests.numerics import first_order

    own = first_order.softmax()
    own = replace(own, fleet=Fleet([ONE], np.zeros(4, np.int64), own.streams, server_speed=RATE))
    made = first_order.method(cls, own, **flags)
    (needs,) = made.device_needs()
    n = own.problem.n
    assert needs.macs == 2 * n and needs.server_macs == (2 * n if server else 0)
    fleet = own.fleet
    fleet.bind(made, [needs])
    work, macs = made.round_work(0), 2 * n * np.broadcast_to(samples, 4)
    assert work.messages.tolist() == [2.0] * 4
    parts = fleet.seconds(work)
    np.testing.assert_allclose(parts.compute, macs / 1e3, rtol=1e-14)
    total = 0.5 + 8 * work.down / 800 + macs / 1e3 + 8 * work.up / 400
    spent = fleet.columns(1)
    assert spent.virtual_seconds == pytest.approx(total.max() + 2 * n * server / RATE, rel=1e-14)
    assert spent.joules == pytest.approx(2 * macs.sum() + 3 * (work.down + work.up).sum(), rel=1e-14)


@pytest.mark.parametrize(("fleet", "uplink"), [(True, "dense"), (True, "seeds"), (False, "dense")])
def test_a_rule_by_device_needs_devices_and_models_that_go_up(fleet: bool, uplink: str) -> None:
    """Mutations: either condition turned round, or left out."""
    plan = training(on_devices(setting(mlp)) if fleet else setting(mlp), Optimiser("sgd"))
    make = partial(method, HERON, plan, rule_by_device=True, uplink=uplink)
    if fleet and uplink == "dense":
        make()
    else:
        assert complaint(make).startswith("--rule-by-device: needs --devices, and --uplink dense")
