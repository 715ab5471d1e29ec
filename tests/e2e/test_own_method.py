"""Mistakes of a method of one's own that its run, not a later one, has to tell: in one process and on ranks."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.launch import here
from tests.threads import run_module
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

FAMILY = "zofl_mpi.zo_hfl"
MINE = '''
from dataclasses import dataclass
import numpy as np
import torch
from zofl_mpi import Array, Client, Clients, Method, Setting, change, column, flag_group
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.rounds.base import Sampling
from zofl_mpi.rounds.local_sgd import FirstOrder, LocalModel, LocalSGDState
from zofl_mpi.rounds.report import GlobalModel


@dataclass(frozen=True)
class Mine(FirstOrder):
    """A mean of its own, which reads nothing of Robust or ServerStep."""

    def round(self, state, r, clients):
        mean = clients.mean(self.train, GlobalModel(state.x, r), to=self.local.sampling(r))
        return LocalSGDState(mean.y)

    def train(self, client: Client, message: GlobalModel) -> LocalModel:
        y = message.x - np.float32(0.01) * self.problem.gradient(message.x, client.data).astype(message.x.dtype)
        return LocalModel(y)


@dataclass(frozen=True)
class Everybody(Mine):
    """A mean of all clients, whoever is drawn."""

    def round(self, state, r, clients):
        return LocalSGDState(clients.mean(self.train, GlobalModel(state.x, r)).y)


@dataclass(frozen=True)
class Twice(Mine):
    """Two questions a round."""

    def round(self, state, r, clients):
        clients.mean(self.train, GlobalModel(state.x, r), to=self.local.sampling(r))
        return super().round(state, r, clients)


@dataclass(frozen=True)
class Norm:
    norm: float


@dataclass(frozen=True)
class Gradient:
    g: Array = change("the gradient is not finite", scalar=False)


@dataclass(frozen=True)
class FedSGD(Method):
    """A method without a base: what its replies change stands on their fields."""

    setting: Setting
    sampling: Sampling = flag_group()

    def start(self):
        return GlobalModel(self.setting.first_model(), 0)

    def round(self, model, r, clients):
        nobody = Gradient(np.zeros_like(model.x))
        mean = clients.mean(self.gradient, model, to=self.sampling(r), nobody=nobody)
        return GlobalModel((model.x - np.float32(0.5) * mean.g).astype(model.x.dtype), r + 1)

    def gradient(self, client: Client, model: GlobalModel) -> Gradient:
        return Gradient(self.setting.problem.gradient(model.x, client.data).astype(model.x.dtype))

    def evaluate(self, model, r, clients):
        return Norm(float(np.linalg.norm(model.x)))


@dataclass(frozen=True)
class Plain(FedAvg):
    """FedAvg whose clients send what they have."""

    def train(self, client, message):
        return LocalModel(message.x)


class Same(FedAvg):
    """FedAvg."""


@dataclass(frozen=True)
class Own:
    """A state without a word on what must be finite."""

    x: Array


@dataclass(frozen=True)
class Nan(Mine):
    """By ask and np.mean, which tell nobody of what is not a number."""

    def round(self, state, r, clients):
        found = [reply.x for _, reply in clients.ask(self.send, GlobalModel(state.x, r))]
        return Own(np.mean(found, axis=0))

    def start(self):
        return Own(super().start().x)

    def send(self, client, message):
        return GlobalModel(message.x * np.float32(np.nan if client.i == 1 and message.r else 1), message.r)


@dataclass(frozen=True)
class Scored:
    """A report of its own."""

    test_loss: float = column("nat", "mean loss")
    loss: float = column("nat", "the same", 0.0)


class Blind(Mine):
    """An evaluation of its own, whose losses nobody else has seen."""

    def evaluate(self, state, r, clients):
        return Scored(1.0, np.nan if r else 1.0)


class Habit(Mine):
    """torch's way of a step, in place."""

    def train(self, client, message):
        x = torch.from_numpy(message.x)
        x -= client.i
        return LocalModel(x.numpy())


class Counting(Mine):
    """A counter on a frozen method, where no checkpoint finds it."""

    def round(self, state, r, clients):
        object.__setattr__(self, "count", getattr(self, "count", 0) + 1)
        new = super().round(state, r, clients)
        return LocalSGDState(new.x + np.float32(self.count))


