"""The validation part in reports: beside the test part, of the model itself, and only where it is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from tests.launch import here
from tests.numerics.first_order import clients_of, method, point, softmax
from zofl_mpi.engine.fields import described, reported
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.run import records
from zofl_mpi.run.flags import built


def evaluated(cls: Any, setting: Any) -> dict[str, float]:
    made = built(ZOHFL, setting, tau=(3.0,), batch=4) if cls is ZOHFL else method(cls, setting)
    state = replace(made.start(), x=0.1 * point(setting))
    return reported(made.evaluate(state, 3, clients_of(made)))


@pytest.mark.parametrize("cls", [ZOHFL, FedAvg, FedProx, Scaffold])
def test_a_report_has_the_scores_on_the_validation_part(cls: Any) -> None:
    """Mutations: those of the test part; the personal models'; columns without a validation part."""
    setting = softmax()
    part = setting.server.subset(np.arange(0, 30, 2))
    told, without = evaluated(cls, replace(setting, validation=part)), evaluated(cls, setting)
    score = setting.problem.score(0.1 * point(setting), part)
    assert (told.pop("validation_accuracy"), told.pop("validation_loss")) == (score["accuracy"], score["loss"])
    assert score["loss"] != without["test_loss"]
    assert (told.pop("validation_personal_accuracy", None) is not None) == (cls is ZOHFL)
    assert told == pytest.approx(without, nan_ok=True, rel=0, abs=0)


@pytest.mark.parametrize("cls", [ZOHFL, FedAvg, FedProx, Scaffold, ServerSGD, FedMSPP, Scaffnew])
def test_the_columns_are_described(cls: Any) -> None:
    columns = described(get_type_hints(cls.evaluate)["return"])
    assert {"validation_accuracy", "validation_loss"} <= set(columns)


FLAGS = ("--data", "digits", "--rounds", "2", "--quiet")


def test_a_run_with_a_share_has_the_columns_and_one_without_has_not(tmp_path: Path) -> None:
    runs = {}
    for share in ("0", "0.2"):
        out = str(tmp_path / f"{share}.h5")
        assert here("zofl_mpi.zo_hfl", *FLAGS, "--tau", "2", "--validation", share, "--out", out) == 0
        runs[share] = records.load(out)
    assert not {name for name in runs["0"].rounds if name.startswith("validation")}
    told = runs["0.2"].rounds["validation_accuracy"][-1] * 323  # of 1,617 samples of the training part
    assert told == pytest.approx(round(told)) and told > 0
    assert runs["0.2"].config["validation"] == 0.2


OWN = """
from dataclasses import dataclass
from zofl_mpi import Setting
from zofl_mpi.methods.fedavg import FedAvg, State

@dataclass(frozen=True)
class Bare:
    test_accuracy: float = 0.5

@dataclass(frozen=True)
class Silent:
    needs = FedAvg.needs
    setting: Setting
    def start(self):
        return State(0)
    def round(self, state, r, clients):
        return state
    def evaluate(self, state, r, clients) -> Bare:
        return Bare()
"""


def test_a_method_that_does_not_report_it_refuses_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else samples would be taken away for nothing."""
    (tmp_path / "silent_method.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert here("zofl_mpi.zo_hfl", *FLAGS, "--method", "silent_method:Silent", "--validation", "0.1", "--dry-run") == 2
    sentence = "--validation 0.1: --method silent_method:Silent reports no validation_accuracy; leave the flag out"
    assert sentence in capsys.readouterr().err


def test_a_split_method_scores_the_validation_part(tmp_path: Path) -> None:
    """Mutations: the test part's scores; a validation part that is scored by one client of two alone."""
    out = tmp_path / "split.h5"
    words = ("--m", "2", "--width", "2", "--stages", "1", "1", "--batch", "16", "--h", "1", "--validation", "0.2")
    assert here("zofl_mpi.heron_sfl", *FLAGS, *words, "--out", out) == 0
    run = records.load(out)
    told = run.rounds["validation_accuracy"][-1] * 323
    assert round(told) == pytest.approx(told, abs=1e-9)
    assert run.rounds["validation_loss"][-1] != run.rounds["test_loss"][-1]
