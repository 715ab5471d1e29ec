"""Personal models: fine-tuning as ZO-HFL's Algorithm 2, Ditto, pFedMe. Docstrings name the mutations to catch."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import (
    BOTH,
    HARMONIC,
    SIZE_SHARES,
    STREAMS,
    Array,
    Make,
    apart,
    clients_of,
    close,
    drawn,
    gradient,
    memories,
    method,
    point,
    run,
    softmax,
    toy,
)
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.fields import reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems.base import NumPyProblem
from zofl_mpi.rounds.report import Reporting, accuracies
from zofl_mpi.run.command.flags import from_flags

NAMES = {"personal_accuracy", "personal_accuracy_global", "validation_personal_accuracy"}


def report(of: Any, x: Array, r: int = 3, clients: Any = None, **further: Any) -> dict[str, Any]:
    state = replace(of.start(), x=x, **further)
    return dict(reported(of.evaluate(state, r, clients or clients_of(of))))


def validated(setting: Setting) -> Setting:
    """The server's samples are the validation part besides."""
    return replace(setting, validation=setting.server)


# --- fine-tuning


@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold, ServerSGD])
def test_the_personal_models_are_zo_hfls_at_the_same_x(cls: Any) -> None:
    """The defaults are those of Algorithm 2. Mutations: mini-batches of the training; no proximal term; r - 1."""
    setting = validated(softmax())
    x = 3 * point(setting)
    zohfl = report(from_flags(ZOHFL, setting), x)
    found = report(from_flags(cls, setting, personal=True), x)
    assert {name: found[name] for name in NAMES} == {name: zohfl[name] for name in NAMES}
    tuning = Reporting(setting, personal=True)
    for i, data in enumerate(setting.data):
        client = Client(i, data)
        y = tuning.fine_tuned(client, x, 3)
        assert y is not None
        close(y, from_flags(ZOHFL, setting).local.solve(client, x[None], 3, Purpose.PERSONAL)[0])
        assert apart(x, y) and not client.memory


def test_a_mean_is_over_clients_by_their_own_classes() -> None:
    """Mutations: by size; test samples as they are; a class that no test sample has counts as missed."""
    setting = softmax()
    x = 3 * point(setting)
    of = from_flags(FedAvg, setting, personal=True, personal_tau=0.0)  # y_i = x
    W, hits = x.reshape(-1, 6), []
    inputs, labels = setting.test.take(np.arange(len(setting.test)), np.float64)
    right = (inputs @ W.T).argmax(axis=1) == labels
    for counts in setting.counts:
        own = [counts[c] / counts.sum() * right[labels == c].mean() for c in range(3)]
        hits.append(sum(own))
    found = report(of, x)
    assert found["personal_accuracy"] == pytest.approx(np.mean(hits))
    assert found["personal_accuracy_global"] == pytest.approx(right.mean())
    assert "validation_personal_accuracy" not in found


def test_personal_columns_are_there_only_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zofl_mpi.rounds.report.local_steps", None)  # no step of a personal model is taken
    setting = validated(softmax())
    assert not NAMES & set(report(from_flags(FedAvg, setting), point(setting)))
    setting = toy()
    assert math.isnan(accuracies(setting, 0, point(setting))["personal_accuracy"])


# --- Ditto


def personal_batches(setting: Setting, i: int, r: int, H: int, batch: int = 4) -> Array:
    return STREAMS(Purpose.PERSONAL, r=r, i=i).integers(len(setting.data[i]), size=(H, batch))


@BOTH
@pytest.mark.parametrize("lam_p", [0.0, 0.7])
def test_dittos_global_model_is_fedavgs_to_the_bit(make: Make, lam_p: float) -> None:
    """Mutations: v_i averaged; batches shared between both models drawn twice."""
    setting, flags = make(), {"beta": 0.5, "gamma": 0.1}
    ditto, fedavg = (
        run(method(cls, setting, **flags, **own), 5) for cls, own in ((Ditto, {"lam_p": lam_p}), (FedAvg, {}))
    )
    assert ditto.x.tobytes() == fedavg.x.tobytes()