@dataclass(frozen=True)
class Wider(Mine):
    """A state in another dtype than at the start."""

    def round(self, state, r, clients):
        return LocalSGDState(super().round(state, r, clients).x.astype(np.float64))
'''
WRONG = {
    "Nan --aggregate median": "--aggregate median: Nan asks for step 'send' by clients.ask; it needs clients.mean",
    "Everybody --weights uniform --clip 1 --beta 0.5": "--clip 1: step 'train' goes to other clients than",
    "Twice --weights uniform --clip 1": "--clip 1: step 'train' asks for a second reply in round 1; the account",
    "Mine --tau 3": "--tau 3.0: no round of Mine uses it",
    "Mine --eta-g 0.5 --beta 0.5 --weights uniform": "--eta-g 0.5: no round of Mine uses it",
    "Mine --gamma 0.1": "--gamma 0.1: no round of Mine uses it",
    "Plain --gamma-local 0.3": "--gamma-local 0.3: no round of Plain uses it",
    "Nan": "the state's x is not finite: the run has diverged",
    "Blind": "the loss is nan: the run has diverged",
    "Habit": "step 'train' changed GlobalModel.x, which others read, too: work on a copy",
    "Counting": "a round changed the attribute count of Counting, which no checkpoint has",
    "Wider": r"round returned a state that is not like the one of start \(its x is ndarray of float64",
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("words", WRONG)
def test_a_mistake_of_a_method_ends_its_run_in_a_sentence(
    words: str, ranks: int, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """All of these were done, with status 0. Mutations: each check left out; one that only one process makes."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    name, *flags = words.split()
    run = ["--method", f"mine:{name}", "--rounds", 2, "--eval-every", 1, "--m", 5, "--quiet", "--out", "run.h5", *flags]
    assert run_module(ranks, FAMILY, *run) == 1
    told = capsys.readouterr().err.splitlines()[-1].removeprefix("zofl_mpi: ")
    assert "Traceback" not in told
    assert re.match(rf"round \d: (client \d \(rank \d\) failed in step '\w+', item 0: )?{WRONG[words]}", told), told


PRIVATE = ["--participation", "poisson", "--beta", 0.5]


@pytest.mark.parametrize(
    "flags",
    [
        ["--aggregate", "median", "--attackers", 0.3],
        ["--clip", 0.1, *PRIVATE],
        ["--clip", 0.1, "--trust", "server"],
        ["--compress", "topk:0.3"],
        ["--compress", "quantise:3", "--aggregate", "clip:0.1"],
    ],
    ids=["robust", "poisson", "fixed", "compressed", "compressed and robust"],
)
def test_wrappers_hold_for_a_method_of_ones_own(flags: list[Any], tmp_path: Path, monkeypatch: Patch) -> None:
    """On any ranks with the same bits, with 40 clients added up where they are computed; and it changes the result.

    Mutations: the clients' side left out on a rank; a wrapper at the server alone; a flag that is offered and read by
    nobody."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = ["--method", "mine:FedSGD", "--problem", "toy", "--m", 40, "--rounds", 3, "--quiet", "--out"]
    assert here(FAMILY, *run, tmp_path / "alone.h5", *flags) == 0
    assert run_module(3, FAMILY, *run, tmp_path / "ranks.h5", *flags) == 0
    assert here(FAMILY, *run, tmp_path / "plain.h5") == 0
    assert differences(tmp_path / "alone.h5", tmp_path / "ranks.h5") == []
    found = [records.load(tmp_path / f"{name}.h5").final["x"] for name in ("alone", "plain")]
    assert np.linalg.norm(found[0] - found[1]) > 1e-3


@pytest.mark.parametrize("ranks", [1, 3])
def test_flags_of_parts_that_a_round_uses_are_taken(ranks: int, tmp_path: Path, monkeypatch: Patch) -> None:
    """On a client rank alone, too: --gamma-local is read there. Mutation: what other processes read does not count."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = ["--rounds", 1, "--m", 5, "--quiet", "--out", "run.h5", "--force"]
    assert run_module(ranks, FAMILY, "--method", "mine:Mine", *run, "--beta", 0.5, "--personal") == 0
    assert run_module(ranks, FAMILY, "--method", "mine:Same", *run, "--gamma-local", 0.5, "--tau", 2) == 0
