"""The family `zofl_mpi.fedrzo` through the command line: same bits on any number of ranks, bytes by formula, continued
runs, refusals. Docstrings name the mutations to catch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Capsys
from tests.launch import Runs, here
from zofl_mpi import fedrzo
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.report.same import compared, differences
from zofl_mpi.run import records
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.plan import groups_of
from zofl_mpi.settings.samples import Samples

FAMILY, ROUNDS = "zofl_mpi.fedrzo", 3
USUAL = {"--m": 5, "--alpha": 0.5, "--batch": 8, "--H": 2, "--eta": 0.005, "--x0": "random", "--noise": 1, "--tau": 2}
USUAL |= {"--beta": 0.6, "--probe": 3, "--T-lower": 5, "--H-lower": 2, "--batch-lower": 4}
"""Flags of a case that has them and does not set them."""


def usual(method: str) -> str:
    """The problem that the method is run on if none is named."""
    needs = fedrzo.METHODS[method].needs.__name__
    return next(name for name, choice in fedrzo.PROBLEMS.items() if needs in choice.roles)


OWN = {
    "nn": ["--method", "fedrzo_nn", "--n-p", "2", "--x-set", "ball:2", "--K", "2000", "--eta", "0.05"],
    "nn-sets": [
        "--problem",
        "bowls",
        "--x-set",
        *(f"box:-{i}:{i}" for i in range(1, 6)),
        "--estimate",
        "central",
        "--gamma",
        "1e-5",
    ],
    "nn-kinks": ["--problem", "max_affine", "--weights", "size", "--schedule", "sqrt"],
    "bl": ["--method", "fedrzo_bl", "--gamma", "0.004"],
    "bl-fair": ["--method", "fedrzo_bl", "--problem", "fair", "--lower", "fedac1", "--exact"],
    "bl-softmax": ["--method", "fedrzo_bl", "--problem", "fair_softmax", "--y-set", "simplex", "--exact"],
    "bl-bowls": ["--method", "fedrzo_bl", "--problem", "bilevel_bowls", "--lower", "fedac2", "--exact"],
    "bl-lfd": ["--method", "fedrzo_bl", "--problem", "bilevel_bowls", "--lower", "lfd"],
    "bl-coupled": ["--method", "fedrzo_bl", "--problem", "coupled", "--y0", "fixed", "--exact"],
    "bl-exact": ["--method", "fedrzo_bl", "--problem", "hyperparameter", "--lower", "exact", "--exact"],
}
CASES = {**{name: ["--method", name] for name in fedrzo.METHODS}, **OWN}


def option(words: list[str], name: str, usual: str) -> str:
    return words[words.index(name) + 1] if name in words else usual


def command(case: str) -> list[str]:
    """The case's own words, and those of USUAL that are flags of its method on its problem."""
    own = CASES[case]
    method = option(own, "--method", "fedrzo_nn")
    problem = option(own, "--problem", usual(method))
    known = flags.flags_of(groups_of(fedrzo, method, problem))
    said = {flag: value for flag, value in USUAL.items() if flag[2:].replace("-", "_") in known and flag not in own}
    if method == "fedrzo_bl" and "--exact" not in own:
        del said["--probe"]
    unread = ["--H"] if "--K" in own else ["--T-lower", "--H-lower"] if option(own, "--lower", "") == "exact" else []
    said = {flag: value for flag, value in said.items() if flag not in unread}
    flat = [str(word) for pair in said.items() for word in pair]
    return [*own, *flat, "--eval-every", "2"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """results(case, ranks): its result; under mpirun: tests/e2e/test_methods.py."""
    commands = {name: (FAMILY, [*command(name), "--rounds", ROUNDS]) for name in CASES}
    return Runs(tmp_path_factory.mktemp("fedrzo"), commands)


@pytest.mark.parametrize("case", CASES)
def test_every_method_has_the_same_bits_on_three_ranks(results: Runs, case: str) -> None:
    """Mutations: a sum in order of arrival; a direction of a rank; x kept by a rank and not by a client."""
    alone, spread = (records.load(results(case, ranks)) for ranks in (0, 3))
    assert spread.attrs["ranks"] == 3 and alone.attrs["ranks"] == 1
    assert compared(alone, spread) == []


@pytest.mark.parametrize("case", CASES)
def test_every_method_moves_and_reports_what_it_describes(results: Runs, case: str) -> None:
    """All share the columns that a table compares. Mutation: a column renamed in `evaluate` or in `columns` alone."""
    found = records.load(results(case, 0))
    assert set(found.rounds) >= {"objective", "test_loss"}
    assert [name for name in found.rounds if not (found.units[name] and found.descriptions[name])] == []
    objective = found.rounds["objective"]
    assert np.isfinite(objective[[0, 2]]).all() and objective[0] != objective[2]


def counted(found: Any) -> dict[str, tuple[Any, Any]]:
    """{step: (bytes down, bytes up) (R, m)} of the steps that moved any or could have."""
    names = found.steps
    down, up = (np.asarray(found.clients[name]) for name in ("bytes_down", "bytes_up"))
    return {name: (down[:, k], up[:, k]) for k, name in enumerate(names)}


@pytest.mark.parametrize("case", ["bl", "bl-fair", "bl-bowls", "bl-coupled", "bl-exact"])
def test_algorithm_2s_bytes(results: Runs, case: str) -> None:
    """place: n b + 8 down; lower: s nt b + 16 down and s nt b up in each communication round; step: 2 nt b down, n b
    up. Mutations: v or x sent again; FedAC's second sequence left out; residuals, evaluations or drawing counted."""
    found = records.load(results(case, 3))
    x, y, steps = found.final["x"], found.final["y"], counted(found)
    s = 2 if option(CASES[case], "--lower", "").startswith("fedac") else 1
    rounds = found.rounds["lower_rounds"][:, None]
    if case != "bl-exact":
        assert set(rounds.ravel()) == {6} and set(found.rounds["lower_steps"]) == {10}
    expected: dict[str, tuple[Any, Any]] = {
        "place": (x.nbytes + 8, 0),
        "lower": (rounds * (s * y.nbytes + 16), rounds * s * y.nbytes),
        "step": (2 * y.nbytes, x.nbytes),
    }
    for name, (down, up) in steps.items():
        told = expected.get(name, (0, 0))
        assert (down == told[0]).all() and (up == told[1]).all(), name
    assert ("lower" in steps) == (case != "bl-exact")


@pytest.mark.parametrize("case", ["nn", "bl"])
def test_the_dry_run_announces_what_is_counted(results: Runs, case: str, capsys: Capsys) -> None:
    """Mutation: a field more in a message than in the plan."""
    found = records.load(results(case, 3))
    total = sum(int(np.sum(found.clients[name])) for name in ("bytes_down", "bytes_up"))
    capsys.readouterr()
    assert here(FAMILY, *command(case), "--rounds", ROUNDS, "--dry-run") == 0
    lines = dict(
        line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip()[-1:].isdigit()
    )
    number = {name: int(value.replace(",", "")) for name, value in lines.items() if value.replace(",", "").isdigit()}
    if case == "nn":
        assert number["bytes down and up, all rounds"] == total
    else:
        upper = sum(number[f"upper level, bytes {way}, for each client and round"] for way in ("down", "up"))
        each = "for each client and communication round"
        lower = sum(number[f"lower level, bytes {way}, {each}"] for way in ("down", "up"))
        times = number["lower level, calls in a round"]
        times *= number["lower level, communication rounds of a call at x_0"]
        assert ROUNDS * 5 * (upper + times * lower) == total


CONTINUED = [("nn", 0, 5), ("bl", 5, 0), ("bl-bowls", 0, 5), ("bl-lfd", 0, 0)]
"""Case, ranks of its first four rounds, ranks of the other two."""


@pytest.mark.parametrize(("case", "before", "after"), CONTINUED)
def test_a_run_goes_on_as_if_never_interrupted(tmp_path: Path, case: str, before: int, after: int) -> None:
    """On another number of ranks. Mutations: the drawn iterate, the count of steps or y_0 lost; the clients' x of an
    evaluation used."""
    runs = Runs(tmp_path, {case: (FAMILY, [*command(case), "--eval-every", 4, "--rounds", 6])})
    assert differences(runs(case, 0), runs.continued(case, before, after, (4, 6))) == []
    assert records.load(runs(case, 0)).length == 6


def test_a_validation_part_is_scored_as_the_test_part_is(tmp_path: Path) -> None:
    """Against the problem's own score of the kept iterate. Mutations: the test part scored twice; no such columns."""
    flags = ["--m", 3, "--validation", 0.2, "--rounds", 1, "--seed", 5, "--H", 1, "--out", tmp_path / "r.h5"]
    assert here(FAMILY, *flags) == 0
    run = records.load(tmp_path / "r.h5")
    setting = Samples(m=3, server_fraction=0.0, validation=0.2).federation(SingleProcess(), Streams(5))
    for name, part in (("validation", setting.validation), ("test", setting.test)):
        score = ReLUNet(setting.test.features).score(run.final["x"], part)
        assert run.rounds[f"{name}_loss"][-1] == pytest.approx(score["loss"], rel=1e-6)
        assert run.rounds[f"{name}_accuracy"][-1] == pytest.approx(score["accuracy"])
