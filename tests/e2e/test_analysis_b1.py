"""[B]'s figure 1 and the comparison of methods from tiny real results: the numbers are those computed by hand."""

from __future__ import annotations

import csv
import importlib
import json
import math
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.conftest import ROOT, environment, run_process
from tests.produced import produce
from zofl_mpi.run import grid

FIXED = 'problem = "relu_net"\ndata = "digits"\nm = 3\nrounds = 5\neval_every = 2\nbatch = 8\n'
HEAD = 'module = "zofl_mpi.fedrzo"\n'
GRIDS = {
    "figure": f"""{HEAD}[fixed]
method = "fedrzo_nn"
gamma = 0.001
{FIXED}
[axes]
seed = [1, 2]
eta = [0.1, 0.01]
H = [1, 6]
""",
    "scales": f"""{HEAD}[fixed]
method = "fedrzo_nn"
{FIXED}
[axes]
seed = [1, 2]
H = [6]
[axes.reading]
mean = {{ loss-scale = "mean", gamma = 0.001 }}
sum = {{ loss-scale = "sum", gamma = 0.001 }}
""",
    "methods": f"""{HEAD}[fixed]
{FIXED}
[axes]
seed = [1, 2]
rectifier = [10, 1]
[axes.method]
fedrzo = {{ method = "fedrzo_nn", H = 2 }}
fedrzo-16 = {{ method = "fedrzo_nn", H = 2, n-p = 3 }}
fedavg = {{ method = "fedavg", tau = 2, schedule-h = "constant", schedule-local = "constant" }}
scaffnew = {{ method = "scaffnew", p = 0.5 }}
[axes.step]
"1e-4" = {{ gamma = 1e-4 }}
"1e-3" = {{ gamma = 1e-3 }}
"0.001" = {{ gamma-local = 0.001 }}
"0.05" = {{ gamma-local = 0.05 }}
[[skip]]
method = ["fedrzo", "fedrzo-16"]
rectifier = 1
[[skip]]
method = ["fedrzo", "fedrzo-16"]
step = ["0.001", "0.05"]
[[skip]]
method = ["fedavg", "scaffnew"]
step = ["1e-4", "1e-3"]
[[skip]]
method = "fedrzo-16"
step = "1e-4"
[[skip]]
method = "scaffnew"
step = "0.001"
""",
}
SUM = ["--rows", "H", "--lines", "reading", "--column", "test_loss", "--log"]
EVALUATED = [1, 2, 4, 5]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the grid files, and the results of each in a folder of its name."""
    folder = tmp_path_factory.mktemp("made")
    for name, text in GRIDS.items():
        path = folder / f"{name}.toml"
        path.write_text(text)
        produce([path], folder / name, timeout=240)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "place"))


def words(folder: Path, name: str, out: Path, *more: str) -> list[str]:
    return ["--grid", str(folder / f"{name}.toml"), "--results", str(folder / name), "--out", str(out), *more]


def results(folder: Path, name: str, **where: str) -> list[Path]:
    """The results of a group, one per seed."""
    runs = grid.read(folder / f"{name}.toml", folder / name).runs
    found = [run.out for run in runs if all(run.coordinates[axis] == entry for axis, entry in where.items())]
    assert len(found) == 2
    return found


def column(folder: Path, grid_name: str, column_name: str, **where: str) -> Any:
    """(2, 5) straight from the files."""
    found = []
    for path in results(folder, grid_name, **where):
        with h5py.File(path) as file:
            found.append(file["rounds"][column_name][()])
    return np.array(found)


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def groups_of(module: Any, folder: Path, name: str, *more: str) -> tuple[list[Any], Any]:
    """A script's groups, and its flags."""
    study = importlib.import_module("study")
    made = module.parser() if hasattr(module, "parser") else study.parser("x", "", [])
    flags = made.parse_args(words(folder, name, folder, *more))
    known = (flags.rows, flags.lines) if hasattr(flags, "rows") else module.AXES
    return study.read("x", flags, ("data", *known)), flags


