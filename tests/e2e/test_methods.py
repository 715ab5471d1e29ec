"""Every method of the family through the command line: same bits on any number of ranks, continued runs, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.launch import Runs, here, refused
from tests.threads import run_module
from zofl_mpi import zo_hfl
from zofl_mpi.engine.setting import Loads
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.report.same import compared, differences
from zofl_mpi.run import records
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.plan import groups_of
from zofl_mpi.run.mpi.placement import place_clients

FAMILY = "zofl_mpi.zo_hfl"
METHODS = list(zo_hfl.METHODS)
TRAINING = [name for name in METHODS if name not in ("zo_hfl", "server_sgd")]
PROBLEMS = {"softmax": ["--alpha", 0.5], "toy": ["--problem", "toy", "--noise", 1]}
TAU = [5, 1, 2, 1, 3]
FLAGS = {"m": [5], "tau": TAU, "batch": [8], "beta": [0.6], "x0": ["random"]}
"""Clients of unequal work do not live on 1 + i mod P; from a random first point no gradient is 0 by symmetry."""
ROUNDS = 3
REPORTED = {"test_accuracy", "test_loss", "train_loss", "f1", "objective"}


def command(method: str, problem: str) -> list[Any]:
    """With those of FLAGS that the method has."""
    known = flags.flags_of(groups_of(zo_hfl, method, problem))
    own = [word for name, values in FLAGS.items() if name in known for word in (f"--{name}", *values)]
    return ["--method", method, "--rounds", ROUNDS, "--eval-every", 2, *PROBLEMS[problem], *own]


USUAL = ["--rounds", 4, "--eval-every", 2, "--alpha", 0.5, "--beta", 0.5, "--tau", 3]
FLOAT64 = ["--dtype", "float64", "--samples", "separate", "--radius", 0.1, "--x0", "random"]
NETWORK = ["--method", "fedavg", "--problem", "cnn", "--batch", 32, "--m", 3, "--data", "images.npz"]
NATURAL = ["--method", "fedavg", "--alpha", "inf", "--partition", "natural", "--data", "natural.npz"]
SIZES = ["--method", "fedavg", "--partition", "quantity:0.5", "--server-rule", "adam", "--eta-g", 0.01]
PRIVATE = ["--clip", 0.1, "--noise-multiplier", 0.5, "--participation", "poisson", "--beta", 0.1]
LIARS = ["--attackers", 0.3, "--attack", "noise"]
THOUSAND = ["--rounds", 2, "--tau", 1, "--m", 1000, "--min-samples", 1, "--kernel", "numpy"]
HUNDREDS = [*THOUSAND, "--m", 300]
RUNS: dict[str, list[Any]] = {
    **{f"{method}-{problem}": command(method, problem) for method in METHODS for problem in PROBLEMS},
    "usual": USUAL,
    "seed": [*USUAL, "--seed", 2],
    "vectors": [*USUAL, "--exchange", "solutions"],
    "shared": [*USUAL, "--m", 80, "--min-samples", 1, "--exchange", "solutions", "--y0", "last"],
    "thousand": THOUSAND,
    "memories": [*USUAL, "--y0", "last"],
    "idle": [*USUAL, "--m", 2],
    "many": [*USUAL, "--m", 13, "--min-samples", 1],
    "float64": [*USUAL, *FLOAT64, "--pixels", "standardize", "--divide", "participants"],
    "corner": ["--rounds", 4, "--x0", "random", "--problem", "corner"],
    "caps": ["--rounds", 4, "--x0", "random", "--problem", "caps"],
    "network": [*USUAL, *NETWORK],
    **{
        f"rule-{method}-{rule}": [*command(method, "softmax"), "--server-rule", rule, "--eta-g", 0.05]
        for method, rule in (("fedavg", "yogi"), ("fedprox", "adagrad"), ("scaffold", "momentum"))
    },
    "shards": [*USUAL, "--alpha", "inf", "--partition", "shards:2"],
    "natural": [*USUAL, "--min-samples", 1, *NATURAL],
    "thousand-sizes": ["--rounds", 2, "--tau", 1, "--m", 1000, "--min-samples", 1, *SIZES],
    "robust-fedavg": [*HUNDREDS, "--method", "fedavg", "--aggregate", "median", *LIARS],
    "robust-scaffold": [*command("scaffold", "softmax"), "--aggregate", "clip:0.1", *LIARS],
    "robust-zo_hfl": [*HUNDREDS, "--aggregate", "trimmed:0.3", *LIARS],
    "private-fedavg": [*HUNDREDS, "--method", "fedavg", "--weights", "uniform", *PRIVATE],
    "private-zo_hfl": [*HUNDREDS, *PRIVATE],
    "private-scaffold": [*command("scaffold", "softmax"), "--weights", "uniform", *PRIVATE],
    "private-local": [*USUAL, "--clip", 0.1, "--noise-multiplier", 2, "--trust", "nobody", "--mechanism", "laplace"],
}
"""Name -> flags; idle: 2 of 5 ranks have nothing to do; shared, thousand: ranks add up estimates."""
PROCESSES = ["memories", "idle", "shared", "scaffold-softmax", "caps"]
FIVE = ["natural", "robust-zo_hfl", "private-zo_hfl", "shared", "idle", "memories", "many", "scaffold-softmax"]
"""PROCESSES on two ranks under mpirun; on three, which are threads, all of RUNS, and FIVE on five."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """results(name, ranks): its result."""
    folder = tmp_path_factory.mktemp("methods")
    images = np.add.outer(np.arange(300), np.arange(784)) * 7 % 256
    np.savez(folder / "images.npz", x=images.astype(np.uint8).reshape(-1, 28, 28), y=np.arange(300) % 10)
    few = np.arange(300) ** 2 // 9000  # 95, 39, 30, ... samples
    np.savez(folder / "natural.npz", x=images.astype(np.uint8), y=np.arange(300) % 10, client=few)
    files = {"network": "images.npz", "natural": "natural.npz"}
    runs = RUNS | {name: [*RUNS[name][:-1], folder / file] for name, file in files.items()}
    return Runs(folder, {name: (FAMILY, words) for name, words in runs.items()}, {2: PROCESSES})


@pytest.mark.parametrize(("name", "ranks"), [*((name, 3) for name in RUNS), *((name, 5) for name in FIVE)])
def test_every_run_has_the_same_bits_on_any_number_of_ranks(results: Runs, name: str, ranks: int) -> None:
    """Mutations: a sum in order of arrival; a random number of a rank; a client's state kept by its rank; messages,
    items or memories sent to i mod P; a method's `loads` of the rank's own clients only."""
    alone, spread = (records.load(results(name, on)) for on in (0, ranks))
    assert spread.attrs["ranks"] == ranks and alone.attrs["ranks"] == 1
    assert np.linalg.norm(alone.final["x"]) > 0
    assert compared(alone, spread) == []


def test_processes_have_the_bits_of_threads(results: Runs) -> None:
    """All methods go through the same messages: tests/mpi. Mutation: another reduction under mpirun."""
    for name in PROCESSES:
        assert records.load(results(name, 2)).attrs["ranks"] == 2
        assert differences(results(name, 0), results(name, 2)) == [], name


def clients_on_ranks(out: Path) -> list[int]:
    """Clients on each client rank."""
    return [int(row["clients"]) for row in records.load(out).placements if row["rank"]]


def test_the_table_of_ranks_tells_where_clients_live(results: Runs) -> None:
    """Mutations: i mod P in the table; loads that no rank is told of."""
    for ranks in (3, 5):
        equal, own = (place_clients(5, ranks - 1, loads) for loads in (None, Loads(TAU)))
        expected = [own.count(rank) for rank in range(1, ranks)]
        assert clients_on_ranks(results("scaffold-softmax", ranks)) == expected
        assert expected != [equal.count(rank) for rank in range(1, ranks)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_work_that_is_no_number_of_each_client_is_told_in_a_sentence(
    ranks: int, monkeypatch: Patch, capsys: Capsys
) -> None:
    """Mutation: it is looked at where ranks already wait for each other."""
    monkeypatch.setattr(Scaffold, "loads", lambda self: Loads([1.0, 2.0]))
    assert run_module(ranks, FAMILY, *command("scaffold", "toy"), "--quiet") == 2
    told = capsys.readouterr().err
    assert told == "zofl_mpi: Scaffold.loads(): work must be 5 finite numbers, one for each client, at least 0\n"


def test_what_must_differ_does_and_nothing_else(results: Runs) -> None:
    """Solutions in place of scalars give the same model, but for the bytes; a network computes one client at a time."""
    usual = results("usual", 0)
    assert differences(usual, results("vectors", 0)) == ["clients/bytes_up"]
    assert differences(usual, results("memories", 0)) != []
    assert {"final/x", "rounds/test_loss"} <= set(differences(usual, results("seed", 0)))
    assert records.load(results("network", 0)).attrs["kernel"] == "torch cpu"


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_moves_and_reports_what_it_describes(results: Runs, method: str, problem: str) -> None:
    """All share the columns that a table compares; what is recorded has a unit and a description. Mutation: a column
    renamed in `evaluate` or in `columns` alone."""
    found = records.load(results(f"{method}-{problem}", 0))
    assert set(found.rounds) >= REPORTED
    assert [name for name in found.rounds if not (found.units[name] and found.descriptions[name])] == []
    for name in REPORTED - {"test_accuracy"}:
        values = found.rounds[name]
        assert np.isfinite(values[[0, 2]]).all() and values[0] != values[2], name
    accuracy = found.rounds["test_accuracy"][-1]
    assert 0 <= accuracy <= 1 if problem == "softmax" else np.isnan(accuracy)
    assert np.linalg.norm(found.final["x"]) > 0


@pytest.mark.parametrize("method", METHODS)
def test_what_was_counted_is_what_the_dry_run_announced(results: Runs, method: str, capsys: Capsys) -> None:
    """Mutation: a field more in a message than in the plan."""
    found = records.load(results(f"{method}-softmax", 3))
    counted = sum(int(found.clients[name].sum()) for name in ("bytes_down", "bytes_up"))
    assert here(FAMILY, *command(method, "softmax"), "--dry-run") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bytes down and up, all rounds")]
    assert [int(line.split()[-1].replace(",", "")) for line in lines] == [counted]
    assert (counted == 0) == (method == "server_sgd")


@pytest.mark.parametrize("method", TRAINING)
def test_methods_compared_draw_the_same_participants_and_take_as_many_steps(results: Runs, method: str) -> None:
    """ZO-HFL makes two calls of Algorithm 2 where these take one. Mutation: participants from a stream of its own."""
    one, zohfl = (records.load(results(f"{name}-softmax", 0)) for name in (method, "zo_hfl"))
    assert (2 * one.rounds["local_steps"] == zohfl.rounds["local_steps"]).all()
    asked = [np.asarray(found.clients["messages"]).sum(axis=1) for found in (one, zohfl)]
    assert np.array_equal(*asked) and (asked[0].sum(axis=1) == 3).all()


def test_a_problem_without_a_smooth_loss_is_refused(capsys: Capsys) -> None:
    for method in {*METHODS} - {"zo_hfl"}:
        sentence = f"--method {method} needs a Smooth problem; --problem corner offers Hierarchical"
        assert refused(capsys, FAMILY, "--method", method, "--problem", "corner") == sentence


@pytest.mark.parametrize(
    ("method", "problem"),
    [*((method, "softmax") for method in TRAINING), *(("fedavg", problem) for problem in ("features", "mlp", "cnn"))],
)
def test_a_server_may_hold_nothing(tmp_path: Path, method: str, problem: str) -> None:
    """Nobody's report then has a number for it. Mutations: a mean over no samples; nan in what is compared."""
    out = tmp_path / "a.h5"
    own = ["--method", method, "--problem", problem, "--server-fraction", 0, "--batch", 0]
    assert here(FAMILY, *own, "--m", 3, "--tau", 1, "--rounds", 2, "--quiet", "--out", out) == 0
    rounds = records.load(out).rounds
    assert np.isnan(rounds["f1"]).all()
    assert all(np.isfinite(rounds[name]).all() for name in REPORTED - {"f1"})
    np.testing.assert_allclose(rounds["train_loss"], rounds["objective"], rtol=1e-12)
