"""[B]'s figure 2, complexity, theory and bias: from tiny real results, and against what is computed by hand."""

from __future__ import annotations

import importlib
import json
import math
import statistics
from pathlib import Path
from typing import Any

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.produced import produce
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.numerics import zo
from zofl_mpi.problems.known.nonsmooth import Bowls, MaxAffine
from zofl_mpi.rounds.lower import Lower
from zofl_mpi.rounds.zeroth_order import Local
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose, Streams

FLAGS = {"method": "fedrzo_bl", "data": "digits", "m": 3, "rounds": 3, "eval_every": 2, "batch": 0}
SEEDS = (1, 2, 3)
GRIDS: dict[str, tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]] = {
    "hyper": (
        {"problem": "hyperparameter", "eta": 0.005, "gamma": 0.005, "lower": "exact"},
        {"H": {"1": {"H": 1}, "5": {"H": 5}}},
    ),
    "fair": (
        {"problem": "fair", "gamma": 1e-3, "lower": "exact", "exact": True},
        {
            "H": {"1": {"H": 1}, "5": {"H": 5}},
            "goal": {"fair": {"lam": 0.1}, "mean": {"lam": 1000.0, "y_set": "simplex"}},
        },
    ),
}


def toml(name: str) -> str:
    """A grid file."""
    fixed, axes = GRIDS[name]
    lines = ['module = "zofl_mpi.fedrzo"', f'name = "{name}-{"-".join("{" + axis + "}" for axis in axes)}-s{{seed}}"']
    lines += ["[fixed]", *(f"{key} = {json.dumps(value)}" for key, value in (FLAGS | fixed).items())]
    lines += ["[axes]", f"seed = {list(SEEDS)}"]
    for axis, entries in axes.items():
        for entry, changes in entries.items():
            lines += [f'[axes.{axis}."{entry}"]', *(f"{key} = {json.dumps(value)}" for key, value in changes.items())]
    return "\n".join([*lines, *(["[[skip]]", 'goal = "mean"', 'H = "1"'] if "goal" in axes else [])]) + "\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the grid files and all their results."""
    folder = tmp_path_factory.mktemp("made")
    paths = [folder / f"{name}.toml" for name in GRIDS]
    for path in paths:
        path.write_text(toml(path.stem))
    produce(paths, folder / "results")
    return folder


def words(folder: Path, names: list[str], out: Path, *more: str) -> list[str]:
    grids = [str(folder / f"{name}.toml") for name in names]
    return ["--grid", *grids, "--results", str(folder / "results"), "--out", str(out), *more]


def column(folder: Path, stem: str, name: str) -> list[list[float]]:
    """Straight from the files: the evaluated numbers, for each seed."""
    found = []
    for seed in SEEDS:
        with h5py.File(folder / "results" / f"{stem}-s{seed}.h5") as file:
            found.append([float(v) for v in file["rounds"][name][()] if not math.isnan(v)])
    return found


def check_figure(stem: Path) -> None:
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


# --- figure 2


def test_figure_2_draws_means_and_students_intervals(made: Path, script: Any) -> None:
    """Mutations: the interval of one run in place of the mean's; a normal quantile; n in place of n - 1."""
    module, study = script("b_fig2"), importlib.import_module("study")
    flags = study.parser("x", "", []).parse_args(words(made, ["hyper", "fair"], made))
    figure = module.draw(study.read("x", flags, ("H", "goal")))
    wanted = [
        ("hyper-1", "test_loss", "$H$ = 1"),
        ("hyper-5", "test_loss", "$H$ = 5"),
        ("fair-1-fair", "objective_exact", "$H$ = 1"),
        ("fair-5-fair", "objective_exact", "$H$ = 5"),
        ("fair-5-fair", "test_worst_class_loss", "classes weighted by $y$"),
        ("fair-5-mean", "test_worst_class_loss", "classes' mean loss"),
    ]
    lines = [(line, band) for panel in figure.axes for line, band in zip(panel.lines, panel.collections, strict=True)]
    assert [len(panel.lines) for panel in figure.axes] == [2, 2, 2]
    for (line, band), (stem, name, label) in zip(lines, wanted, strict=True):
        values = column(made, stem, name)
        last = [v[-1] for v in values]
        half = 4.303 * statistics.stdev(last) / math.sqrt(3)
        assert line.get_label() == label and line.get_xdata().tolist() == [1, 2, 3]
        assert line.get_ydata() == pytest.approx(np.mean(values, axis=0), rel=1e-12)
        heights = [y for x, y in band.get_paths()[0].vertices if x == 3]
        assert min(heights) == pytest.approx(statistics.mean(last) - half, rel=1e-9)
        assert max(heights) == pytest.approx(statistics.mean(last) + half, rel=1e-9)
    plt.close(figure)


