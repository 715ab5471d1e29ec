"""What holds for all first-order methods: bytes, reports, columns, refusals, divergence."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    DATA,
    LABELS,
    PIXELS,
    SIZE_SHARES,
    SIZES,
    WEIGHTS,
    C,
    Make,
    clients_of,
    close,
    loss,
    m,
    memories,
    method,
    one,
    p,
    point,
    run,
    shares,
    softmax,
    started,
    toy,
)
from zofl_mpi import fedrzo, zo_hfl
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.fields import reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import UserError
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems import Smooth
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.rounds.local_sgd import FirstOrder
from zofl_mpi.run.command.flags import from_flags

# --- what travels


CLASSES = {
    "fedavg": (FedAvg, {}, 1, 1),
    "fedprox": (FedProx, {}, 1, 1),
    "scaffold": (Scaffold, {}, 2, 2),
    "fedmspp": (FedMSPP, {}, 1, 1),
    "zo_hfl": (ZOHFL, {}, 1, 0),
    "zo_hfl, solutions": (ZOHFL, {"exchange": "solutions"}, 1, 2),
}
"""Method, flags, vectors down and up; 0: two numbers in float64."""


@pytest.mark.parametrize(("cls", "flags", "vectors_down", "vectors_up"), CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize(("dtype", "itemsize"), [(np.float32, 4), (np.float64, 8)])
def test_bytes_are_those_of_the_formulas(
    cls: Any, flags: Any, vectors_down: int, vectors_up: int, dtype: Any, itemsize: int
) -> None:
    """Down x (and c) and r, up y, or dy and dc, or f_2's values or solutions: SCAFFOLD's tensors are twice FedAvg's.
    Only participants; evaluations are free."""
    of = method(cls, softmax(dtype), beta=0.5, tau=(2.0, 5.0, 0.25, 3.0), schedule_h="sqrt", **flags)
    size, state, clients = C * p, of.start(), clients_of(of)
    down, up = vectors_down * size * itemsize + 8, vectors_up * size * itemsize or 16
    names = ["server", "solve", "personal"] if cls is ZOHFL else ["server", "train", "measure"]
    sampling, total, steps = of.sampling if cls is ZOHFL else of.local.sampling, 0, 0
    for r in range(3):
        state = of.round(state, r, clients)
        of.evaluate(state, r, clients)
        row, _ = clients.account()
        asked = np.isin(np.arange(m), sampling(r))
        assert asked.sum() == 2
        assert row.steps == names
        assert row.bytes_down.tolist() == [[0] * m, (asked * down).tolist(), [0] * m]
        assert row.bytes_up.tolist() == [[0] * m, (asked * up).tolist(), [0] * m]
        assert row.messages.tolist() == [[0] * m, asked.astype(int).tolist(), [0] * m]
        total += int(row.bytes_down.sum() + row.bytes_up.sum())
        steps += state.local_steps
    plan = of.plan(3)
    assert plan["bytes down, for each participant and round"] == down
    assert plan["bytes up, for each participant and round"] == up
    assert plan["bytes down and up, all rounds"] == total == 3 * 2 * (down + up)
    assert plan["local steps of all clients, all rounds"] == steps > 0
    assert plan["clients, participants in a round"] == "4, 2"
    assert plan["length of x, n"] == size
    assert cls is ZOHFL or plan["FLOPs of all clients, all rounds"] == f"{steps * 4 * 4 * size:.3g}"
    assert state.x.dtype == dtype


# --- evaluations


METHODS = {**zo_hfl.METHODS, **fedrzo.METHODS}.values()
EVERY = [cls for cls in METHODS if cls.needs is Smooth]
LOCAL = [cls for cls in EVERY if issubclass(cls, FirstOrder)]
WRITTEN = {Scaffold: {"c_i"}, Scaffnew: {"h", "xt"}, Ditto: {"v"}, PFedMe: {"y"}}


def either(cls: Any, setting: Setting, **flags: Any) -> Any:
    if cls is Scaffnew:
        return from_flags(Scaffnew, setting, p=0.3, batch=4, **flags)
    return from_flags(ServerSGD, setting) if cls is ServerSGD else method(cls, setting, **flags)


@WEIGHTS
@pytest.mark.parametrize("cls", EVERY)
@BOTH
def test_reports_are_right(make: Make, cls: Any, weights: str) -> None:
    """Mutations: a mean of means for train_loss; the server left out of it; other weights; test as f1."""
    setting = make()
    of = either(cls, setting, weights=weights)
    x = point(setting)
    found = reported(of.evaluate(started(of, x), 2, clients_of(of)))
    losses = np.array([loss(data, x) for data in setting.data])
    w = SIZE_SHARES if cls is ServerSGD else shares(weights)
    f1, N = loss(setting.server, x), len(setting.server)
    close(found["objective"], w @ losses)
    close(found["f1"], f1)
    close(found["train_loss"], (N * f1 + np.array(SIZES) @ losses) / (N + 60))
    close(found["test_loss"], loss(setting.test, x))
    if isinstance(setting.problem, Softmax):
        rows = setting.test.rows
        hits = (PIXELS[rows] / 255 @ x.reshape(C, p).T).argmax(axis=1) == LABELS[rows]
        close(found["test_accuracy"], hits.mean())
    else:
        assert math.isnan(found["test_accuracy"])


def without_server(setting: Setting) -> Setting:
    """--server-fraction 0."""
    return replace(setting, server=DATA.subset(np.arange(0)) if isinstance(setting.problem, Softmax) else None)


@BOTH
def test_what_needs_the_servers_samples_is_refused_without_them(make: Make) -> None:
    """When the method is made, so by --dry-run too. Mutation: a draw among no samples, told by NumPy."""
    setting = without_server(make())
    sentence = "^--server-fraction 0: the server has no samples for "
    for cls in LOCAL:
        with pytest.raises(UserError, match=sentence + "--gamma$"):
            method(cls, setting, gamma=0.1)
    with pytest.raises(UserError, match=sentence + "--method server_sgd$"):
        from_flags(ServerSGD, setting)
    with pytest.raises(UserError, match=sentence + "--method zo_hfl: f_1 is their loss$"):
        from_flags(ZOHFL, setting)


@pytest.mark.parametrize("cls", [*EVERY, ZOHFL])
@BOTH
def test_evaluations_leave_no_trace(make: Make, cls: Any) -> None:
    """Mutation: an evaluation that trains, and so writes c_i."""
    watched, unwatched = either(cls, make()), either(cls, make())
    state, clients = watched.start(), clients_of(watched)
    for r in range(3):
        state = watched.round(state, r, clients)
        watched.evaluate(state, r, clients)
    assert state.x.tobytes() == run(unwatched, 3, unwatched.start().x).x.tobytes()
    assert all(set(entries) == WRITTEN.get(cls, set()) for entries in memories(clients).values())


# --- what cannot be


@pytest.mark.parametrize(
    ("classes", "flags", "words"),
    [
        (LOCAL, {"tau": (1.0, 2.0)}, "--tau 1.0 2.0: must be one number, or 4, one for each client"),
        (LOCAL, {"schedule": "linear"}, "--schedule 'linear': allowed are constant, sqrt"),
        (LOCAL, {"schedule_local": "power:2"}, "--schedule-local 'power:2'"),
        *(
            ((FedAvg,), {"compress": kind}, "choose none, topk:FRACTION")
            for kind in ("topk", "topk:0", "topk:1.5", "topk:nan", "quantise:1", "quantise:2.5", "gzip")
        ),
        ((FedMSPP,), {"batch": 5}, "--batch 5: must be at most 4, all that client 0 has to draw without replacement"),
        ((Scaffold,), {"tau": (0.0,)}, "--tau 0.0: must be above 0"),
        ((Scaffold,), {"tau": (1.0, 2.0, 0.0, 1.0)}, "--tau 1.0 2.0 0.0 1.0: must be above 0"),
        ((Scaffold,), {"gamma_local": 0.0}, "--gamma-local 0.0: must be above 0"),
        ((ServerSGD,), {"schedule": "fast"}, "--schedule 'fast'"),
    ],
)
def test_values_out_of_range_are_refused_by_flag(classes: Any, flags: dict[str, Any], words: str) -> None:
    """Declared ranges: tests/unit/test_ranges.py."""
    for cls in classes:
        with pytest.raises(UserError, match=words):
            from_flags(cls, toy(), **flags)


def test_no_step_at_all_is_allowed_where_it_has_a_meaning() -> None:
    for cls in (FedAvg, FedProx, FedMSPP):
        for flags in ({"tau": (0.0,)}, {"gamma_local": 0.0}):
            close(one(method(cls, toy(noise=1.0), **flags)), point(toy()))


# Not a warning from NumPy but a sentence: pytest makes a warning of the ones below an error.

DIVERGING = pytest.mark.parametrize("make", [toy, lambda: softmax(np.float32)], ids=["toy", "float32"])


@DIVERGING
@pytest.mark.parametrize("cls", LOCAL)
def test_a_local_model_that_is_not_finite_names_the_client(cls: Any, make: Make) -> None:
    of = method(cls, make(), schedule_local="constant", gamma_local=1e200, beta=0.25)
    (i,) = of.local.sampling(0)
    words = rf"client {i} .*failed in step 'train', item 0: the (local|personal) model is not finite; (a )?smaller"
    with pytest.raises(ClientError, match=words):
        one(of)


@pytest.mark.parametrize("flags", [{"gamma": 1.7e308}, {"eta_g": 1.7e308}], ids=str)
@DIVERGING
@pytest.mark.parametrize("cls", LOCAL)
def test_a_global_model_that_is_not_finite_names_the_servers_steps(cls: Any, make: Make, flags: Any) -> None:
    words = "x is not finite after the server's step; smaller --eta-g, --gamma or --gamma-local may help"
    for of in (method(cls, make(), gamma_local=10.0, **flags), from_flags(ServerSGD, make(), gamma=1.7e308)):
        with pytest.raises(UserError, match=words):
            one(of, 0, 10 * point(of.setting))


def test_a_cast_to_infinity_is_found_in_its_round() -> None:
    """Mutation: looked for before the cast to float32, where 1e200 is finite."""
    of = method(FedAvg, softmax(np.float32), eta_g=1e200)
    with np.errstate(all="ignore"), pytest.raises(UserError, match="x is not finite after the server's step"):
        one(of)