def refused(main: Callable[[list[str]], None], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a script that ends with status 2 and prints nothing else."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    told = capsys.readouterr()
    assert caught.value.code == 2 and told.out == "" and "Traceback" not in told.err
    return told.err.strip().split("\n")


# --- figure 1


def test_figure_1_tells_first_last_and_how_soon(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("b_fig1").main(words(made, "figure", tmp_path / "f"))
    told = capsys.readouterr()
    rows = table_of(tmp_path / "f.csv")
    assert told.err == "" and "5 rounds; 2 seeds" in told.out and told.out.split()[-1] == str(tmp_path / "f.png")
    assert [(row["eta"], row["H"]) for row in rows] == [(e, h) for e in ("0.1", "0.01") for h in ("1", "6")]
    at = np.array(EVALUATED) - 1
    for row in rows:
        values = column(made, "figure", "objective", eta=row["eta"], H=row["H"])
        assert np.isnan(np.delete(values, at, axis=1)).all()
        assert float(row["first"]) == pytest.approx(values[:, 0].mean(), rel=1e-14)
        assert float(row["last"]) == pytest.approx(values[:, -1].mean(), rel=1e-14)
        assert float(row["last_sd"]) == pytest.approx(statistics.stdev(values[:, -1]), rel=1e-12)
        others = [column(made, "figure", "objective", eta=row["eta"], H=h).mean(axis=0)[at] for h in ("1", "6")]
        level = max(curve[-1] for curve in others if curve[-1] < curve[0])
        mine = values.mean(axis=0)[at]
        soon = [r for r, value in zip(EVALUATED, mine, strict=True) if value <= level]
        assert row["reached_in_round"] == (str(float(soon[0])) if soon else "")
        assert row["in_local_steps"] == (str(soon[0] * float(row["H"])) if soon else "")
        assert (row["rounds"], row["seeds"], row["seeds_planned"]) == ("5", "2", "2")


def test_the_lines_and_bands_of_figure_1_are_mean_least_and_largest(made: Path, script: Any) -> None:
    module = script("b_fig1")
    groups, flags = groups_of(module, made, "figure")
    figure = module.draw(groups, flags)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["digits, η = 0.1", "digits, η = 0.01"]
    for panel, eta in zip(figure.axes, ("0.1", "0.01"), strict=True):
        for line, band, steps in zip(panel.get_lines(), panel.collections, ("1", "6"), strict=False):
            values = column(made, "figure", "objective", eta=eta, H=steps)[:, np.array(EVALUATED) - 1]
            assert line.get_label() == f"H = {steps}" and line.get_xdata().tolist() == EVALUATED
            assert np.allclose(line.get_ydata(), values.mean(axis=0), rtol=1e-14)
            heights = band.get_paths()[0].vertices[:, 1]
            assert heights.min() == values.min() and heights.max() == values.max()
    plt.close(figure)


def test_the_sum_is_drawn_beside_the_mean(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("b_fig1")
    module.main(words(made, "scales", tmp_path / "f", *SUM))
    assert capsys.readouterr().err == "" and (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    for row in table_of(tmp_path / "f.csv"):
        values = column(made, "scales", "test_loss", H=row["H"], reading=row["reading"])
        assert float(row["last"]) == pytest.approx(values[:, -1].mean(), rel=1e-14)
    groups, flags = groups_of(module, made, "scales", *SUM)
    figure = module.draw(groups, flags)
    assert {panel.get_yscale() for panel in figure.axes} == {"log"}
    assert [line.get_label() for line in figure.axes[0].get_lines()[:2]] == ["mean, γ = 1e-5", "sum, γ = 1e-5"]
    plt.close(figure)


@pytest.mark.parametrize(
    ("values", "level", "expected"),
    [([3, 2, 1, 1], 2.0, 2.0), ([3, 2, 1, 1], 0.5, math.nan), ([3, 2, 1, 1], math.nan, math.nan), ([1, 2], 1.5, 1.0)],
)
def test_a_level_is_reached_in_the_first_round_below_it(
    script: Any, values: list[float], level: float, expected: float
) -> None:
    from tests.unit.test_study import group

    module = script("b_fig1")
    found = module.reach(group(importlib.import_module("study"), values), "test_accuracy", level)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


# --- methods


def test_all_methods_are_measured_on_the_same_nonsmooth_objective(made: Path, script: Any) -> None:
    """The column is the true rectifier's objective at the last x; the one that FedAvg descends on is another."""
    from zofl_mpi.problems.relu_net import ReLUNet
    from zofl_mpi.run import records
    from zofl_mpi.run.streams import Streams
    from zofl_mpi.run.world import SingleProcess
    from zofl_mpi.settings.samples import Samples

    where = {"method": "fedavg", "rectifier": "1", "step": "0.05"}
    path = results(made, "methods", **where)[0]
    run = records.load(path)
    federation = Samples(data="digits", m=3, server_fraction=0.0).federation(SingleProcess(), Streams(1))
    problem = ReLUNet(federation.test.features, rectifier=1.0)
    x = run.final["x"]
    losses = [problem.losses(i, x[None], data)[0] for i, data in enumerate(federation.clients)]
    sizes = [len(data) for data in federation.clients]
    told = run.rounds["objective_nonsmooth"][-1]
    assert told == pytest.approx(float(np.average(losses, weights=sizes)), rel=1e-12)
    assert run.rounds["test_smooth_loss"][-1] == pytest.approx(
        problem.score(x, federation.test)["smooth_loss"], rel=1e-12
    )
    assert abs(told - run.rounds["objective"][-1]) > 1e-3


def test_other_problems_have_no_column_of_a_twin(tmp_path: Path) -> None:
    out = tmp_path / "r.h5"
    flags = ["--method", "fedavg", "--problem", "bowls", "--rounds", "1", "--out", str(out), "--quiet"]
    done = run_process([sys.executable, "-m", "zofl_mpi.fedrzo", *flags])
    assert done.returncode == 0, done.stderr
    with h5py.File(out) as file:
        assert "objective" in file["rounds"]
        assert not {"objective_nonsmooth", "test_smooth_loss"} & set(file["rounds"])


def test_the_best_step_is_that_of_the_lowest_nonsmooth_objective(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script("b_methods").main(words(made, "methods", tmp_path / "m"))
    told = capsys.readouterr()
    rows = table_of(tmp_path / "m.csv")
    assert told.err == "" and len(rows) == 2 + 1 + 2 * 2 + 2
    means: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        where = {axis: row[axis] for axis in ("method", "rectifier", "step")}
        name = "objective" if row["method"].startswith("fedrzo") else "objective_nonsmooth"
        values = column(made, "methods", name, **where)[:, -1]
        means.setdefault((row["method"], row["rectifier"]), {})[row["step"]] = values.mean()
        assert float(row["nonsmooth_mean"]) == pytest.approx(values.mean(), rel=1e-14)
        smooth = column(made, "methods", "test_smooth_loss", **where)[:, -1].mean()
        assert float(row["smooth_test_mean"]) == pytest.approx(smooth, rel=1e-14)
    for row in rows:
        steps = means[row["method"], row["rectifier"]]
        assert row["best"] == str(row["step"] == min(steps, key=lambda step: steps[step]))
    assert told.out.split("Each method")[0].count(" *") == len(means) + 1  # the title says what the star means


def test_the_evaluations_are_those_of_the_local_steps(made: Path, script: Any) -> None:
    module = script("b_methods")
    groups, _ = groups_of(module, made, "methods")
    for group in groups:
        found = module.evaluations(group)
        if group.entry("method").startswith("fedrzo"):  # 3 clients, 2 steps of 8 samples
            points = 2 if group.entry("method") == "fedrzo" else 4
            assert found.tolist() == [3 * 2 * 8 * points * r for r in range(1, 6)]
        elif group.entry("method") == "fedavg":
            assert found.tolist() == [3 * 2 * 8 * 2 * r for r in range(1, 6)]
        else:
            steps = column(made, "methods", "local_steps", **group.where).mean(axis=0)
            assert found == pytest.approx(np.cumsum(steps) * 8 * 2)


def test_fedrzo_is_drawn_beside_each_sharpness(made: Path, script: Any) -> None:
    module = script("b_methods")
    groups, _ = groups_of(module, made, "methods")
    best = module.chosen(groups)
    figure = module.draw(best)
    assert len(figure.axes) == 6
    for panel, sharpness in zip(figure.axes[::3], ("10", "1"), strict=True):
        assert panel.get_title(loc="left") == f"digits, smooth twin's sharpness {sharpness}"
        lines = {line.get_label(): line for line in panel.get_lines()}
        assert list(lines) == ["FedRZO", "FedRZO, 16 directions", "FedAvg", "Scaffnew"]
        (fedavg,) = [g for g in best if g.entry("method") == "fedavg" and g.entry("rectifier") == sharpness]
        values = column(made, "methods", "objective_nonsmooth", **fedavg.where)[:, np.array(EVALUATED) - 1]
        assert np.allclose(lines["FedAvg"].get_ydata(), values.mean(axis=0))
    assert [panel.get_xscale() for panel in figure.axes[:3]] == ["linear", "linear", "log"]
    plt.close(figure)


# --- both


@pytest.mark.parametrize(("name", "grid_name"), [("b_fig1", "figure"), ("b_methods", "methods")])
def test_a_missing_seed_is_refused_and_marked_with_partial(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], name: str, grid_name: str
) -> None:
    main, total = script(name).main, len(grid.read(place / f"{grid_name}.toml", place / grid_name).runs)
    gone = grid.read(place / f"{grid_name}.toml", place / grid_name).runs[0]
    gone.out.unlink()
    lines = refused(main, words(place, grid_name, tmp_path / "t"), capsys)
    assert len(lines) == 2 and gone.name in lines[0]
    assert lines[1].endswith(f"1 of {total} results cannot be used; --partial goes on without them")
    assert list(tmp_path.glob("t.*")) == []
    main(words(place, grid_name, tmp_path / "t", "--partial"))
    assert gone.name in capsys.readouterr().err
    assert [row["seeds"] for row in table_of(tmp_path / "t.csv")].count("1") == 1


@pytest.mark.parametrize(("name", "grid_name"), [("b_fig1", "figure"), ("b_methods", "methods")])
def test_a_group_without_any_seed_stays_in_the_table(
    place: Path, tmp_path: Path, script: Any, name: str, grid_name: str
) -> None:
    first = grid.read(place / f"{grid_name}.toml", place / grid_name).runs[0]
    for path in results(place, grid_name, **{k: v for k, v in first.coordinates.items() if k != "seed"}):
        path.unlink()
    script(name).main(words(place, grid_name, tmp_path / "t", "--partial"))
    assert [row["seeds"] for row in table_of(tmp_path / "t.csv")].count("0") == 1


@pytest.mark.parametrize(("name", "grid_name"), [("b_fig1", "methods"), ("b_methods", "figure"), ("b_fig1", "scales")])
def test_a_grid_of_another_figure_is_refused(
    made: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], name: str, grid_name: str
) -> None:
    (line,) = refused(script(name).main, words(made, grid_name, tmp_path / "t"), capsys)
    assert line.startswith(f"{name}: ") and f"{grid_name}.toml has the axis" in line and "averaged over" in line


@pytest.mark.parametrize(("name", "grid_name"), [("b_fig1", "figure"), ("b_methods", "methods")])
def test_a_seed_of_another_configuration_is_refused(
    place: Path, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str], name: str, grid_name: str
) -> None:
    mixed = grid.read(place / f"{grid_name}.toml", place / grid_name).runs[0]
    with h5py.File(mixed.out, "r+") as file:
        config = json.loads(file.attrs["config"])
        file.attrs["config"] = json.dumps(config | {"batch": 2 * config["batch"]})
    lines = refused(script(name).main, words(place, grid_name, tmp_path / "t"), capsys)
    assert len(lines) == 2 and mixed.name in lines[0] and "cannot be used" in lines[-1]


def test_the_step_is_chosen_on_the_seeds_that_all_steps_have(script: Any) -> None:
    from tests.unit.test_study import group

    module, study = script("b_methods"), importlib.import_module("study")
    every = group(study, [0.3], [0.9], where={"method": "fedavg", "step": "all"}, data="d", rectifier=1)
    one = group(study, [0.4], where={"method": "fedavg", "step": "one"}, data="d", rectifier=1)
    runs = [
        replace(run, config={"seed": seed}, rounds={"objective_nonsmooth": run.rounds["test_accuracy"]})
        for run, seed in zip([*every.runs, *one.runs], (1, 2, 1), strict=True)
    ]
    every, one = replace(every, runs=tuple(runs[:2])), replace(one, runs=tuple(runs[2:]))
    assert module.chosen([every, one]) == [every]  # 0.3 < 0.4 on seed 1, although its mean is 0.6


def test_the_grids_of_the_repository_are_those_of_the_scripts(script: Any) -> None:
    for name, needed in (("b_fig1", {"eta", "H"}), ("b_fig1_sum", {"reading", "H"}), ("b_methods", {"method", "step"})):
        study = grid.read(ROOT / "jobs" / f"{name}.toml")
        assert needed <= set(study.axes) and study.folder == Path(f"results/{name}")
    figure = grid.read(ROOT / "jobs" / "b_fig1.toml")
    assert (figure.axes["eta"], figure.axes["H"]) == (("0.1", "0.01", "0.001"), ("1", "5", "10", "20"))
    names = script("b_methods").NAMES
    for name in ("b_methods", "b_methods_cifar"):
        assert set(grid.read(ROOT / "jobs" / f"{name}.toml").axes["method"]) <= set(names)


@pytest.mark.parametrize("name", ["b_fig1", "b_methods"])
def test_a_script_runs_from_any_folder_and_tells_its_flags(tmp_path: Path, name: str) -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "analysis" / f"{name}.py"), "--help"],
        cwd=tmp_path,
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0 and told.stderr == ""
    assert told.stdout.startswith(f"usage: {name} ") and f"analysis/results/{name}" in "".join(told.stdout.split())
