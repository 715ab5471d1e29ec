"""Privacy through the command line: budgets of continued runs, lost ranks, a missing package, refusals."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.fates import Death, Fate
from tests.launch import here
from tests.threads import run_module
from zofl_mpi.clients.privacy import Privacy
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.run.grid import __main__ as grid
from zofl_mpi.run.loop.signals import STATUS

FAMILY = "zofl_mpi.zo_hfl"
FEDAVG = ["--method", "fedavg", "--weights", "uniform"]
PRIVATE = ["--clip", 0.2, "--participation", "poisson", "--beta", 0.3]
TOY = ["--problem", "toy", "--m", 40, "--tau", 1, "--eval-every", 2, "--quiet"]


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_a_continued_run_draws_the_same_noise_and_counts_on(tmp_path: Path, ranks: int) -> None:
    """Mutations: an account from 0 again; noise of a generator's state; participants by what was drawn before."""
    flags = [*FEDAVG, *TOY, *PRIVATE, "--noise-multiplier", 1, "--out"]
    assert here(FAMILY, *flags, tmp_path / "whole.h5", "--rounds", 8) == 0
    assert run_module(3, FAMILY, *flags, tmp_path / "part.h5", "--rounds", 4) == 0
    assert run_module(ranks, FAMILY, "--resume", tmp_path / "part.h5", "--rounds", 8, "--quiet") == 0
    assert differences(tmp_path / "whole.h5", tmp_path / "part.h5") == []
    epsilon = records.load(tmp_path / "part.h5").rounds["epsilon"]
    assert (np.diff(epsilon[[0, 1, 3, 5, 7]]) > 0).all()


def test_a_budget_ends_the_run_before_the_round_that_would_exceed_it(tmp_path: Path, capsys: Capsys) -> None:
    """z follows from the planned rounds and stays; a longer run pays what is left, says so, is evaluated at its end.

    Mutations: z of the longer run; a round too many; an interrupted result; a run that goes on to --rounds."""
    out = tmp_path / "run.h5"
    assert here(FAMILY, *FEDAVG, *TOY, *PRIVATE, "--epsilon", 2, "--rounds", 6, "--out", out) == 0
    first = json.loads(records.load(out).attrs["config"])["noise_multiplier"]
    capsys.readouterr()
    assert run_module(3, FAMILY, "--resume", out, "--rounds", 60, "--quiet") == 0
    told, found = capsys.readouterr().err, records.load(out)
    config = json.loads(found.attrs["config"])
    assert (
        config["noise_multiplier"] == first
        and config["rounds"] == found.length < 60
        and found.attrs["status"] == "done"
    )
    assert f"--epsilon 2: the run ends after round {found.length}" in told and "--rounds 60: epsilon " in told
    assert 1.9 < found.rounds["epsilon"][-1] <= 2.0 and np.isfinite(found.rounds["test_loss"][-1])
    assert here(FAMILY, "--resume", out, "--rounds", 60, "--quiet") == 0
    assert "nothing was left to do" in capsys.readouterr().out


