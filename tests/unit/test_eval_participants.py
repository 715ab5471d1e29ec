"""Which clients an evaluation asks: all up to a number, else so many drawn anew; and what the report then is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import clients_of, method, softmax
from zofl_mpi.engine.fields import reported
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.rounds.report import Model
from zofl_mpi.rounds.start import among
from zofl_mpi.run.flags import built


def of(m: int, eval_clients: int, seed: int = 1) -> Setting[Any]:
    return Setting(None, Streams(seed), (None,) * m, eval_clients=eval_clients)


@pytest.mark.parametrize(("m", "most"), [(5, 0), (5, 5), (5, 6), (1, 1)])
def test_all_are_asked_where_they_are_few(m: int, most: int) -> None:
    assert of(m, most).eval_participants(3) == list(range(m))


def test_some_are_drawn_anew_each_time_and_alike_on_every_rank() -> None:
    """Mutations: the same ones each time; with replacement; not ascending; the seed left out."""
    sets = [of(1000, 100).eval_participants(r) for r in range(20)]
    assert all(len(set(found)) == 100 and found == sorted(found) for found in sets)
    assert len({tuple(found) for found in sets}) == 20
    assert sets[3] == of(1000, 100).eval_participants(3) != of(1000, 100, seed=2).eval_participants(3)
    counts = np.bincount(np.concatenate(sets), minlength=1000)
    assert counts.max() <= 12 and counts.mean() == 2


def test_weights_among_the_asked_sum_to_1() -> None:
    weights = {0: 0.5, 1: 0.25, 2: 0.25}
    assert among(weights, {0: 1, 1: 1, 2: 1}) is weights
    assert among(weights, [1, 2]) == {1: 0.5, 2: 0.5}


def test_a_report_is_that_of_the_clients_that_were_asked() -> None:
    """Mutations: unasked clients counted as 0; the number of all clients told."""
    setting = replace(softmax(), eval_clients=2)
    fedavg = method(FedAvg, setting)
    state, r = fedavg.start(), 4
    asked = setting.eval_participants(r)
    told = reported(fedavg.evaluate(state, r, clients_of(fedavg)))
    assert told["clients_asked"] == len(asked) == 2
    sizes = np.array([len(setting.data[i]) for i in asked])
    losses = np.array([setting.problem.loss(state.x, setting.data[i]) for i in asked])
    assert told["objective"] == pytest.approx(sizes @ losses / sizes.sum())


@pytest.mark.parametrize("kernel", ["numpy"])
def test_the_accuracies_of_a_personal_model_are_its_scores(kernel: str) -> None:
    """One pass for both, from the hits of each class. Mutations: the client's counts unnormalised; hits of all classes
    in one; a class that the test samples lack counted."""
    setting = softmax(kernel=kernel)
    zohfl = built(ZOHFL, setting, tau=(3.0,), batch=4)
    x = 0.1 * setting.streams(5).standard_normal(setting.problem.n)
    without = setting.test.subset(np.flatnonzero(setting.test.take(np.arange(len(setting.test)), np.float64)[1] != 1))
    for test in (setting.test, without):
        own = replace(setting, test=test)
        zohfl = built(ZOHFL, own, tau=(3.0,), batch=4)
        for client in clients_of(zohfl)._clients.values():
            found = zohfl.personal(client, Model(x, 2))
            y = zohfl.local.solve(client, x[None], 2, 13)[0]  # Purpose.PERSONAL
            mix = own.counts[client.i] / own.counts[client.i].sum()  # type: ignore[index]
            assert found.accuracies["personal_accuracy"] == pytest.approx(
                own.problem.score(y, test, mix)["accuracy"], abs=1e-12
            )
            assert found.accuracies["personal_accuracy_global"] == own.problem.score(y, test)["accuracy"]
    assert setting.problem.hits(x, setting.test).sum() == round(
        setting.problem.score(x, setting.test)["accuracy"] * len(setting.test)
    )