def test_figure_2_tells_and_writes_its_numbers(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("b_fig2").main(words(made, ["hyper", "fair"], tmp_path / "f"))
    told = capsys.readouterr()
    assert told.err == "" and (tmp_path / "f.txt").read_text() in told.out
    check_figure(tmp_path / "f")
    body = [line.split() for line in told.out.split("\n")]
    values = column(made, "hyper-5", "test_loss")
    half = 4.303 * statistics.stdev([v[-1] for v in values]) / math.sqrt(3)
    means = np.mean(values, axis=0)
    level = np.mean(column(made, "hyper-1", "test_loss"), axis=0)[-1]
    first = 1 + int(np.flatnonzero(means <= level)[0])
    numbers = [f"{means[0]:.4g}", f"{means[-1]:.4g}", f"{half:.4g}", "3", str(first)]
    assert ["hyperparameter", "test_loss", "H", "=", "5", *numbers] in body
    for said in ("hyperparameter: 3 rounds; 3 seeds", "fair: 3 rounds; 3 seeds", "m 3"):
        assert said in " ".join(told.out.split())


def test_figure_2_of_one_problem_has_one_panel(made: Path, tmp_path: Path, script: Any) -> None:
    module, study = script("b_fig2"), importlib.import_module("study")
    flags = study.parser("x", "", []).parse_args(words(made, ["hyper"], tmp_path))
    figure = module.draw(study.read("x", flags, ("H", "goal")))
    assert [panel.get_ylabel() for panel in figure.axes] == ["test loss (nat)"]
    plt.close(figure)


def test_figure_2_refuses_a_grid_without_local_steps(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (made / "hyper.toml").read_text().replace("[axes.H.", "[axes.steps.").replace("{H}", "{steps}")
    (tmp_path / "other.toml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        script("b_fig2").main(["--grid", str(tmp_path / "other.toml"), "--out", str(tmp_path / "f")])
    assert caught.value.code == 2 and "has the axis steps" in capsys.readouterr().err


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (11, 2.228), (12, 2.201), (31, 2.042), (1001, 1.962)])
def test_the_quantiles_are_students(script: Any, n: int, t: float) -> None:
    values = np.random.default_rng(n).standard_normal((n, 1))
    wanted = t * statistics.stdev(values[:, 0].tolist()) / math.sqrt(n)
    assert script("b_fig2").interval(values)[0] == pytest.approx(wanted, rel=2e-3)


def test_one_seed_has_no_interval(script: Any) -> None:
    assert np.isnan(script("b_fig2").interval(np.ones((1, 4)))).all()


# --- complexity


@pytest.mark.parametrize(("K", "m", "upper", "calls"), [(4096, 8, 2048, 8), (2**20, 8, 149797, 8), (1000, 1, 167, 1)])
def test_the_rounds_of_local_sgd_are_those_of_the_printed_formulas(
    script: Any, K: int, m: int, upper: int, calls: int
) -> None:
    """H = ceil((K/m^3)^(1/4)), R = ceil(K/H); T is so long that ceil(T/ceil(T/m)) = m in every call."""
    found = script("b_complexity").count("Local SGD", K, m)
    assert found.upper == upper
    assert found.lower == pytest.approx(2 * calls * upper, rel=1e-9)


def test_the_sum_over_some_rounds_is_near_that_over_all(script: Any) -> None:
    module = script("b_complexity")
    for name in ("FedAC-I", "LFD, T of Thm 1", "LFD, T of Alg. 3"):
        solver = module.METHODS[name][0]
        exact = 0
        for r in range(20_000):
            schedule = solver.schedule(module.Curvature(), np.zeros(1), r, 8)
            exact += -(-schedule.T // schedule.H)
        assert module.summed(solver, module.Curvature(), 20_000, 8, 400) == pytest.approx(exact, rel=0.01)
        assert module.summed(solver, module.Curvature(), 20_000, 8, 20_000) == exact


def test_a_run_sends_as_many_messages_as_the_schedules_say(script: Any) -> None:
    module = script("b_complexity")
    for name in module.METHODS:
        found = module.measured(name, 16, 2)
        assert found.counted == (found.upper, found.lower)
        assert (found.counted[1] > 0) == (name != "upper level")


def test_a_run_that_differs_from_its_schedules_is_told(script: Any) -> None:
    module = script("b_complexity")
    told = module.checked([module.Count("FedAC-I", 16, 2, 8, 32.0, (8, 31)), module.Count("x", 16, 2, 8, 0.0, (8, 0))])
    assert told.startswith("2 runs, their messages counted: 1 differ") and "FedAC-I, K = 16, m = 2" in told


def test_the_exponents(script: Any) -> None:
    """K of the paper, long runs; LFD's is reached with the T of Theorem 1, not with Algorithm 3's."""
    module = script("b_complexity")
    slopes = {n: module.slope([module.count(n, K, 8, 300) for K in module.LONG], "K") for n in module.METHODS}
    for name in ("upper level", "Local SGD", "FedAC-I"):
        assert slopes[name] == pytest.approx(0.75, abs=0.01)
    assert slopes["LFD, T of Thm 1"] == pytest.approx(11 / 12, abs=0.04)
    assert slopes["LFD, T of Alg. 3"] > 0.98


def test_complexity_is_drawn_and_written(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("b_complexity")
    monkeypatch.setattr(module, "TERMS", 50)
    monkeypatch.setattr(module, "RUNS", ((16, 2),))
    module.main(["--out", str(tmp_path / "c")])
    assert "5 runs, their messages counted: 0 differ" in capsys.readouterr().out
    check_figure(tmp_path / "c")
    assert len((tmp_path / "c.csv").read_text().split("\n")) == 2 + 5 * (len(module.SHORT) + len(module.LONG) + 4 + 1)


# --- theory


@pytest.mark.parametrize("name", ["bowls", "kinks"])
def test_all_runs_at_once_are_algorithm_1(script: Any, name: str) -> None:
    """With the directions and samples that the package draws, iterate for iterate; mutations: eta, n, the mean, H."""
    module, K, m = script("b_theory"), 1024, 4
    family, seeds = getattr(module, name)(m), (1, 2)
    generator = np.random.default_rng(0)
    noise = generator.standard_normal(family.noise.shape)
    family = module.replace(family, noise=noise - noise.mean(axis=1, keepdims=True))
    make = {"bowls": Bowls.random, "kinks": MaxAffine.random}[name]
    problem, _, data = make(Streams(1), 2, m)  # type: ignore[operator]
    data = tuple(module.replace(own, noise=family.noise[i]) for i, own in enumerate(data))
    local = Local(K=K, eta=0.1, batch=1, x0="zero")

    def draw(r: int, H: int) -> tuple[Any, Any]:
        v, batch = np.empty((2, m, H, 2)), np.empty((2, m, H), np.int64)
        for s, seed in enumerate(seeds):
            for i in range(m):
                own = Streams(seed)(Purpose.DIRECTION, r=r, i=i)
                v[s, i] = [zo.direction(own, 2) for _ in range(H)]
                batch[s, i] = Streams(seed)(Purpose.BATCH, r=r, i=i).integers(len(data[i]), size=(H, 1))[:, 0]
        return v, batch

    points = module.course(family, local, 40, draw)
    H = local.steps(m)
    assert H == 2 and points.shape == (40, 2, 2)
    for s, seed in enumerate(seeds):
        method = FedRZONN(Setting(problem, Streams(seed), data, dtype=np.float64), local)
        clients, state = LocalClients(list(data)), method.start()
        for r in range(20):
            assert points[r * H, s] == pytest.approx(state.x, abs=1e-12)
            state = method.round(state, r, clients)
    assert np.abs(points[-1] - points[0]).max() > 0.1


@pytest.mark.parametrize("name", ["bowls", "kinks", "alike"])
def test_the_gradients_of_the_theory_are_those_of_the_smoothed_losses(script: Any, name: str) -> None:
    """Against differences of f^eta, which is integrated over the disc."""
    module = script("b_theory")
    family = getattr(module, name)(3)
    radius, angle = np.sqrt((np.arange(60) + 0.5) / 60), 2 * np.pi * (np.arange(240) + 0.5) / 240
    disc = (radius[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)).reshape(-1, 2)

    def smoothed(x: Any) -> float:
        return float(family.losses((x + module.ETA * disc)[:, None]).mean())

    for x in (np.array([0.3, -0.2]), np.array([-1.0, 0.7])):
        around = [(smoothed(x + 1e-3 * e) - smoothed(x - 1e-3 * e)) / 2e-3 for e in np.eye(2)]
        assert family.gradient(x[None])[0] == pytest.approx(around, abs=0.02)


def test_smoothing_costs_what_lemma_1_allows(script: Any) -> None:
    module = script("b_theory")
    for eta in (0.01, 0.3):
        gap, bound = module.kink(eta)
        assert 0 < gap <= bound
    lines = module.smoothing((0.01, 0.1))
    assert [round(line.slope, 1) for line in lines] == pytest.approx([1.0, 1.0, 1.0], abs=0.11)
    # E max(w, 0) over the unit ball in three dimensions is 3/16, in each component
    assert lines[1].y[1] == pytest.approx(0.1 * 3 / 16 * math.sqrt(3), rel=0.1)


def test_theory_is_drawn_and_written(tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = script("b_theory")
    module.main(["--seeds", "2", "--powers", "6", "7", "8", "--clients", "1", "2", "--out", str(tmp_path / "t")])
    out = capsys.readouterr().out
    check_figure(tmp_path / "t")
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text().strip().split("\n")]
    assert len(rows) == 1 + 3 * len(module.ETAS) + 2 * 3 + 2 * 2
    assert "mean over 2 runs" in " ".join(out.split()) and f"{float(rows[1][4]):+.3f}" in out


# --- bias


def test_local_steps_bias_the_lower_level_and_move_the_upper_one(script: Any) -> None:
    module = script("b_bias")
    paper = module.run(Lower("local_sgd", "60", "paper", batch_lower=0), 60, 1)
    fair = module.run(Lower("local_sgd", "60", "1", batch_lower=0), 60, 1)
    exact = module.run(Lower("exact"), 60, 1)
    assert exact.error < 1e-14 and exact.residual < 1e-12
    assert fair.error < 0.02 and paper.error > 0.05
    assert fair.residual < paper.residual
    assert abs(fair.distance - exact.distance) < 0.1 * abs(paper.distance - exact.distance)


def test_the_table_of_the_bias_is_the_mean_over_seeds(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("b_bias")
    monkeypatch.setattr(module, "SOLVERS", {"exact": Lower("exact"), "none": Lower("local_sgd", "0")})
    module.main(["--rounds", "4", "--seeds", "1", "2", "--out", str(tmp_path / "b")])
    told = capsys.readouterr().out
    check_figure(tmp_path / "b")
    courses = [module.run(Lower("exact"), 4, seed) for seed in (1, 2)]
    gap = statistics.mean(float(course.gap[-1]) for course in courses)
    assert f"{gap:.2e}" in told and f"{statistics.mean(c.distance for c in courses):.2e}" in told
    assert "1.00e+00" in next(line for line in told.split("\n") if line.startswith("none"))  # y = 0