@BOTH
@pytest.mark.parametrize("batch", [4, 0])
def test_dittos_personal_steps_are_their_formula(make: Make, batch: int) -> None:
    """Two rounds, so that v_i is not x. Mutations: the pull towards v_i's start alone; x after the round; no memory;
    with --batch 0 (as many samples as the client has, drawn with replacement) another number."""
    setting, lam = make(), 0.7
    of = method(Ditto, setting, lam_p=lam, batch=batch)
    clients, x, state = clients_of(of), point(setting), None
    v = [x] * len(setting.data)
    state = replace(of.start(), x=x)
    for r in range(2):
        for i, data in enumerate(setting.data):
            for gamma, batch_now in zip(HARMONIC, personal_batches(setting, i, r, 3, batch or len(data)), strict=True):
                v[i] = v[i] - gamma * (gradient(data, v[i], batch_now) + lam * (v[i] - state.x))
        state = of.round(state, r, clients)
    for i in range(len(v)):
        close(memories(clients)[i]["v"], v[i])


def test_a_client_that_did_not_take_part_keeps_its_model_and_at_first_has_x() -> None:
    setting = softmax()
    of = method(Ditto, setting, beta=0.5)
    clients = clients_of(of)
    state = of.round(replace(of.start(), x=point(setting)), 0, clients)
    to = of.local.sampling(0)
    kept = {i: dict(memory) for i, memory in memories(clients).items() if memory}
    assert sorted(kept) == to and len(to) == 2
    found = of.evaluate(state, 0, clients)
    own = [accuracies(setting, i, kept[i]["v"] if i in kept else state.x) for i in range(4)]
    assert found.personal_accuracy == pytest.approx(np.mean([a["personal_accuracy"] for a in own]))
    for i in to:  # it goes on from there
        again = of.round(state, 0, clients)
        assert apart(memories(clients)[i]["v"], kept[i]["v"]) and apart(again.x, state.x)


# --- pFedMe


@BOTH
def test_pfedmes_local_steps_are_their_formula(make: Make) -> None:
    """Two inner steps on one mini-batch. Mutations: a mini-batch each; w moved by alpha alone; the pull towards x."""
    setting, lam, alpha, r = make(), 2.0, 0.05, 2
    of = method(PFedMe, setting, lam_p=lam, alpha_p=alpha, K=2, eta_g=0.5)
    x, mean = point(setting), 0.0
    clients = clients_of(of)
    new = of.round(replace(of.start(), x=x), r, clients).x
    for i, data in enumerate(setting.data):
        w = x
        for gamma, batch in zip(HARMONIC, drawn(data, i, r, 3), strict=True):
            y = w
            for _ in range(2):
                y = y - gamma * (gradient(data, y, batch) + lam * (y - w))
            w = w - alpha * lam * (w - y)
        close(memories(clients)[i]["y"], y)
        mean = mean + SIZE_SHARES[i] * w
    close(new, x + 0.5 * (mean - x))


@dataclass(frozen=True)
class Still(NumPyProblem):
    """A problem whose losses are flat."""

    n: int = 2

    def loss(self, x: Array, data: Any) -> float:
        return 0.0

    def gradient(self, x: Array, data: Any, batch: Any = None) -> Array:
        return np.zeros(2)

    def flops(self, batch: int) -> float:
        return 1.0


def test_one_entry_that_is_not_finite_ends_a_run_of_dittos() -> None:
    """Mutation: a look for one that is finite."""
    of = method(Ditto, Setting(Still(), STREAMS, (range(3),), None, None, None, np.dtype(np.float64)), tau=(1.0,))
    x, client = np.zeros(2), Client(0, range(3))
    assert of.personal_steps(x, np.ones(2), client, 0).shape == (2,)
    with pytest.raises(UserError, match="the personal model is not finite"):
        of.personal_steps(x, np.array([np.inf, 0.0]), client, 0)