def test_the_screen_counts_the_rounds_that_the_budget_allows(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """Stopped after four of six rounds, continued for sixty: the budget allows six. Mutation: the rounds asked for."""
    flags, spent = [*FEDAVG, *TOY[:-1], *PRIVATE, "--epsilon", 2, "--out", tmp_path / "run.h5"], Privacy.columns

    def stopping(self: Privacy, done: int, evaluated: bool) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return spent(self, done, evaluated)

    with monkeypatch.context() as patch:
        patch.setattr(Privacy, "columns", stopping)
        assert here(FAMILY, *flags, "--rounds", 6) == STATUS
    assert "round 1/6  " in capsys.readouterr().out
    assert here(FAMILY, "--resume", tmp_path / "run.h5", "--rounds", 60) == 0
    told = capsys.readouterr().out
    assert "round 6/6  " in told and "/60  " not in told


def test_a_run_that_its_budget_ended_is_finished_in_a_grid(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    """Made longer by the grid's file. Mutations: failed, or continued each time; z, which followed from --epsilon,
    another configuration; what followed from the budget of the first session alone."""
    monkeypatch.chdir(tmp_path)
    given = "m = 40\nbeta = 0.3\ntau = 1\neval-every = 2\nweights = 'uniform'\nclip = 0.2\nparticipation = 'poisson'"
    text = f"module = '{FAMILY}'\n[fixed]\nproblem = 'toy'\nmethod = 'fedavg'\nepsilon = 2\n{given}\n"
    for rounds in (6, 60):
        Path("toy.toml").write_text(f"{text}rounds = {rounds}\n[axes]\nseed = [1]\n")
        assert grid.main(["toy.toml", "--run"]) == 0
    found = records.load("results/toy/1.h5")
    assert found.length == 6 and found.attrs["derived_flags"].split() == ["noise_multiplier", "rounds"]
    capsys.readouterr()
    assert grid.main(["toy.toml"]) == 0 and "1 finished" in capsys.readouterr().out


def test_a_dry_run_tells_the_account_of_half_and_of_twice_the_rounds(capsys: Capsys) -> None:
    """Mutation: the account of --noise-multiplier 0."""
    assert here(FAMILY, *FEDAVG, *TOY, *PRIVATE, "--epsilon", 2, "--rounds", 6, "--dry-run") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epsilon, delta")]
    values = [float(line.split()[-2].rstrip(",")) for line in lines]
    assert [line.split(" of ")[1].split()[0] for line in lines] == ["3", "6", "12"]
    assert values[0] < 1.97 < values[1] <= 2 < values[2] and all(line.endswith(f"{40**-1.1:.3g}") for line in lines)


@pytest.mark.parametrize("call", [3, 9])
def test_a_round_that_is_begun_again_draws_the_same_noise_and_costs_once(tmp_path: Path, call: int) -> None:
    """Mutations: noise of a generator that goes on; an account that counts repetitions; participants drawn anew."""
    flags = [*FEDAVG, *TOY, *PRIVATE, "--noise-multiplier", 1, "--rounds", 4, "--out"]
    assert here(FAMILY, *flags, tmp_path / "whole.h5") == 0
    fate = Fate({2: Death(2, call, after=True)})
    assert run_module(4, FAMILY, *flags, tmp_path / "run.h5", "--survive", fate=fate) == 0
    lost = json.loads(records.load(tmp_path / "run.h5").attrs["lost"])
    assert [(loss["ranks"], loss["round"]) for loss in lost] == [([2], 2)]
    assert differences(tmp_path / "whole.h5", tmp_path / "run.h5") == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_without_its_package_noise_is_refused_in_a_sentence_and_no_rank_hangs(
    ranks: int, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """At the start; clipping alone needs no account. Mutation: the first evaluation finds out."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    out = tmp_path / "run.h5"
    assert run_module(ranks, FAMILY, *FEDAVG, *TOY, *PRIVATE, "--noise-multiplier", 1, "--out", out) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.endswith("pip install 'zofl_mpi[privacy]'\n") and not out.exists()
    assert run_module(ranks, FAMILY, *FEDAVG, *TOY, *PRIVATE, "--rounds", 2, "--out", out) == 0
    assert "epsilon" not in records.load(out).rounds


def test_rounds_without_clients_are_rounds(tmp_path: Path) -> None:
    """Mutations: a question to nobody; 0 clipped of 0."""
    flags = [*FEDAVG, *TOY, "--clip", 0.2, "--participation", "poisson", "--beta", 0.01, "--rounds", 9, "--out"]
    assert here(FAMILY, *flags, tmp_path / "alone.h5") == 0
    assert run_module(3, FAMILY, *flags, tmp_path / "ranks.h5") == 0
    assert differences(tmp_path / "alone.h5", tmp_path / "ranks.h5") == []
    found = records.load(tmp_path / "ranks.h5")
    nobody = found.clients["messages"].sum(axis=(1, 2)) == 0
    assert nobody.any() and not nobody.all() and np.array_equal(np.isnan(found.rounds["clipped"]), nobody)
