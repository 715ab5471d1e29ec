"""Reports: the validation part beside the test part, and which clients an evaluation asks."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest

from tests.conftest import Capsys
from tests.launch import here, refused
from tests.numerics.first_order import clients_of, method, point, softmax
from zofl_mpi.engine.fields import described, reported
from zofl_mpi.engine.setting import Method, Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.rounds.base import scaled_to_one
from zofl_mpi.rounds.report import GlobalModel, all_scores
from zofl_mpi.run import records
from zofl_mpi.run.command.flags import from_flags


def evaluated(cls: Any, setting: Any) -> dict[str, float]:
    made = from_flags(ZOHFL, setting, tau=(3.0,), batch=4) if cls is ZOHFL else method(cls, setting)
    state = replace(made.start(), x=0.1 * point(setting))
    return reported(made.evaluate(state, 3, clients_of(made)))


@pytest.mark.parametrize("cls", [ZOHFL, FedAvg, FedProx, Scaffold])
def test_a_report_has_the_scores_on_the_validation_part(cls: Any) -> None:
    """Mutations: those of the test part; the personal models'; columns without a validation part, or of further
    scores on it."""
    for other in (cls, ServerSGD, FedMSPP, Scaffnew):
        assert {"validation_accuracy", "validation_loss"} <= set(described(get_type_hints(other.evaluate)["return"]))
    setting = softmax()
    part = setting.server.subset(np.arange(0, 30, 2))
    told, without = evaluated(cls, replace(setting, validation=part)), evaluated(cls, setting)
    score = setting.problem.score(0.1 * point(setting), part)
    assert (told.pop("validation_accuracy"), told.pop("validation_loss")) == (score["accuracy"], score["loss"])
    assert score["loss"] != without["test_loss"]
    assert (told.pop("validation_personal_accuracy", None) is not None) == (cls is ZOHFL)
    assert told == pytest.approx(without, nan_ok=True, rel=0, abs=0)
    twin = SimpleNamespace(metric_names=(), score=lambda x, data: {"loss": 1.0, "smooth_loss": 2.0, "accuracy": 0.5})
    of_twin = all_scores(replace(setting, problem=twin, validation=part), point(setting))
    assert of_twin.keys() - {"test_loss", "test_smooth_loss", "test_accuracy"} == {
        "validation_loss",
        "validation_accuracy",
    }


FLAGS = ("--data", "digits", "--rounds", "2", "--quiet")


def test_a_run_of_a_split_method_with_a_share_has_the_columns(tmp_path: Path) -> None:
    """Mutations: the test part's scores; a part that is scored by one client of two alone."""
    words = "--problem split_resnet --m 2 --width 2 --stages 1 1 --batch 16 --h 1 --validation 0.2"
    assert here("zofl_mpi.heron_sfl", *FLAGS, *words.split(), "--out", tmp_path / "split.h5") == 0
    run = records.load(tmp_path / "split.h5")
    told = run.rounds["validation_accuracy"][-1] * 323  # of 1,617 samples of the training part
    assert round(told) == pytest.approx(told, abs=1e-9) and told > 0
    assert run.rounds["validation_loss"][-1] != run.rounds["test_loss"][-1]


@dataclass(frozen=True)
class Bare:
    test_accuracy: float = 0.5


@dataclass(frozen=True)
class Silent(Method[Any]):
    needs: ClassVar[Any] = FedAvg.needs
    setting: Setting[Any]

    def start(self) -> None: ...

    def round(self, state: None, r: int, clients: Any) -> None: ...

    def evaluate(self, state: None, r: int, clients: Any) -> Bare:
        return Bare()


def test_a_method_that_does_not_report_it_refuses_the_flag(capsys: Capsys) -> None:
    """Else samples would be taken away for nothing."""
    name = f"{__name__}:Silent"
    told = refused(capsys, "zofl_mpi.zo_hfl", *FLAGS, "--method", name, "--validation", "0.1", "--dry-run")
    assert f"--validation 0.1: --method {name} reports no validation_accuracy; leave the flag out" in told


def of(m: int, eval_clients: int, seed: int = 1) -> Setting[Any]:
    return Setting(None, Streams(seed), (None,) * m, eval_clients=eval_clients)


def test_some_are_drawn_anew_each_time_and_alike_on_every_rank() -> None:
    """Mutations: the same ones each time; with replacement; not ascending; the seed left out."""
    for m, most in ((5, 0), (5, 5), (5, 6), (1, 1)):
        assert of(m, most).eval_participants(3) == list(range(m)), "all where they are few"
    weights = {0: 0.5, 1: 0.25, 2: 0.25}
    assert scaled_to_one(weights, {0: 1, 1: 1, 2: 1}) is weights and scaled_to_one(weights, [1, 2]) == {1: 0.5, 2: 0.5}
    sets = [of(1000, 100).eval_participants(r) for r in range(20)]
    assert all(len(set(found)) == 100 and found == sorted(found) for found in sets)
    assert len({tuple(found) for found in sets}) == 20
    assert sets[3] == of(1000, 100).eval_participants(3) != of(1000, 100, seed=2).eval_participants(3)
    counts = np.bincount(np.concatenate(sets), minlength=1000)
    assert counts.max() <= 12 and counts.mean() == 2


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


def test_the_accuracies_of_a_personal_model_are_its_scores() -> None:
    """One pass for both, from the hits of each class. Mutations: the client's counts unnormalised; hits of all classes
    in one; a class that the test samples lack counted."""
    setting = softmax(kernel="numpy")
    x = 0.1 * setting.streams(5).standard_normal(setting.problem.n)
    without = setting.test.subset(np.flatnonzero(setting.test.take(np.arange(len(setting.test)), np.float64)[1] != 1))
    for test in (setting.test, without):
        own = replace(setting, test=test)
        zohfl = from_flags(ZOHFL, own, tau=(3.0,), batch=4)
        for client in clients_of(zohfl)._clients.values():
            found = zohfl.personal(client, GlobalModel(x, 2))
            y = zohfl.local.solve(client, x[None], 2, 13)[0]  # Purpose.PERSONAL
            mix = own.counts[client.i] / own.counts[client.i].sum()  # type: ignore[index]
            assert found.means["personal_accuracy"] == pytest.approx(
                own.problem.score(y, test, mix)["accuracy"], abs=1e-12
            )
            assert found.means["personal_accuracy_global"] == own.problem.score(y, test)["accuracy"]
    assert setting.problem.hits(x, setting.test).sum() == round(
        setting.problem.score(x, setting.test)["accuracy"] * len(setting.test)
    )
